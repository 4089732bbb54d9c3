package faultvfs

// #include "shim.h"
// #include "sqlite.h"
import "C"

import "fmt"

// A Fault is what happens to an operation.
type Fault string

// The faults. An operation of another sort than the fault's succeeds.
const (
	None     Fault = ""
	DiskFull Fault = "disk full" // a write fails with SQLITE_FULL
	IOError  Fault = "I/O error" // a write or truncation fails with SQLITE_IOERR_WRITE or _TRUNCATE
	SyncFail Fault = "sync"      // a sync fails with SQLITE_IOERR_FSYNC
	PowerCut Fault = "power cut" // the process ends before the operation
)

// A Keep says which unsynced changes reach the disk before a power cut.
type Keep string

// Which unsynced changes of each file survive.
const (
	KeepNone Keep = "none"
	KeepSome Keep = "some" // a random half
	KeepTorn Keep = "torn" // a random half, and one write of which only a random half of the sectors reaches the disk
)

// A Plan says which operation fails. The zero value lets all succeed.
type Plan struct {
	Fault   Fault
	At      int64  // the number of the operation, from 1
	Lasting bool   // all later operations fail as well, until the next plan
	File    File   // count and fail operations on this file alone
	Keep    Keep   // for PowerCut; KeepNone if empty
	Seed    uint64 // of the random choices of Keep
}

// A File is one of SQLite's files.
type File string

// The files to which a plan may be limited.
const (
	AnyFile  File = ""
	Database File = "database"
	Log      File = "log"
)

// Counts says what happened since the newest plan.
type Counts struct {
	Operations int64
	Failed     int64
	// Trace has a letter for each of the first 4,096 operations: w for a write, s for a sync, t for
	// a truncation; W, S and T on the database itself.
	Trace string
}

// Register makes the shim SQLite's default VFS in this process, for connections that are opened from
// then on. A process must call it at most once, before it opens a database.
func Register() error {
	switch rc := C.fault_register(); rc {
	case C.SQLITE_OK:
		return nil
	case -1:
		return fmt.Errorf("register the fault VFS: the program has no SQLite")
	default:
		return fmt.Errorf("register the fault VFS: SQLite's error %d", rc)
	}
}

// Set starts a plan in place of the one before, and counts from 0. It may be called concurrently.
func Set(p Plan) error {
	c := C.fault_plan{at: C.longlong(p.At), seed: C.ulonglong(p.Seed)}
	switch p.Fault {
	case None:
		c.at = 0
	case DiskFull:
		c.write_error = C.SQLITE_FULL
	case IOError:
		c.write_error, c.truncate_error = C.SQLITE_IOERR_WRITE, C.SQLITE_IOERR_TRUNCATE
	case SyncFail:
		c.sync_error = C.SQLITE_IOERR_FSYNC
	case PowerCut:
		c.cut = 1
	default:
		return fmt.Errorf("unknown fault %q", p.Fault)
	}
	switch p.File {
	case AnyFile:
	case Database:
		c.file = C.FAULT_DATABASE
	case Log:
		c.file = C.FAULT_LOG
	default:
		return fmt.Errorf("unknown file %q", p.File)
	}
	switch p.Keep {
	case "", KeepNone:
	case KeepSome:
		c.keep = C.FAULT_KEEP_SOME
	case KeepTorn:
		c.keep = C.FAULT_KEEP_TORN
	default:
		return fmt.Errorf("unknown choice of what to keep: %q", p.Keep)
	}
	if p.Lasting {
		c.lasting = 1
	}
	C.fault_set_plan(&c)
	return nil
}

// Read returns the counts. It may be called concurrently.
func Read() Counts {
	var c C.fault_counts
	C.fault_get_counts(&c)
	return Counts{Operations: int64(c.operations), Failed: int64(c.failed), Trace: C.GoString(&c.trace[0])}
}
