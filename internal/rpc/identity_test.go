package rpc_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"brokerd/internal/rpc"
)

func TestIdentity_LocalPeer(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	for _, c := range []struct {
		headers []string
		who     string // session, name, access (2 agent, 3 operator), incarnation
		reason  string
		fields  string
	}{
		{nil, "default system/3/0", "", ""},
		{[]string{"brokerd-agent", "builder-1"}, "default builder-1/2/0", "", ""},
		{[]string{"brokerd-agent", "builder-1", "brokerd-session", "team", "brokerd-incarnation", "7"}, "team builder-1/2/7", "", ""},
		{[]string{"brokerd-session", "team"}, "team system/3/0", "", ""},
		{[]string{"brokerd-agent", ""}, "", "INVALID_ARGUMENT", "brokerd-agent"},
		{[]string{"brokerd-agent", "two words"}, "", "INVALID_ARGUMENT", "brokerd-agent"},
		{[]string{"brokerd-agent", "-x"}, "", "INVALID_ARGUMENT", "brokerd-agent"},
		{[]string{"brokerd-agent", strings.Repeat("x", 129)}, "", "INVALID_ARGUMENT", "brokerd-agent"},
		{[]string{"brokerd-agent", "system"}, "", "INVALID_ARGUMENT", "brokerd-agent"},
		{[]string{"brokerd-agent", "a", "brokerd-agent", "b"}, "", "INVALID_ARGUMENT", "brokerd-agent"},
		{[]string{"brokerd-session", "../x"}, "", "INVALID_ARGUMENT", "brokerd-session"},
		{[]string{"brokerd-session", "a", "brokerd-session", "b"}, "", "INVALID_ARGUMENT", "brokerd-session"},
		{[]string{"brokerd-session", "/", "brokerd-agent", "/"}, "", "INVALID_ARGUMENT", "brokerd-session brokerd-agent"},
		{[]string{"brokerd-agent", "a", "brokerd-incarnation", "0"}, "", "INVALID_ARGUMENT", "brokerd-incarnation"},
		{[]string{"brokerd-agent", "a", "brokerd-incarnation", "-1"}, "", "INVALID_ARGUMENT", "brokerd-incarnation"},
		{[]string{"brokerd-agent", "a", "brokerd-incarnation", "99999999999999999999"}, "", "INVALID_ARGUMENT", "brokerd-incarnation"},
		{[]string{"brokerd-agent", "a", "brokerd-fence", "0"}, "", "INVALID_ARGUMENT", "brokerd-fence"},
		{[]string{"brokerd-fence", "1"}, "", "INVALID_ARGUMENT", "brokerd-fence"},
		{[]string{"brokerd-incarnation", "1"}, "", "INVALID_ARGUMENT", "brokerd-incarnation"},
	} {
		who, err := whoami(calling(t, c.headers...), conn)
		if c.reason == "" {
			if err != nil || who != c.who {
				t.Errorf("%q: %q, want %q (%v)", c.headers, who, c.who, err)
			}
			continue
		}
		expect(t, err, codes.InvalidArgument, c.reason, c.fields)
	}
}

func TestIdentity_TCPNeedsTheCredential(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.tcp)
	for _, c := range []struct {
		headers []string
		who     string
		reason  string
	}{
		{nil, "", "CREDENTIAL_REQUIRED"},
		{[]string{"brokerd-agent", "builder-1"}, "", "CREDENTIAL_REQUIRED"},
		{[]string{"authorization", "Bearer "}, "", "CREDENTIAL_UNREADABLE"},
		{[]string{"authorization", "Bearer " + w.secret[1:] + "A"}, "", "CREDENTIAL_UNKNOWN"},
		{[]string{"authorization", "Basic " + w.secret}, "", "CREDENTIAL_UNREADABLE"},
		{[]string{"authorization", w.secret}, "", "CREDENTIAL_UNREADABLE"},
		{[]string{"authorization", "Bearer " + w.secret, "authorization", "Bearer x"}, "", "CREDENTIAL_UNREADABLE"},
		{[]string{"authorization", "Bearer " + w.secret}, "default system/3/0", ""},
		{[]string{"authorization", "bearer " + w.secret, "brokerd-agent", "builder-1"}, "default builder-1/2/0", ""},
	} {
		who, err := whoami(calling(t, c.headers...), conn)
		if c.reason == "" {
			if err != nil || who != c.who {
				t.Errorf("%q: %q, want %q (%v)", c.headers, who, c.who, err)
			}
			continue
		}
		expect(t, err, codes.Unauthenticated, c.reason, "")
	}
}

func TestIdentity_HealthOverTCPNeedsTheCredentialToo(t *testing.T) {
	t.Parallel()
	w := serve(t)
	health := grpc_health_v1.NewHealthClient(dial(t, w.tcp))
	_, err := health.Check(calling(t), &grpc_health_v1.HealthCheckRequest{})
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED", "")
	out, err := health.Check(calling(t, "authorization", "Bearer "+w.secret), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || out.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v %v", out, err)
	}
}

func TestIdentity_WrongCredentialIsRefusedOnTheSocketToo(t *testing.T) {
	t.Parallel()
	w := serve(t)
	_, err := whoami(calling(t, "authorization", "Bearer guessed"), dial(t, w.socket))
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_UNKNOWN", "")
}

func TestIdentity_OtherUsersAreRefusedAtTheSocket(t *testing.T) {
	t.Parallel()
	w := serve(t, func(o *rpc.Options) { o.UID = os.Getuid() + 1 })
	if who, err := whoami(calling(t), dial(t, w.socket)); err == nil {
		t.Errorf("let in as %q", who)
	}
	if who, err := whoami(calling(t, "authorization", "Bearer "+w.secret), dial(t, w.tcp)); err != nil {
		t.Errorf("%q %v: TCP does not go by user", who, err)
	}
}

func TestIdentity_CallsInAnAgentsNameAreSeen(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.socket)
	for _, headers := range [][]string{nil, {"brokerd-agent", "a"}, {"brokerd-agent", "b", "brokerd-session", "s"}} {
		if _, err := whoami(calling(t, headers...), conn); err != nil {
			t.Fatal(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if want := []string{"began default/a", "ended default/a", "began s/b", "ended s/b"}; !slices.Equal(w.seen, want) {
		t.Errorf("%q, want %q", w.seen, want)
	}
}

// Clients without the types of the status details read the reason as text.
func TestError_TheReasonIsATrailerToo(t *testing.T) {
	t.Parallel()
	w := serve(t)
	conn := dial(t, w.tcp)
	var trailer metadata.MD
	check, read := &grpc_health_v1.HealthCheckRequest{}, grpc.Trailer(&trailer)
	_, err := grpc_health_v1.NewHealthClient(conn).Check(calling(t), check, read)
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED", "")
	if got := trailer.Get("brokerd-reason"); len(got) != 1 || got[0] != "CREDENTIAL_REQUIRED" {
		t.Errorf("a call: %v", trailer)
	}
	stream, err := grpc_health_v1.NewHealthClient(conn).Watch(calling(t), check)
	if err == nil {
		_, err = stream.Recv()
	}
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED", "")
	if got := stream.Trailer().Get("brokerd-reason"); len(got) != 1 || got[0] != "CREDENTIAL_REQUIRED" {
		t.Errorf("a stream: %v", stream.Trailer())
	}
	_, err = grpc_health_v1.NewHealthClient(dial(t, w.socket)).Check(calling(t), check, read)
	if got := trailer.Get("brokerd-reason"); err != nil || len(got) > 0 {
		t.Errorf("a call that succeeds: %v, %v", trailer, err)
	}
}
