package diskguard_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"brokerd/internal/apptest"
	"brokerd/internal/diskguard"
)

// reserve returns how many bytes the reserve of a folder occupies.
func reserve(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, diskguard.ReserveFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	apptest.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func TestReserve_IsThereWhileTheDiskHasSpace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0.5)
	if n := reserve(t, w.Dir()); n < 1<<20 {
		t.Fatalf("the reserve has %d bytes after the start", n)
	}
	spare := diskguard.NewReserve(w.Dir(), zap.NewNop())
	for range 2 { // a second call changes nothing
		spare.Free()
	}
	if n := reserve(t, w.Dir()); n > 0 {
		t.Fatalf("the reserve has %d bytes after Free", n)
	}
	w.later(0.9499999999) // the reserve would be more than the rest
	w.wantRefused(w.send())
	if n := reserve(t, w.Dir()); n > 0 {
		t.Errorf("the reserve has %d bytes on a disk that has no space for it", n)
	}
	w.later(0.5)
	w.must(w.send())
	if n := reserve(t, w.Dir()); n < 1<<20 {
		t.Errorf("the reserve has %d bytes when the disk has space again", n)
	}
}
