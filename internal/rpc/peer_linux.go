package rpc

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUID returns the user that opened the other end, as the kernel noted it when it connected.
func peerUID(socket *net.UnixConn) (int, error) {
	uid := -1
	err := control(socket, func(fd int) error {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			uid = int(cred.Uid)
		}
		return err
	})
	return uid, err
}
