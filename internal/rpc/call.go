package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/rules"
	"brokerd/internal/store"
)

// A call is one call on its way through the server.
type call struct {
	server *Server
	method string
	who    identity.Caller
	began  time.Time
	noted  bool // by the server's Presence
	turn   any  // the caller as it takes turns in the writer
	size   int  // bytes of the request; 0 = a stream

	account *account // of the caller; nil = no limits
	holding holding  // of the request; not used by a stream

	ended context.Context // of the grant; nil = the credential never ends
	leave func()          // releases what begin has taken for ended
}

// unary wraps the handler of a call with one request and one answer.
func (s *Server) unary(method string, checks *rules.Message, handler grpc.MethodHandler) grpc.MethodHandler {
	return func(service any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (answer any, err error) {
		c := call{server: s, method: method, began: s.clock.Now()}
		defer func() { err = c.end(ctx, recover(), err) }()
		began, err := c.begin(ctx)
		if err != nil {
			return nil, err
		}
		if s.traces {
			began = withTraceParent(began)
		}
		answer, err = handler(service, began, func(request any) error {
			f := frame{message: request}
			if err := c.request(ctx, decode, &f); err != nil {
				return err
			}
			c.size = f.size
			c.appear(ctx) // a part of a request proves nothing
			if f.err != nil || checks == nil {
				return f.err
			}
			return checks.Check(request.(proto.Message))
		}, nil)
		if fault.KindOf(err) == fault.Unauthenticated { // the request of a public method had a wrong secret
			err = s.credentials.Refuse(clientOf(ctx), c.began, err)
		}
		return answer, err
	}
}

// request receives the request of a call that has one.
func (c *call) request(ctx context.Context, decode func(any) error, f *frame) error {
	from, err := incomingOf(ctx)
	if err != nil {
		return err
	}
	if from == nil { // in process
		f.hold = c.holding.take
		return decode(f)
	}
	r := &receiver{server: c.server, from: from, holding: &c.holding, most: MaxRequest, small: smallRequest, single: true}
	if Public(c.method) {
		r.most = publicRequest
	}
	c.server.watch.add(r, true, c.began)
	defer c.server.watch.remove(r)
	return r.receive(f)
}

// stream wraps the handler of a stream. many says that the client may send more than one request.
func (s *Server) stream(method string, many bool, checks *rules.Message, handler grpc.StreamHandler) grpc.StreamHandler {
	ours := strings.HasPrefix(method, "/"+domain+".")
	return func(service any, raw grpc.ServerStream) (err error) {
		c := call{server: s, method: method, began: s.clock.Now()}
		defer func() { err = c.end(raw.Context(), recover(), err) }()
		ctx, err := c.begin(raw.Context())
		if err != nil {
			return err
		}
		if err := s.quotas.openStream(c.account, many); err != nil {
			return err
		}
		defer s.quotas.closeStream(c.account, many)
		c.appear(raw.Context())
		if ours {
			s.streams.Add(1)
			defer s.streams.Add(-1)
			if s.observer != nil {
				s.observer.Opened(short(method))
				defer s.observer.Closed(short(method))
			}
		}
		x := &stream{ServerStream: raw, ctx: ctx, checks: checks, holding: holding{total: &s.quotas.total, account: c.account}}
		from, err := incomingOf(raw.Context())
		if err != nil {
			return err
		}
		if from != nil {
			x.receiver = &receiver{server: s, from: from, holding: &x.holding, most: MaxRequest, small: smallRequest, single: !many}
			if many {
				x.receiver.small = streamWindow // the stream's window counts already
			}
			s.watch.add(x.receiver, !many, c.began)
			defer s.watch.remove(x.receiver)
		}
		serve := func() error { return handler(service, x) }
		if c.ended == nil {
			return serve()
		}
		return c.until(serve)
	}
}

// until runs the handler of a stream in a separate goroutine. It returns when the handler does, or when
// the credential ends: a handler that waits in Recv only notices the end once gRPC has closed the
// stream, which gRPC does after until returns. The server waits for the goroutine when it stops.
func (c *call) until(handler func() error) error {
	answer := make(chan error, 1)
	c.server.handlers.Go(func() {
		var err error
		defer func() {
			if p := recover(); p != nil {
				err = c.panicked(p)
			}
			answer <- err
		}()
		err = handler()
	})
	select {
	case err := <-answer:
		if c.ended.Err() == nil {
			return err
		}
	case <-c.ended.Done():
	}
	return context.Cause(c.ended)
}

// begin identifies the caller, checks its access, and returns a context that carries the caller. The
// context ends with the call or with the caller's credential.
func (c *call) begin(ctx context.Context) (context.Context, error) {
	who, grant, err := c.identify(ctx)
	if err != nil {
		return nil, err
	}
	c.who = who
	conn := connectionOf(ctx)
	if err := admit(c.method, who); err != nil {
		return nil, err
	}
	a, err := c.server.quotas.connect(conn.link, who, grant, grant == &c.server.operator)
	if err != nil {
		return nil, err
	}
	if err := a.begin(); err != nil {
		return nil, err
	}
	c.account, c.holding = a, holding{total: &c.server.quotas.total, account: a}
	if who.Access == identity.None {
		if err := c.holding.take(publicRequest); err != nil {
			return nil, err
		}
	}
	c.turn = turnOf(conn.link, who)
	if ended := c.endOf(grant, conn.certificate); ended != nil {
		ctx = c.endWith(ctx, ended)
	}
	return store.WithCaller(identity.NewContext(ctx, who), c.turn), nil
}

// appear notes the call of an agent.
func (c *call) appear(ctx context.Context) {
	if c.who.Agent != "" && c.server.presence != nil {
		c.noted = true
		c.server.presence.Began(ctx, c.who, c.method, c.began)
	}
}

// identify returns who is calling, and the grant that proves it. A public method ignores what the
// client presents.
func (c *call) identify(ctx context.Context) (identity.Caller, *identity.Grant, error) {
	if Public(c.method) {
		return identity.Caller{Session: defaultSession}, &identity.Grant{}, checkHeaders(ctx)
	}
	return c.server.identify(ctx, c.began)
}

// endOf returns a context that ends with the grant or with the certificate of the connection; nil if
// neither ends.
func (c *call) endOf(grant *identity.Grant, cert *certificate) context.Context {
	switch {
	case cert == nil || grant == &cert.grant:
		return grant.Ended
	case grant.Ended == nil:
		return cert.grant.Ended
	}
	ended, cancel := context.WithCancelCause(grant.Ended)
	stop := context.AfterFunc(cert.grant.Ended, func() { cancel(context.Cause(cert.grant.Ended)) })
	c.leave = func() { stop(); cancel(nil) }
	return ended
}

// endWith returns a context that ends with ctx or with the credential.
func (c *call) endWith(ctx, ended context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ended, cancel)
	parent := c.leave
	c.ended, c.leave = ended, func() {
		stop()
		cancel()
		if parent != nil {
			parent()
		}
	}
	return ctx
}

