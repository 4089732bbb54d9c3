package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
	"brokerd/internal/rpc"
)

// commentGap is the time between two comments of server-sent events. They keep intermediaries from
// closing a connection on which no event is sent.
const commentGap = 15 * time.Second

// The media types of streams.
const (
	serverSentEvents = "text/event-stream"
	jsonLines        = "application/jsonl"
)

// A stream is one streaming call on its way through HTTP. It implements rpc.Frames.
type stream struct {
	endpoint *endpoint
	shared   *sharedFrames
	w        http.ResponseWriter
	r        *http.Request
	control  *http.ResponseController
	events   bool // server-sent events instead of JSON lines

	requests *jsontext.Decoder // of a client stream
	input    *frameReader
	read     bool // the first request, which is the only one of a server stream

	mu    sync.Mutex // guards the answer: w, begun and b
	begun bool
	b     bytes.Buffer
}

// stream serves a streaming call.
func (s *Server) stream(e *endpoint, w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead { // the stream would take messages, and its client would see none
		w.Header().Set("Allow", http.MethodGet)
		refuse(w, http.StatusMethodNotAllowed, fault.New(fault.Invalid, "METHOD_NOT_ALLOWED", "HEAD is not possible here"))
		return
	}
	header, err := e.header(r)
	if err != nil {
		fail(w, r, rpc.Error(err))
		return
	}
	x := &stream{endpoint: e, shared: &s.shared, w: w, r: r, control: http.NewResponseController(w),
		events: strings.Contains(r.Header.Get("Accept"), serverSentEvents)}
	if e.method.IsStreamingClient() {
		// Answers may begin before the last request.
		if err := x.control.EnableFullDuplex(); err != nil {
			fail(w, r, rpc.Error(err))
			return
		}
		w.Header().Set("Connection", "close") // the answer begins before the end of the body is known
		x.input = &frameReader{from: r.Body, control: x.control}
		x.requests = jsontext.NewDecoder(x.input)
	}
	ended := make(chan struct{})
	var comments sync.WaitGroup
	if x.events { // JSON lines have no comments
		ticks := s.clock.NewTicker(commentGap)
		defer ticks.Stop()
		comments.Go(func() { x.comment(ticks.Chan(), ended) })
	}
	err = s.rpc.Stream(r.Context(), e.name, header, x)
	close(ended)
	comments.Wait()
	switch {
	case err != nil && !x.begun:
		fail(w, r, err)
	case err != nil:
		x.end(err)
	case !x.begun:
		x.begin()
	}
	_ = x.control.SetWriteDeadline(time.Time{}) // for the next request on this connection
	if x.input != nil && !x.input.ended.Load() {
		linger(x.control, r.Body)
	}
}

// Read implements rpc.Frames.
func (x *stream) Read(m proto.Message, hold rpc.Hold) (int, error) {
	if x.requests == nil {
		if x.read {
			return 0, io.EOF
		}
		x.read = true
		return x.endpoint.read(x.w, x.r, m, hold)
	}
	if !x.read || x.input.held { // the client may take its time between two requests
		x.read = true
		if err := x.control.SetReadDeadline(time.Time{}); err != nil {
			return 0, gone(err)
		}
	}
	x.input.size, x.input.held, x.input.left, x.input.hold = 0, false, 0, hold
	before := x.requests.InputOffset()
	err := jsonform.DecodeNext(x.requests, m)
	size := int(x.requests.InputOffset() - before)
	switch {
	case err != nil && x.input.err != nil && !errors.Is(x.input.err, io.EOF):
		err = x.input.err
	case size > rpc.MaxRequest:
		err = rpc.TooLarge(rpc.MaxRequest)
	}
	return size, err
}

// Write implements rpc.Frames.
func (x *stream) Write(m proto.Message) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.b.Reset()
	if x.events {
		if revision, ok := m.(interface{ GetRevision() int64 }); ok && revision.GetRevision() > 0 {
			x.b.WriteString("id: " + strconv.FormatInt(revision.GetRevision(), 10) + "\n")
		}
		x.b.WriteString("data: ")
	}
	if err := x.shared.append(&x.b, m); err != nil {
		return err
	}
	return x.flush()
}

// flush writes what b has as one event or line. The caller holds the mutex.
func (x *stream) flush() error {
	x.b.WriteByte('\n')
	if x.events {
		x.b.WriteByte('\n')
	}
	x.begin()
	if err := x.control.SetWriteDeadline(within(writeTime)); err != nil {
		return gone(err)
	}
	if _, err := x.w.Write(x.b.Bytes()); err != nil {
		return gone(err)
	}
	return gone(x.control.Flush())
}

// begin sets the headers of the answer. The caller holds the mutex.
func (x *stream) begin() {
	if x.begun {
		return
	}
	x.begun = true
	kind := jsonLines
	if x.events {
		kind = serverSentEvents
	}
	x.w.Header().Set("Content-Type", kind)
	x.w.WriteHeader(http.StatusOK)
}

