#include "native.h"

#include <string.h>

// The part of SQLite's interface that this file uses (https://www.sqlite.org/c3ref/intro.html). SQLite itself is in the
// Go driver, whose header lies in another module. The functions are weak, because cgo also links each package without
// the others.

enum { SQLITE_CONFIG_MEMSTATUS = 9, SQLITE_OK = 0, SQLITE_UTF8 = 1, SQLITE_MISUSE = 21, SQLITE_ROW = 100, SQLITE_DONE = 101 };

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
typedef void destructor(void *);

#define WEAK __attribute__((weak))
extern int sqlite3_bind_int64(sqlite3_stmt *, int, long long) WEAK;
extern int sqlite3_bind_double(sqlite3_stmt *, int, double) WEAK;
extern int sqlite3_bind_text64(sqlite3_stmt *, int, const char *, unsigned long long, destructor *, unsigned char) WEAK;
extern int sqlite3_bind_blob64(sqlite3_stmt *, int, const void *, unsigned long long, destructor *) WEAK;
extern int sqlite3_step(sqlite3_stmt *) WEAK;
extern int sqlite3_reset(sqlite3_stmt *) WEAK;
extern int sqlite3_clear_bindings(sqlite3_stmt *) WEAK;
extern int sqlite3_changes(sqlite3 *) WEAK;
extern int sqlite3_config(int, ...) WEAK;

int store_usable(void) {
	return sqlite3_bind_int64 && sqlite3_bind_double && sqlite3_bind_text64 && sqlite3_bind_blob64 && sqlite3_step &&
		sqlite3_reset && sqlite3_clear_bindings && sqlite3_changes;
}

void store_configure(void) {
	if (sqlite3_config)
		sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
}

static uint64_t word(const unsigned char *at) {
	uint64_t w;
	memcpy(&w, at, sizeof w);
	return w;
}

static const void *address(const unsigned char *at) { return (const void *)(uintptr_t)word(at); }

// SQLite copies neither texts nor blobs: they stay where they are until the statement has run.

static int bind_text(sqlite3_stmt *statement, int ordinal, const void *text, uint64_t size) {
	return sqlite3_bind_text64(statement, ordinal, text, size, 0, SQLITE_UTF8);
}

static int bind_blob(sqlite3_stmt *statement, int ordinal, const void *blob, uint64_t size) {
	return sqlite3_bind_blob64(statement, ordinal, blob, size, 0);
}

// bind binds the arguments from at to end.
static int bind(sqlite3_stmt *statement, const unsigned char *at, const unsigned char *end) {
	int rc = SQLITE_OK;
	while (at < end && rc == SQLITE_OK) {
		uint64_t head = word(at);
		int ordinal = head >> 8 & 0xffff;
		uint64_t size = head >> 24;
		double real;
		at += 8;
		switch (head & 0xff) {
		case STORE_INTEGER:
			rc = sqlite3_bind_int64(statement, ordinal, (long long)word(at));
			at += 8;
			break;
		case STORE_REAL:
			memcpy(&real, at, sizeof real);
			rc = sqlite3_bind_double(statement, ordinal, real);
			at += 8;
			break;
		case STORE_TEXT:
			rc = bind_text(statement, ordinal, at, size);
			at += size;
			break;
		case STORE_BLOB:
			rc = bind_blob(statement, ordinal, at, size);
			at += size;
			break;
		case STORE_LARGE_TEXT:
			rc = bind_text(statement, ordinal, address(at), size);
			at += 8;
			break;
		case STORE_LARGE_BLOB:
			rc = bind_blob(statement, ordinal, address(at), size);
			at += 8;
			break;
		default:
			rc = SQLITE_MISUSE;
		}
	}
	return rc;
}

int store_run(uintptr_t db, store_call *calls, int n, const unsigned char *arguments, int64_t start) {
	for (int i = 0; i < n; i++) {
		sqlite3_stmt *statement = (sqlite3_stmt *)calls[i].statement;
		sqlite3_reset(statement); // the driver leaves a statement with its arguments
		sqlite3_clear_bindings(statement);
		int rc = bind(statement, arguments + start, arguments + calls[i].end);
		start = calls[i].end;
		if (rc == SQLITE_OK) {
			rc = sqlite3_step(statement);
		}
		if (rc != SQLITE_DONE && rc != SQLITE_ROW) {
			sqlite3_clear_bindings(statement);
			calls[i].outcome = rc;
			return i;
		}
		calls[i].outcome = sqlite3_changes((sqlite3 *)db);
		sqlite3_reset(statement);
		sqlite3_clear_bindings(statement);
	}
	return n;
}
