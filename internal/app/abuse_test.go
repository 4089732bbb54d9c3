package app_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// TestAbuse_Identity makes the attempts of clients over TCP that act as another client, or beyond their
// level of access.
func TestAbuse_Identity(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*apptest.Patience)
	defer cancel()
	must := func(err error) {
		t.Helper()
		apptest.NoError(t, err)
	}
	_, err := b.Root().CreateSession(ctx, &pb.CreateSessionRequest{Name: "other"})
	must(err)
	issue := func(in *pb.IssueCredentialRequest, headers ...string) (*pb.Credential, *grpc.ClientConn) {
		t.Helper()
		c, secret := b.Issue(in)
		return c, b.OverTCP(secret, headers...)
	}
	register := func(conn *grpc.ClientConn) {
		t.Helper()
		_, err := pb.NewAgentServiceClient(conn).RegisterAgent(ctx, &pb.RegisterAgentRequest{Lease: durationpb.New(apptest.LongLease)})
		must(err)
	}
	agent := pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT
	_, a := issue(&pb.IssueCredentialRequest{Access: agent, Session: "default", Agent: "a"})
	_, secretOfA := b.Issue(&pb.IssueCredentialRequest{Access: agent, Session: "default", Agent: "a"})
	_, victim := issue(&pb.IssueCredentialRequest{Access: agent, Session: "other", Agent: "a"})
	_, reader := issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
	register(a)
	register(victim)
	b.Registered("b", "")

	// What the victim has in its session, under the same names.
	note := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Type: "note", Subject: "secret"}
	sent, err := pb.NewMessageServiceClient(victim).SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{note}})
	must(err)
	_, err = pb.NewStateServiceClient(victim).PutState(ctx, &pb.PutStateRequest{Key: "plan", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "secret"}}})
	must(err)
	lock, err := pb.NewLockServiceClient(victim).AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"main.go"}})
	must(err)
	_, err = pb.NewTokenServiceClient(victim).AcquireToken(ctx, &pb.AcquireTokenRequest{Type: "review", Scope: "login"})
	must(err)

	send := func(conn *grpc.ClientConn) error {
		_, err := pb.NewMessageServiceClient(conn).SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{note}})
		return err
	}
	for _, c := range []struct {
		attempt string
		code    codes.Code
		reason  string
		err     error
	}{
		{"no credential", codes.Unauthenticated, "CREDENTIAL_REQUIRED", send(b.OverTCP(""))},
		{"no credential, an agent's name", codes.Unauthenticated, "CREDENTIAL_REQUIRED", send(b.OverTCP("", "brokerd-agent", "a"))},
		{"a guessed credential", codes.Unauthenticated, "CREDENTIAL_UNKNOWN", send(b.OverTCP("guess"))},
		{"credential of A, name of B", codes.PermissionDenied, "CREDENTIAL_BOUND", send(b.OverTCP(secretOfA, "brokerd-agent", "b"))},
		{"credential of A, session of B", codes.PermissionDenied, "CREDENTIAL_BOUND", send(b.OverTCP(secretOfA, "brokerd-session", "other"))},
		{"observer sends", codes.PermissionDenied, "READ_ONLY", send(reader)},
		{"observer sends in an agent's name", codes.PermissionDenied, "CREDENTIAL_BOUND", func() error {
			_, secret := b.Issue(&pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER})
			return send(b.OverTCP(secret, "brokerd-agent", "a"))
		}()},
		{"agent force-releases", codes.PermissionDenied, "OPERATOR_ONLY", func() error {
			_, err := pb.NewLockServiceClient(a).ForceReleaseLocks(ctx, &pb.ForceReleaseLocksRequest{Agent: "b", Reason: "mine"})
			return err
		}()},
		{"agent calls an operator's RPC", codes.PermissionDenied, "OPERATOR_ONLY", func() error {
			_, err := pb.NewCredentialServiceClient(a).IssueCredential(ctx, &pb.IssueCredentialRequest{Access: pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR})
			return err
		}()},
		{"message of another session", codes.NotFound, "MESSAGE_NOT_FOUND", func() error {
			_, err := pb.NewMessageServiceClient(a).GetMessage(ctx, &pb.GetMessageRequest{Id: sent.GetResults()[0].GetId()})
			return err
		}()},
		{"key of another session", codes.NotFound, "KEY_NOT_FOUND", func() error {
			return apptest.Err(pb.NewStateServiceClient(a).GetState(ctx, &pb.GetStateRequest{Key: "plan"}))
		}()},
		{"token of another session", codes.NotFound, "TOKEN_NOT_FOUND", func() error {
			_, err := pb.NewTokenServiceClient(a).GetToken(ctx, &pb.GetTokenRequest{Type: "review", Scope: "login"})
			return err
		}()},
		{"session of another agent", codes.NotFound, "SESSION_NOT_FOUND", func() error {
			return apptest.Err(pb.NewSessionServiceClient(a).GetSession(ctx, &pb.GetSessionRequest{Name: "other"}))
		}()},
		// A fence of another session is one that the caller does not hold, like any other.
		{"lock of another session", codes.FailedPrecondition, "LOCK_LOST", func() error {
			_, err := pb.NewLockServiceClient(a).ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: []int64{lock.GetFence()}, MaxHold: durationpb.New(time.Hour)})
			return err
		}()},
	} {
		if status.Code(c.err) != c.code || testkit.Reason(c.err) != c.reason {
			t.Errorf("%s: %v %s, want %v %s: %v", c.attempt, status.Code(c.err), testkit.Reason(c.err), c.code, c.reason, c.err)
		}
	}

	// A watch and a list only show the caller's session.
	watch, err := pb.NewStateServiceClient(a).WatchState(ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
	must(err)
	frame, err := watch.Recv()
	if err != nil || len(frame.GetChanges()) > 0 {
		t.Errorf("a watch shows a key of another session: %v %v", frame, err)
	}
	locks, err := pb.NewLockServiceClient(a).ListLocks(ctx, &pb.ListLocksRequest{})
	if err != nil || len(locks.GetLocks()) > 0 {
		t.Errorf("a list shows a lock of another session: %v %v", locks, err)
	}
	// The victim still has all of it.
	kept, err := pb.NewLockServiceClient(victim).ListLocks(ctx, &pb.ListLocksRequest{})
	if err != nil || len(kept.GetLocks()) != 1 {
		t.Errorf("%v %v", kept, err)
	}
}
