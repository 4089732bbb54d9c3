package app_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// toBuilder is a message to the agent builder-1.
func toBuilder() *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder-1"}}, Subject: "Add login"}
}

// sendOne sends a message of lead's and returns its result.
func sendOne(t *testing.T, b *apptest.Broker, m *pb.Message) *pb.SendResult {
	t.Helper()
	answer := apptest.Must(t, b.Actor("default", "lead").SendMessages,
		&pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	return answer.GetResults()[0]
}

// wantAsleep checks since when builder-1 is asleep; zero = it is not.
func wantAsleep(t *testing.T, what string, got *pb.Asleep, since time.Time) {
	t.Helper()
	switch {
	case since.IsZero() && got != nil:
		t.Errorf("%s: asleep: %v", what, got)
	case !since.IsZero() && (got.GetAgent() != "builder-1" || !got.GetSince().AsTime().Equal(since)):
		t.Errorf("%s: %v, want asleep since %v", what, got, since)
	}
}

func TestAsleep_AnAgentWithoutACallForAMinute(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Clock.Advance(time.Hour)
	b.Registered("lead", "lead")
	builder := b.Registered("builder-1", "builder")
	since := b.Clock.Now()
	wantAsleep(t, "at once", sendOne(t, b, toBuilder()).GetAsleep(), time.Time{})
	b.Clock.Advance(time.Minute)
	wantAsleep(t, "after a minute", sendOne(t, b, toBuilder()).GetAsleep(), time.Time{})
	b.Clock.Advance(time.Second)
	first := sendOne(t, b, toBuilder())
	wantAsleep(t, "later", first.GetAsleep(), since)
	for what, target := range map[string]*pb.Target{
		"a role":    {To: &pb.Target_Role{Role: "builder"}},
		"a pattern": {To: &pb.Target_Pattern{Pattern: "builder-*"}},
		"everyone":  {To: &pb.Target_Everyone{Everyone: true}},
	} {
		wantAsleep(t, what, sendOne(t, b, &pb.Message{Target: target, Subject: "x"}).GetAsleep(), time.Time{})
	}

	stream, err := b.Actor("default", "lead").Send(patient(t))
	apptest.NoError(t, err)
	apptest.NoError(t, stream.Send(&pb.SendRequest{Messages: []*pb.Message{toBuilder()}}))
	results, err := stream.Recv()
	apptest.NoError(t, err)
	wantAsleep(t, "in a stream", results.GetResults()[0].GetAsleep(), since)

	b.Clock.Advance(time.Minute)
	beat(t, builder, &pb.HeartbeatRequest{Activity: proto.String("writes tests")})
	wantAsleep(t, "after a report", sendOne(t, b, toBuilder()).GetAsleep(), time.Time{})
}

func beat(t *testing.T, conn grpc.ClientConnInterface, h *pb.HeartbeatRequest) {
	t.Helper()
	apptest.Must(t, pb.NewAgentServiceClient(conn).Heartbeat, h)
}

// A program sends empty heartbeats also for an agent that is idle.
func TestAsleep_EmptyHeartbeatsRenewTheLeaseAndDoNotKeepAnAgentAwake(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Clock.Advance(time.Hour)
	lead, builder := b.Registered("lead", "lead"), b.Registered("builder-1", "builder")
	since := b.Clock.Now()
	for range 6 {
		b.Clock.Advance(30 * time.Second)
		beat(t, builder, &pb.HeartbeatRequest{})
	}
	wantAsleep(t, "after empty heartbeats", sendOne(t, b, toBuilder()).GetAsleep(), since)
	a := apptest.Must(t, pb.NewAgentServiceClient(lead).GetAgent, &pb.GetAgentRequest{Name: "builder-1"}).GetAgent()
	if a.GetHealth() != pb.Health_HEALTH_OK || !a.GetLastSeen().AsTime().Equal(b.Clock.Now()) {
		t.Errorf("the heartbeats have not renewed the lease: %v", a)
	}
	for what, h := range map[string]*pb.HeartbeatRequest{
		"a status": {Status: pb.AgentStatus_AGENT_STATUS_IDLE},
		"progress": {Progress: proto.Float64(0)},
		"counters": {Counters: &pb.Counters{Turns: proto.Int64(1)}},
		"notices":  {Notices: true},
	} {
		beat(t, builder, h)
		wantAsleep(t, what, sendOne(t, b, toBuilder()).GetAsleep(), time.Time{})
		since = b.Clock.Now()
		b.Clock.Advance(61 * time.Second)
		beat(t, builder, &pb.HeartbeatRequest{})
		wantAsleep(t, "a minute after "+what, sendOne(t, b, toBuilder()).GetAsleep(), since)
	}
}

// awaitAwake looks at builder-1 until the broker has begun a call of it. It does not send: the session limits how many
// messages lead may send while the time stands.
func awaitAwake(t *testing.T, b *apptest.Broker, what string) {
	t.Helper()
	agents := b.Actor("default", "lead")
	for ctx := patient(t); ; {
		got, err := agents.GetAgent(ctx, &pb.GetAgentRequest{Name: "builder-1"})
		if err != nil {
			t.Fatalf("%s: the agent stays asleep: %v", what, err)
		}
		if got.GetAgent().GetAsleepSince() == nil {
			return
		}
	}
}

func TestAsleep_AnOpenCallKeepsAnAgentAwake(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Registered("lead", "lead")
	conn := b.Registered("builder-1", "builder")
	messages, tasks := pb.NewMessageServiceClient(conn), pb.NewTaskServiceClient(conn)
	wait := durationpb.New(time.Hour)
	for what, call := range map[string]func(context.Context) error{
		"Receive": func(ctx context.Context) error {
			stream, err := messages.Receive(ctx, &pb.ReceiveRequest{Follow: true})
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"Claim": func(ctx context.Context) error {
			stream, err := messages.Claim(ctx)
			if err == nil {
				err = stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{Types: []string{"none"}}})
			}
			for err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"ClaimMessages": func(ctx context.Context) error {
			_, err := messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Types: []string{"none"}, Wait: wait})
			return err
		},
		"ClaimTask": func(ctx context.Context) error {
			return apptest.Err(tasks.ClaimTask(ctx, &pb.ClaimTaskRequest{Wait: wait}))
		},
	} {
		b.Clock.Advance(2 * time.Minute)
		if sendOne(t, b, toBuilder()).GetAsleep() == nil {
			t.Fatalf("%s: the agent is awake before", what)
		}
		ctx, cancel := context.WithCancel(patient(t))
		ended := make(chan error, 1)
		go func() { ended <- call(ctx) }()
		awaitAwake(t, b, what)
		b.Clock.Advance(10 * time.Minute)
		wantAsleep(t, what, sendOne(t, b, toBuilder()).GetAsleep(), time.Time{})
		cancel()
		if err := <-ended; err == nil {
			t.Errorf("%s: the call ended by itself", what)
		}
		for deadline := time.Now().Add(apptest.Patience); sendOne(t, b, toBuilder()).GetAsleep() == nil; {
			b.Clock.Advance(2 * time.Minute) // the broker ends the call a little later
			if time.Now().After(deadline) {
				t.Fatalf("%s: the agent stays awake", what)
			}
		}
	}
}