// turnOf returns the caller that takes turns in the writer: the agent, on whatever connections, or
// the connection of a call without an agent.
func turnOf(l *link, who identity.Caller) any {
	if who.Agent == "" && l != nil {
		return l
	}
	return agentKey{who.Session, who.Agent}
}

// end turns what the handler returned, or panicked with, into the answer's status, and logs the call.
// The reason of an error also goes into a trailer, for clients without the types of its details.
func (c *call) end(ctx context.Context, panicked any, err error) error {
	if c.noted {
		c.server.presence.Ended(c.who, c.method, c.size)
	}
	c.holding.release()
	c.account.end()
	if panicked != nil {
		err = c.panicked(panicked)
	}
	if c.ended != nil {
		if err != nil && c.ended.Err() != nil {
			err = context.Cause(c.ended)
		}
		c.leave()
	}
	answer := Error(err)
	reason := Reason(err)
	if reason != "" {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(reasonTrailer, reason)) // the status has the reason too
	}
	level := zapcore.DebugLevel
	code := status.Code(answer)
	if c.server.observer != nil {
		c.server.observer.Called(short(c.method), code.String(), reason)
	}
	if code == codes.Internal || code == codes.Unknown {
		level = zapcore.WarnLevel
	}
	c.server.refusals.note(ctx, "a call was refused", c.method, c.who, code, reason, zap.Duration("took", c.server.clock.Since(c.began)))
	if entry := c.server.log.Check(level, "call"); entry != nil {
		entry.Write(zap.String("method", c.method), zap.String("session", c.who.Session), zap.String("agent", c.who.Agent),
			zap.Stringer("code", code), zap.Duration("took", c.server.clock.Since(c.began)), zap.NamedError("error", cause(err)))
	}
	return answer
}

// panicked logs the panic of a handler, and returns it as an error.
func (c *call) panicked(p any) error {
	c.server.log.Error("a call panicked", zap.String("method", c.method), zap.String("agent", c.who.Agent),
		zap.Any("panic", p), zap.StackSkip("stack", 3))
	return fmt.Errorf("panic: %v", p)
}

// short is a method as an Observer is told of it.
func short(method string) string {
	return strings.TrimPrefix(strings.TrimPrefix(method, "/"+domain+"."), "/")
}

// cause adds to an error the private cause of its fault, for the log.
func cause(err error) error {
	var e *fault.Error
	if errors.As(err, &e) && e.Cause != nil {
		return fmt.Errorf("%w: %w", err, e.Cause)
	}
	return err
}

// A stream carries the caller in its context and names the field of a frame that cannot be decoded.
type stream struct {
	grpc.ServerStream
	ctx      context.Context
	checks   *rules.Message // of a request; nil = none
	receiver *receiver      // nil = a call in process
	holding  holding        // of the frame that is received
	frame    frame          // reused: only one goroutine at a time may receive
	out      answer         // reused: only one goroutine at a time may send
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *stream) RecvMsg(message any) error {
	defer s.holding.release()
	s.frame = frame{message: message}
	var err error
	if s.receiver != nil {
		err = s.receiver.receive(&s.frame)
	} else {
		s.frame.hold = s.holding.take
		err = s.ServerStream.RecvMsg(&s.frame)
	}
	if err != nil {
		return err
	}
	if s.frame.err != nil || s.checks == nil {
		return s.frame.err
	}
	return s.checks.Check(message.(proto.Message))
}

// SendMsg implements grpc.ServerStream. gRPC queues a few small frames for a client that does not
// read, and without this wait, large ones as well. If the stream ends before a large frame is
// written, SendMsg returns an error.
func (s *stream) SendMsg(message any) error {
	s.out = answer{message: message}
	if err := s.ServerStream.SendMsg(&s.out); err != nil || s.out.written == nil {
		return err
	}
	select {
	case <-s.out.written:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}
