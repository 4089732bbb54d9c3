package auth_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// link creates a login link in a session and returns its secret.
func (k *kit) link(session string, access pb.CredentialAccess) string {
	k.Helper()
	client := k.Actor(session, "")
	out := apptest.Must(k, client.CreateLoginLink, &pb.CreateLoginLinkRequest{Access: access})
	if len(out.GetSecret()) != 43 || out.GetSession() != session {
		k.Errorf("%v", out)
	}
	return out.GetSecret()
}

// login presents a link over TCP, without a credential.
func (k *kit) login(secret string) (*pb.LoginResponse, error) {
	return pb.NewCredentialServiceClient(k.OverTCP("")).Login(k.ctx, &pb.LoginRequest{Secret: secret})
}

func TestLogin_ALinkGivesOneCredentialFor12Hours(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	sessions := k.Root()
	apptest.Must(t, sessions.CreateSession, &pb.CreateSessionRequest{Name: "team"})
	for _, access := range []pb.CredentialAccess{observer, operator} {
		secret := k.link("team", access)
		k.Clock.Advance(2*time.Minute - time.Second)
		out, err := k.login(secret)
		apptest.NoError(t, err)
		if len(out.GetToken()) != 43 || out.GetToken() == secret || out.GetLevel() != access || out.GetSession() != "team" ||
			!out.GetExpiresAt().AsTime().Equal(k.Clock.Now().Add(12*time.Hour)) {
			t.Errorf("%v", out)
		}
		apptest.Refused(t, apptest.Err(k.login(secret)), codes.Unauthenticated, "LOGIN_LINK_INVALID")

		list := apptest.Must(t, k.Root().ListCredentials, &pb.ListCredentialsRequest{})
		c := list.GetCredentials()[len(list.GetCredentials())-1]
		bound := ""
		if access == observer {
			bound = "team"
		}
		if c.GetAccess() != access || c.GetSession() != bound || c.GetDescription() != "dashboard" ||
			!c.GetExpiresAt().AsTime().Equal(out.GetExpiresAt().AsTime()) {
			t.Errorf("the list has %v", c)
		}

		wantSee, wantSend := codes.OK, codes.OK
		if access == observer {
			wantSee, wantSend = codes.PermissionDenied, codes.PermissionDenied
		}
		if err := k.see(k.OverTCP(out.GetToken(), "brokerd-session", "default")); status.Code(err) != wantSee {
			t.Errorf("%v sees another session: %v", access, err)
		}
		_, err = pb.NewEventServiceClient(k.OverTCP(out.GetToken(), "brokerd-session", "team")).
			PublishEvent(k.ctx, &pb.PublishEventRequest{Type: "build.finished"})
		if status.Code(err) != wantSend {
			t.Errorf("%v publishes an event: %v", access, err)
		}
	}
}

func TestLogout_OutlivesARestartAndIsListed(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	in, err := k.login(k.link("default", observer))
	apptest.NoError(t, err)
	k.Restart() // the credential of a login stays one
	apptest.Must(t, pb.NewCredentialServiceClient(k.OverTCP(in.GetToken())).Logout, &pb.LogoutRequest{})
	apptest.Refused(t, k.see(k.OverTCP(in.GetToken())), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	k.Restart()
	apptest.Refused(t, k.see(k.OverTCP(in.GetToken())), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	list := apptest.Must(t, k.Root().ListCredentials, &pb.ListCredentialsRequest{})
	if c := list.GetCredentials()[0]; c.GetState() != pb.CredentialState_CREDENTIAL_STATE_REVOKED ||
		c.GetEndReason() != "logged out" {
		t.Errorf("the list has %v", c)
	}
}

func TestLogin_OldUnknownAndVoidLinksAreRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	old := k.link("default", operator)
	k.Clock.Advance(2 * time.Minute)
	apptest.Refused(t, apptest.Err(k.login(old)), codes.Unauthenticated, "LOGIN_LINK_INVALID")
	apptest.Refused(t, apptest.Err(k.login("guess")), codes.Unauthenticated, "LOGIN_LINK_INVALID")
	apptest.Refused(t, apptest.Err(k.login(k.Credential())), codes.Unauthenticated, "LOGIN_LINK_INVALID")
	apptest.Refused(t, apptest.Err(k.login("")), codes.InvalidArgument, "INVALID_ARGUMENT")
	void := k.link("default", operator)
	k.Restart()
	apptest.Refused(t, apptest.Err(k.login(void)), codes.Unauthenticated, "LOGIN_LINK_INVALID")
	secret := k.link("default", operator)
	apptest.Refused(t, k.see(k.OverTCP(secret)), codes.Unauthenticated, "CREDENTIAL_UNKNOWN")
}

func TestLogin_GuessesAreLimitedAndAValidLinkPasses(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	refused := k.follow("credential.refused")
	for range 20 {
		apptest.Refused(t, apptest.Err(k.login("guess")), codes.Unauthenticated, "LOGIN_LINK_INVALID")
	}
	apptest.Refused(t, apptest.Err(k.login("guess")), codes.ResourceExhausted, "TOO_MANY_FAILED_ATTEMPTS")
	apptest.Refused(t, k.see(k.OverTCP("guess")), codes.ResourceExhausted, "TOO_MANY_FAILED_ATTEMPTS")
	if _, err := k.login(k.link("default", operator)); err != nil {
		t.Errorf("a valid link of the same address: %v", err)
	}
	_, details := k.next(refused)
	want := map[string]any{"address": "127.0.0.1", "count": 1.0, "reason": "LOGIN_LINK_INVALID"}
	if fmt.Sprint(details) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", details, want)
	}
}

