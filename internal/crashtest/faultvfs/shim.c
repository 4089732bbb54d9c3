#define _GNU_SOURCE
#include "shim.h"
#include "sqlite.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECTOR = 512 };

// A change is a write or a truncation that has not been synced.
typedef struct {
	sqlite3_int64 at;           // where the write begins; the new size for a truncation
	sqlite3_int64 size;         // bytes written; -1 for a truncation
	sqlite3_int64 size_before;  // of the file
	sqlite3_int64 lost;         // bytes of before
	unsigned char *before;      // what the change has overwritten or cut off, beginning at `at`
	unsigned char *written;
} change;

// A tracked file is a database, a log or a journal. All handles of a path share it. It lasts as long
// as the process, because a file may be closed before it is synced.
typedef struct tracked {
	struct tracked *next;
	char *path;
	int kind; // FAULT_DATABASE, FAULT_LOG, or FAULT_ANY_FILE for a journal
	change *changes;
	size_t count, capacity;
} tracked;

// A handle is what SQLite allocates for an open file. The handle of the default VFS follows it in memory.
typedef struct {
	sqlite3_file base;
	tracked *file;
} handle;

static sqlite3_vfs *below; // the default VFS
static sqlite3_vfs shim;

// One mutex guards everything below, and is held for the whole of each write, truncation and sync:
// a power cut meets none of them half done, except where the plan asks for it.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static fault_plan plan;
static fault_counts counts;
static tracked *files;

static sqlite3_file *real(sqlite3_file *f) { return (sqlite3_file *)((char *)f + sizeof(handle)); }

static void forget(tracked *t) {
	for (size_t i = 0; i < t->count; i++) {
		free(t->changes[i].before);
		free(t->changes[i].written);
	}
	t->count = 0;
}

static tracked *track(const char *path, int kind) {
	tracked *t;
	for (t = files; t; t = t->next)
		if (strcmp(t->path, path) == 0)
			return t;
	t = calloc(1, sizeof *t);
	if (!t)
		abort();
	t->path = strdup(path);
	t->kind = kind;
	t->next = files;
	return files = t;
}

