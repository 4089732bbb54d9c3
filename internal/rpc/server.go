package rpc

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/internal/identity"
	"brokerd/internal/rules"
)

// MaxRequest is the size in bytes of the largest request or frame. A larger one is RESOURCE_EXHAUSTED.
const MaxRequest = 5 << 20

// Limits of one connection.
const (
	maxHeaders      = 8 << 10  // bytes of a call's metadata; more is RESOURCE_EXHAUSTED
	headersRead     = 64 << 10 // beyond that gRPC itself ends the call, at the client already if that knows how
	maxStreams      = 1000     // calls at a time; further ones wait at the client
	handshakeTime   = 10 * time.Second
	leastPingGap    = 5 * time.Second  // clients that ping more often are cut off; gRPC's own do so every 10 s at most
	pingAfter       = 10 * time.Second // of silence, to find clients that are gone or frozen: an open stream keeps its agent's lease
	streamWindow    = 256 << 10        // bytes a client may send ahead on one stream
	connWindow      = 4 << 20          // and on all streams of a connection together
	readBufferSize  = 32 << 10
	writeBufferSize = 64 << 10
)

// Options say what a server needs.
type Options struct {
	UID          int           // the user who may connect through a Unix socket: the daemon's own
	Credentials  Credentials   // of the clients; nil if the server only listens on Unix sockets
	Certificates *Certificates // for TLS on every TCP listener; nil: TCP is plain
	Presence     Presence      // nil costs nothing, and so does Observer
	Observer     Observer
	Traces       bool          // whether unary calls carry the traceparent of their caller (package tracing)
	PingAfter    time.Duration // of silence on a connection; 10 s if 0. What is not answered for as long closes it
	Clock        clockwork.Clock
	Log          *zap.Logger
}

// A Presence notes the calls in an agent's own name.
type Presence interface {
	// Began reports that a call has begun at a time. It may block before the call continues.
	Began(ctx context.Context, who identity.Caller, method string, at time.Time)
	// Ended reports that it has ended. size is that of its request in bytes, 0 for a stream.
	Ended(who identity.Caller, method string, size int)
}

// An Observer is told of calls. Its methods are called by many goroutines and must be quick. Methods are named as in
// MessageService/Send, those of gRPC's own services with their package in front.
type Observer interface {
	// Opened says that a stream of brokerd's own has begun; Closed that it has ended.
	Opened(method string)
	Closed(method string)
	// Called says that a call has ended. code is gRPC's name of it, such as NotFound; reason is empty for OK.
	Called(method, code, reason string)
	// Refused counts a refused item of a stream.
	Refused(reason string)
}

// A Server answers calls. It is a grpc.ServiceRegistrar; register everything before Serve.
// Its other methods may be called concurrently.
type Server struct {
	grpc        *grpc.Server
	methods     map[string]method // all registered methods, by full name
	web         *Passage          // nil: every connection is one of gRPC
	health      *health.Server
	credentials Credentials
	operator    identity.Grant // of the clients of the Unix socket
	presence    Presence
	quotas      *quotas
	shapes      shapes
	rules       rules.Set
	codec       codec
	requests    requestBuffers
	watch       watch
	observer    Observer
	traces      bool
	refusals    *refusalLog
	clock       clockwork.Clock
	log         *zap.Logger
	streams     atomic.Int64
	handlers    sync.WaitGroup // of streams whose credential can end: see call.until
	local       localCalls

	stopping context.Context // done when Stop begins
	stop     context.CancelFunc
	cut      context.Context // done when Stop ends the calls under way
	cutOff   context.CancelFunc
}

// NewServer returns a server with gRPC's health and reflection services.
func NewServer(o Options) *Server {
	s := &Server{
		health: health.NewServer(), credentials: o.Credentials, operator: identity.Grant{Access: identity.Operator},
		presence: o.Presence, quotas: newQuotas(), observer: o.Observer, traces: o.Traces, clock: o.Clock, log: o.Log,
		methods: map[string]method{}, codec: newCodec(), requests: newRequestBuffers(),
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.cut, s.cutOff = context.WithCancel(context.Background())
	ping := cmp.Or(o.PingAfter, pingAfter)
	s.refusals = newRefusalLog(s.clock, s.log)
	s.watch.clock = s.clock
	s.grpc = grpc.NewServer(
		grpc.Creds(peers{Entrance{o.UID, o.Certificates, o.Log}, o.Credentials, o.Clock, s}),
		grpc.ForceServerCodecV2(s.codec),
		grpc.MaxHeaderListSize(headersRead),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingGap, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: ping, Timeout: ping}),
		// Windows of a fixed size: gRPC would otherwise probe each connection with pings to size them,
		// which on one machine costs more than it finds out.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		experimental.BufferPool(newFrameBuffers()),
		grpc.ReadBufferSize(readBufferSize),
		grpc.WriteBufferSize(writeBufferSize),
		grpc.InTapHandle(measureHeaders),
		// Features and the store are stopped after the server, and no handler may still use them.
		grpc.WaitForHandlers(true),
	)
	grpc_health_v1.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	return s
}

// RegisterService registers a service with all its calls passing through the server's checks. It
// implements grpc.ServiceRegistrar.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, service any) {
	wrapped := *desc
	checks := s.checksOf(desc.ServiceName)
	wrapped.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + m.MethodName
		m.Handler = s.unary(name, checks(m.MethodName), m.Handler)
		wrapped.Methods[i] = m
		s.methods[name] = method{service: service, unary: m.Handler}
	}
	wrapped.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, m := range desc.Streams {
		name := "/" + desc.ServiceName + "/" + m.StreamName
		m.Handler = s.stream(name, m.ClientStreams, checks(m.StreamName), m.Handler)
		wrapped.Streams[i] = m
		s.methods[name] = method{service: service, stream: m.Handler}
	}
	s.grpc.RegisterService(&wrapped, service)
}

// checksOf returns the checks of the requests of a service's methods, by name; nil for a method that has none. A
// service that receives a stream of requests checks them itself, because some answer a bad one and read on.
func (s *Server) checksOf(service string) func(method string) *rules.Message {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil { // only services of tests have no descriptor
		return func(string) *rules.Message { return nil }
	}
	methods := d.(protoreflect.ServiceDescriptor).Methods()
	return func(method string) *rules.Message {
		m := methods.ByName(protoreflect.Name(method))
		if m == nil || m.IsStreamingClient() {
			return nil
		}
		return s.rules.Message(m.Input())
	}
}

// GetServiceInfo tells what is registered; reflection asks for it.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// Serve answers the calls that come through the listener until Stop, which is no error.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(opening{l}); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
		return err
	}
	return nil
}

// Streams returns how many of brokerd's own streams are open, and requests of Do under way.
func (s *Server) Streams() int { return int(s.streams.Load()) }

// Damaged makes the health service answer NOT_SERVING from now on, because the broker writes
// nothing more. The server still answers calls.
func (s *Server) Damaged() {
	s.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
}

// Stop accepts no more calls and permits those under way to finish; when ctx ends it cuts them off. It
// returns when all have ended. Stopping twice is fine.
func (s *Server) Stop(ctx context.Context) {
	s.health.Shutdown()
	s.stop()
	s.local.close()
	if s.web != nil {
		_ = s.web.Close() // never fails
	}
	finished := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		s.local.running.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-ctx.Done():
		s.cutOff()
		s.grpc.Stop()
		<-finished
	}
	s.handlers.Wait()
	s.refusals.end()
}
