// The C side of native.go.

#ifndef STORE_NATIVE_H
#define STORE_NATIVE_H

#include <stdint.h>

// A store_call is one run of a statement.
typedef struct {
	uintptr_t statement; // SQLite's
	int64_t end;         // of its arguments, in bytes from the start of all arguments
	int64_t outcome;     // how many rows it has changed; if it has failed, SQLite's code
} store_call;

// An argument begins with 8 bytes: the kind (8 bits), the ordinal from 1 (16 bits) and the size (40 bits). The value of
// a number follows in 8 bytes, a text or a blob in as many bytes as the size says. For a large one, its address follows
// in 8 bytes.
enum { STORE_INTEGER, STORE_REAL, STORE_TEXT, STORE_BLOB, STORE_LARGE_TEXT, STORE_LARGE_BLOB };

// store_configure has SQLite count none of its memory. The counts cost a lock for each allocation, and so 8 % of the
// processor time of a message. It must be called before the first connection is opened.
void store_configure(void);

// store_usable reports whether the program has all functions of SQLite that store_run calls.
int store_usable(void);

// store_run runs n statements one after the other until one fails, and returns how many have succeeded. The arguments
// of the first one begin at start. No statement refers to an argument afterwards. A statement that has failed is not
// reset: it keeps SQLite's message.
int store_run(uintptr_t db, store_call *calls, int n, const unsigned char *arguments, int64_t start);

#endif