// random_bits returns the next number of splitmix64.
static unsigned long long random_bits(void) {
	unsigned long long z = (plan.seed += 0x9e3779b97f4a7c15ULL);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

static void put(int fd, const unsigned char *data, sqlite3_int64 size, sqlite3_int64 at) {
	while (size > 0) {
		ssize_t n = pwrite(fd, data, (size_t)size, (off_t)at);
		if (n <= 0)
			abort();
		data += n, size -= n, at += n;
	}
}

static void resize(int fd, sqlite3_int64 size) {
	if (ftruncate(fd, (off_t)size))
		abort();
}

// again applies a change that is among those that reached the disk. A torn write reached it in part.
static void again(int fd, const change *c, int torn) {
	if (c->size < 0) {
		resize(fd, c->at);
		return;
	}
	for (sqlite3_int64 done = 0; done < c->size;) {
		sqlite3_int64 piece = SECTOR - (c->at + done) % SECTOR;
		if (piece > c->size - done)
			piece = c->size - done;
		if (!torn || random_bits() & 1)
			put(fd, c->written + done, piece, c->at + done);
		done += piece;
	}
}

// lose_unsynced leaves a file as a power cut would.
static void lose_unsynced(tracked *t) {
	if (t->count == 0)
		return;
	int fd = open(t->path, O_RDWR);
	if (fd < 0)
		abort();
	for (size_t i = t->count; i-- > 0;) {
		const change *c = &t->changes[i];
		put(fd, c->before, c->lost, c->at);
		resize(fd, c->size_before);
	}
	if (plan.keep == FAULT_KEEP_NONE)
		return;
	size_t torn = plan.keep == FAULT_KEEP_TORN ? random_bits() % t->count : t->count;
	for (size_t i = 0; i < t->count; i++)
		if (i == torn || random_bits() & 1)
			again(fd, &t->changes[i], i == torn);
}

// cut_power does not return, and does not release the mutex: no other thread writes after it.
static void cut_power(void) {
	for (tracked *t = files; t; t = t->next)
		lose_unsynced(t);
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

// count counts an operation and carries out the plan. It returns the error with which the operation
// must fail, or SQLITE_OK. letter is w, s or t; in the trace, a capital letter means the database.
static int count(const tracked *t, char letter, int error) {
	if (plan.file != FAULT_ANY_FILE && plan.file != t->kind)
		return SQLITE_OK;
	if (counts.operations < FAULT_TRACE)
		counts.trace[counts.operations] = t->kind == FAULT_DATABASE ? letter - 'a' + 'A' : letter;
	counts.operations++;
	if (plan.at == 0 || counts.operations < plan.at || (counts.operations > plan.at && !plan.lasting))
		return SQLITE_OK;
	if (plan.cut)
		cut_power();
	if (error != SQLITE_OK)
		counts.failed++;
	return error;
}

// record notes a change before it is made.
static int record(sqlite3_file *f, const void *data, sqlite3_int64 size, sqlite3_int64 at) {
	tracked *t = ((handle *)f)->file;
	change c = {.at = at, .size = data ? size : -1};
	int rc = real(f)->methods->file_size(real(f), &c.size_before);
	if (rc != SQLITE_OK)
		return rc;
	sqlite3_int64 end = data && at + size < c.size_before ? at + size : c.size_before;
	c.lost = end > at ? end - at : 0;
	if (t->count == t->capacity) {
		size_t capacity = t->capacity ? 2 * t->capacity : 64;
		change *grown = realloc(t->changes, capacity * sizeof *grown);
		if (!grown)
			return SQLITE_IOERR_NOMEM;
		t->changes = grown;
		t->capacity = capacity;
	}
	c.before = malloc((size_t)c.lost + 1);
	c.written = malloc((size_t)size + 1);
	if (!c.before || !c.written)
		abort();
	if (data)
		memcpy(c.written, data, (size_t)size);
	if (c.lost > 0 && (rc = real(f)->methods->read(real(f), c.before, (int)c.lost, at)) != SQLITE_OK) {
		free(c.before);
		free(c.written);
		return rc;
	}
	t->changes[t->count++] = c;
	return SQLITE_OK;
}

static int do_write(sqlite3_file *f, const void *data, int size, sqlite3_int64 at) {
	pthread_mutex_lock(&mutex);
	int rc = count(((handle *)f)->file, 'w', plan.write_error);
	if (rc == SQLITE_OK)
		rc = record(f, data, size, at);
	if (rc == SQLITE_OK)
		rc = real(f)->methods->write(real(f), data, size, at);
	pthread_mutex_unlock(&mutex);
	return rc;
}

static int do_truncate(sqlite3_file *f, sqlite3_int64 size) {
	pthread_mutex_lock(&mutex);
	int rc = count(((handle *)f)->file, 't', plan.truncate_error);
	if (rc == SQLITE_OK)
		rc = record(f, NULL, 0, size);
	if (rc == SQLITE_OK)
		rc = real(f)->methods->truncate(real(f), size);
	pthread_mutex_unlock(&mutex);
	return rc;
}

static int do_sync(sqlite3_file *f, int flags) {
	pthread_mutex_lock(&mutex);
	tracked *t = ((handle *)f)->file;
	int rc = count(t, 's', plan.sync_error);
	if (rc == SQLITE_OK)
		rc = real(f)->methods->sync(real(f), flags);
	if (rc == SQLITE_OK)
		forget(t);
	pthread_mutex_unlock(&mutex);
	return rc;
}

static int do_close(sqlite3_file *f) { return real(f)->methods->close(real(f)); }
static int do_read(sqlite3_file *f, void *to, int size, sqlite3_int64 at) {
	return real(f)->methods->read(real(f), to, size, at);
}
static int do_file_size(sqlite3_file *f, sqlite3_int64 *size) { return real(f)->methods->file_size(real(f), size); }
static int do_lock(sqlite3_file *f, int level) { return real(f)->methods->lock(real(f), level); }
static int do_unlock(sqlite3_file *f, int level) { return real(f)->methods->unlock(real(f), level); }
static int do_check_reserved_lock(sqlite3_file *f, int *held) {
	return real(f)->methods->check_reserved_lock(real(f), held);
}
static int do_file_control(sqlite3_file *f, int op, void *arg) {
	return real(f)->methods->file_control(real(f), op, arg);
}
static int do_sector_size(sqlite3_file *f) { return real(f)->methods->sector_size(real(f)); }
static int do_device_characteristics(sqlite3_file *f) {
	return real(f)->methods->device_characteristics(real(f));
}
static int do_shm_map(sqlite3_file *f, int page, int size, int extend, void volatile **to) {
	return real(f)->methods->shm_map(real(f), page, size, extend, to);
}
static int do_shm_lock(sqlite3_file *f, int at, int n, int flags) {
	return real(f)->methods->shm_lock(real(f), at, n, flags);
}
static void do_shm_barrier(sqlite3_file *f) { real(f)->methods->shm_barrier(real(f)); }
static int do_shm_unmap(sqlite3_file *f, int remove) { return real(f)->methods->shm_unmap(real(f), remove); }
static int do_fetch(sqlite3_file *f, sqlite3_int64 at, int size, void **to) {
	return real(f)->methods->fetch(real(f), at, size, to);
}
static int do_unfetch(sqlite3_file *f, sqlite3_int64 at, void *p) {
	return real(f)->methods->unfetch(real(f), at, p);
}

static const sqlite3_io_methods methods = {
	3, do_close, do_read, do_write, do_truncate, do_sync, do_file_size, do_lock, do_unlock,
	do_check_reserved_lock, do_file_control, do_sector_size, do_device_characteristics,
	do_shm_map, do_shm_lock, do_shm_barrier, do_shm_unmap, do_fetch, do_unfetch,
};

static int do_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *f, int flags, int *out_flags) {
	(void)vfs;
	if (!(flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)))
		return below->open(below, path, f, flags, out_flags);
	handle *h = (handle *)f;
	h->base.methods = NULL;
	int rc = below->open(below, path, real(f), flags, out_flags);
	if (rc != SQLITE_OK)
		return rc;
	if (real(f)->methods->version < methods.version) {
		real(f)->methods->close(real(f));
		return SQLITE_CANTOPEN;
	}
	pthread_mutex_lock(&mutex);
	h->file = track(path, flags & SQLITE_OPEN_WAL ? FAULT_LOG : flags & SQLITE_OPEN_MAIN_DB ? FAULT_DATABASE : FAULT_ANY_FILE);
	pthread_mutex_unlock(&mutex);
	h->base.methods = &methods;
	return SQLITE_OK;
}

