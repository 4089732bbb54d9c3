package hostile_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A wire is a connection to the daemon below gRPC.
type wire struct {
	net.Conn
	framer  *http2.Framer
	stopped <-chan struct{} // closed when the attack is to end
}

// attackTime is how long one attack on one connection lasts at most, if the daemon does not end it.
const attackTime = 2 * time.Second

// transport names an address of a daemon.
type transport struct {
	name    string
	network string
	address string
	tls     *tls.Config // nil = without TLS
}

// transports returns the ways to reach the daemon.
func (s *target) transports() []transport {
	all := []transport{{"unix", "unix", strings.TrimPrefix(s.Address(), "unix://"), nil}}
	name := "TCP"
	if s.tls != nil {
		name = "TLS"
	}
	return append(all, transport{name, "tcp", s.tcp, s.tls})
}

// connect opens a connection. With TLS, the first write makes the handshake, for a protocol. The caller
// closes the connection.
func (p transport) connect(protocol string) (*wire, error) {
	conn, err := net.DialTimeout(p.network, p.address, patience)
	if err != nil {
		return nil, err
	}
	if p.tls != nil {
		host, _, _ := net.SplitHostPort(p.address)
		config := p.tls.Clone()
		config.ServerName, config.NextProtos = host, []string{cmp.Or(protocol, "h2")}
		conn = tls.Client(conn, config)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &wire{Conn: conn, framer: http2.NewFramer(conn, conn)}, nil
}

// greet sends the preface and settings.
func (w *wire) greet(settings ...http2.Setting) error {
	if _, err := io.WriteString(w, http2.ClientPreface); err != nil {
		return err
	}
	return w.framer.WriteSettings(settings...)
}

// request opens a stream for a method.
func (w *wire) request(stream uint32, method string, more ...hpack.HeaderField) error {
	block := headers(method, more...)
	return w.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: true})
}

// headers returns the encoded headers of a call.
func headers(method string, more ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "brokerd"}, {Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	}, more...) {
		_ = encoder.WriteField(f) // a bytes.Buffer takes all
	}
	return block.Bytes()
}

// data sends a gRPC message on a stream.
func (w *wire) data(stream uint32, message []byte) error {
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	return w.framer.WriteData(stream, false, append(frame, message...))
}

// discard reads what the daemon sends until the connection ends.
func (w *wire) discard() { _, _ = io.Copy(io.Discard, w) }

// errOpen is the error of an attack that the daemon must end by closing the connection, and does not.
var errOpen = errors.New("the daemon leaves the connection open")

// ended waits until the daemon closes the connection.
func (w *wire) ended() error {
	_, err := io.Copy(io.Discard, w)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return errOpen
	}
	return nil
}

// flood writes again and again, while another goroutine reads the answers, until the daemon closes the
// connection or the time has passed.
func (w *wire) flood(length time.Duration, write func() error) (closed bool) {
	read := make(chan struct{})
	go func() {
		defer close(read)
		_ = yieldProcessor() // so that the attack does not take what the daemon needs
		w.discard()
	}()
	end := time.Now().Add(length)
	_ = w.SetWriteDeadline(end) // the daemon may read slowly
	for time.Now().Before(end) {
		if err := write(); err != nil {
			closed = !errors.Is(err, os.ErrDeadlineExceeded)
			break
		}
	}
	_ = w.Close()
	<-read
	return closed
}

// An assault is something that a hostile client does with one connection. Its error is errOpen, or that
// of a write.
type assault struct {
	name     string
	do       func(*wire) error
	protocol string // that the client offers with TLS; empty = HTTP/2
	waits    bool   // the client is idle most of the time
}

// malformed sends bytes after the preface and the settings, and expects the daemon to close the connection.
func malformed(name string, frame ...byte) assault {
	return assault{name: name, do: func(w *wire) error {
		if err := w.greet(); err != nil {
			return err
		}
		_, _ = w.Write(frame) // the daemon may have closed the connection
		return w.ended()
	}}
}

