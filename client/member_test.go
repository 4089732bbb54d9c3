package client_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMember_EndsAsItsProgramSays(t *testing.T) {
	t.Parallel()
	reason := "no disk"
	for name, c := range map[string]struct {
		end    func(context.Context, *joined) error
		status pb.AgentStatus
		state  string // "" = it is not registered any more
		held   bool
	}{
		"closed": {func(ctx context.Context, j *joined) error { return j.Close(ctx) },
			pb.AgentStatus_AGENT_STATUS_STOPPED, "stopped", false},
		"failed": {func(ctx context.Context, j *joined) error {
			return j.Leave(ctx, &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_FAILED, StatusReason: &reason})
		}, pb.AgentStatus_AGENT_STATUS_FAILED, "failed", true},
		"deregistered": {func(ctx context.Context, j *joined) error { return j.Deregister(ctx, reason) }, 0, "", false},
		"abandoned": {func(_ context.Context, j *joined) error {
			j.Abandon()
			return nil
		}, pb.AgentStatus_AGENT_STATUS_IDLE, "idle", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemon(t)
			operator := d.dial(t, "")
			j := join(t, d.dial(t, "a"), client.JoinOptions{})
			apptest.NoError(t, apptest.Err(j.Client().Locks().AcquireLocks(t.Context(), lockOf("x"))))
			if err := errors.Join(c.end(t.Context(), j), j.Close(t.Context())); err != nil { // the second end has no effect
				t.Fatal(err)
			}
			if c.state == "" {
				_, err := operator.Agents().GetAgent(t.Context(), &pb.GetAgentRequest{Name: "a"})
				wantCode(t, err, codes.NotFound)
			} else if a := d.agentOf(t, "a"); a.GetState() != c.state || a.GetStatus() != c.status {
				t.Errorf("%v", a)
			}
			if held := len(listLocks(t, operator).GetLocks()) > 0; held != c.held {
				t.Errorf("its lock is held: %v", held)
			}
			wantIs(t, j.Err(), client.ErrMemberClosed)
			wantIs(t, j.Do(t.Context(), ownHeartbeat(t.Context())), client.ErrMemberClosed)
			select {
			case <-j.Lost():
				t.Error("the end counts as a loss")
			default:
			}
		})
	}
}

func TestMember_TheEndOfTheConnectionEndsTheHeartbeats(t *testing.T) {
	t.Parallel()
	c := newDaemon(t).dial(t, "a")
	j := &joined{}
	apptest.NoError(t, apptest.Err(c.Join(t.Context(), nil, j.joining(client.JoinOptions{}))))
	pause := next(t, j.pulse)
	c.Close()
	pause.end <- time.Time{} // TestMain finds its goroutine if it continues
}

func TestMember_KeepsItsRegistrationOverARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	j := join(t, d.dial(t, "a"), client.JoinOptions{})
	d.stop(t)
	pause := j.first
	for range 3 {
		if pause = j.pulse.beat(t, pause); pause.lasts <= 0 || pause.lasts > joinLease/3 {
			t.Errorf("the next attempt is after %v", pause.lasts)
		}
		wantCode(t, next(t, j.errors), codes.Unavailable)
	}
	d.start(t)
	if _, err := j.Client().Agents().GetAgent(t.Context(), &pb.GetAgentRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	if pause = j.pulse.beat(t, pause); pause.lasts != joinLease/3 || len(j.errors) > 0 {
		t.Errorf("the next heartbeat is after %v", pause.lasts)
	}
	next(t, j.heartbeats)
	if a := d.agentOf(t, "a"); a.GetIncarnation() != 1 || len(j.registered) != 1 {
		t.Errorf("registered %d times: %v", len(j.registered), a)
	}
	d.stop(t)
	if pause = j.pulse.beat(t, pause); pause.lasts > 50*time.Millisecond {
		t.Errorf("the first attempt after another failure is after %v", pause.lasts)
	}
	d.start(t)
}

func TestMember_RepeatsARegistrationWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	f, c := newFake(t, client.WithAgent("a"))
	j := &joined{}
	request := &pb.RegisterAgentRequest{Role: "builder", RequestId: "of the caller"}
	j.Member = client.JoinLater(func(context.Context) (*client.Client, *pb.RegisterAgentRequest, error) {
		return c, request, nil
	}, j.joining(client.JoinOptions{}))
	t.Cleanup(j.Abandon)
	if j.Client() != nil {
		t.Errorf("there is a client already: %+v", j.Client().Identity())
	}
	var ids []string
	pause := next(t, j.pulse)
	for _, answer := range []error{errCut, errCut, status.Error(codes.PermissionDenied, "no"), nil} {
		pause.end <- time.Time{}
		asked := next(t, f.unary)
		ids = append(ids, asked.request.(*pb.RegisterAgentRequest).GetRequestId())
		asked.answer <- answer
		pause = next(t, j.pulse)
	}
	if ids[0] == request.GetRequestId() || ids[1] != ids[0] || ids[2] != ids[0] || ids[3] == ids[0] {
		t.Errorf("the ids of the requests are %q", ids)
	}
	if id := j.Client().Identity(); id.Incarnation != fakeIncarnation {
		t.Errorf("the client is %+v", id)
	}
}