func TestLogin_OfManyClientsWithOneLinkOneReceivesAToken(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	secret := k.link("default", operator)
	var tokens atomic.Int32
	var clients sync.WaitGroup
	service := pb.NewCredentialServiceClient(k.OverTCP(""))
	for range 16 {
		clients.Go(func() {
			if _, err := service.Login(k.ctx, &pb.LoginRequest{Secret: secret}); err == nil {
				tokens.Add(1)
			}
		})
	}
	clients.Wait()
	if got := tokens.Load(); got != 1 {
		t.Errorf("%d clients received a token", got)
	}
}

// A browser may still have a token that has ended, and the Unix socket makes every client an operator.
func TestLogin_IgnoresWhatElseTheClientPresents(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	login := func(ctx context.Context, client pb.CredentialServiceClient) error {
		return apptest.Err(client.Login(ctx, &pb.LoginRequest{Secret: k.link("default", observer)}))
	}
	if err := login(k.ctx, pb.NewCredentialServiceClient(k.OverTCP("unknown"))); err != nil {
		t.Errorf("with an unknown credential: %v", err)
	}
	named := metadata.AppendToOutgoingContext(k.ctx, "brokerd-agent", "no name")
	if err := login(named, k.Root()); err != nil {
		t.Errorf("over the Unix socket: %v", err)
	}
	_, err := k.Root().Login(k.ctx, &pb.LoginRequest{Secret: "guess"})
	apptest.Refused(t, err, codes.Unauthenticated, "LOGIN_LINK_INVALID")
}

func TestCreateLoginLink_IsForOperatorsAndBounded(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	create := func(client pb.CredentialServiceClient, access pb.CredentialAccess) error {
		return apptest.Err(client.CreateLoginLink(k.ctx, &pb.CreateLoginLinkRequest{Access: access}))
	}
	for _, access := range []pb.CredentialAccess{0, agent, 4} {
		if got := testkit.Fields(create(k.Root(), access)); len(got) != 1 || got[0] != "access" {
			t.Errorf("%v: %v", access, got)
		}
	}
	apptest.Refused(t, create(k.Actor("nowhere", ""), operator), codes.NotFound, "SESSION_NOT_FOUND")
	_, token := k.Issue(&pb.IssueCredentialRequest{Access: observer})
	for _, conn := range []*grpc.ClientConn{k.OverTCP(token), k.Registered("builder-1", "builder")} {
		err := create(pb.NewCredentialServiceClient(conn), observer)
		apptest.Refused(t, err, codes.PermissionDenied, "OPERATOR_ONLY")
	}

	first := k.link("default", observer)
	k.Clock.Advance(time.Minute)
	for range 99 {
		k.link("default", observer)
	}
	apptest.Refused(t, create(k.Root(), observer), codes.ResourceExhausted, "TOO_MANY_LOGIN_LINKS")
	apptest.NoError(t, apptest.Err(k.login(first)))
	k.link("default", observer)
	apptest.Refused(t, create(k.Root(), observer), codes.ResourceExhausted, "TOO_MANY_LOGIN_LINKS")
	k.Clock.Advance(2 * time.Minute)
	k.link("default", observer)
}
