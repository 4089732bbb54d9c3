package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// An errorsOf gives the errors of a test to the test of that test.
type errorsOf struct {
	testing.TB
	errors chan string
}

// Errorf implements testing.TB.
func (f errorsOf) Errorf(format string, args ...any) {
	select {
	case f.errors <- fmt.Sprintf(format, args...):
	default:
	}
}

// stir makes a delayed delivery ready behind the broker's back, so that dispatch does not know of it.
func (w *world) stir(id string) {
	w.Helper()
	w.sql(fmt.Sprintf(`UPDATE deliveries SET state = 1, due_at = NULL WHERE message = %d`, w.operator().get(id).Message.Revision))
}

// later delays a message for longer than any test.
func (w *world) later(m *pb.Message) *pb.Message {
	m.NotBefore = w.now(24 * time.Hour)
	return m
}

// TestSleepingMailbox_IsFound makes a delivery ready without the knowledge of dispatch while consumers wait that take it.
// The check of the test daemons finds that.
func TestSleepingMailbox_IsFound(t *testing.T) {
	apptest.WithoutReplicas(t, "only a broker without replicas is examined again and again")
	t.Parallel()
	for name, c := range map[string]struct {
		wait    func(w *world, a *agent)
		message *pb.Message
	}{
		"a stream": {
			func(_ *world, a *agent) { a.taker(&pb.ClaimOpen{MaxInFlight: 1}) }, to("ann"),
		},
		"a stream with a filter": {
			func(_ *world, a *agent) { a.taker(&pb.ClaimOpen{MaxInFlight: 1, Types: []string{"work"}}) }, to("ann", kind("work")),
		},
		"a queue": {
			func(_ *world, a *agent) { a.taker(&pb.ClaimOpen{MaxInFlight: 5}) }, toRole("red"),
		},
		"a call": {
			func(w *world, a *agent) { w.wait(a, &pb.ClaimMessagesRequest{Max: 1}) }, to("ann"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := make(chan string, 1)
			w := newWorld(errorsOf{t, found})
			w.agent("bob", "red")
			ann := w.agent("ann", "red")
			id := w.in("default", "bob").send(w.later(c.message)).Id
			c.wait(w, ann)
			w.in("default", "bob").send(to("bob")) // dispatch has looked at what waits when this is sent
			w.stir(id)
			select {
			case got := <-found:
				if !strings.Contains(got, `agent "ann" waits for it`) || !strings.Contains(got, "restart the broker") {
					t.Errorf("the check says %q", got)
				}
			case <-time.After(apptest.Patience):
				t.Error("the check has found nothing")
			}
		})
	}
}

// TestSleepingMailbox_NothingIsFound has consumers that wait beside a ready delivery which is not for them.
func TestSleepingMailbox_NothingIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open    *pb.ClaimOpen
		message *pb.Message
		before  func(w *world, ann *agent, stream *taker) // the delivery is ready
	}{
		"another type":    {&pb.ClaimOpen{MaxInFlight: 1, Types: []string{"work"}}, to("ann"), nil},
		"a low priority":  {&pb.ClaimOpen{MaxInFlight: 1, LowestPriority: 7}, to("ann", priority(3)), nil},
		"another mailbox": {&pb.ClaimOpen{MaxInFlight: 1, Mailboxes: []string{"role:red"}}, to("ann"), nil},
		"its own message": {&pb.ClaimOpen{MaxInFlight: 1}, toRole("red"), nil},
		"no capacity": {&pb.ClaimOpen{MaxInFlight: 1}, to("ann"), func(_ *world, ann *agent, stream *taker) {
			ann.send(to("ann", subject("held")))
			stream.take(1)
		}},
		"a halt": {&pb.ClaimOpen{MaxInFlight: 5}, to("ann"), func(w *world, _ *agent, stream *taker) {
			w.operator().send(to("ann", kind("halt")))
			stream.take(1)
		}},
		"a drain": {&pb.ClaimOpen{MaxInFlight: 5}, to("ann"), func(w *world, _ *agent, _ *taker) {
			o := w.operator()
			apptest.Must(w, o.Drain, &pb.DrainRequest{})
		}},
		"no time left": {&pb.ClaimOpen{MaxInFlight: 1}, to("ann"), func(w *world, _ *agent, _ *taker) {
			w.sql(`UPDATE deliveries SET expires_at = 1`)
		}},
		"a stream that has ended": {&pb.ClaimOpen{MaxInFlight: 1}, to("ann"), func(w *world, _ *agent, stream *taker) {
			stream.end()
			w.awaitStreams(0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ann := w.agent("ann", "red")
			id := ann.send(w.later(c.message)).Id
			stream := ann.taker(c.open)
			if c.before != nil {
				c.before(w, ann, stream)
			}
			w.stir(id)
			for range 3 {
				w.Check()
			}
		})
	}
}

// TestSleepingMailbox_ABusyBrokerHasNone checks a broker over and over while messages are sent to consumers that wait.
func TestSleepingMailbox_ABusyBrokerHasNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "lead")
	const each, consumers = 200, 3
	streams := make([]*taker, consumers)
	for i, name := range []string{"ann", "bob", "cat"} {
		streams[i] = w.agent(name, "red").taker(&pb.ClaimOpen{MaxInFlight: int32(i + 1), ClaimFor: durationpb.New(time.Hour)})
	}
	done := make(chan struct{})
	taken := make(chan struct{}, each*consumers)
	for _, c := range streams {
		go func() {
			for {
				r, err := c.stream.Recv()
				if err != nil {
					return
				}
				for _, claim := range r.GetDeliver().GetClaims() {
					if c.stream.Send(&pb.ClaimRequest{Acks: []string{claim.ClaimId}}) != nil {
						return
					}
					taken <- struct{}{}
				}
			}
		}()
	}
	go func() {
		defer close(done)
		for range each {
			_, err := lead.SendMessages(lead.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{toRole("red"), toRole("red"), toRole("red")}})
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for sending := true; sending; {
		select {
		case <-done:
			sending = false
		default:
			w.Check()
		}
	}
	for range each * consumers {
		select {
		case <-taken:
		case <-time.After(apptest.Patience):
			t.Fatal("messages are not delivered")
		}
	}
}
