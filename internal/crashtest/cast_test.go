package crashtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// An agent is one of the cast: who is registered, and what it listens to, never changes, so that the test
// knows by itself who must get what.
type agent struct {
	name, role string
	channels   []string
}

// slowAgent lets its claims run out.
const slowAgent = "builder-slow"

func cast() []agent {
	return []agent{
		{"writer-1", "writer", nil},
		{"writer-2", "writer", nil},
		{"writer-3", "writer", []string{"news"}},
		{"builder-1", "builder", []string{"jobs"}},
		{"builder-2", "builder", []string{"jobs", "news"}},
		{slowAgent, "builder", nil},
		{"tester-1", "tester", []string{"jobs"}},
		{"tester-2", "tester", nil},
		{"reader", "reader", []string{"news"}},
		{modelAgent, "model", nil},
	}
}

// register registers the cast and subscribes it to its channels. No mailbox is ever full.
func register(ctx context.Context, d *daemon) error {
	unlimited := &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0), BreakerFailures: proto.Int32(0)}
	if _, err := d.sessions.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: unlimited}); err != nil {
		return err
	}
	for _, a := range cast() {
		ctx := as(ctx, a.name)
		if _, err := d.agents.RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: a.role, Lease: durationpb.New(24 * time.Hour)}); err != nil {
			return err
		}
		for _, channel := range a.channels {
			if _, err := d.channels.SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: channel}); err != nil {
				return err
			}
		}
	}
	return nil
}

// A message is one that a participant wants to send, and what came of it.
type message struct {
	tag    string // its subject; no two are alike
	sender string
	wire   *pb.Message
	expect []string // the mailboxes that must get it
	queue  bool     // one of a role or channel gets it

	// The record guards these.
	revision int64 // 0 until it is confirmed
	id       string
}

// A writer makes up messages for one sender.
type writer struct {
	sender string
	random *rand.Rand
	number int
}

// next returns a message to somebody, with some of all that a message may have.
func (w *writer) next() *message {
	w.number++
	m := &message{tag: fmt.Sprintf("%s/%d", w.sender, w.number), sender: w.sender}
	m.wire = &pb.Message{
		Subject:     m.tag,
		Type:        "work",
		Payload:     fmt.Sprintf(`{"tag":%q,"filler":"%0*d"}`, m.tag, 1+w.random.IntN(600), w.number),
		Priority:    int32(1 + w.random.IntN(10)),
		MaxAttempts: int32(1 + w.random.IntN(4)),
	}
	w.address(m)
	if w.random.IntN(4) == 0 {
		m.wire.OrderingKey = fmt.Sprintf("key-%d", w.random.IntN(6))
	}
	if w.random.IntN(10) == 0 {
		m.wire.NotBefore = timestamppb.New(time.Now().Add(time.Duration(5+w.random.IntN(200)) * time.Millisecond))
	}
	if w.random.IntN(30) == 0 {
		m.wire.Ttl = durationpb.New(time.Duration(50+w.random.IntN(500)) * time.Millisecond)
	}
	return m
}

// batch returns some messages.
func (w *writer) batch(most int) []*message {
	all := make([]*message, 1+w.random.IntN(most))
	for i := range all {
		all[i] = w.next()
	}
	return all
}

// address gives a message a target of any kind.
func (w *writer) address(m *message) {
	t := &pb.Target{}
	m.wire.Target = t
	var matches func(a agent) bool
	switch n := w.random.IntN(100); {
	case n < 40:
		others := slices.DeleteFunc(cast(), func(a agent) bool { return a.name == w.sender || a.role == "writer" })
		to := others[w.random.IntN(len(others))].name
		t.To = &pb.Target_Agent{Agent: to}
		m.expect = []string{to}
		return
	case n < 58:
		t.To = &pb.Target_Role{Role: "builder"}
		m.queue, m.expect = true, []string{"role:builder"}
		return
	case n < 66:
		t.To = &pb.Target_Role{Role: "tester"}
		m.queue, m.expect = true, []string{"role:tester"}
		m.wire.Reach = pb.Reach_REACH_ONE
		return
	case n < 82:
		t.To = &pb.Target_Channel{Channel: "jobs"}
		m.queue, m.expect = true, []string{"channel:jobs"}
		m.wire.Reach = pb.Reach_REACH_ONE
		return
	case n < 87:
		t.To = &pb.Target_Role{Role: "builder"}
		m.wire.Reach = pb.Reach_REACH_ALL
		matches = func(a agent) bool { return a.role == "builder" }
	case n < 92:
		t.To = &pb.Target_Channel{Channel: "news"}
		matches = func(a agent) bool { return slices.Contains(a.channels, "news") }
	case n < 97:
		t.To = &pb.Target_Pattern{Pattern: "*er-?"}
		matches = func(a agent) bool { ok, _ := path.Match("*er-?", a.name); return ok }
	default:
		t.To = &pb.Target_Everyone{Everyone: true}
		matches = func(agent) bool { return true }
	}
	for _, a := range cast() {
		if matches(a) && a.name != w.sender {
			m.expect = append(m.expect, a.name)
		}
	}
}

// wires returns the messages as they are sent.
func wires(all []*message) []*pb.Message {
	out := make([]*pb.Message, len(all))
	for i, m := range all {
		out[i] = m.wire
	}
	return out
}