// assaults returns what clients do below gRPC. method is one that streams answers.
func assaults(method string, subscribe []byte) []assault {
	large := headers(method, hpack.HeaderField{Name: "x-much", Value: strings.Repeat("y", 16<<20)})
	list := []assault{
		{name: "garbage in place of the preface", do: func(w *wire) error {
			_, _ = w.Write(noise(64 << 10))
			return w.ended()
		}},
		{name: "garbage after the preface", do: func(w *wire) error {
			_ = w.greet()
			_, _ = w.Write(noise(64 << 10))
			return w.ended()
		}},
		{name: "half a preface", waits: true, do: func(w *wire) error {
			_, _ = io.WriteString(w, "PRI * HTTP/2.0")
			return w.ended()
		}},
		malformed("settings of 5 bytes", 0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5),
		malformed("frame of 16 MiB", 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1),
		malformed("headers of no compression", 0, 0, 4, 1, 4, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff),
		malformed("continuation of nothing", 0, 0, 1, 9, 4, 0, 0, 0, 1, 0x82),
		malformed("headers on stream 2", 0, 0, 1, 1, 5, 0, 0, 0, 2, 0x82),
		malformed("ping of 7 bytes", 0, 0, 7, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7),
		{name: "window beyond 2 GiB", do: func(w *wire) error {
			_ = w.greet()
			_ = errors.Join(w.request(1, method), w.framer.WriteWindowUpdate(1, 1<<31-1), w.framer.WriteWindowUpdate(1, 1<<31-1))
			_ = w.SetDeadline(time.Now().Add(attackTime))
			w.discard()
			return nil
		}},
		{name: "subscriber that answers no pings", waits: true, do: func(w *wire) error {
			_ = w.greet()
			_ = errors.Join(w.request(1, method), w.data(1, subscribe))
			return w.ended()
		}},
		{name: "flood of pings", do: func(w *wire) error {
			if err := w.greet(); err != nil {
				return err
			}
			return mustClose(w.flood(patience, func() error { return w.framer.WritePing(false, [8]byte{1}) }))
		}},
		{name: "flood of settings", do: func(w *wire) error {
			_ = w.greet()
			w.flood(attackTime, func() error {
				return w.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 16})
			})
			return nil
		}},
		{name: "flood of settings without reading", do: func(w *wire) error {
			_ = w.greet()
			_ = w.SetDeadline(time.Now().Add(attackTime))
			for w.framer.WriteSettings() == nil {
			}
			return nil
		}},
		{name: "rapid reset", do: func(w *wire) error {
			_ = w.greet()
			stream := uint32(1)
			w.flood(attackTime, func() error {
				err := errors.Join(w.request(stream, method), w.framer.WriteRSTStream(stream, http2.ErrCodeCancel))
				stream += 2
				return err
			})
			return nil
		}},
		{name: "flood of continuations", do: func(w *wire) error {
			_ = w.greet()
			first := http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers(method)}
			if err := w.framer.WriteHeaders(first); err != nil {
				return err
			}
			fragment := headers("/", hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 8<<10)})[:8<<10]
			return mustClose(w.flood(patience, func() error { return w.framer.WriteContinuation(1, false, fragment) }))
		}},
		{name: "headers of 16 MiB", do: func(w *wire) error {
			_ = w.greet()
			block := large
			first := http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]}
			if err := w.framer.WriteHeaders(first); err != nil {
				return err
			}
			block = block[16<<10:]
			w.flood(attackTime, func() error {
				n := min(len(block), 16<<10)
				if n == 0 {
					return io.EOF
				}
				err := w.framer.WriteContinuation(1, n == len(block), block[:n])
				block = block[n:]
				return err
			})
			return nil
		}},
		{name: "slow reader with windows of 1 byte", do: func(w *wire) error {
			_ = w.greet(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
			stream := uint32(1)
			w.flood(attackTime, func() error {
				if stream < 2*100 {
					err := errors.Join(w.request(stream, method), w.data(stream, subscribe))
					stream += 2
					return err
				}
				return w.framer.WriteWindowUpdate(stream-2, 1)
			})
			return nil
		}},
		{name: "slow writer", do: func(w *wire) error {
			_ = w.greet()
			stream := uint32(1)
			for ; stream < 2*100; stream += 2 {
				if err := w.request(stream, method); err != nil {
					return nil //nolint:nilerr // the daemon may close the connection
				}
				// A message of 4 MiB begins, and never ends.
				if w.framer.WriteData(stream, false, []byte{0, 0, 64, 0, 0, 1}) != nil {
					return nil
				}
			}
			_ = w.SetDeadline(time.Now().Add(attackTime))
			w.discard()
			return nil
		}},
	}
	return append(list, webAssaults()...)
}

func mustClose(closed bool) error {
	if !closed {
		return errOpen
	}
	return nil
}

// noise returns random bytes that are not the beginning of a TLS record or of HTTP/2.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.N(256))
	}
	b[0] = 0
	return b
}

// run opens a connection and does it. When ctx ends, it closes the connection, and has no error. It has
// none if the daemon closes the connection early either: to a client that lacks the processor for its
// handshake, for example.
func (a *assault) run(ctx context.Context, p transport) error {
	w, err := p.connect(a.protocol)
	if err != nil {
		return err
	}
	defer w.Close() //nolint:errcheck // the daemon may have closed it
	w.stopped = ctx.Done()
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	err = a.do(w)
	if err == nil || ctx.Err() != nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return fmt.Errorf("%s: %w", p.name, err)
}
