package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"brokerd/internal/fault"
)

// lockDir makes the data folder, and locks it.
func (s *Store) lockDir(o *Options) (err error) {
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	if o.Existing && o.Database == nil {
		if _, err := os.Stat(filepath.Join(o.Dir, DatabaseFile)); errors.Is(err, fs.ErrNotExist) {
			return errNoData(o.Dir)
		}
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	if s.lock, err = lockFolder(o.Dir, o.Full); err != nil {
		return err
	}
	if diskFull(o.Dir) {
		o.Full()
	}
	return nil
}

// LockFolder makes a data folder, and locks it until unlock is called or the process ends, for a store without a folder
// of its own. Errors: fault.Precondition (IN_USE).
func LockFolder(dir string) (unlock func() error, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := lockFolder(dir, func() {})
	if err != nil {
		return nil, err
	}
	return func() error { return unlockFolder(f) }, nil
}

// lockFolder makes sure that one daemon at a time uses the folder. The lock ends with the process,
// however it ends; the file stays, since removing it could give two daemons a lock each. If the disk has
// no space for the process id, lockFolder calls full, which may free some, and tries again.
func lockFolder(dir string, full func()) (*os.File, error) {
	path := filepath.Join(dir, LockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		_ = f.Close() // the answer is no either way
		return nil, inUse(dir, strings.TrimSpace(string(holder)))
	}
	if err == nil {
		err = writeID(f)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		full()
		err = writeID(f)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, f.Close()))
	}
	return f, nil
}

// writeID replaces the content of a file with the process id.
func writeID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// unlockFolder ends the lock. Closing the file would not be enough: a child that this process is starting shares the
// lock until it executes its program.
func unlockFolder(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

func inUse(dir, pid string) error {
	by := "another brokerd"
	if pid != "" {
		by = "another brokerd (process " + pid + ")"
	}
	e := fault.New(fault.Precondition, "IN_USE", "the data folder %s is in use by %s: stop that one first, or choose another folder", dir, by)
	if pid != "" {
		e = e.With("pid", pid)
	}
	return e
}

// diskFull reports whether the folder's file system has less than 1 MiB free.
func diskFull(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Blocks > 0 && fs.Bavail*uint64(fs.Bsize) < 1<<20
}

// checkFile refuses a file that is no database of brokerd before SQLite touches it. If there is no
// file, checkFile makes an empty one that no other user can read.
func checkFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err == nil {
			err = f.Close()
		}
		return err
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it is only read: nothing can be lost
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return checkUnused(path)
	}
	header := make([]byte, 108)
	if _, err := f.ReadAt(header, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(header[:16]) != "SQLite format 3\x00" {
		return damaged(path, errors.New("the file does not begin as a database does"))
	}
	// If the broker crashed while it made the database, the application id and all tables may still
	// be in the log. The file is then one page with brokerd's own settings and without tables.
	id := binary.BigEndian.Uint32(header[68:])
	fresh := info.Size() == pageSize && binary.BigEndian.Uint16(header[16:]) == pageSize &&
		binary.BigEndian.Uint32(header[64:]) == 1 && // incremental vacuum
		binary.BigEndian.Uint16(header[103:]) == 0 // cells on the page, one for each table
	if id != applicationID && (id != 0 || !fresh) {
		return fault.New(fault.Precondition, "FOREIGN_DATABASE",
			"%s is a database of another program (application id %#x): choose another data folder, or move the file away", path, id)
	}
	return nil
}

// checkUnused refuses an empty database file in a folder in which a broker has run: its data has
// been lost.
func checkUnused(path string) error {
	dir := filepath.Dir(path)
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch f.Name() {
		case DatabaseFile, DatabaseFile + "-journal", LockFile: // the first start makes these
			continue
		}
		return fault.New(fault.Precondition, "EMPTY_DATABASE",
			"the database %s is empty although the folder has been used (it has %s): %s", path, f.Name(), wayOut)
	}
	return nil
}

// checkSize checks that no pages are missing at the end of the file. Pages that are only in the log
// are not missing, so checkSize writes the log back first. It checks nothing if part of the log stays,
// because another program runs the checkpoints or still reads from the log, or because the disk is
// full.
func checkSize(c *conn, path string, by Checkpoint) error {
	mode := "TRUNCATE"
	if by == CheckpointExternal {
		mode = "NOOP"
	}
	l, err := c.checkpoint(mode)
	if isFull(err) {
		return nil // the log stays, and the writer goes on in it
	}
	if err != nil {
		return err
	}
	if l.missing() > 0 {
		return nil
	}
	var pages int64
	if err := c.queryRow(`PRAGMA page_count`).Scan(&pages); err != nil {
		return damaged(path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() < pages*pageSize {
		return damaged(path, fmt.Errorf("the file has %d bytes where %d are needed", info.Size(), pages*pageSize))
	}
	return nil
}

// wayOut says what to do about a database that cannot be used.
const wayOut = "put back a copy of the data folder that was made before, or move the file away to start empty"

// damaged refuses a database that cannot be read. It passes errors through that have another
// reason, such as a disk that fails.
func damaged(path string, cause error) error {
	cause = classify(cause)
	if fault.KindOf(cause) != fault.Internal && !IsDamage(cause) {
		return cause
	}
	e := fault.New(fault.Precondition, "DAMAGED", "the database %s is damaged (%s): %s", path, detail(cause), wayOut)
	e.Cause = cause
	return e
}

// detail is the innermost text of an error of the database.
func detail(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}
