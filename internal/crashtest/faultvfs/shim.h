#ifndef FAULTVFS_SHIM_H
#define FAULTVFS_SHIM_H

// See Plan in faultvfs.go.
typedef struct {
	long long at;
	int file;
	int write_error, sync_error, truncate_error;
	int lasting;
	int cut;
	int keep;
	unsigned long long seed;
} fault_plan;

enum { FAULT_ANY_FILE, FAULT_DATABASE, FAULT_LOG };
enum { FAULT_KEEP_NONE, FAULT_KEEP_SOME, FAULT_KEEP_TORN };
enum { FAULT_TRACE = 4096 };

typedef struct {
	long long operations, failed;
	char trace[FAULT_TRACE + 1];
} fault_counts;

// fault_register returns 0, or an error code of SQLite; -1 if the program has no SQLite.
int fault_register(void);
void fault_set_plan(const fault_plan *);
void fault_get_counts(fault_counts *);

#endif
