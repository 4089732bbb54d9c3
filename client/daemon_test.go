package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// stopTimeout is short: idle Send streams last until it is over, and cutting them off is a case of its own.
const stopTimeout = 100 * time.Millisecond

// daemon is a real broker that can be restarted.
type daemon struct {
	dir   string
	clock clockwork.Clock // the machine's if nil
	app   *app.App
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	return newDaemonWith(t, nil)
}

func newDaemonWith(t *testing.T, clock clockwork.Clock) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd") // short: the socket's path has a limit
	apptest.NoError(t, err)
	d := &daemon{dir: dir, clock: clock}
	d.start(t)
	d.unlimit(t)
	t.Cleanup(func() {
		d.stop(t)
		_ = os.RemoveAll(dir)
	})
	return d
}

func (d *daemon) start(t *testing.T) {
	t.Helper()
	a, err := app.Start(context.Background(), app.Config{Dir: d.dir, Sync: "normal", Clock: d.clock, StopTimeout: stopTimeout})
	apptest.NoError(t, err)
	d.app = a
}

// unlimit lets agents send as fast as they can.
func (d *daemon) unlimit(t *testing.T) {
	t.Helper()
	c, err := client.Dial(t.Context(), client.WithAddress(d.app.Addresses()[0]))
	apptest.NoError(t, err)
	defer c.Close()
	settings := &pb.SessionSettings{SendRate: proto.Float64(0)}
	if _, err := c.Sessions().ConfigureSession(t.Context(), &pb.ConfigureSessionRequest{Settings: settings}); err != nil {
		t.Fatal(err)
	}
}

func (d *daemon) stop(t *testing.T) {
	t.Helper()
	apptest.NoError(t, d.app.Stop(context.Background()))
}

func (d *daemon) restart(t *testing.T) {
	t.Helper()
	d.stop(t)
	d.start(t)
}

// agent returns a client of its own for a registered agent.
func (d *daemon) agent(t *testing.T, name, role string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.WithAddress(d.app.Addresses()[0]), client.WithAgent(name))
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	apptest.NoError(t, apptest.Err(c.Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{Role: role})))
	return c
}

// to is a message for one agent.
func to(agent, subject string) *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: agent}}, Subject: subject}
}

// sendAll sends count messages and returns their subjects.
func sendAll(t *testing.T, s *client.Sender, agent string, first, count int) []string {
	t.Helper()
	var messages []*pb.Message
	var subjects []string
	for i := range count {
		subjects = append(subjects, fmt.Sprintf("message %d", first+i))
		messages = append(messages, to(agent, subjects[i]))
	}
	apptest.NoError(t, apptest.Err(s.SendBatch(t.Context(), messages)))
	return subjects
}

// sentBy lists the subjects of everything that the client's agent sent.
func sentBy(t *testing.T, c *client.Client) []string {
	t.Helper()
	var subjects []string
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_SENT, PageSize: 1000}
	for {
		page, err := c.Messages().ListMessages(t.Context(), request)
		apptest.NoError(t, err)
		for _, item := range page.GetItems() {
			subjects = append(subjects, item.GetMessage().GetSubject())
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return subjects
		}
	}
}

func TestSender_RestartOfTheBrokerLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.agent(t, "reader", "")
	c := d.agent(t, "writer", "")
	s := newSender(t, c, client.SenderOptions{Window: 64})
	const senders, each = 8, 100
	confirmed := make(chan struct{}, senders*each)
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for j := range each {
				if _, err := s.Send(t.Context(), to("reader", fmt.Sprintf("%d-%03d", i, j))); err != nil {
					t.Errorf("send %d-%03d: %v", i, j, err)
					return
				}
				confirmed <- struct{}{}
			}
		})
	}
	for restarts := range 3 {
		for range senders * each / 5 {
			next(t, confirmed)
		}
		d.restart(t)
		t.Logf("restart %d", restarts+1)
	}
	wg.Wait()
	subjects := sentBy(t, c)
	slices.Sort(subjects)
	if n := len(subjects); n != senders*each || len(slices.Compact(subjects)) != n {
		t.Fatalf("%d messages arrived, %d of them different; %d were sent", n, len(slices.Compact(subjects)), senders*each)
	}
}

