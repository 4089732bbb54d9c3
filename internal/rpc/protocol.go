package rpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/peer"
)

// preface is what a client of HTTP/2 sends first.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// lostTime is how long the other end of a connection of HTTP may be silent to the kernel. HTTP/1.1 has no
// pings, and an open stream keeps the lease of its agent.
const lostTime = 30 * time.Second

// passed is a deadline in the past. It ends a wait at once.
var passed = time.Unix(1, 0)

// speaksHTTP2 waits for the first bytes of a connection and reports whether they are the preface of
// HTTP/2. It leaves the bytes in the socket, so that gRPC gets the bare connection: limits and the
// identity of the peer need it, and gRPC holds a buffer for a wrapped connection while it is idle. As
// long as the bytes are a part of the preface, speaksHTTP2 waits for more, until the connection's
// deadline.
func speaksHTTP2(conn syscall.Conn) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, err
	}
	var seen int
	var failed error
	var first [len(preface)]byte
	err = raw.Read(func(fd uintptr) (done bool) {
		for {
			seen, _, failed = unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK)
			if !errors.Is(failed, unix.EINTR) {
				break
			}
		}
		if errors.Is(failed, unix.EAGAIN) {
			return false
		}
		return failed != nil || seen == 0 || seen == len(preface) || !strings.HasPrefix(preface, string(first[:seen]))
	})
	switch {
	case err != nil:
		return false, err
	case failed != nil:
		return false, failed
	case seen == 0:
		return false, io.EOF
	}
	return string(first[:seen]) == preface, nil
}

// opening is a listener whose connections are not yet known to speak gRPC.
type opening struct{ net.Listener }

// Accept implements net.Listener.
func (l opening) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &newConn{Conn: conn}, nil
}

// A newConn is a connection until the end of its handshake. gRPC gets the bare one then.
type newConn struct {
	net.Conn

	mu   sync.Mutex // guards away
	away bool       // the HTTP server has the connection
}

// SetDeadline implements net.Conn. gRPC calls it again after the handshake, when the deadlines
// already belong to the HTTP server.
func (c *newConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return nil
	}
	return c.Conn.SetDeadline(t)
}

// release takes the connection from gRPC, without a deadline.
func (c *newConn) release() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = true
	return c.Conn.SetDeadline(time.Time{})
}

// A webConn is a connection that speaks HTTP/1.1.
type webConn struct {
	net.Conn
	info  connection
	reads atomic.Int64 // that returned bytes
	seen  int64        // the value of reads at the newest request

	length atomic.Bool // a line with a Content-Length has arrived
	tail   []byte      // the end of what has arrived, which may be the beginning of such a line
}

// Read implements net.Conn.
func (c *webConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.reads.Add(1)
		c.findLength(b[:n])
	}
	return n, err
}

// lengthLine is the beginning of the line of a header.
const lengthLine = "\ncontent-length:"

// findLength looks for a Content-Length in bytes that have arrived. It does not tell a header from a body
// that has such a line.
func (c *webConn) findLength(b []byte) {
	if c.length.Load() {
		return
	}
	const most = len(lengthLine) - 1
	joined := slices.Concat(c.tail, b[:min(len(b), most)])
	if hasLength(joined) || hasLength(b) {
		c.length.Store(true)
		c.tail = nil
		return
	}
	if len(b) > most {
		joined = append(joined[:0], b[len(b)-most:]...)
	}
	c.tail = append(c.tail[:0], joined[max(0, len(joined)-most):]...)
}

func hasLength(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 || len(b)-i < len(lengthLine) {
			return false
		}
		if bytes.EqualFold(b[i:i+len(lengthLine)], []byte(lengthLine)) {
			return true
		}
		b = b[i+1:]
	}
}

// CloseWrite closes the sending half, so that the client reads an answer that ends the connection
// before the rest of its request is refused.
func (c *webConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// DetectLoss makes the kernel close a connection over TCP whose other end has disappeared. It does nothing for others.
func DetectLoss(conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: lostTime / 3, Interval: lostTime / 6, Count: 4})
	return errors.Join(err, setUserTimeout(tcp, lostTime))
}

// A Passage is a listener whose connections come from Pass, and not from a socket.
type Passage struct {
	conns  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

// NewPassage returns a passage that is open.
func NewPassage() *Passage {
	l := &Passage{conns: make(chan net.Conn)}
	l.closed, l.close = context.WithCancel(context.Background())
	return l
}

// Pass hands a connection to Accept, and waits until it is accepted. It closes the connection if the passage is closed.
func (l *Passage) Pass(conn net.Conn) {
	select {
	case l.conns <- conn:
	case <-l.closed.Done():
		_ = conn.Close()
	}
}

// Accept implements net.Listener.
func (l *Passage) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Passage) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener. The connections have their own addresses.
func (l *Passage) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// Web returns the listener of the connections that speak HTTP/1.1 instead of gRPC. Call it before
// Serve; without the call, the server takes every connection for one of gRPC. Stop closes the
// listener.
func (s *Server) Web() net.Listener {
	s.web = NewPassage()
	return s.web
}

// ConnContext returns the context for the calls of a connection of Web.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	c, ok := conn.(*webConn)
	if !ok {
		return ctx
	}
	ctx = context.WithValue(ctx, webConnKey{}, c)
	return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr(), LocalAddr: c.LocalAddr(), AuthInfo: c.info})
}

type webConnKey struct{}

// Pipelined reports whether a client of Web has sent a request together with an earlier one, without
// waiting for its answer. Call it once for each request, with the request's context.
func Pipelined(ctx context.Context) bool {
	c, ok := ctx.Value(webConnKey{}).(*webConn)
	if !ok {
		return false
	}
	reads := c.reads.Load()
	pipelined := reads == c.seen
	c.seen = reads
	return pipelined
}

// LengthGiven reports whether a client of Web has sent a Content-Length on its connection, with this
// request or an earlier one. net/http removes that of a request with a Transfer-Encoding.
func LengthGiven(ctx context.Context) bool {
	c, ok := ctx.Value(webConnKey{}).(*webConn)
	return ok && c.length.Load()
}

// PlainTCP reports whether the connection of a context is neither a Unix socket nor encrypted.
func PlainTCP(ctx context.Context) bool { return connectionOf(ctx).AuthType() == plainTCP }

// ViaOf returns the replica that forwards the connection of a call; nil if there is none.
func ViaOf(ctx context.Context) *Via { return connectionOf(ctx).via }