func TestAsleep_InAnswersToQuestionsAndRepliesAndInViews(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	lead, builder := b.Registered("lead", "lead"), b.Registered("builder-1", "builder")
	asked := apptest.Must(t, pb.NewMessageServiceClient(builder).SendMessages,
		&pb.SendMessagesRequest{Messages: []*pb.Message{
			{Target: &pb.Target{To: &pb.Target_Agent{Agent: "lead"}}, Subject: "Which branch?"},
		}})
	since := b.Clock.Now()
	b.Clock.Advance(2 * time.Minute)
	reply := apptest.Must(t, pb.NewMessageServiceClient(lead).Reply, &pb.ReplyRequest{
		Id: asked.GetResults()[0].GetId(), Message: &pb.Message{Body: "login"},
	})
	wantAsleep(t, "reply", reply.GetResult().GetAsleep(), since)

	type answer struct {
		got *pb.AskResponse
		err error
	}
	done := make(chan answer, 1)
	go func() {
		got, err := pb.NewMessageServiceClient(lead).Ask(patient(t), &pb.AskRequest{Message: toBuilder(), Wait: durationpb.New(time.Second)})
		done <- answer{got, err}
	}()
	for a := (answer{}); a.got == nil && a.err == nil; {
		select {
		case a = <-done:
			if a.err != nil {
				t.Fatal(a.err)
			}
			wantAsleep(t, "ask", a.got.GetAsleep(), since)
		default:
			b.Clock.Advance(time.Second)
			sendOne(t, b, toBuilder())
		}
	}

	agent := apptest.Must(t, pb.NewAgentServiceClient(lead).GetAgent, &pb.GetAgentRequest{Name: "builder-1"})
	if got := agent.GetAgent().GetAsleepSince(); !got.AsTime().Equal(since) {
		t.Errorf("GetAgent: asleep since %v", got)
	}
	list := apptest.Must(t, pb.NewAgentServiceClient(lead).ListAgents, &pb.ListAgentsRequest{})
	var sleepers []string
	for _, a := range list.GetAgents() {
		if a.GetAsleepSince() != nil {
			sleepers = append(sleepers, a.GetName())
		}
	}
	if strings.Join(sleepers, " ") != "builder-1" {
		t.Errorf("ListAgents: asleep are %v", sleepers)
	}
	explained := apptest.Must(t, pb.NewAdminServiceClient(lead).Explain,
		&pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: "builder-1"}})
	if !strings.Contains(explained.String(), "it is asleep since") {
		t.Errorf("Explain: %v", explained)
	}
}

// Agents need time to reconnect after a restart, and an agent that does not reconnect sleeps since its
// last call before it.
func TestAsleep_ARestartDoesNotMakeAgentsSleep(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Registered("lead", "lead")
	b.Registered("builder-1", "builder")
	since := b.Clock.Now()
	b.Clock.Advance(10 * time.Minute)
	wantAsleep(t, "before", sendOne(t, b, toBuilder()).GetAsleep(), since)
	b.Restart()
	wantAsleep(t, "after the start", sendOne(t, b, toBuilder()).GetAsleep(), time.Time{})
	b.Clock.Advance(time.Minute + time.Second)
	wantAsleep(t, "a minute later", sendOne(t, b, toBuilder()).GetAsleep(), since)
}
