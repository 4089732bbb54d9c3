package vendortest

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// kill kills a process that is no child of this one, and waits for its end.
func kill(id int) {
	fd, err := unix.PidfdOpen(id, 0)
	if err != nil {
		return // it has ended
	}
	defer unix.Close(fd)                  //nolint:errcheck // nothing was written
	_ = syscall.Kill(id, syscall.SIGKILL) // it may have ended
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
}
