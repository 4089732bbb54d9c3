package postgres

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDialer_EndsASilentConnection(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := dialer().DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for option, want := range map[int]int{
		unix.TCP_USER_TIMEOUT: 30_000, unix.TCP_KEEPIDLE: 15, unix.TCP_KEEPINTVL: 5, unix.TCP_KEEPCNT: 3,
	} {
		got, failed := 0, error(nil)
		err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option) })
		if err != nil || failed != nil || got != want {
			t.Errorf("option %d is %d (%v, %v), want %d", option, got, err, failed, want)
		}
	}
}