func TestWork_RestartOfTheBrokerLosesNothingAndNothingIsHandledTwiceAtOnce(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	writer := d.agent(t, "writer", "")
	worker := d.agent(t, "worker", "")
	s := newSender(t, writer, client.SenderOptions{})
	const count = 300
	sendAll(t, s, "worker", 0, count)

	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	handling, handled := map[string]bool{}, map[string]int{}
	some := make(chan struct{}, 10*count)
	done := make(chan error, 1)
	go func() {
		done <- worker.Work(ctx, client.WorkOptions{Consumer: "w", Concurrency: 8, Prefetch: 8}, func(_ context.Context, claim *client.Claim) error {
			subject := claim.Message.GetSubject()
			mu.Lock()
			if handling[subject] {
				t.Errorf("%s is handled twice at the same time", subject)
			}
			handling[subject] = true
			mu.Unlock()
			mu.Lock()
			handling[subject] = false
			handled[subject]++
			mu.Unlock()
			some <- struct{}{}
			return nil
		})
	}()
	for range 2 {
		for range count / 3 {
			next(t, some)
		}
		d.restart(t)
	}
	for {
		mu.Lock()
		n := len(handled)
		mu.Unlock()
		if n == count {
			break
		}
		next(t, some)
	}
	stop()
	apptest.NoError(t, next(t, done))
	// The connection may still wait before its next attempt.
	agent, err := worker.Agents().GetAgent(t.Context(), &pb.GetAgentRequest{}, grpc.WaitForReady(true))
	if err != nil || agent.GetUnread() != 0 || agent.GetClaimable() != 0 {
		t.Fatalf("left over: %v, %v", agent, err)
	}
}

func TestWork_DrainPutsBackWhatWasNotBegunUncounted(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	writer := d.agent(t, "writer", "")
	worker := d.agent(t, "worker", "")
	sendAll(t, newSender(t, writer, client.SenderOptions{}), "worker", 0, 4)

	w := work(t, worker, client.WorkOptions{Prefetch: 2})
	r := next(t, w.begun)
	w.stop()
	r.give <- nil
	apptest.NoError(t, next(t, w.done))
	// The other three can be claimed at once, in their first attempt.
	claims, err := worker.Messages().ClaimMessages(t.Context(), &pb.ClaimMessagesRequest{Consumer: "next", Max: 10})
	apptest.NoError(t, err)
	var got []string
	for _, c := range claims.GetClaims() {
		if c.GetAttempt() != 1 {
			t.Errorf("%s is in attempt %d", c.GetMessage().GetSubject(), c.GetAttempt())
		}
		got = append(got, c.GetMessage().GetSubject())
	}
	if want := []string{"message 1", "message 2", "message 3"}; !slices.Equal(got, want) {
		t.Fatalf("claimed %v, want %v", got, want)
	}
}

func TestWork_AnotherWorkerOfTheSameConsumerTakesOver(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	writer := d.agent(t, "writer", "")
	worker := d.agent(t, "worker", "")
	sendAll(t, newSender(t, writer, client.SenderOptions{}), "worker", 0, 1)

	first := work(t, worker, client.WorkOptions{Consumer: "w"})
	held := next(t, first.begun)
	second := work(t, worker, client.WorkOptions{Consumer: "w"})
	taken := next(t, second.begun)
	if taken.claim.ID != held.claim.ID || !taken.claim.Resumed {
		t.Fatalf("taken over: %+v, held before: %+v", taken.claim, held.claim)
	}
	next(t, held.ctx.Done())
	wantIs(t, context.Cause(held.ctx), client.ErrClaimLost)
	if err := next(t, first.done); client.Reason(err) != "TAKEN_OVER" {
		t.Fatalf("the first ended with %v", err)
	}
	taken.give <- nil
}

func TestWork_ErrorsDecideWhatTheBrokerDoes(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	writer := d.agent(t, "writer", "")
	worker := d.agent(t, "worker", "")
	s := newSender(t, writer, client.SenderOptions{})
	states := map[string]pb.DeliveryState{
		"ack":   pb.DeliveryState_DELIVERY_STATE_ACKED,
		"fatal": pb.DeliveryState_DELIVERY_STATE_DEAD,
		"later": pb.DeliveryState_DELIVERY_STATE_DELAYED,
	}
	ids := map[string]string{}
	for subject := range states {
		r, err := s.Send(t.Context(), to("worker", subject))
		apptest.NoError(t, err)
		ids[subject] = r.GetId()
	}
	w := work(t, worker, client.WorkOptions{Concurrency: 3})
	for range states {
		r := next(t, w.begun)
		switch r.claim.Message.GetSubject() {
		case "ack":
			r.give <- nil
		case "fatal":
			r.give <- client.Fatal(errors.New("hopeless"))
		case "later":
			r.give <- client.RetryAfter(errors.New("busy"), time.Hour)
		}
	}
	w.stop()
	apptest.NoError(t, next(t, w.done))
	for subject, want := range states {
		m, err := writer.Messages().GetMessage(t.Context(), &pb.GetMessageRequest{Id: ids[subject]})
		apptest.NoError(t, err)
		if got := m.GetDeliveries()[0].GetState(); got != want {
			t.Errorf("%s: %v, want %v", subject, got, want)
		}
	}
}

