package auth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestIssue_AgentActsAsItselfInItsSessionAndRole(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	c, secret := k.Issue(&pb.IssueCredentialRequest{Access: agent, Session: "default", Agent: "builder-1", Role: "builder", Description: "CI"})
	if len(secret) != 43 || c.GetId() != fmt.Sprintf("c-%d", c.GetRevision()) || c.GetState() != pb.CredentialState_CREDENTIAL_STATE_ACTIVE ||
		c.GetIssuedAt() == nil || c.GetDescription() != "CI" {
		t.Errorf("%q %v", secret, c)
	}
	own := k.OverTCP(secret)
	agents := pb.NewAgentServiceClient(own)
	_, err := agents.RegisterAgent(k.ctx, &pb.RegisterAgentRequest{Role: "lead"})
	apptest.Refused(t, err, codes.PermissionDenied, "ROLE_BOUND")
	out, err := agents.RegisterAgent(k.ctx, &pb.RegisterAgentRequest{})
	if err != nil || out.GetAgent().GetName() != "builder-1" || out.GetAgent().GetRole() != "builder" {
		t.Fatalf("%v %v", out, err)
	}
	_, err = agents.RegisterAgent(k.ctx, &pb.RegisterAgentRequest{Role: "builder"})
	if err != nil {
		t.Error(err)
	}
	apptest.Refused(t, k.see(k.OverTCP(secret, "brokerd-agent", "builder-2")), codes.PermissionDenied, "CREDENTIAL_BOUND")
	apptest.Refused(t, k.see(k.OverTCP(secret, "brokerd-session", "other")), codes.PermissionDenied, "CREDENTIAL_BOUND")
}

func TestIssue_RefusalsNameTheField(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	for _, c := range []struct {
		field string
		in    *pb.IssueCredentialRequest
	}{
		{"access", &pb.IssueCredentialRequest{}},
		{"session", &pb.IssueCredentialRequest{Access: agent, Agent: "a"}},
		{"agent", &pb.IssueCredentialRequest{Access: agent, Session: "default"}},
		{"agent", &pb.IssueCredentialRequest{Access: observer, Agent: "a"}},
		{"role", &pb.IssueCredentialRequest{Access: observer, Role: "r"}},
		{"session", &pb.IssueCredentialRequest{Access: operator, Session: "default"}},
		{"agent", &pb.IssueCredentialRequest{Access: operator, Agent: "a"}},
		{"expires_at", &pb.IssueCredentialRequest{Access: operator, Expiry: &pb.IssueCredentialRequest_ExpiresAt{ExpiresAt: timestamppb.New(time.Unix(1, 0))}}},
		{"request_id", &pb.IssueCredentialRequest{Access: operator, RequestId: "1"}},
	} {
		_, err := k.Root().IssueCredential(k.ctx, c.in)
		if got := testkit.Fields(err); !slices.Equal(got, []string{c.field}) {
			t.Errorf("%v: %v, want %s (%v)", c.in, got, c.field, err)
		}
	}
	_, err := k.Root().IssueCredential(k.ctx, &pb.IssueCredentialRequest{Access: agent, Session: "nowhere", Agent: "a"})
	apptest.Refused(t, err, codes.NotFound, "SESSION_NOT_FOUND")
}

