//go:build darwin || freebsd

package rpc

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// peerUID returns the user that opened the other end, as the kernel noted it when it connected. macOS
// and FreeBSD have LOCAL_PEERCRED, which getpeereid(3) is made of, where Linux has SO_PEERCRED.
func peerUID(socket *net.UnixConn) (int, error) {
	uid := -1
	err := control(socket, func(fd int) error {
		cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		if err == nil {
			uid = int(cred.Uid)
		}
		return err
	})
	return uid, err
}

// setUserTimeout does nothing: only Linux limits the time in which the other end must acknowledge what
// was sent to it. The kernel gives up later.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
