package rpc_test

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"golang.org/x/net/http2"

	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

// A lateListener accepts connections whose handshake lasts until the stop of the server, and whose deadline
// comes into force only after that.
type lateListener struct {
	net.Listener
	shaking, stopped, settled chan struct{}
}

func (l lateListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lateConn{TCPConn: conn.(*net.TCPConn), l: l}, nil
}

type lateConn struct {
	*net.TCPConn
	l           lateListener
	once, ended sync.Once
}

// SyscallConn is the first step of the handshake.
func (c *lateConn) SyscallConn() (syscall.RawConn, error) {
	c.once.Do(func() {
		close(c.l.shaking)
		<-c.l.stopped
	})
	return c.TCPConn.SyscallConn()
}

// SetDeadline delays the deadline in the past with which a stop ends a handshake.
func (c *lateConn) SetDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		c.ended.Do(func() { close(c.l.stopped) })
		<-c.l.settled
	}
	return c.TCPConn.SetDeadline(t)
}

// A client that has been told of the server's settings sends its calls, and expects their answers.
func TestStop_HandshakeUnderWayIsNotServedAndThenCutOff(t *testing.T) {
	t.Parallel()
	server := rpc.NewServer(rpc.Options{UID: os.Getuid(), Clock: clockwork.NewRealClock(), Log: zap.NewNop()})
	inner, err := rpc.Listen("127.0.0.1:0", rpc.Loopback)
	testkit.NoError(t, err)
	l := lateListener{inner, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	client, err := net.Dial("tcp", inner.Addr().String())
	testkit.NoError(t, err)
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	testkit.NoError(t, http2.NewFramer(client, client).WriteSettings())
	<-l.shaking
	ctx := calling(t)
	ended := make(chan struct{})
	go func() {
		server.Stop(ctx)
		close(ended)
	}()
	if n, err := client.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("the server stops, and has begun to serve the connection")
	}
	close(l.settled)
	<-ended
	if err := <-served; err != nil {
		t.Error(err)
	}
}
