package store_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"brokerd/internal/store"
)

// A child shares the files of the process between its start and the execution of its program.
func TestClose_FreesTheFolderAlthoughAChildStarts(t *testing.T) {
	t.Parallel()
	o := settings(t)
	s, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.EvalSymlinks(filepath.Join(o.Dir, store.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var files []int // a number may be in use for another file by now
	for _, f := range open {
		number, err := strconv.Atoi(f.Name())
		if target, _ := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && target == path {
			files = append(files, number)
		}
	}
	if len(files) != 1 {
		t.Fatalf("%s is open %d times", path, len(files))
	}
	dup, err := unix.Dup(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dup) //nolint:errcheck // the test is over
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