// comment writes a comment line at every tick until the stream ends.
func (x *stream) comment(ticks <-chan time.Time, ended <-chan struct{}) {
	for {
		select {
		case <-ticks:
			x.mu.Lock()
			x.b.Reset()
			x.b.WriteByte(':')
			_ = x.flush() // the next frame fails too
			x.mu.Unlock()
		case <-ended:
			return
		}
	}
}

// end writes the error of a stream that has begun: as the event failed, or as the last line.
func (x *stream) end(err error) {
	answer, _ := status.FromError(err)
	x.b.Reset()
	if x.events {
		x.b.WriteString("event: failed\ndata: ")
	}
	x.b.Write(problemJSON(jsonform.NewProblem(answer)).Bytes())
	_ = x.flush() // the client may have closed the connection
}

// streamAhead is how many bytes of one request of a stream the broker reads before they count. The
// stream counts for as many.
const streamAhead = 256 << 10

// A frameReader bounds what a request of a client stream takes in memory, and the time of a large one.
// The decoder reads ahead, so stream.Read checks the exact size.
type frameReader struct {
	from    io.Reader
	control *http.ResponseController
	hold    rpc.Hold
	size    int   // bytes read for this request
	held    bool  // the request is large, and its bytes count
	left    int   // bytes that count already
	err     error // of the last read
	ended   atomic.Bool
}

// Read implements io.Reader.
func (f *frameReader) Read(p []byte) (n int, err error) {
	if f.size > rpc.MaxRequest {
		f.err = rpc.TooLarge(rpc.MaxRequest)
		return 0, f.err
	}
	if f.size > streamAhead {
		if f.err = f.large(&p); f.err != nil {
			return 0, f.err
		}
	}
	n, f.err = f.from.Read(p)
	f.size += n
	f.left = max(0, f.left-n)
	f.ended.Store(errors.Is(f.err, io.EOF))
	if f.err != nil && !errors.Is(f.err, io.EOF) {
		f.err = unreadable(f.err)
	}
	return n, f.err
}

// large counts the bytes that the next read of a large request may return. The client has a time for the
// whole request.
func (f *frameReader) large(p *[]byte) error {
	if !f.held {
		f.held = true
		if err := f.control.SetReadDeadline(within(bodyTime)); err != nil {
			return gone(err)
		}
	}
	if f.left == 0 {
		if err := f.hold(bodyPart); err != nil {
			return err
		}
		f.left = bodyPart
	}
	*p = (*p)[:min(len(*p), f.left)]
	return nil
}

// firstFrame serves a stream by its first frame.
func (s *Server) firstFrame(e *endpoint, w http.ResponseWriter, r *http.Request) {
	header, err := e.header(r)
	if err != nil {
		fail(w, r, rpc.Error(err))
		return
	}
	f := &frame{stream{endpoint: e, shared: &s.shared, w: w, r: r}}
	err = s.rpc.Stream(r.Context(), e.name, header, f)
	switch {
	case f.b.Len() > 0: // err is errSeen
		send(w, http.StatusOK, &f.b)
	case err != nil:
		fail(w, r, err)
	default:
		fail(w, r, rpc.Error(fault.New(fault.Internal, "NO_FRAME", "the stream has no frame")))
	}
}

// errSeen ends a stream of which one frame is wanted. The log and the metrics count it as a call that
// its caller gave up.
var errSeen = context.Canceled

// A frame is the first frame of a stream. It implements rpc.Frames.
type frame struct{ stream }

// Write implements rpc.Frames.
func (f *frame) Write(m proto.Message) error {
	if f.b.Len() > 0 {
		return errSeen
	}
	return cmp.Or(f.shared.append(&f.b, m), errSeen)
}

// sharedFrames are the newest frames that many streams send, with their JSON form. Its methods may be
// called concurrently.
type sharedFrames struct {
	mu     sync.Mutex // guards the fields below
	frames [16]struct {
		message proto.Message
		text    []byte
	}
	next int // the oldest of frames
}

// append writes the JSON form of a frame. A feature marks a frame that it sends on several streams by
// the method Encoded, and the form of such a frame is made once.
func (c *sharedFrames) append(b *bytes.Buffer, m proto.Message) error {
	if _, shared := m.(interface{ Encoded() []byte }); !shared {
		return jsonform.Append(b, m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.frames {
		if f.message == m {
			b.Write(f.text)
			return nil
		}
	}
	from := b.Len()
	if err := jsonform.Append(b, m); err != nil {
		return err
	}
	f := &c.frames[c.next]
	f.message, f.text = m, bytes.Clone(b.Bytes()[from:])
	c.next = (c.next + 1) % len(c.frames)
	return nil
}
