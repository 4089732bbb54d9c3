// Package costtest bounds what a message costs, without a clock: it counts what the broker does for it.
package costtest

import (
	"context"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// messages is how many messages are counted. A cost that comes with some messages alone shows as well.
const messages = 200

// A cost is what the functions of the writer do for one message, and how often the process allocates memory. The latter
// includes the test's own client and gRPC, which allocates a few times more or less from run to run.
type cost struct{ statements, reads, onCommits, allocations int }

// TestCost_PlainMessage sends messages one by one. The worker claims and acknowledges each one before the lead sends the
// next, so that no figure depends on how the writer forms its batches. A change that makes a message cheaper lowers the table.
//
// The test is the only one of its package, because it counts the allocations of the whole process.
func TestCost_PlainMessage(t *testing.T) {
	for _, c := range []struct {
		name   string
		pass   func(*testing.T, *team) func()
		atMost cost
	}{
		{"over streams", streams(""), cost{statements: 5, reads: 1, onCommits: 6, allocations: 220}},
		{"over streams, numbered", streams("p"), cost{statements: 6, reads: 1, onCommits: 6, allocations: 221}},
		{"by calls", calls, cost{statements: 8, reads: 7, onCommits: 7, allocations: 757}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var count counter
			m := newTeam(t, &count)
			pass := c.pass(t, m)
			for range messages { // until every statement is prepared and every buffer has its size
				pass()
			}
			count.reset()
			allocations := int(testing.AllocsPerRun(messages-1, pass)) // it runs pass once more
			got := count.sum()
			check(t, "statements", got.Statements, messages*c.atMost.statements)
			check(t, "reads", got.Reads, messages*c.atMost.reads)
			check(t, "calls of OnCommit", got.OnCommits, messages*c.atMost.onCommits)
			if !raced() {
				check(t, "allocations", messages*allocations, messages*c.atMost.allocations)
			}
		})
	}
}

// raced reports whether the test was built with the race detector, which adds allocations.
func raced() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func check(t *testing.T, what string, got, atMost int) {
	t.Helper()
	if got > atMost {
		t.Errorf("%d messages cost %d %s, at most %d are allowed", messages, got, what, atMost)
	}
}

// A counter sums up what the writer does.
type counter struct {
	mu    sync.Mutex // guards total
	total store.Work
}

func (c *counter) add(w store.Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total.Statements += w.Statements
	c.total.Reads += w.Reads
	c.total.OnCommits += w.OnCommits
}

func (c *counter) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total = store.Work{}
}

func (c *counter) sum() store.Work {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// A team is an agent that sends and an agent that works.
type team struct {
	ctx          context.Context
	lead, worker pb.MessageServiceClient
}

func newTeam(t *testing.T, count *counter) *team {
	t.Helper()
	b := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.Options = func(o *store.Options) { o.Ran = count.add }
	}))
	b.Unwatch()
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	t.Cleanup(cancel)
	_, err := pb.NewSessionServiceClient(b.Operator()).ConfigureSession(ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0)},
	})
	must(t, err)
	return &team{
		ctx,
		pb.NewMessageServiceClient(b.Registered("lead", "lead")),
		pb.NewMessageServiceClient(b.Registered("worker", "worker")),
	}
}

func plain() *pb.Message {
	return &pb.Message{Type: "status", Subject: "done", Target: &pb.Target{To: &pb.Target_Agent{Agent: "worker"}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// streams sends over one stream and claims over another one, whose consumer waits for the message. With a producer the
// messages have numbers.
func streams(producer string) func(*testing.T, *team) func() {
	return func(t *testing.T, m *team) func() {
		t.Helper()
		return overStreams(t, m, producer)
	}
}

func overStreams(t *testing.T, m *team, producer string) func() {
	t.Helper()
	number := int64(0)
	send, err := m.lead.Send(m.ctx)
	must(t, err)
	claim, err := m.worker.Claim(m.ctx)
	must(t, err)
	must(t, claim.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{MaxInFlight: 10}}))
	_, err = claim.Recv()
	must(t, err)
	return func() {
		r := &pb.SendRequest{Messages: []*pb.Message{plain()}}
		if producer != "" {
			number++
			r.Producer, r.FirstNumber = producer, number
		}
		must(t, send.Send(r))
		sent, err := send.Recv()
		must(t, err)
		delivered, err := claim.Recv()
		must(t, err)
		ack := &pb.ClaimRequest{Acks: []string{delivered.GetDeliver().GetClaims()[0].GetClaimId()}}
		must(t, claim.Send(ack))
		acked, err := claim.Recv()
		must(t, err)
		if sent.GetResults()[0].GetError() != nil || acked.GetResults().GetResults()[0].GetError() != nil {
			t.Fatal(sent, acked)
		}
	}
}

// calls makes one call to send, one to claim and one to acknowledge. The message waits in the mailbox in between.
func calls(t *testing.T, m *team) func() {
	t.Helper()
	return func() {
		_, err := m.lead.SendMessages(m.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{plain()}})
		must(t, err)
		claimed, err := m.worker.ClaimMessages(m.ctx, &pb.ClaimMessagesRequest{})
		must(t, err)
		_, err = m.worker.AckMessages(m.ctx, &pb.AckMessagesRequest{Ids: []string{claimed.GetClaims()[0].GetClaimId()}})
		must(t, err)
	}
}
