package app_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// A beyond is a way to go beyond a limit, and what must come of it: the value of the limit stands in the message.
type beyond struct {
	code          codes.Code
	reason, field string
	value         string
	try           func() error
}

// invalid is a beyond that names a field.
func invalid(field, value string, try func() error) beyond {
	return beyond{codes.InvalidArgument, "INVALID_ARGUMENT", field, value, try}
}

func exhausted(reason, value string, try func() error) beyond {
	return beyond{codes.ResourceExhausted, reason, "", value, try}
}

// TestLimits_EachIsHitFromOutside goes beyond the limits of docs/limits.md, in one agent's name, while another sends, claims and
// acknowledges. The test of package rules goes beyond those that the .proto files state.
func TestLimits_EachIsHitFromOutside(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	g := newGlutton(t, b)
	w := work(t, b)
	cases := slices.Concat(g.ofMessages(), g.ofLists(), g.ofTimes(), g.ofAgents(), g.ofSessions(), g.ofWork(), g.ofCalls())
	for i, c := range cases {
		t.Run(fmt.Sprintf("%d_%s%s", i, c.reason, c.field), func(t *testing.T) {
			err := c.try()
			if status.Code(err) != c.code || testkit.Reason(err) != c.reason || !strings.Contains(status.Convert(err).Message(), c.value) {
				t.Errorf("got %v (%s), want %v (%s) with %s in it", err, testkit.Reason(err), c.code, c.reason, c.value)
			}
			if c.field != "" && !slices.Contains(testkit.Fields(err), c.field) {
				t.Errorf("%v names %v, not %s", err, testkit.Fields(err), c.field)
			}
		})
	}
	w.end(t)
}

// A worker sends messages to itself, and claims and acknowledges each.
type worker struct {
	rounds atomic.Int64
	stop   context.CancelFunc
	done   sync.WaitGroup
	api    pb.MessageServiceClient
}

func work(t *testing.T, b *apptest.Broker) *worker {
	w := &worker{api: b.Agent("worker", "")}
	ctx, cancel := context.WithCancel(patient(t))
	w.stop = cancel
	w.done.Go(func() {
		for ctx.Err() == nil {
			if err := w.round(context.WithoutCancel(ctx)); err != nil {
				t.Errorf("the worker: %v", err)
				return
			}
			w.rounds.Add(1)
		}
	})
	return w
}

func (w *worker) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, apptest.Patience)
	defer cancel()
	sent, err := w.api.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "worker"}}, Payload: `{"n":1}`,
	}}})
	if err != nil {
		return err
	}
	got, err := w.api.ClaimMessages(ctx, &pb.ClaimMessagesRequest{})
	if err != nil {
		return err
	}
	if len(got.Claims) != 1 || got.Claims[0].Message.Id != sent.Results[0].Id || got.Claims[0].Attempt != 1 {
		return fmt.Errorf("sent %v, claimed %v", sent.Results, got)
	}
	return apptest.Err(w.api.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{got.Claims[0].ClaimId}}))
}

// end stops the worker, which must still be at work, and looks whether anything was lost.
func (w *worker) end(t *testing.T) {
	t.Helper()
	before := w.rounds.Load()
	for ctx := patient(t); w.rounds.Load() == before && !t.Failed(); {
		if ctx.Err() != nil {
			t.Fatal("the worker stands still")
		}
		apptest.Must(t, w.api.ListMessages, &pb.ListMessagesRequest{PageSize: 1})
	}
	w.stop()
	w.done.Wait()
	sent, left := w.list(t, pb.MessageBox_MESSAGE_BOX_SENT), w.list(t, pb.MessageBox_MESSAGE_BOX_INBOX)
	if int64(sent) != w.rounds.Load() || left != 0 {
		t.Errorf("of %d messages %d are there, and %d are unfinished", w.rounds.Load(), sent, left)
	}
	t.Logf("%d rounds beside", sent)
}

// list counts the worker's messages in a box.
func (w *worker) list(t *testing.T, box pb.MessageBox) int {
	t.Helper()
	n := 0
	for request := (&pb.ListMessagesRequest{Box: box, PageSize: 1000}); ; {
		page := apptest.Must(t, w.api.ListMessages, request)
		n += len(page.Items)
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			return n
		}
	}
}

// ofMessages are the limits of one message.
func (g *glutton) ofMessages() []beyond {
	return []beyond{
		exhausted("MESSAGE_TOO_LARGE", "1048576", g.send(tooLarge)),
		exhausted("MESSAGE_TOO_LARGE", "1048576", func() error { return g.streamed(changed(tooLarge)) }),
		exhausted("MESSAGE_TOO_LARGE", "1048576", func() error {
			return apptest.Err(g.messages.Ask(g.ctx, &pb.AskRequest{Message: changed(tooLarge)}))
		}),
	}
}

// ofLists are those of what comes together.
func (g *glutton) ofLists() []beyond {
	ids := make1001("1.1")
	return []beyond{
		invalid("acks", "1000", func() error { return g.taking(&pb.ClaimOpen{}, &pb.ClaimRequest{Acks: ids}) }),
		invalid("settlements", "1000", func() error {
			return g.taking(&pb.ClaimOpen{}, &pb.ClaimRequest{Acks: ids[:501], Releases: ids[:500]})
		}),
		exhausted("TOO_MANY_SUBSCRIPTIONS", "1000", func() error {
			for i := range 1000 {
				if _, err := g.channels.SubscribeChannel(g.ctx, &pb.SubscribeChannelRequest{Channel: fmt.Sprintf("c%d", i)}); err != nil {
					return err
				}
			}
			return apptest.Err(g.channels.SubscribeChannel(g.ctx, &pb.SubscribeChannelRequest{Channel: "one-more"}))
		}),
	}
}