func TestMember_CloseReportsTheEndOfARegistrationWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	f, c := newFake(t, client.WithAgent("a"))
	j := &joined{}
	j.Member = client.JoinLater(func(context.Context) (*client.Client, *pb.RegisterAgentRequest, error) {
		return c, &pb.RegisterAgentRequest{}, nil
	}, j.joining(client.JoinOptions{}))
	t.Cleanup(j.Abandon)
	next(t, j.pulse).end <- time.Time{}
	next(t, f.unary).answer <- status.Error(codes.Unavailable, "away")
	wantCode(t, next(t, j.errors), codes.Unavailable)
	if err := j.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := next(t, f.headers); !slices.Equal(got.Get("brokerd-agent"), []string{"a"}) {
		t.Errorf("the last report has %v", got)
	}
}

func TestJoinLater_RegistersWhenThereIsABroker(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	address := d.app.Addresses()[0]
	d.stop(t)
	j := &joined{}
	j.Member = client.JoinLater(func(ctx context.Context) (*client.Client, *pb.RegisterAgentRequest, error) {
		c, err := client.Dial(ctx, client.WithAddress(address), client.WithAgent("a"))
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(c.Close)
		return c, &pb.RegisterAgentRequest{Lease: durationpb.New(joinLease)}, nil
	}, j.joining(client.JoinOptions{}))
	defer j.Abandon()
	pause := next(t, j.pulse)
	if pause.lasts != 0 {
		t.Errorf("the first attempt is after %v", pause.lasts)
	}
	if pause = j.pulse.beat(t, pause); pause.lasts <= 0 {
		t.Errorf("the second attempt is after %v", pause.lasts)
	}
	var unreachable *client.UnreachableError
	if err := next(t, j.errors); !errors.As(err, &unreachable) {
		t.Errorf("%v", err)
	}
	if err := j.Do(t.Context(), ownHeartbeat(t.Context())); !errors.As(err, &unreachable) {
		t.Errorf("%v", err)
	}
	d.start(t)
	if pause = j.pulse.beat(t, pause); pause.lasts != joinLease/3 {
		t.Errorf("the next heartbeat is after %v", pause.lasts)
	}
	if a := next(t, j.registered).GetAgent(); a.GetIncarnation() != j.Client().Identity().Incarnation {
		t.Errorf("registered %v", a)
	}
}

func TestJoinLater_TellsOfARegistrationBeforeItMakesCalls(t *testing.T) {
	t.Parallel()
	c := newDaemon(t).dial(t, "a")
	var j *client.Member
	made, tried := make(chan struct{}), make(chan error, 1)
	j = client.JoinLater(func(context.Context) (*client.Client, *pb.RegisterAgentRequest, error) {
		return c, &pb.RegisterAgentRequest{}, nil
	}, client.JoinOptions{OnRegistered: func(*pb.RegisterAgentResponse) {
		<-made
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		tried <- j.Do(ctx, func(*client.Client) error { return nil })
	}})
	close(made)
	defer j.Abandon()
	if err := next(t, tried); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call came first: %v", err)
	}
	if err := j.Do(t.Context(), ownHeartbeat(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestJoin_UnderAnotherProcessKeepsItsRegistration(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	parent := join(t, d.dial(t, "a"), client.JoinOptions{})
	j := join(t, d.dial(t, "a").AtIncarnation(1), client.JoinOptions{})
	if j.first.lasts != 0 {
		t.Errorf("the first heartbeat is after %v", j.first.lasts)
	}
	if pause := j.pulse.beat(t, j.first); pause.lasts != joinLease/3 || len(j.registered) > 0 {
		t.Errorf("the next heartbeat is after %v; it was registered %d times", pause.lasts, len(j.registered))
	}
	apptest.NoError(t, j.Close(t.Context()))
	if a := d.agentOf(t, "a"); a.GetStoppedAt() != nil || parent.Do(t.Context(), ownHeartbeat(t.Context())) != nil {
		t.Errorf("the registration of the other process has ended: %v", a)
	}
	second := join(t, d.dial(t, "a").AtIncarnation(1), client.JoinOptions{})
	apptest.NoError(t, parent.Deregister(t.Context(), ""))
	second.first.end <- time.Time{}
	if err := wantLost(t, second); client.Reason(err) != "AGENT_NOT_REGISTERED" {
		t.Errorf("%v", err)
	}
}
