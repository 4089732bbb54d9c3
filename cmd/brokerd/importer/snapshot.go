package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

const (
	magic        = "SQLite format 3\x00"
	journalMagic = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"

	copies     = 20                     // attempts to copy a file that changes
	betweenTwo = 100 * time.Millisecond // time between two attempts
)

// A FileError says why a file cannot be imported. Nothing has been changed.
type FileError struct {
	File    string
	Problem string
}

// Error names the file and the problem.
func (e *FileError) Error() string { return e.File + " " + e.Problem }

// A mark is what a file and its log begin with. A copy between two equal marks is one committed state:
//
//   - With a log, transactions only add to it, and a checkpoint copies pages from it to the file. Both
//     leave the log's header alone. A copy of the file first, and of the log then, is complete, because
//     every page that a checkpoint has written meanwhile is in the log too. A log that begins again has
//     another header.
//   - Without a log, each transaction changes the file's header, its size or its time, and has a
//     journal until it ends.
type mark struct {
	file      string // header, size and time; empty if there is a log
	log       string // header of FILE-wal
	unsettled bool   // a journal holds what a transaction must roll back
}

// snapshot copies a database that other processes may use to the path to.
func snapshot(ctx context.Context, file, to string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &FileError{file, "does not exist"}
	case err != nil:
		return unreadable(file, err)
	case !info.Mode().IsRegular():
		return &FileError{file, "is no file with a database"}
	case info.Size() == 0:
		return &FileError{file, "is empty"}
	}
	unsettled := false
	for range copies {
		before, err := markOf(file)
		if err == nil && !before.unsettled {
			err = copyFile(file, to)
		}
		if err == nil && !before.unsettled && before.log != "" {
			err = copyFile(file+"-wal", to+"-wal")
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return unreadable(file, err)
		}
		if err == nil {
			after, err := markOf(file)
			if err != nil {
				return unreadable(file, err)
			}
			if unsettled = after.unsettled; !unsettled && before == after {
				return nil
			}
		}
		if err := os.Remove(to + "-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := sleep(ctx, betweenTwo); err != nil {
			return err
		}
	}
	if unsettled {
		return &FileError{file, "is locked: " + file + "-journal belongs to a transaction that has not ended. Let it " +
			"end; if its program has crashed, open the file once with sqlite3, which rolls the transaction back"}
	}
	return &FileError{file, "changes all the time; let its agents pause"}
}

// unreadable returns the FileError of an error about a file.
func unreadable(file string, err error) error {
	if errors.As(err, new(*FileError)) {
		return err
	}
	return &FileError{file, "cannot be read: " + err.Error()}
}

func markOf(file string) (m mark, err error) {
	head, err := beginning(file, 100)
	if err != nil {
		return m, err
	}
	if len(head) < len(magic) || head[:len(magic)] != magic {
		return m, &FileError{file, "is no SQLite database"}
	}
	journal, err := beginning(file+"-journal", len(journalMagic))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, err
	}
	m.unsettled = journal == journalMagic
	m.log, err = beginning(file+"-wal", 32)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || m.log != "" {
		return m, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return m, err
	}
	m.file = fmt.Sprint(head, info.Size(), info.ModTime().UnixNano())
	return m, nil
}

// beginning returns up to n first bytes of a file.
func beginning(file string, n int) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	head := make([]byte, n)
	n, err = io.ReadFull(f, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return string(head[:n]), err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// sleep waits for a time, or until the context ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
