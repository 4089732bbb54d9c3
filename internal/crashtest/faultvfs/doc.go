// Package faultvfs makes SQLite's file operations fail, and simulates power cuts below SQLite. Only
// test programs import it; faultd, next to it, is one.
//
// # Why a VFS
//
// SQLite reaches files only through a VFS, a table of functions that a program may replace. Register
// wraps the default VFS and makes the wrapper the new default, so the store opens its database
// through it without knowing. The faults are exactly those that SQLite documents, at an operation
// that a test chooses by its number. Two other places were considered:
//   - LD_PRELOAD replaces functions of the C library in a dynamically linked program. It also meets
//     the Go runtime and sees file descriptors, not files, and its faults depend on the C library.
//   - FUSE sees all files, but needs a kernel module and rights that a container often lacks, and
//     shared memory maps (the index of the write-ahead log) behave differently there.
//
// Production code has no hook for this: the default VFS of a process is global, so a program that
// could replace it would only have to be wrongly configured once. The driver compiles SQLite into
// the program, so the shim needs no library. It declares the few structures that it uses, and
// refers to SQLite's two functions weakly.
//
// # Operations
//
// An operation is a write, a sync or a truncation of the database, its write-ahead log or its
// journal. The shim numbers operations from 1, again with each Plan. It passes everything else
// through: reads, locks, shared memory, temporary files. An operation that fails changes nothing in
// the file.
//
// # Power cut
//
// The shim keeps each change of a file until the next sync of that file. At a power cut it undoes
// these changes, newest first, and kills the process with SIGKILL. Keep says which of the unsynced
// changes reached the disk all the same. The shim takes as durable:
//   - the content of a file at the start of the process, and at each sync;
//   - the removal of a file, at once. SQLite removes the log after the last connection has copied
//     it into the database and synced that; a log that reappears would only repeat the same pages;
//   - the name of a new file, at once: SQLite syncs the folder before it relies on a log or journal;
//   - files that are not SQLite's, such as the contents of artifacts.
//
// Shared memory needs no treatment. It holds the index of the log, and the first connection after
// the cut rebuilds it.
package faultvfs
