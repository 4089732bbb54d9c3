package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
)

// A method is a registered handler, with the checks of the server around it.
type method struct {
	service any
	unary   grpc.MethodHandler // nil for a stream
	stream  grpc.StreamHandler // nil for a unary call
}

// Frames are the two directions of a stream in process.
type Frames interface {
	// Read fills in the next request and returns its size in bytes, io.EOF after the last one. It calls
	// hold before it reads bytes that must count. They count until the handler has the request.
	Read(request proto.Message, hold Hold) (size int, err error)
	// Write sends an answer. It may block.
	Write(answer proto.Message) error
}

// Call makes a unary call in process, with the same checks as a call over gRPC: ctx comes from
// ConnContext, and the header has the fields that identify the caller. read fills in the request and
// returns its size in bytes; Call calls it after the caller is known to have access. It calls hold
// before it reads bytes that must count; they count until the end of Call. The error is a gRPC status.
func (s *Server) Call(ctx context.Context, name string, header http.Header,
	read func(request proto.Message, hold Hold) (size int, err error),
) (proto.Message, error) {
	m := s.methods[name]
	if m.unary == nil {
		return nil, noMethod(name)
	}
	ctx, leave, err := s.enter(ctx, name, header)
	if err != nil {
		return nil, err
	}
	defer leave()
	answer, err := m.unary(m.service, ctx, func(v any) error {
		f := v.(*frame)
		f.size, f.err = read(f.message.(proto.Message), f.hold)
		return nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return answer.(proto.Message), nil
}

// MCP is the name of a request of the Model Context Protocol, as logs and metrics have it, and for Do.
const MCP = "/mcp"

// Do serves a request in process that is no call of the API, with the same checks as Call. It counts as a stream of
// the caller, since it may take as long. serve makes the calls of the API; the context that it gets ends with the
// caller's credential. It calls hold before it reads bytes that must count; they count until the end of Do.
func (s *Server) Do(ctx context.Context, name string, header http.Header,
	serve func(ctx context.Context, hold Hold) error,
) error {
	raw, leave, err := s.enter(ctx, name, header)
	if err != nil {
		return err
	}
	defer leave()
	c := call{server: s, method: name, began: s.clock.Now()}
	return func() (err error) {
		defer func() { err = c.end(raw, recover(), err) }()
		ctx, err := c.begin(raw)
		if err != nil {
			return err
		}
		if err := s.quotas.openStream(c.account, false); err != nil {
			return err
		}
		defer s.quotas.closeStream(c.account, false)
		s.streams.Add(1)
		defer s.streams.Add(-1)
		return serve(ctx, c.holding.take)
	}()
}

// Stream makes a streaming call in process, as Call does.
func (s *Server) Stream(ctx context.Context, name string, header http.Header, frames Frames) error {
	m := s.methods[name]
	if m.stream == nil {
		return noMethod(name)
	}
	ctx, leave, err := s.enter(ctx, name, header)
	if err != nil {
		return err
	}
	defer leave()
	local := &localStream{ctx: ctx, frames: frames}
	defer local.end()
	return m.stream(m.service, local)
}

func noMethod(name string) error {
	return Error(fault.New(fault.NotFound, "METHOD_NOT_FOUND", "there is no method %s of this kind",
		strings.TrimPrefix(name, "/")))
}

// enter returns the context of a call in process. The caller calls leave at its end.
func (s *Server) enter(ctx context.Context, name string, header http.Header,
) (_ context.Context, leave func(), err error) {
	if !s.local.enter() {
		return nil, nil, Error(fault.New(fault.Unavailable, "STOPPING", "the broker stops"))
	}
	md := metadata.MD{}
	for _, key := range []string{
		authorizationHeader, agentHeader, sessionHeader, incarnationHeader, fenceHeader, traceParentHeader,
	} {
		if values := header.Values(key); len(values) > 0 {
			md[key] = values
		}
	}
	ctx = metadata.NewIncomingContext(ctx, md)
	ctx = grpc.NewContextWithServerTransportStream(ctx, localTransport(name))
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.cut, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.local.leave()
	}, nil
}

// localCalls counts the calls in process, so that Stop can wait for their end.
type localCalls struct {
	running sync.WaitGroup

	mu     sync.Mutex // guards closed
	closed bool
}

// enter reports whether a call may begin. The caller calls leave at its end.
func (c *localCalls) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Add(1)
	return true
}

func (c *localCalls) leave() { c.running.Done() }

// close makes enter refuse further calls.
func (c *localCalls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// incomingOf returns the stream of gRPC's transport from which the server reads a call; nil for a call in
// process. Any other stream is an error, which answers INTERNAL and is logged: gRPC itself would read such
// a stream, without the limits of the server.
func incomingOf(ctx context.Context) (incoming, error) {
	switch from := grpc.ServerTransportStreamFromContext(ctx).(type) {
	case incoming:
		return from, nil
	case localTransport:
		return nil, nil
	default:
		return nil, fmt.Errorf("gRPC's transport has a stream of type %T, which the broker cannot read within its limits: "+
			"build it with the version of gRPC in go.mod", from)
	}
}

// localTransport is the name of a method that is called in process. It implements
// grpc.ServerTransportStream: headers and trailers have no receiver.
type localTransport string

// Method implements grpc.ServerTransportStream.
func (t localTransport) Method() string { return string(t) }

// SetHeader implements grpc.ServerTransportStream.
func (localTransport) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerTransportStream.
func (localTransport) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerTransportStream.
func (localTransport) SetTrailer(metadata.MD) error { return nil }

// A localStream is the stream of a call in process. It implements grpc.ServerStream.
type localStream struct {
	localHeaders
	ctx    context.Context
	frames Frames

	mu    sync.Mutex // guards ended, and serialises writes
	ended bool
}

// localHeaders are the methods of a grpc.ServerStream that have no receiver in process.
type localHeaders struct{}

// SetHeader implements grpc.ServerStream.
func (localHeaders) SetHeader(metadata.MD) error { return nil }

// SendHeader implements grpc.ServerStream.
func (localHeaders) SendHeader(metadata.MD) error { return nil }

// SetTrailer implements grpc.ServerStream.
func (localHeaders) SetTrailer(metadata.MD) {}

// Context implements grpc.ServerStream.
func (s *localStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *localStream) RecvMsg(v any) error {
	f := v.(*frame)
	f.size, f.err = s.frames.Read(f.message.(proto.Message), f.hold)
	if errors.Is(f.err, io.EOF) {
		return io.EOF
	}
	return nil
}

// SendMsg implements grpc.ServerStream. A handler may outlive its call if the caller's credential
// ends: see call.until. SendMsg fails then.
func (s *localStream) SendMsg(v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return context.Canceled
	}
	message := v.(*answer).message
	if w, ok := message.(wireWriter); ok {
		message = w.Message()
	}
	return s.frames.Write(message.(proto.Message))
}

// end makes SendMsg fail from now on.
func (s *localStream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}
