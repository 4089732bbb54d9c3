package client

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerProcess returns the id of the process that listens at a Unix socket, or 0 if it is unknown.
func peerProcess(conn net.Conn) (pid int) {
	socket, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // an error leaves the process unknown
		pid, _ = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	})
	return pid
}

// socketOwner returns the id of the user whose socket an address names; -1 = unknown, or no socket.
func socketOwner(address string) int {
	target, err := parseAddress(address)
	if err != nil || target.network != "unix" {
		return -1
	}
	var info unix.Stat_t
	if err := unix.Stat(target.where, &info); err != nil {
		return -1
	}
	return int(info.Uid)
}
