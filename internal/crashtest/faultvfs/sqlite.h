// The part of SQLite's interface for file systems that the shim uses. SQLite keeps the layout of these
// structures (https://www.sqlite.org/c3ref/vfs.html, https://www.sqlite.org/c3ref/io_methods.html).
// SQLite itself is in the Go driver, whose header lies in another module.

#ifndef FAULTVFS_SQLITE_H
#define FAULTVFS_SQLITE_H

enum {
	SQLITE_OK = 0,
	SQLITE_IOERR = 10,
	SQLITE_FULL = 13,
	SQLITE_CANTOPEN = 14,
	SQLITE_IOERR_SHORT_READ = SQLITE_IOERR | 2 << 8,
	SQLITE_IOERR_WRITE = SQLITE_IOERR | 3 << 8,
	SQLITE_IOERR_FSYNC = SQLITE_IOERR | 4 << 8,
	SQLITE_IOERR_TRUNCATE = SQLITE_IOERR | 6 << 8,
	SQLITE_IOERR_NOMEM = SQLITE_IOERR | 12 << 8,

	SQLITE_OPEN_MAIN_DB = 0x100,
	SQLITE_OPEN_MAIN_JOURNAL = 0x800,
	SQLITE_OPEN_WAL = 0x80000,
};

typedef long long sqlite3_int64;
typedef struct sqlite3_vfs sqlite3_vfs;
typedef struct sqlite3_file sqlite3_file;
typedef struct sqlite3_io_methods sqlite3_io_methods;

struct sqlite3_file {
	const sqlite3_io_methods *methods;
};

struct sqlite3_io_methods {
	int version;
	int (*close)(sqlite3_file *);
	int (*read)(sqlite3_file *, void *, int size, sqlite3_int64 at);
	int (*write)(sqlite3_file *, const void *, int size, sqlite3_int64 at);
	int (*truncate)(sqlite3_file *, sqlite3_int64 size);
	int (*sync)(sqlite3_file *, int flags);
	int (*file_size)(sqlite3_file *, sqlite3_int64 *);
	int (*lock)(sqlite3_file *, int);
	int (*unlock)(sqlite3_file *, int);
	int (*check_reserved_lock)(sqlite3_file *, int *);
	int (*file_control)(sqlite3_file *, int, void *);
	int (*sector_size)(sqlite3_file *);
	int (*device_characteristics)(sqlite3_file *);
	int (*shm_map)(sqlite3_file *, int, int, int, void volatile **); // from here on in version 2
	int (*shm_lock)(sqlite3_file *, int, int, int);
	void (*shm_barrier)(sqlite3_file *);
	int (*shm_unmap)(sqlite3_file *, int);
	int (*fetch)(sqlite3_file *, sqlite3_int64, int, void **); // from here on in version 3
	int (*unfetch)(sqlite3_file *, sqlite3_int64, void *);
};

struct sqlite3_vfs {
	int version;
	int file_bytes; // of a sqlite3_file
	int max_path;
	sqlite3_vfs *next;
	const char *name;
	void *data;
	int (*open)(sqlite3_vfs *, const char *path, sqlite3_file *, int flags, int *out_flags);
	int (*delete)(sqlite3_vfs *, const char *path, int sync_folder);
	void (*others[14])(void); // copied from the default VFS; they use no sqlite3_file
};

// Weak, so that the linker accepts this package without a program that has SQLite.
extern sqlite3_vfs *sqlite3_vfs_find(const char *name) __attribute__((weak));
extern int sqlite3_vfs_register(sqlite3_vfs *, int make_default) __attribute__((weak));

#endif
