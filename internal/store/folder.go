package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"brokerd/internal/fault"
)

// lockFolder makes sure that one daemon at a time uses the folder. The lock goes with the process,
// however it ends; the file stays, since removing it could give two daemons a lock each.
func lockFolder(dir string) (*os.File, error) {
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
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, f.Close()))
	}
	return f, nil
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

// checkFile looks whether the file, if there is one, is a database of brokerd, before SQLite touches
// it. It makes an empty one otherwise, so that nobody else can read what will be written.
func checkFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it is only read: nothing can be lost
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return nil
	}
	header := make([]byte, 100)
	if _, err := f.ReadAt(header, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(header[:16]) != "SQLite format 3\x00" {
		return damaged(path, errors.New("the file does not begin as a database does"))
	}
	// A database that was made just before a crash may have its application id in the log still.
	id := binary.BigEndian.Uint32(header[68:])
	if id != applicationID && (id != 0 || info.Size() > pageSize) {
		return damaged(path, fmt.Errorf("the application id is %#x", id))
	}
	return nil
}

// checkSize looks whether pages are missing at the end of the file. The log must have been written
// back before: until then it may hold pages that the file has no room for yet.
func checkSize(c *conn, path string) error {
	if _, err := c.checkpoint("TRUNCATE"); err != nil {
		return err
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

// damaged refuses a database that cannot be read. What has another reason, such as a disk that
// fails, is passed through.
func damaged(path string, cause error) error {
	cause = classify(cause)
	if fault.KindOf(cause) != fault.Internal {
		return cause
	}
	e := fault.New(fault.Precondition, "DAMAGED",
		"the database %s is damaged or not a database of brokerd: restore a backup with 'brokerd restore', or move the file away to start empty", path)
	e.Cause = cause
	return e
}
