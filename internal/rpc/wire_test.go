package rpc_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"

	"brokerd/internal/testkit"
)

// A wire is a client below gRPC, which does not end its requests.
type wire struct {
	*http2.Framer
	t       *testing.T
	conn    net.Conn
	headers []string      // of each call, in pairs
	next    uint32        // stream
	ends    chan end      // of its calls, as they come
	opened  chan uint32   // streams whose answer has begun
	lost    chan struct{} // closed when the connection ends
}

// An end is how a call ended.
type end struct {
	stream       uint32
	code, reason string // as in the trailers
}

// openWire connects to an address, until the end of the test. headers go with each call.
func openWire(t *testing.T, address string, headers ...string) *wire {
	t.Helper()
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		network, address = "unix", path
	}
	conn, err := net.Dial(network, address)
	testkit.NoError(t, err)
	w := &wire{
		Framer: http2.NewFramer(conn, conn), t: t, conn: conn, headers: headers, next: 1, ends: make(chan end, 2000),
		opened: make(chan uint32, 2000), lost: make(chan struct{}),
	}
	w.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	w.must(err)
	w.must(w.WriteSettings())
	go w.read()
	t.Cleanup(func() { w.close() })
	return w
}

func (w *wire) close() {
	_ = w.conn.Close()
	<-w.lost
}

func (w *wire) must(err error) {
	w.t.Helper()
	testkit.NoError(w.t, err)
}

// read notes the ends of calls until the connection ends.
func (w *wire) read() {
	defer close(w.lost)
	for {
		f, err := w.ReadFrame()
		if err != nil {
			return
		}
		headers, ok := f.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		if !headers.StreamEnded() {
			w.opened <- headers.StreamID
			continue
		}
		e := end{stream: headers.StreamID}
		for _, field := range headers.RegularFields() {
			switch field.Name {
			case "grpc-status":
				e.code = field.Value
			case "brokerd-reason":
				e.reason = field.Value
			}
		}
		w.ends <- e
	}
}

// begin begins a call whose first message has a size, and sends the first bytes of the message.
func (w *wire) begin(method string, size, sent int) (stream uint32) {
	w.t.Helper()
	stream = w.open(method)
	w.message(stream, size, sent)
	return stream
}

// open begins a call without a message.
func (w *wire) open(method string) (stream uint32) {
	w.t.Helper()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	e.SetMaxDynamicTableSize(0)
	all := append([]string{":method", "POST", ":scheme", "http", ":path", method, ":authority", "brokerd",
		"content-type", "application/grpc", "te", "trailers"}, w.headers...)
	for i := 0; i < len(all); i += 2 {
		w.must(e.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]}))
	}
	stream = w.next
	w.next += 2
	w.must(w.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true}))
	return stream
}

// message sends the header of a message with a size, and the first bytes of the message.
func (w *wire) message(stream uint32, size, sent int) {
	w.t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(size))
	w.must(w.WriteData(stream, false, append(head, make([]byte, sent)...)))
}

// ended returns the end of the next call that ends.
func (w *wire) ended() end {
	w.t.Helper()
	select {
	case e := <-w.ends:
		return e
	case <-w.lost:
		w.t.Fatal("the connection ends")
	case <-time.After(patience):
		w.t.Fatal("no call ends")
	}
	return end{}
}

// nextEnd returns the end of the next call that ends on any of some connections.
func nextEnd(t *testing.T, conns ...*wire) end {
	t.Helper()
	for late := time.After(patience); ; {
		for _, c := range conns {
			select {
			case e := <-c.ends:
				return e
			default:
			}
		}
		select {
		case <-late:
			t.Fatal("no call ends")
		case <-time.After(time.Millisecond):
		}
	}
}

// wantEnd checks how the next call ends.
func (w *wire) wantEnd(code codes.Code, reason string) {
	w.t.Helper()
	e := w.ended()
	if want := (end{e.stream, strconv.Itoa(int(code)), reason}); e != want {
		w.t.Errorf("the call ends with %v, want %v", e, want)
	}
}

// wantNone checks that no call has ended before the broker has answered several others. The server
// handles calls at the same time, so a call may end after one that began later.
func (w *wire) wantNone() {
	w.t.Helper()
	for range 20 {
		stream := w.open("/brokerd.v1.None/Known")
		if e := w.ended(); e.stream != stream {
			w.t.Errorf("the call ends with %v, and should go on", e)
			return
		}
	}
}