// ofTimes are those of durations.
func (g *glutton) ofTimes() []beyond {
	const year = 365 * 24 * time.Hour
	return []beyond{
		invalid("messages[0].not_before", "365 days", g.send(func(m *pb.Message) { m.NotBefore = timestamppb.New(time.Now().Add(year + time.Hour)) })),
		invalid("messages[0].response_deadline", "365 days", g.send(func(m *pb.Message) {
			m.RequiresResponse, m.ResponseDeadline = true, timestamppb.New(time.Now().Add(year+time.Hour))
		})),
	}
}

// ofAgents are those of what is known of an agent.
func (g *glutton) ofAgents() []beyond {
	return []beyond{
		invalid("brokerd-agent", "128", func() error {
			return apptest.Err(pb.NewAgentServiceClient(g.broker.Conn(text(129))).RegisterAgent(g.ctx, &pb.RegisterAgentRequest{}))
		}),
	}
}

// ofSessions are those that a session sets. The glutton acts in a session of its own, where each is low.
func (g *glutton) ofSessions() []beyond {
	const session = "low"
	operator := g.broker.Root()
	apptest.Must(g.t, operator.CreateSession, &pb.CreateSessionRequest{Name: session, Settings: &pb.SessionSettings{
		MessageLimit: proto.Int32(1024), PayloadLimit: proto.Int32(100), MailboxLimit: proto.Int64(1),
	}})
	for _, agent := range []string{"glutton", "victim"} {
		apptest.Must(g.t, g.broker.Actor(session, agent).RegisterAgent, &pb.RegisterAgentRequest{})
	}
	there := *g
	there.messages = g.broker.Actor(session, "glutton")
	high := &pb.SessionSettings{MessageLimit: proto.Int32(1<<20 + 1), PayloadLimit: proto.Int32(256<<10 + 1), MailboxLimit: proto.Int64(1e7 + 1),
		SendRate: proto.Float64(1e6 + 1), SendBurst: proto.Int32(1e6 + 1), EscalateTo: &pb.Names{Names: slices.Repeat([]string{"a"}, 101)}}
	configure := func() error {
		return apptest.Err(operator.ConfigureSession(g.ctx, &pb.ConfigureSessionRequest{Settings: high}))
	}
	return []beyond{
		exhausted("MESSAGE_TOO_LARGE", "at most 1024 are allowed (session setting message_limit)",
			there.send(func(m *pb.Message) { m.Body = text(1024) })),
		invalid("messages[0].payload", "at most 100 are allowed (session setting payload_limit)",
			there.send(func(m *pb.Message) { m.Payload = `"` + text(99) + `"` })),
		{codes.OK, "", "", "", there.refused},
		exhausted("MAILBOX_FULL", "1 waiting (session setting mailbox_limit)", func() error {
			return apptest.Err(there.messages.Ask(g.ctx, &pb.AskRequest{Message: changed(toVictim)}))
		}),
		exhausted("SEND_RATE", "10 messages a second, and 100 at once after a pause (session settings send_rate and send_burst)", func() error {
			ctx := context.WithoutCancel(g.ctx) // a call without a deadline waits for less than the 40 s that this would take
			return apptest.Err(g.messages.SendMessages(ctx, &pb.SendMessagesRequest{Messages: slices.Repeat([]*pb.Message{changed(nothing)}, 500)}))
		}),
		invalid("settings.message_limit", "1048576", configure),
		invalid("settings.payload_limit", "262144", configure),
		invalid("settings.mailbox_limit", "10000000", configure),
		invalid("settings.send_rate", "1000000", configure),
		invalid("settings.send_burst", "1000000", configure),
		invalid("settings.escalate_to.names", "100", configure),
	}
}

// ofCalls are those of calls, streams and connections.
func (g *glutton) ofCalls() []beyond {
	return []beyond{
		exhausted("MESSAGE_TOO_LARGE", "5242880", func() error {
			return apptest.Err(g.messages.SendMessages(g.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{Body: text(5 << 20)}}}))
		}),
		exhausted("MESSAGE_TOO_LARGE", "5242880", func() error { return g.streamed(&pb.Message{Body: text(5 << 20)}) }),
		exhausted("METADATA_TOO_LARGE", "8192", func() error {
			ctx := metadata.AppendToOutgoingContext(g.ctx, "x-much", text(8<<10))
			return apptest.Err(g.messages.ListMessages(ctx, &pb.ListMessagesRequest{}))
		}),
		exhausted("TOO_MANY_STREAMS", "100", func() error {
			ctx, cancel := context.WithCancel(g.ctx)
			defer cancel()
			for range 100 {
				if err := g.openStream(ctx); err != nil {
					return err
				}
			}
			return g.openStream(ctx)
		}),
		exhausted("TOO_MANY_CONNECTIONS", "16", func() error {
			for range 15 { // beside the one that it has
				if err := g.connect(); err != nil {
					return err
				}
			}
			return g.connect()
		}),
	}
}
