package app_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// wantSeries compares series with their values: -1 = there is no such series.
func wantSeries(t *testing.T, b *apptest.Broker, want map[string]float64) {
	t.Helper()
	got, _ := scrape(t, b)
	for series, n := range want {
		if v := value(got, series); v != n {
			t.Errorf("%s is %v, want %v", series, v, n)
		}
	}
}

// awaitSeries waits until a series has a value.
func awaitSeries(t *testing.T, b *apptest.Broker, series string, want float64) {
	t.Helper()
	ctx := patient(t)
	for got, _ := scrape(t, b); value(got, series) != want; got, _ = scrape(t, b) {
		if ctx.Err() != nil {
			t.Fatalf("%s is %v, want %v", series, value(got, series), want)
		}
	}
}

// A mail sends messages and settles them, and ends the test at every error.
type mail struct {
	t *testing.T
	pb.MessageServiceClient
}

func mailOf(t *testing.T, conn *grpc.ClientConn) mail {
	return mail{t, pb.NewMessageServiceClient(conn)}
}

func (m mail) send(messages ...*pb.Message) {
	m.t.Helper()
	apptest.Must(m.t, m.SendMessages, &pb.SendMessagesRequest{Messages: messages})
}

func (m mail) claim(most int32) (ids []string) {
	m.t.Helper()
	out := apptest.Must(m.t, m.ClaimMessages, &pb.ClaimMessagesRequest{Max: most})
	for _, c := range out.GetClaims() {
		ids = append(ids, c.GetClaimId())
	}
	return ids
}

// claimLater claims the next message as soon as there is one.
func (m mail) claimLater() (ids []string) {
	m.t.Helper()
	ctx := patient(m.t)
	for len(ids) == 0 {
		if ids = m.claim(1); ctx.Err() != nil {
			m.t.Fatal("there is no message to claim")
		}
	}
	return ids
}

func typed(name, kind string) *pb.Message {
	return &pb.Message{Type: kind, Target: &pb.Target{To: &pb.Target_Agent{Agent: name}}}
}

func TestMetrics_CountMessagesBySessionAndClass(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics))
	lead, worker := mailOf(t, b.Registered("lead", "")), mailOf(t, b.Registered("worker", ""))
	must := func(err error) {
		t.Helper()
		apptest.NoError(t, err)
	}
	// Two built-in types of one family and one custom type. One copy each is acknowledged, fails for good, and runs out.
	lead.send(typed("worker", "task_assignment"), typed("worker", "task_progress"), typed("worker", "deploy_request"))
	ids := worker.claim(3)
	_, err := worker.AckMessages(patient(t), &pb.AckMessagesRequest{Ids: ids[:1]})
	must(err)
	_, err = worker.NackMessages(patient(t), &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: ids[1], Fatal: true, Error: "no"}}})
	must(err)
	_, err = worker.NackMessages(patient(t), &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: ids[2], Delay: durationpb.New(time.Hour)}}})
	must(err)
	wantSeries(t, b, map[string]float64{
		"brokerd_messages_sent_total{class=task,session=default}":        2,
		"brokerd_messages_sent_total{class=custom,session=default}":      1,
		"brokerd_messages_delivered_total{class=task,session=default}":   2,
		"brokerd_messages_delivered_total{class=custom,session=default}": 1,
		"brokerd_messages_acked_total{class=task,session=default}":       1,
		"brokerd_messages_acked_total{class=custom,session=default}":     -1,
		"brokerd_messages_failed_total{class=task,session=default}":      1,
		"brokerd_messages_failed_total{class=custom,session=default}":    1,
		"brokerd_messages_dead_total{class=task,session=default}":        1,
		"brokerd_messages_dead_total{class=custom,session=default}":      -1,
		"brokerd_messages_expired_total{class=custom,session=default}":   -1,
	})

	// A later claim of the same copy is no second delivery.
	b.Clock.Advance(2 * time.Hour)
	worker.claimLater()
	// A copy that is read, a copy that is finished by reading it, a copy that expires, and mail of an agent that leaves.
	reader := mailOf(t, b.Registered("watcher", ""))
	lead.send(typed("watcher", "vote_cast"))
	read := func(autoAck bool) {
		t.Helper()
		stream, err := reader.Receive(patient(t), &pb.ReceiveRequest{AutoAck: autoAck})
		must(err)
		for err == nil {
			_, err = stream.Recv()
		}
	}
	read(false)
	wantSeries(t, b, map[string]float64{
		"brokerd_messages_delivered_total{class=custom,session=default}": 1,
		"brokerd_messages_delivered_total{class=vote,session=default}":   1,
		"brokerd_messages_acked_total{class=vote,session=default}":       -1,
	})
	lead.send(typed("watcher", "vote_cast"))
	read(true)
	expiring := typed("watcher", "blocker_resolved")
	expiring.Ttl = durationpb.New(time.Minute)
	lead.send(expiring, typed("watcher", "handoff_request"))
	b.Clock.Advance(2 * time.Minute)
	awaitSeries(t, b, "brokerd_messages_expired_total{class=blocker,session=default}", 1)
	_, err = b.Actor("default", "watcher").DeregisterAgent(patient(t), &pb.DeregisterAgentRequest{})
	must(err)
	wantSeries(t, b, map[string]float64{
		"brokerd_messages_sent_total{class=vote,session=default}":         2,
		"brokerd_messages_delivered_total{class=vote,session=default}":    2,
		"brokerd_messages_acked_total{class=vote,session=default}":        2,
		"brokerd_messages_dead_total{class=handoff,session=default}":      1,
		"brokerd_messages_failed_total{class=handoff,session=default}":    -1,
		"brokerd_messages_delivered_total{class=blocker,session=default}": -1,
	})
}