func TestClaimReply_AnswersAndFinishesAlthoughTheHandlersContextEnds(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	lead, builder := d.agent(t, "lead", ""), d.agent(t, "builder", "")
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() {
		worked <- builder.Work(ctx, client.WorkOptions{Concurrency: 4}, func(ctx context.Context, c *client.Claim) error {
			return c.Reply(ctx, &pb.Message{Subject: "re: " + c.Message.GetSubject()})
		})
	}()
	for n := range 50 {
		question := to("builder", fmt.Sprint("question ", n))
		answer, err := lead.Messages().Ask(t.Context(), &pb.AskRequest{Message: question})
		apptest.NoError(t, err)
		if got, want := answer.GetReply().GetSubject(), "re: "+question.GetSubject(); got != want {
			t.Fatalf("the reply is %q, not %q", got, want)
		}
		asked, err := lead.Messages().GetMessage(t.Context(), &pb.GetMessageRequest{Id: answer.GetId()})
		apptest.NoError(t, err)
		if state := asked.GetDeliveries()[0].GetState(); state != pb.DeliveryState_DELIVERY_STATE_ACKED {
			t.Fatalf("question %d is %v after its reply", n, state)
		}
	}
	stop()
	apptest.NoError(t, <-worked)
	sent, err := lead.Messages().ListMessages(t.Context(), &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_SENT, PageSize: 100})
	apptest.NoError(t, err)
	for _, item := range sent.GetItems() {
		asked, err := lead.Messages().GetMessage(t.Context(), &pb.GetMessageRequest{Id: item.GetMessage().GetId()})
		apptest.NoError(t, err)
		if n := asked.GetDeliveries()[0].GetAttempts(); n != 0 {
			t.Errorf("%s has %d failed attempts", item.GetMessage().GetSubject(), n)
		}
	}
}

func TestFollow_RestartOfTheBrokerLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.FollowOptions{"by revision": {}, "by cursor": {Cursor: "mine"}} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			writer := d.agent(t, "writer", "")
			reader := d.agent(t, "reader", "")
			s := newSender(t, writer, client.SenderOptions{})
			const each = 50
			want := sendAll(t, s, "reader", 0, each)
			got := make(chan string, 10*each)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for item, err := range reader.Follow(ctx, o) {
					if err != nil {
						t.Error(err)
						return
					}
					got <- item.GetMessage().GetSubject()
				}
			}()
			for i := 1; i < 4; i++ {
				next(t, got) // the stream is at work
				want = want[1:]
				d.restart(t)
				want = append(want, sendAll(t, s, "reader", i*each, each)...)
			}
			for _, subject := range want {
				if g := next(t, got); g != subject {
					t.Fatalf("got %q, want %q", g, subject)
				}
			}
			stop()
			next(t, done)
			if len(got) > 0 {
				t.Fatalf("%d came twice", len(got))
			}
		})
	}
}

func TestFollowEvents_RestartOfTheBrokerLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]client.EventOptions{"by revision": {}, "by cursor": {Cursor: "mine"}} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			writer := d.agent(t, "writer", "")
			d.agent(t, "reader", "")
			s := newSender(t, writer, client.SenderOptions{})
			got := make(chan int64, 10000)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				for e, err := range writer.FollowEvents(ctx, o) {
					if err != nil {
						t.Error(err)
						return
					}
					got <- e.GetRevision()
				}
			}()
			var last int64
			for i := range 4 {
				sendAll(t, s, "reader", i*50, 49)
				r, err := s.Send(t.Context(), to("reader", "last"))
				apptest.NoError(t, err)
				last = r.GetRevision()
				if i < 3 {
					d.restart(t)
				}
			}
			var want []int64
			request := &pb.ListEventsRequest{UntilRevision: last, PageSize: 1000}
			for {
				page, err := writer.Events().ListEvents(t.Context(), request)
				apptest.NoError(t, err)
				for _, e := range page.GetEvents() {
					want = append(want, e.GetRevision())
				}
				if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
					break
				}
			}
			for _, revision := range want {
				if g := next(t, got); g != revision {
					t.Fatalf("got event %d, want %d", g, revision)
				}
			}
			stop()
			next(t, done)
		})
	}
}
