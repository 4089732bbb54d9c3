package diskguard

import (
	"fmt"

	"golang.org/x/sys/unix"

	"brokerd/internal/fault"
)

// Used returns which share of the folder's file system is used, from 0 to 1. As with df, what is kept for the superuser
// counts neither as used nor as free.
func Used(dir string) (float64, error) {
	used, free, err := bytesOf(dir)
	if err != nil || used+free == 0 { // a file system without blocks has no end either
		return 0, err
	}
	return used / (used + free), nil
}

// bytesOf returns how many bytes of the folder's file system are used and free.
func bytesOf(dir string) (used, free float64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, fmt.Errorf("ask for the file system of %s: %w", dir, err)
	}
	block := float64(fs.Bsize)
	return block * float64(fs.Blocks-fs.Bfree), block * float64(fs.Bavail), nil
}

// Fits returns fault.Exhausted (DISK_NEARLY_FULL) if the file system would be so full with more bytes that sends are
// refused.
func (g *Gauge) Fits(bytes int64) error {
	share, err := g.used()
	if err != nil {
		return err
	}
	return fits(g.dir, share, bytes)
}

// fits is Fits for a file system of which the given share is used.
func fits(dir string, share float64, bytes int64) error {
	used, free, err := bytesOf(dir)
	if err != nil || used+free == 0 {
		return err
	}
	if share+float64(bytes)/(used+free) < refuseAt {
		return nil
	}
	return fault.New(fault.Exhausted, "DISK_NEARLY_FULL",
		"the data folder needs %d free bytes for a while, and its disk would then be at least %d %% full: free some space first",
		bytes, int(refuseAt*100)).With("limit", "disk")
}
