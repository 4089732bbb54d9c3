// Package testkit holds what the tests of several features share: a store in a temporary folder, a
// gRPC server on loopback, and a look into the errors that come back. No program imports it.
package testkit

import (
	"context"
	"math"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
	"brokerd/internal/rpc"
	"brokerd/internal/rules"
	"brokerd/internal/store"
	"brokerd/internal/store/postgres"
)

// Patience is how long a test waits for what should come at once, beside many other tests on a busy machine.
const Patience = 5 * time.Minute

// Store opens a store in the folder. When the test ends its database must be sound; a test that closes
// it before looks for itself. With a clock that the test advances, a read may take any time.
func Store(t testing.TB, dir string, clock clockwork.Clock, migrations ...[]store.Migration) *store.Store {
	t.Helper()
	o := store.Options{Dir: dir, Clock: clock}
	if _, fake := clock.(interface{ Advance(time.Duration) }); fake {
		o.ReadTime = math.MaxInt64
	}
	for _, m := range migrations {
		o.Migrations = append(o.Migrations, m...)
	}
	if url := Postgres(t, dir, o.Migrations); url != "" {
		database, err := postgres.New(url, "", clockwork.NewRealClock())
		if err != nil {
			t.Fatal(err)
		}
		o.Database = database
	}
	s, err := store.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		problems, err := s.Check(context.Background())
		if err == nil && len(problems) > 0 {
			t.Errorf("the database is damaged: %v", problems)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Serve runs a gRPC server with the services that register adds, and returns a connection to it and
// what stops both early. The caller of each call is the one that As has put into its context, or the agent that a client
// of package client is.
func Serve(t testing.TB, register func(grpc.ServiceRegistrar)) (*grpc.ClientConn, func()) {
	t.Helper()
	// As the daemon does, so that a stopped stream has written its last position.
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream))
	register(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	stop := func() {
		_ = conn.Close()
		server.Stop()
		<-done
	}
	t.Cleanup(stop)
	return conn, stop
}

// As returns a context for calls of a caller.
func As(ctx context.Context, c identity.Caller) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"test-access", strconv.Itoa(int(c.Access)),
		"test-session", c.Session,
		"test-agent", c.Agent,
		"test-incarnation", strconv.FormatInt(c.Incarnation, 10),
	)
}

// Conn returns a connection whose calls are those of a caller.
func Conn(conn grpc.ClientConnInterface, c identity.Caller) grpc.ClientConnInterface {
	return callersConn{conn, c}
}

type callersConn struct {
	conn   grpc.ClientConnInterface
	caller identity.Caller
}

// Invoke implements grpc.ClientConnInterface.
func (c callersConn) Invoke(ctx context.Context, method string, in, out any, o ...grpc.CallOption) error {
	return c.conn.Invoke(As(ctx, c.caller), method, in, out, o...)
}

// NewStream implements grpc.ClientConnInterface.
func (c callersConn) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.conn.NewStream(As(ctx, c.caller), d, method, o...)
}

// Operator returns a context for calls of an operator without an agent in the session "default".
func Operator(ctx context.Context) context.Context {
	return As(ctx, identity.Caller{Access: identity.Operator, Session: "default"})
}

// Agent returns a context for calls of an agent in the session "default".
func Agent(ctx context.Context, name string) context.Context {
	return As(ctx, identity.Caller{Access: identity.Agent, Session: "default", Agent: name})
}

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Reason returns the reason that an error carries.
func Reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// Fields returns the fields that an error names.
func Fields(err error) []string {
	var fields []string
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return fields
}

func unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := checked(request); err != nil {
		return nil, rpc.Error(err)
	}
	answer, err := handler(identify(ctx), request)
	return answer, rpc.Error(err)
}

func stream(service any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return rpc.Error(handler(service, identified{ss, identify(ss.Context())}))
}

// checked checks a request by the rules, as the daemon's server does.
func checked(request any) error {
	var set rules.Set
	m := request.(proto.Message)
	return set.Message(m.ProtoReflect().Descriptor()).Check(m)
}

type identified struct {
	grpc.ServerStream
	ctx context.Context
}

// RecvMsg implements grpc.ServerStream.
func (s identified) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if _, many := m.(*pb.LockRequest); many { // the service answers a bad request and reads on
		return nil
	}
	return checked(m)
}

func (s identified) Context() context.Context { return s.ctx }

func identify(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	value := func(key string) string {
		if v := md.Get(key); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	access, _ := strconv.Atoi(value("test-access"))
	incarnation, _ := strconv.ParseInt(value("test-incarnation"), 10, 64)
	c := identity.Caller{
		Access: identity.Access(access), Session: value("test-session"), Agent: value("test-agent"), Incarnation: incarnation,
	}
	if agent := value("brokerd-agent"); agent != "" {
		c = identity.Caller{Access: identity.Agent, Session: "default", Agent: agent}
	}
	return identity.NewContext(ctx, c)
}
