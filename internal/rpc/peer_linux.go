package rpc

import (
	"net"
	"time"

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

// setUserTimeout limits the time in which the other end must acknowledge what was sent to it.
func setUserTimeout(conn *net.TCPConn, d time.Duration) error {
	return control(conn, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}
