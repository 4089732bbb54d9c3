package rpc_test

import (
	"context"
	"io"
	"net"
	"os"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

// A recorder keeps the connections that a listener accepts.
type recorder struct {
	net.Listener
	accepted chan net.Conn
}

func (r recorder) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err == nil {
		r.accepted <- conn
	}
	return conn, err
}

// A client of HTTP that has disappeared without closing its connection must not hold the lease of its
// agent.
func TestServe_TheKernelDetectsALostClientOfHTTP(t *testing.T) {
	t.Parallel()
	server := rpc.NewServer(rpc.Options{UID: os.Getuid(), Clock: clockwork.NewRealClock(), Log: zap.NewNop()})
	web := server.Web()
	l, err := rpc.Listen("127.0.0.1:0", rpc.Loopback)
	testkit.NoError(t, err)
	r := recorder{l, make(chan net.Conn, 1)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(r) }()
	client, err := net.Dial("tcp", l.Addr().String())
	testkit.NoError(t, err)
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	conn, err := web.Accept()
	testkit.NoError(t, err)
	raw, err := (<-r.accepted).(*net.TCPConn).SyscallConn()
	testkit.NoError(t, err)
	for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 30_000, unix.TCP_KEEPIDLE: 10, unix.TCP_KEEPINTVL: 5} {
		err := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
				t.Errorf("option %d is %d, %v; want %d", option, got, err, want)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	server.Stop(ctx)
	if err := <-served; err != nil {
		t.Error(err)
	}
}