func TestMetrics_CountAnAwaitedReplyAsDeliveredAndAcknowledged(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.With(withMetrics))
	lead, worker := mailOf(t, b.Registered("lead", "")), mailOf(t, b.Registered("worker", ""))
	asked := make(chan error, 1)
	go func() {
		_, err := lead.Ask(patient(t), &pb.AskRequest{Message: typed("worker", "question"), Wait: durationpb.New(apptest.Patience)})
		asked <- err
	}()
	ids := worker.claimLater()
	apptest.Must(t, worker.Reply, &pb.ReplyRequest{Id: ids[0], Ack: true, Message: &pb.Message{Type: "response"}})
	apptest.NoError(t, <-asked)
	wantSeries(t, b, map[string]float64{
		"brokerd_messages_sent_total{class=conversation,session=default}":      2,
		"brokerd_messages_delivered_total{class=conversation,session=default}": 2,
		"brokerd_messages_acked_total{class=conversation,session=default}":     2,
	})
}

func TestMetrics_LimitTheNumberOfSessionsWithSeries(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.With(withMetrics))
	for i := range 25 {
		name := fmt.Sprintf("team-%d", i)
		apptest.Must(t, b.Root().CreateSession, &pb.CreateSessionRequest{Name: name})
		role := &pb.Message{Type: "x", Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}}
		mailOf(t, b.In(name, "")).send(role, role)
	}
	wantSeries(t, b, map[string]float64{
		"brokerd_messages_sent_total{class=custom,session=team-19}": 2,
		"brokerd_messages_sent_total{class=custom,session=team-20}": -1,
		"brokerd_messages_sent_total{class=custom,session=other}":   10,
	})
}

func TestMetrics_CountEventsAndWaitsForLocksAfterTheCommit(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(withMetrics), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return 0.42, nil }
	}))
	ctx := patient(t)
	one, two := b.Agent("one", ""), b.Agent("two", "")
	paths := []string{"src/a.go"}
	held := apptest.Must(t, one.AcquireLocks, &pb.AcquireLocksRequest{Paths: paths})
	apptest.Must(t, two.AcquireLocks, &pb.AcquireLocksRequest{Paths: paths, KeepTicket: true})
	b.Clock.Advance(90 * time.Second)
	apptest.Must(t, one.ReleaseLocks, &pb.ReleaseLocksRequest{Fences: []int64{held.GetFence()}})
	states := b.Actor("default", "one")
	for range 2 { // the second is refused
		_, _ = states.PutState(ctx, &pb.PutStateRequest{Key: "phase", Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: `1`}}, CompareRevision: new(int64)})
	}
	wantSeries(t, b, map[string]float64{
		"brokerd_lock_wait_seconds{kind=lock}":              1,
		"brokerd_lock_wait_seconds{kind=lock}:sum":          90,
		"brokerd_lock_wait_seconds{kind=token}":             0,
		"brokerd_events_total{type=lock.granted}":           2,
		"brokerd_events_total{type=lock.queued}":            1,
		"brokerd_events_total{type=lock.released}":          1,
		"brokerd_events_total{type=state.put}":              1,
		"brokerd_events_total{type=broker.started}":         1,
		"brokerd_refusals_total{reason=STATE_CHANGED}":      1,
		"brokerd_refusals_total{reason=CREDENTIAL_UNKNOWN}": 0,
		"brokerd_database_damaged":                          0,
		"brokerd_disk_used_ratio":                           0.42,
	})
}
