package broker_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// project makes the session "project" with two registered agents.
func (w *world) project() (lead, builder *agent) {
	w.Helper()
	o := w.operator()
	apptest.Must(w, o.CreateSession, &pb.CreateSessionRequest{Name: "project"})
	lead, builder = w.in("project", "lead"), w.in("project", "builder")
	lead.Register("lead")
	builder.Register("builder")
	return lead, builder
}

func (w *world) closeSession(name string) {
	w.Helper()
	o := w.operator()
	apptest.Must(w, o.CloseSession, &pb.CloseSessionRequest{Name: name, Reason: "done"})
}

// wantClosed checks the refusal of a change in a closed session.
func wantClosed(t *testing.T, what string, err error) {
	t.Helper()
	if status.Code(err) != codes.FailedPrecondition || testkit.Reason(err) != "SESSION_CLOSED" {
		t.Errorf("%s: got %v, want FAILED_PRECONDITION, SESSION_CLOSED", what, err)
	}
}

func TestCloseSession_CancelsWhatIsUnfinished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.project()
	held := lead.send(to("builder"))
	builder.claim1()
	waiting := lead.send(to("builder"))
	delayed := to("builder")
	delayed.NotBefore = w.now(60e9)
	later := lead.send(delayed)
	w.closeSession("project")
	for _, id := range []string{held.Id, waiting.Id, later.Id} {
		lead.wantState(id, cancelled)
	}
}

func TestCloseSession_RefusesChangesAndLetsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.project()
	sent := lead.send(to("builder"))
	claim := builder.claim1()
	w.closeSession("project")
	o := w.in("project", "")
	ctx := lead.Ctx

	_, err := lead.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{to("builder")}})
	wantClosed(t, "send", err)
	_, err = builder.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{claim.ClaimId}})
	wantClosed(t, "ack", err)
	_, err = builder.ClaimMessages(ctx, &pb.ClaimMessagesRequest{})
	wantClosed(t, "claim", err)
	_, err = builder.SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: "news"})
	wantClosed(t, "subscribe", err)
	_, err = o.ConfigureChannel(ctx, &pb.ConfigureChannelRequest{Channel: "news"})
	wantClosed(t, "configure channel", err)
	_, err = lead.RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "lead"})
	wantClosed(t, "register", err)
	_, err = lead.DeregisterAgent(ctx, &pb.DeregisterAgentRequest{})
	wantClosed(t, "deregister", err)
	_, err = o.ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{Ageing: durationpb.New(1e9)}})
	wantClosed(t, "configure", err)
	stream, err := builder.Claim(ctx)
	apptest.NoError(t, err)
	apptest.NoError(t, stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	_, err = stream.Recv()
	wantClosed(t, "open a stream", err)
	reader, err := builder.Receive(ctx, &pb.ReceiveRequest{})
	apptest.NoError(t, err)
	_, err = reader.Recv()
	wantClosed(t, "receive", err)

	lead.get(sent.Id)
	if n := len(lead.list(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL}).GetItems()); n != 1 {
		t.Errorf("%d messages are listed, want 1", n)
	}
	list, err := o.ListEvents(ctx, &pb.ListEventsRequest{NewestFirst: true, PageSize: 1})
	apptest.NoError(t, err)
	if got := list.Events[0].GetType(); got != "session.closed" {
		t.Errorf("the last event is %s, want session.closed", got)
	}
	apptest.NoError(t, drop(o.CloseSession(ctx, &pb.CloseSessionRequest{Name: "project"})))
}

func TestCloseSession_EndsStreamsAndWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.project()
	stream, err := builder.Claim(builder.Ctx)
	apptest.NoError(t, err)
	apptest.NoError(t, stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}))
	apptest.NoError(t, drop(stream.Recv()))
	reader, err := builder.Receive(builder.Ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	apptest.NoError(t, drop(reader.Recv()))
	waited := make(chan error, 1)
	go func() {
		_, err := lead.ClaimMessages(lead.Ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(apptest.LongWait)})
		waited <- err
	}()
	<-w.Waits

	w.closeSession("project")
	_, err = stream.Recv()
	wantClosed(t, "the stream", err)
	_, err = reader.Recv()
	wantClosed(t, "the reader", err)
	wantClosed(t, "the wait", <-waited)
}

func TestCloseSession_RefusesTheDefaultOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	_, err := o.CloseSession(o.Ctx, &pb.CloseSessionRequest{Name: "default"})
	apptest.Refused(t, err, codes.FailedPrecondition, "DEFAULT_SESSION")
}

// awaitClosed returns once the backlog of closed sessions is done.
func (w *world) awaitClosed() {
	w.Helper()
	w.awaitNone(`SELECT COUNT(*) FROM work_backlog WHERE feature = 'broker'`)
}

const openDeliveries = `SELECT COUNT(*) FROM deliveries WHERE state <= 4 OR state = 9`

func TestCloseSession_CancelsMoreThanOneFunctionMayChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.project()
	o := w.in("project", "")
	apptest.Must(t, o.ConfigureSession, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: new(0.0), MailboxLimit: new(int64(0))},
	})
	batch := make([]*pb.Message, 1000)
	for i := range batch {
		batch[i] = to("builder")
	}
	for range 11 {
		lead.sendAll(batch...)
	}
	builder.claim(100)
	w.closeSession("project")
	w.Restart()
	w.awaitClosed()
	want(t, "unfinished", w.number(openDeliveries), 0)
	want(t, "cancelled", w.number(`SELECT COUNT(*) FROM deliveries WHERE state = 8`), 11_000)
	want(t, "waiting", w.number(`SELECT SUM(waiting) FROM mailboxes`), 0)
}

func TestCloseSession_CancellingResumesAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.project()
	o := w.in("project", "")
	apptest.Must(t, o.ConfigureSession, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: new(0.0)},
	})
	lead.fill("builder", w)
	builder.claim(5)
	for range 250 {
		lead.send(to("builder", resendAfter(time.Minute), question))
	}
	w.breakAfter("state", "builder", 300)
	w.closeSession("project")
	w.awaitLog("a page of the backlog failed; the broker tries again")
	want(t, "cancelled by the first page", w.number(`SELECT COUNT(*) FROM deliveries WHERE state = 8`), 200)
	_, err := builder.ClaimMessages(builder.Ctx, &pb.ClaimMessagesRequest{})
	wantClosed(t, "claim", err)
	export := func() error {
		stream, err := o.ExportSession(o.Ctx, &pb.ExportSessionRequest{Name: "project"})
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	if err := export(); errors.Is(err, io.EOF) {
		t.Error("a session was exported while its messages were being cancelled")
	}
	w.Check()
	w.mend()
	w.Restart()
	if err := export(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	want(t, "unfinished", w.number(openDeliveries), 0)
	want(t, "waiting", w.number(`SELECT SUM(waiting) FROM mailboxes`), 0)
	want(t, "reminders", w.number(`SELECT COUNT(*) FROM resends`), 0)
	want(t, "open questions", w.number(`SELECT COUNT(*) FROM questions WHERE settled IS NULL`), 0)
}
