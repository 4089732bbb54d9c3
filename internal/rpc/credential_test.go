package rpc_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

func TestIdentity_BindingOfACredentialWins(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.grants["agent"] = &identity.Grant{Access: identity.Agent, Session: "team", Agent: "builder-1", Role: "builder"}
	w.grants["reader"] = &identity.Grant{Access: identity.Observer}
	w.grants["team-reader"] = &identity.Grant{Access: identity.Observer, Session: "team"}
	conn := dial(t, w.tcp)
	for _, c := range []struct {
		secret  string
		headers []string
		who     string // session, name, access (1 observer, 2 agent, 3 operator), incarnation
		reason  string
	}{
		{"agent", nil, "team builder-1/2/0", ""},
		{"agent", []string{"brokerd-agent", "builder-1", "brokerd-session", "team"}, "team builder-1/2/0", ""},
		{"agent", []string{"brokerd-incarnation", "7"}, "team builder-1/2/7", ""},
		{"agent", []string{"brokerd-agent", "builder-2"}, "", "CREDENTIAL_BOUND"},
		{"agent", []string{"brokerd-session", "default"}, "", "CREDENTIAL_BOUND"},
		{"reader", nil, "default system/1/0", ""},
		{"reader", []string{"brokerd-session", "other"}, "other system/1/0", ""},
		{"reader", []string{"brokerd-agent", "builder-1"}, "", "CREDENTIAL_BOUND"},
		{"team-reader", nil, "team system/1/0", ""},
		{"team-reader", []string{"brokerd-session", "other"}, "", "CREDENTIAL_BOUND"},
		{w.secret, []string{"brokerd-session", "team", "brokerd-agent", "x"}, "team x/2/0", ""},
	} {
		who, err := whoami(calling(t, append(c.headers, "authorization", "Bearer "+c.secret)...), conn)
		if c.reason == "" {
			if err != nil || who != c.who {
				t.Errorf("%s %q: %q, want %q (%v)", c.secret, c.headers, who, c.who, err)
			}
			continue
		}
		expect(t, err, codes.PermissionDenied, c.reason, "")
	}
}

func TestAccess_ObserverOnlyReads(t *testing.T) {
	t.Parallel()
	w := serve(t)
	w.grants["reader"] = &identity.Grant{Access: identity.Observer}
	ctx := calling(t, "authorization", "Bearer reader")
	_, err := pb.NewMessageServiceClient(dial(t, w.tcp)).SendMessages(ctx, &pb.SendMessagesRequest{})
	expect(t, err, codes.PermissionDenied, "READ_ONLY", "")
	_, err = pb.NewSessionServiceClient(dial(t, w.tcp)).CreateSession(ctx, &pb.CreateSessionRequest{})
	expect(t, err, codes.PermissionDenied, "OPERATOR_ONLY", "")
}

// ending is a grant that a test can end.
func ending(access identity.Access) (grant *identity.Grant, end func()) {
	ended, cancel := context.WithCancelCause(context.Background())
	return &identity.Grant{Access: access, Ended: ended}, func() {
		cancel(fault.New(fault.Unauthenticated, "CREDENTIAL_REVOKED", "the credential was revoked"))
	}
}

func TestCredential_EndsTheCallsThatItBegan(t *testing.T) {
	t.Parallel()
	w := serve(t)
	grant, end := ending(identity.Operator)
	w.grants["ending"] = grant
	began := make(chan struct{}, 1)
	w.features.get = func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	conn := dial(t, w.tcp)
	ctx := calling(t, "authorization", "Bearer ending")
	unary := make(chan error, 1)
	go func() { _, err := whoami(ctx, conn); unary <- err }()
	<-began
	// Send waits in Recv, which no context of the broker's own ends.
	inRecv, err := pb.NewMessageServiceClient(conn).Send(ctx)
	testkit.NoError(t, err)
	testkit.NoError(t, inRecv.Send(&pb.SendRequest{}))
	if _, err := inRecv.Recv(); err != nil {
		t.Fatal(err)
	}
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	testkit.NoError(t, err)
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	other, err := pb.NewMessageServiceClient(conn).Send(calling(t, "authorization", "Bearer "+w.secret))
	testkit.NoError(t, err)

	end()
	expect(t, <-unary, codes.Unauthenticated, "CREDENTIAL_REVOKED", "")
	_, err = inRecv.Recv()
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REVOKED", "")
	if got := inRecv.Trailer().Get("brokerd-reason"); len(got) != 1 || got[0] != "CREDENTIAL_REVOKED" {
		t.Errorf("trailer: %v", got)
	}
	_, err = watch.Recv()
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REVOKED", "")
	testkit.NoError(t, other.Send(&pb.SendRequest{}))
	if _, err := other.Recv(); err != nil {
		t.Errorf("a stream with another credential: %v", err)
	}
}

func TestCredential_OutcomeOfACallThatItCoversStands(t *testing.T) {
	t.Parallel()
	w := serve(t)
	grant, end := ending(identity.Operator)
	w.grants["ending"] = grant
	w.features.get = func(context.Context) error { end(); return nil }
	if _, err := whoami(calling(t, "authorization", "Bearer ending"), dial(t, w.tcp)); err != nil {
		t.Errorf("the call succeeded, and the client learns: %v", err)
	}
}

func TestCredential_PanicOfItsStreamIsInternal(t *testing.T) {
	t.Parallel()
	grant, _ := ending(identity.Operator)
	w := serve(t)
	w.grants["ending"] = grant
	w.features.send = func() { panic("secret state") }
	stream, err := pb.NewMessageServiceClient(dial(t, w.tcp)).Send(calling(t, "authorization", "Bearer ending"))
	testkit.NoError(t, err)
	_, err = stream.Recv()
	expect(t, err, codes.Internal, "INTERNAL", "")
}

// A noted reports the clients whose attempts failed.
type noted struct {
	grants
	clients chan netip.Addr
}

// Refuse implements rpc.Credentials.
func (n noted) Refuse(client netip.Addr, at time.Time, cause error) error {
	n.clients <- client
	return n.grants.Refuse(client, at, cause)
}

func TestCredential_FailedAttemptsCountForTheClientsAddress(t *testing.T) {
	t.Parallel()
	n := noted{grants{}, make(chan netip.Addr, 1)}
	w := serve(t, func(o *rpc.Options) { o.Credentials = n })
	for _, c := range []struct {
		conn *grpc.ClientConn
		want netip.Addr
	}{{dial(t, w.tcp), netip.MustParseAddr("127.0.0.1")}, {dial(t, w.socket), netip.Addr{}}} {
		if _, err := whoami(calling(t, "authorization", "none"), c.conn); status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
		if got := <-n.clients; got != c.want {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}
