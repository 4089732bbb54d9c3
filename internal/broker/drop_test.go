package broker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// dropping makes every n-th function of the writer fail that has changed something, while it is on.
func dropping(n int64, on *atomic.Bool) apptest.Option {
	var functions atomic.Int64
	return apptest.With(func(c *app.Config) {
		c.Options = func(o *store.Options) {
			o.Drop = func() error {
				if !on.Load() || functions.Add(1)%n != 0 {
					return nil
				}
				return fault.New(fault.Unavailable, "DROPPED", "dropped by the test")
			}
		}
	})
}

// TestMemory_DroppedFunctionsLeaveNothingBehind sends, claims and acknowledges messages and asks questions, while
// functions are dropped: those that send, those that settle, and the dispatch at the end of a batch. The clients try
// again. No message may be lost, none may reach an agent without a claim in the table, and none may wait for ever.
func TestMemory_DroppedFunctionsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{2, 3, 5, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var on atomic.Bool
			w := &world{Broker: apptest.Start(t, dropping(n, &on))}
			w.Root().Configure(&pb.SessionSettings{SendRate: new(0.0)})
			lead, builders := w.agent("lead", "lead"), w.agents("builder", "a", "b", "c")
			ctx, end := context.WithCancel(lead.Ctx)
			var working sync.WaitGroup
			finished := make(chan string, 1000)
			for _, b := range builders {
				working.Go(func() { b.worksUntil(ctx, finished) })
			}
			on.Store(true)
			const messages = 60
			for i := range messages {
				m := toRole("builder", subject(fmt.Sprint(i)))
				if i%3 == 0 {
					m = to("b", subject(fmt.Sprint(i)))
				}
				again(ctx, func() error {
					return drop(lead.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}}))
				})
				if i%6 == 0 {
					var out *pb.AskResponse
					again(ctx, func() (err error) {
						out, err = lead.Ask(ctx, &pb.AskRequest{Message: toRole("builder", subject("?")), Wait: durationpb.New(apptest.Patience)})
						return err
					})
					want(t, "reply", out.GetReply().GetSubject(), "!")
				}
			}
			seen := map[string]int{}
			for range messages {
				select {
				case text := <-finished:
					seen[text]++
				case <-ctx.Done():
					t.Fatalf("only %d of %d messages came", len(seen), messages)
				}
			}
			on.Store(false)
			end()
			working.Wait()
			for text, times := range seen {
				if times != 1 {
					t.Errorf("message %s came %d times", text, times)
				}
			}
			want(t, "deliveries at work", w.number(`SELECT count(*) FROM deliveries WHERE state IN (1, 2)`), 0)
		})
	}
}

// again calls fn until it succeeds.
func again(ctx context.Context, fn func() error) {
	for ctx.Err() == nil && fn() != nil {
	}
}

// worksUntil answers questions, and acknowledges all other messages.
func (a *agent) worksUntil(ctx context.Context, finished chan<- string) {
	for ctx.Err() == nil {
		out, err := a.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 2, Wait: durationpb.New(time.Minute)})
		if err != nil {
			continue
		}
		for _, c := range out.GetClaims() {
			if m := c.GetMessage(); m.GetSubject() == "?" {
				again(ctx, func() error {
					return drop(a.Reply(ctx, &pb.ReplyRequest{Id: m.GetId(), Ack: true, Message: &pb.Message{Subject: "!"}}))
				})
				continue
			}
			again(ctx, func() error {
				return drop(a.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{c.GetClaimId()}}))
			})
			finished <- c.GetMessage().GetSubject()
		}
	}
}

// TestSleeping_ADispatchThatHasFailedRunsAgain makes the dispatch fail, again and again, which is to give an agent a
// message that waits. The check of sleeping mailboxes finds none meanwhile.
func TestSleeping_ADispatchThatHasFailedRunsAgain(t *testing.T) {
	t.Parallel()
	var on atomic.Bool
	var changing atomic.Int64
	w := newWorld(t, apptest.With(func(c *app.Config) {
		c.Options = func(o *store.Options) {
			o.Drop = func() error {
				if !on.Load() || changing.Add(1) == 1 {
					return nil
				}
				return fault.New(fault.Unavailable, "DROPPED", "dropped by the test")
			}
		}
	}))
	o, a := w.operator(), w.agent("a", "builder")
	o.send(to("a", kind("halt")))
	a.ack(a.claim1().ClaimId)
	call := w.wait(a, &pb.ClaimMessagesRequest{Max: 10})
	o.send(to("a", subject("work")))
	on.Store(true)
	o.send(to("a", kind("resume"), subject("go")))
	for range 3 {
		out := apptest.Must(t, pb.NewAdminServiceClient(w.Operator()).CheckDatabase, &pb.CheckDatabaseRequest{})
		if len(out.GetProblems()) > 0 {
			t.Errorf("while the dispatch fails: %q", out.GetProblems())
		}
	}
	want(t, "dispatches have failed", changing.Load() > 2, true)
	on.Store(false)
	w.Clock.Advance(time.Second)
	want(t, "claims", len(call.answer().GetClaims()) > 0, true)
}
