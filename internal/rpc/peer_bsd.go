//go:build darwin || freebsd

package rpc

import (
	"net"

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