func TestIssue_RepeatReturnsTheCredentialWithoutItsSecret(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	in := &pb.IssueCredentialRequest{Access: operator, RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f"}
	first, err := k.Root().IssueCredential(k.ctx, in)
	if err != nil || first.GetAlreadyIssued() || len(first.GetSecret()) != 43 {
		t.Fatalf("%v %v", first, err)
	}
	k.Restart()
	again, err := k.Root().IssueCredential(k.ctx, in)
	if err != nil || !again.GetAlreadyIssued() || again.GetSecret() != "" || again.GetCredential().GetId() != first.GetCredential().GetId() {
		t.Errorf("%v %v", again, err)
	}
	in.Description = "another"
	apptest.Refuses(t, k.Root().IssueCredential, in, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestList_ChoosesAndPages(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	apptest.Must(t, k.Root().CreateSession, &pb.CreateSessionRequest{Name: "team"})
	var want []string
	for i := range 5 {
		c, _ := k.forAgent(fmt.Sprint("a-", i))
		want = append(want, c.GetId())
	}
	inTeam, _ := k.Issue(&pb.IssueCredentialRequest{Access: observer, Session: "team"})
	k.revoke(want[1], "")
	ids := func(in *pb.ListCredentialsRequest) (list []string) {
		t.Helper()
		for {
			out := apptest.Must(t, k.Root().ListCredentials, in)
			for _, c := range out.GetCredentials() {
				list = append(list, c.GetId())
			}
			if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
				return list
			}
		}
	}
	for _, c := range []struct {
		in   *pb.ListCredentialsRequest
		want []string
	}{
		{&pb.ListCredentialsRequest{}, append(slices.Clone(want), inTeam.GetId())},
		{&pb.ListCredentialsRequest{PageSize: 2}, append(slices.Clone(want), inTeam.GetId())},
		{&pb.ListCredentialsRequest{Session: "team"}, []string{inTeam.GetId()}},
		{&pb.ListCredentialsRequest{Agent: "a-3"}, want[3:4]},
		{&pb.ListCredentialsRequest{States: []pb.CredentialState{pb.CredentialState_CREDENTIAL_STATE_REVOKED}}, want[1:2]},
		{&pb.ListCredentialsRequest{States: []pb.CredentialState{pb.CredentialState_CREDENTIAL_STATE_EXPIRED}}, nil},
	} {
		if got := ids(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

func TestRevoke_EndsCallsAndStreamsAndFurtherOnesAreRefused(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	c, secret := k.forAgent("builder-1")
	conn := k.OverTCP(secret)
	apptest.Must(t, pb.NewAgentServiceClient(conn).RegisterAgent, &pb.RegisterAgentRequest{})
	watch, err := pb.NewStateServiceClient(conn).WatchState(k.ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(watch.Recv()))
	claims, err := pb.NewMessageServiceClient(conn).Claim(k.ctx)
	apptest.NoError(t, err)
	apptest.NoError(t, claims.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	apptest.NoError(t, apptest.Err(claims.Recv()))
	// The stream is open once the broker has answered; it then waits in Recv.
	send, err := pb.NewMessageServiceClient(conn).Send(k.ctx)
	apptest.NoError(t, err)
	if err := send.Send(&pb.SendRequest{Messages: []*pb.Message{{Target: &pb.Target{To: &pb.Target_Channel{Channel: "x"}}, Type: "status"}}}); err != nil {
		t.Fatal(err)
	}
	apptest.NoError(t, apptest.Err(send.Recv()))
	used := k.listed(c.GetId())
	if used.GetLastUsedFrom() != "127.0.0.1" || used.GetLastUsedAt() == nil {
		t.Errorf("%v", used)
	}

	got := k.revoke(c.GetId(), "the laptop was stolen")
	if got.GetState() != pb.CredentialState_CREDENTIAL_STATE_REVOKED || got.GetEndedAt() == nil || got.GetEndReason() != "the laptop was stolen" ||
		got.GetRevision() <= c.GetRevision() {
		t.Errorf("%v", got)
	}
	for _, receive := range []func() error{
		func() error { return apptest.Err(watch.Recv()) },
		func() error { return apptest.Err(claims.Recv()) },
		func() error { return apptest.Err(send.Recv()) },
	} {
		err := receive()
		for err == nil { // frames that the broker has sent before
			err = receive()
		}
		apptest.Refused(t, err, codes.Unauthenticated, "CREDENTIAL_REVOKED")
	}
	apptest.Refused(t, k.see(conn), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	if again := k.revoke(c.GetId(), "another reason"); again.GetRevision() != got.GetRevision() || again.GetEndReason() != got.GetEndReason() {
		t.Errorf("%v, want %v", again, got)
	}
	_, err = k.Root().RevokeCredential(k.ctx, &pb.RevokeCredentialRequest{Id: "c-1"})
	apptest.Refused(t, err, codes.NotFound, "CREDENTIAL_NOT_FOUND")
	_, err = k.Root().RevokeCredential(k.ctx, &pb.RevokeCredentialRequest{Id: "x"})
	apptest.Refused(t, err, codes.NotFound, "CREDENTIAL_NOT_FOUND")
}

func TestRevoke_CallThatRevokesItsOwnCredentialGetsItsAnswer(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	c, secret := k.Issue(&pb.IssueCredentialRequest{Access: operator})
	conn := k.OverTCP(secret)
	out, err := pb.NewCredentialServiceClient(conn).RevokeCredential(k.ctx, &pb.RevokeCredentialRequest{Id: c.GetId()})
	if err != nil || out.GetCredential().GetState() != pb.CredentialState_CREDENTIAL_STATE_REVOKED {
		t.Errorf("%v %v", out, err)
	}
	apptest.Refused(t, k.see(conn), codes.Unauthenticated, "CREDENTIAL_REVOKED")
}

func TestCredentials_SurviveARestart(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	_, active := k.forAgent("a")
	used, usedSecret := k.forAgent("b")
	revoked, ended := k.forAgent("c")
	apptest.NoError(t, k.see(k.OverTCP(usedSecret)))
	k.revoke(revoked.GetId(), "")
	k.Restart()
	if err := k.see(k.OverTCP(active)); err != nil {
		t.Error(err)
	}
	apptest.Refused(t, k.see(k.OverTCP(ended)), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	if err := k.see(k.OverTCP(k.Credential())); err != nil {
		t.Errorf("the operator's file: %v", err)
	}
	if c := k.listed(used.GetId()); c.GetLastUsedAt() == nil || c.GetLastUsedFrom() != "127.0.0.1" {
		t.Errorf("the last use before the restart: %v", c)
	}
}

func TestExpiry_EndsStreamsAndCalls(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	expired := k.follow("credential.expired")
	c, secret := k.Issue(&pb.IssueCredentialRequest{Access: observer, Expiry: &pb.IssueCredentialRequest_Ttl{Ttl: durationpb.New(time.Minute)}})
	conn := k.OverTCP(secret)
	watch, err := pb.NewStateServiceClient(conn).WatchState(k.ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(watch.Recv()))
	k.Clock.Advance(time.Minute)
	for err == nil {
		_, err = watch.Recv()
	}
	apptest.Refused(t, err, codes.Unauthenticated, "CREDENTIAL_EXPIRED")
	apptest.Refused(t, k.see(conn), codes.Unauthenticated, "CREDENTIAL_EXPIRED")
	if e, _ := k.next(expired); !slices.Equal(e.GetRelated(), []string{c.GetId()}) {
		t.Errorf("%v", e)
	}
	if got := k.listed(c.GetId()); got.GetState() != pb.CredentialState_CREDENTIAL_STATE_EXPIRED || !got.GetEndedAt().AsTime().Equal(c.GetExpiresAt().AsTime()) {
		t.Errorf("%v", got)
	}
}

func TestExpiry_WhileTheBrokerIsDown(t *testing.T) {
	t.Parallel()
	k := newKit(t, apptest.WithFakeClock())
	at := k.Clock.Now().Add(time.Minute)
	c, secret := k.Issue(&pb.IssueCredentialRequest{Access: observer, Expiry: &pb.IssueCredentialRequest_ExpiresAt{ExpiresAt: timestamppb.New(at)}})
	if !c.GetExpiresAt().AsTime().Equal(at) {
		t.Errorf("%v, want %v", c, at)
	}
	k.Restart(func() { k.Clock.Advance(time.Hour) })
	apptest.Refused(t, k.see(k.OverTCP(secret)), codes.Unauthenticated, "CREDENTIAL_EXPIRED")
	expired := k.follow("credential.expired")
	if e, _ := k.next(expired); !slices.Equal(e.GetRelated(), []string{c.GetId()}) {
		t.Errorf("%v", e)
	}
}

func TestEndSession_RevokesTheSessionsCredentials(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	sessions := k.Root()
	apptest.Must(t, sessions.CreateSession, &pb.CreateSessionRequest{Name: "team"})
	c, secret := k.Issue(&pb.IssueCredentialRequest{Access: agent, Session: "team", Agent: "a"})
	_, other := k.forAgent("a")
	conn := k.OverTCP(secret)
	apptest.Must(t, sessions.CloseSession, &pb.CloseSessionRequest{Name: "team"})
	if err := k.see(conn); err != nil {
		t.Errorf("a closed session can be read: %v", err)
	}
	apptest.Must(t, sessions.DeleteSession, &pb.DeleteSessionRequest{Name: "team"})
	apptest.Refused(t, k.see(conn), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	if got := k.listed(c.GetId()); got.GetEndReason() != "its session team was deleted" {
		t.Errorf("%v", got)
	}
	apptest.Must(t, sessions.CreateSession, &pb.CreateSessionRequest{Name: "team"})
	apptest.Refused(t, k.see(conn), codes.Unauthenticated, "CREDENTIAL_REVOKED")
	if err := k.see(k.OverTCP(other)); err != nil {
		t.Errorf("a credential of another session: %v", err)
	}
}
