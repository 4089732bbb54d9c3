package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// A child shares the files of the process between its start and the execution of its program.
func TestClose_FreesTheFolderAlthoughAChildStarts(t *testing.T) {
	t.Parallel()
	o := settings(t)
	s, err := store.Open(t.Context(), o)
	testkit.NoError(t, err)
	path, err := filepath.EvalSymlinks(filepath.Join(o.Dir, store.LockFile))
	testkit.NoError(t, err)
	open, err := os.ReadDir("/proc/self/fd")
	testkit.NoError(t, err)
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
	testkit.NoError(t, err)
	defer unix.Close(dup) //nolint:errcheck // the test is over
	testkit.NoError(t, s.Close())
	again, err := store.Open(t.Context(), o)
	testkit.NoError(t, err)
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// Only root can make a small disk.
func TestOpen_FreesSpaceForTheProcessID(t *testing.T) {
	t.Parallel()
	o := settings(t)
	if err := unix.Mount("none", o.Dir, "tmpfs", 0, "size=8m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(o.Dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, err := store.Open(t.Context(), o)
	testkit.NoError(t, err)
	testkit.NoError(t, s.Close())
	lock, filler := filepath.Join(o.Dir, store.LockFile), filepath.Join(o.Dir, "filler")
	if err := os.Truncate(lock, 0); err != nil { // its page is the filler's now
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 9<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal("the disk is not full:", err)
	}
	o.Full = func() { _ = os.Remove(filler) }
	if s, err = store.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if pid, err := os.ReadFile(lock); string(pid) != strconv.Itoa(os.Getpid())+"\n" || err != nil {
		t.Errorf("the lock file has %q, %v", pid, err)
	}
	testkit.NoError(t, s.Close())
	o.Full = nil
	testkit.NoError(t, errors.Join(os.Truncate(lock, 0), os.WriteFile(filler, nil, 0o600)))
	if err := os.WriteFile(filler, make([]byte, 9<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal("the disk is not full:", err)
	}
	if _, err := store.Open(t.Context(), o); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("opened without space for the process id: %v", err)
	}
}
