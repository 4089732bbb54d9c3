package postgrestest

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// parent returns the folder in memory, if it has enough space, for the hundreds of files of each database; else that of
// temporary files.
func parent() string {
	const memory, least = "/dev/shm", 4 << 30
	var fs unix.Statfs_t
	if err := unix.Statfs(memory, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < least {
		return ""
	}
	return memory
}

// unprivileged returns how a server is started that ends with the test binary. PostgreSQL refuses to run as root: in
// a test that runs as root, the folder goes to the system's user without rights, and the server runs as that user.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("id of %s: %w", u.Username, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("group of %s: %w", u.Username, err)
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, os.Chown(dir, int(uid), int(gid))
}
