package rpc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc/mem"
)

// HTTP/2 has frames that carry no part of a call and still cost the daemon processor time. gRPC processes them
// as fast as they arrive: it closes a connection with too many pings, but reads from it for one more second. A
// paced connection waits before it passes on more of them than framesPerSecond.
const (
	// framesPerSecond is how many window updates a client may send. One that receives 100 MB/s in windows of
	// 64 KiB sends about 6,000.
	framesPerSecond = 10_000
	// otherFrame is how many window updates another frame counts for, such as a ping or a reset. A client
	// that cancels calls sends one reset for each.
	otherFrame = 10
	// frameBurst is the time whose frames a client may send at once, after a time without such frames. The frames
	// of a whole second keep a processor busy for a tenth of one: the calls of other clients took up to 2.9 times as long.
	frameBurst = 200 * time.Millisecond

	frameHeaderSize = 9
)

// The types of frames that carry parts of a call, and of window updates (RFC 9113, section 6).
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameWindowUpdate = 0x8
	frameContinuation = 0x9
)

// A pacedConn is a connection whose frames without a part of a call are limited.
type pacedConn struct {
	net.Conn
	clock  clockwork.Clock
	frames frames
	paid   time.Time // when the frames so far are within the limit
	closed chan struct{}
	close  func() error
}

// pace returns a connection that passes on what another one reads. A socket is read without a buffer while nothing
// arrives.
func pace(conn net.Conn, clock clockwork.Clock) (net.Conn, error) {
	c := &pacedConn{Conn: conn, clock: clock, frames: frames{skip: len(preface)}, closed: make(chan struct{})}
	c.close = sync.OnceValue(func() error {
		close(c.closed)
		return conn.Close()
	})
	switch socket := conn.(type) {
	case *net.UnixConn:
		return newPacedSocket(c, socket)
	case *net.TCPConn:
		return newPacedSocket(c, socket)
	}
	return c, nil
}

// Close implements net.Conn.
func (c *pacedConn) Close() error { return c.close() }

// Read implements net.Conn.
func (c *pacedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil {
		err = c.wait(b[:n])
	}
	return n, err
}

// wait waits until bytes that have been read may be passed on.
func (c *pacedConn) wait(b []byte) error {
	n := c.frames.count(b)
	if n == 0 {
		return nil
	}
	now := c.clock.Now()
	if c.paid.Before(now) {
		c.paid = now
	}
	c.paid = c.paid.Add(time.Duration(n) * (time.Second / framesPerSecond))
	late := c.paid.Sub(now) - frameBurst
	if late <= 0 {
		return nil
	}
	timer := c.clock.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

// frames finds the frames in the bytes of a connection.
type frames struct {
	skip   int // bytes before the next frame
	header [frameHeaderSize]byte
	has    int // bytes of the header
}

// count returns how many of the frames that begin in the bytes are limited, as window updates.
func (f *frames) count(b []byte) (n int) {
	for {
		skipped := min(f.skip, len(b))
		f.skip -= skipped
		copied := copy(f.header[f.has:], b[skipped:])
		f.has += copied
		if f.has < frameHeaderSize {
			return n
		}
		b = b[skipped+copied:]
		f.skip, f.has = int(f.header[0])<<16|int(f.header[1])<<8|int(f.header[2]), 0
		switch f.header[3] {
		case frameData, frameHeaders, frameContinuation:
		case frameWindowUpdate:
			n++
		default:
			n += otherFrame
		}
	}
}

// A pacedSocket is a paced connection that lends gRPC a buffer only when there are bytes to read.
type pacedSocket struct {
	*pacedConn
	raw  syscall.RawConn
	read func(fd uintptr) bool

	// The request and the outcome of one call of read.
	size int
	pool mem.BufferPool
	got  *[]byte
	n    int
	err  error
}

func newPacedSocket(c *pacedConn, socket syscall.Conn) (net.Conn, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get at the socket: %w", err)
	}
	s := &pacedSocket{pacedConn: c, raw: raw}
	s.read = func(fd uintptr) bool {
		s.got = s.pool.Get(s.size)
		for s.n, s.err = syscall.Read(int(fd), *s.got); errors.Is(s.err, syscall.EINTR); {
			s.n, s.err = syscall.Read(int(fd), *s.got)
		}
		if s.err != nil {
			s.pool.Put(s.got)
			s.got = nil
		}
		return !errors.Is(s.err, syscall.EAGAIN)
	}
	return s, nil
}

// ReadOnReady implements the interface by which gRPC reads from a connection without keeping a buffer for it. The
// caller gives the buffer back to the pool.
func (s *pacedSocket) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	s.size, s.pool, s.got, s.n, s.err = size, pool, nil, 0, nil
	err := s.raw.Read(s.read)
	got := s.got
	s.got = nil
	switch {
	case err != nil:
	case s.err != nil:
		err = s.err
	case s.n == 0:
		err = io.EOF
	default:
		err = s.wait((*got)[:s.n])
	}
	if err == nil {
		return got, s.n, nil
	}
	if got != nil {
		pool.Put(got)
	}
	return nil, 0, err
}
