package disk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Used returns which share of the folder's file system is used, from 0 to 1. As with df, what is kept for the superuser
// counts neither as used nor as free.
func Used(dir string) (float64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("ask for the file system of %s: %w", dir, err)
	}
	used, free := float64(fs.Blocks-fs.Bfree), float64(fs.Bavail)
	if used+free == 0 { // a file system without blocks has no end either
		return 0, nil
	}
	return used / (used + free), nil
}