// do_delete takes the removal of a file as durable at once: see doc.go.
static int do_delete(sqlite3_vfs *vfs, const char *path, int sync_folder) {
	(void)vfs;
	pthread_mutex_lock(&mutex);
	int rc = below->delete(below, path, sync_folder);
	if (rc == SQLITE_OK)
		for (tracked *t = files; t; t = t->next)
			if (strcmp(t->path, path) == 0)
				forget(t);
	pthread_mutex_unlock(&mutex);
	return rc;
}

int fault_register(void) {
	if (!sqlite3_vfs_find || !sqlite3_vfs_register)
		return -1;
	below = sqlite3_vfs_find(NULL);
	if (!below)
		return SQLITE_CANTOPEN;
	shim = *below;
	shim.file_bytes += (int)sizeof(handle);
	shim.next = NULL;
	shim.name = "fault";
	shim.open = do_open;
	shim.delete = do_delete;
	return sqlite3_vfs_register(&shim, 1);
}

void fault_set_plan(const fault_plan *p) {
	pthread_mutex_lock(&mutex);
	plan = *p;
	memset(&counts, 0, sizeof counts);
	pthread_mutex_unlock(&mutex);
}

void fault_get_counts(fault_counts *to) {
	pthread_mutex_lock(&mutex);
	*to = counts;
	pthread_mutex_unlock(&mutex);
}
