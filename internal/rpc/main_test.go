package rpc_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for.
const patience = 2 * time.Minute

// features stand for the real ones. GetSession tells who called; Send answers each frame.
type features struct {
	pb.UnimplementedSessionServiceServer
	pb.UnimplementedMessageServiceServer
	pb.UnimplementedCredentialServiceServer
	get  func(ctx context.Context) error // runs before GetSession answers, if set
	send func()                          // runs before Send reads its first frame, if set

	stream func(grpc.ServerStream) error // serves Send, if set
}

func (f *features) GetSession(ctx context.Context, _ *pb.GetSessionRequest) (*pb.GetSessionResponse, error) {
	if f.get != nil {
		if err := f.get(ctx); err != nil {
			return nil, err
		}
	}
	who := identity.FromContext(ctx)
	return &pb.GetSessionResponse{Session: &pb.Session{
		Name: who.Session, Description: fmt.Sprintf("%s/%d/%d", who.Name(), who.Access, who.Incarnation),
	}}, nil
}

// large returns a request of that many bytes, in a field that the broker does not know.
func large(bytes int) *pb.GetSessionRequest {
	r := &pb.GetSessionRequest{}
	r.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), strings.Repeat("x", bytes)))
	return r
}

func (f *features) Send(stream grpc.BidiStreamingServer[pb.SendRequest, pb.SendResponse]) error {
	if f.stream != nil {
		return f.stream(stream)
	}
	if f.send != nil {
		f.send()
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(&pb.SendResponse{}); err != nil {
			return err
		}
	}
}

// A world is a server on a Unix socket and on TCP.
type world struct {
	server   *rpc.Server
	features *features
	socket   string
	tcp      string
	secret   string // the operator's credential
	grants   grants // of all credentials; a test adds to it before its first call

	mu   sync.Mutex // guards seen
	seen []string   // calls that have begun, and ended
}

const operatorSecret = "operator-secret-of-the-test"

// grants are the credentials that a server recognises, by secret. It implements rpc.Credentials.
type grants map[string]*identity.Grant

// Identify implements rpc.Credentials.
func (g grants) Identify(secret string, client netip.Addr, at time.Time) (*identity.Grant, error) {
	grant := g[secret]
	switch {
	case secret == "":
		return nil, g.Refuse(client, at, fault.New(fault.Unauthenticated, "CREDENTIAL_REQUIRED", "no credential"))
	case grant == nil:
		return nil, g.Refuse(client, at, fault.New(fault.Unauthenticated, "CREDENTIAL_UNKNOWN", "no such credential"))
	}
	return grant, nil
}

// Refuse implements rpc.Credentials. The message of the error names the client.
func (g grants) Refuse(client netip.Addr, _ time.Time, cause error) error {
	return fmt.Errorf("client %s: %w", client, cause)
}

// Began implements rpc.Presence.
func (w *world) Began(_ context.Context, who identity.Caller, _ string, _ time.Time) {
	w.note("began", who)
}

// Ended implements rpc.Presence.
func (w *world) Ended(who identity.Caller, _ string, _ int) { w.note("ended", who) }

func (w *world) note(what string, who identity.Caller) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, what+" "+who.Session+"/"+who.Agent)
}

// serve starts a server that stops with the test.
func serve(t *testing.T, change ...func(*rpc.Options)) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{features: &features{}, secret: operatorSecret, grants: grants{operatorSecret: {Access: identity.Operator}}}
	o := rpc.Options{UID: os.Getuid(), Credentials: w.grants, Clock: clockwork.NewRealClock(), Log: zap.NewNop(), Presence: w}
	for _, c := range change {
		c(&o)
	}
	w.server = rpc.NewServer(o)
	pb.RegisterSessionServiceServer(w.server, w.features)
	pb.RegisterMessageServiceServer(w.server, w.features)
	pb.RegisterCredentialServiceServer(w.server, w.features)
	w.socket, w.tcp = start(t, w.server, dir)
	return w
}

// start lets a server listen until the test ends, and returns its addresses.
func start(t *testing.T, server *rpc.Server, dir string) (socket, tcp string) {
	t.Helper()
	var serving sync.WaitGroup
	listen := func(l net.Listener, err error) string {
		testkit.NoError(t, err)
		serving.Go(func() {
			if err := server.Serve(l); err != nil {
				t.Error(err)
			}
		})
		return rpc.Address(l)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		server.Stop(ctx)
		serving.Wait()
	})
	return listen(rpc.ListenDefault(dir)), listen(rpc.Listen("127.0.0.1:0", rpc.Loopback))
}

// dial connects, for as long as the test runs.
func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// calling returns a context with metadata, and a deadline.
func calling(t *testing.T, pairs ...string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// whoami makes a call and returns what the feature was told of its caller.
func whoami(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	out, err := pb.NewSessionServiceClient(conn).GetSession(ctx, &pb.GetSessionRequest{})
	if err != nil {
		return "", err
	}
	return out.GetSession().GetName() + " " + out.GetSession().GetDescription(), nil
}

// expect checks code, reason and, unless empty, the field of an error.
func expect(t *testing.T, err error, code codes.Code, reason, field string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code {
		t.Errorf("code %v, want %v: %v", s.Code(), code, err)
	}
	var info *errdetails.ErrorInfo
	var fields []string
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	if info.GetReason() != reason || info.GetDomain() != "brokerd.v1" {
		t.Errorf("reason %q of domain %q, want %q: %v", info.GetReason(), info.GetDomain(), reason, err)
	}
	if got := strings.Join(fields, " "); got != field {
		t.Errorf("fields %q, want %q: %v", got, field, err)
	}
}
