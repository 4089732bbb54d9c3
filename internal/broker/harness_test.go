package broker_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Histories(40, 100)
	goleak.VerifyTestMain(m)
}

// The states of a delivery, for tables.
const (
	pending   = pb.DeliveryState_DELIVERY_STATE_PENDING
	claimed   = pb.DeliveryState_DELIVERY_STATE_CLAIMED
	delayed   = pb.DeliveryState_DELIVERY_STATE_DELAYED
	blocked   = pb.DeliveryState_DELIVERY_STATE_BLOCKED
	acked     = pb.DeliveryState_DELIVERY_STATE_ACKED
	dead      = pb.DeliveryState_DELIVERY_STATE_DEAD
	expired   = pb.DeliveryState_DELIVERY_STATE_EXPIRED
	cancelled = pb.DeliveryState_DELIVERY_STATE_CANCELLED
)

// A world is a daemon whose clock stands still until the test advances it, and its log. At the end of the test its database
// must be sound.
type world struct {
	*apptest.Broker
	logged chan string // warnings and errors
}

func newWorld(t testing.TB, options ...apptest.Option) *world {
	t.Helper()
	logged := make(chan string, 1000)
	options = append([]apptest.Option{apptest.WithFakeClock()}, options...)
	options = append(options, apptest.With(func(c *app.Config) { c.Log = logTo(logged) }))
	w := &world{apptest.Start(t, options...), logged}
	w.Root().Configure(&pb.SessionSettings{SendRate: new(0.0)}) // the tests of the limit set their own
	return w
}

// logTo returns a log that puts the texts of warnings and errors into a channel, as long as it has
// room.
func logTo(texts chan<- string) *zap.Logger {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(io.Discard), zap.WarnLevel)
	return zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		select {
		case texts <- e.Message:
		default:
		}
		return nil
	}))
}

// An agent is a caller of the daemon. The operator has no name.
type agent struct{ *apptest.Actor }

// in returns a caller in a session, which need not be registered.
func (w *world) in(session, name string) *agent { return &agent{w.Actor(session, name)} }

func (w *world) operator() *agent { return w.in("default", "") }

// agent returns a registered agent.
func (w *world) agent(name, role string) *agent {
	w.Helper()
	a := w.in("default", name)
	a.Register(role)
	return a
}

// agents returns registered agents of one role.
func (w *world) agents(role string, names ...string) []*agent {
	w.Helper()
	all := make([]*agent, len(names))
	for i, name := range names {
		all[i] = w.agent(name, role)
	}
	return all
}

// sql changes the database behind the daemon's back.
func (w *world) sql(statements ...string) {
	w.Helper()
	for _, statement := range statements {
		testkit.Change(w, w.Dir(), statement)
	}
}

// number returns the one number that a query finds in the database.
func (w *world) number(query string) int {
	w.Helper()
	return int(testkit.Number(w, w.Dir(), query))
}

// awaitNone returns once a query that counts finds nothing.
func (w *world) awaitNone(query string) {
	w.Helper()
	for late := time.Now().Add(apptest.Patience); w.number(query) > 0; {
		if time.Now().After(late) {
			w.Fatalf("%d are left of %s", w.number(query), query)
		}
		w.operator().status() // it takes its turn behind the pages
	}
}

// awaitLog returns once the daemon has logged a warning or an error with this text.
func (w *world) awaitLog(text string) {
	w.Helper()
	late := time.After(apptest.Patience)
	for {
		select {
		case got := <-w.logged:
			if got == text {
				return
			}
		case <-late:
			w.Fatalf("the daemon did not log %q", text)
		}
	}
}

// unbroken has agents get work however often they fail.
func (w *world) unbroken() {
	w.Helper()
	w.Root().Configure(&pb.SessionSettings{BreakerFailures: new(int32)})
}

// await returns once the condition holds. It looks again after every event.
func (w *world) await(what string, holds func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), apptest.Patience)
	defer cancel()
	sub, err := w.operator().SubscribeEvents(ctx, &pb.SubscribeEventsRequest{})
	apptest.NoError(w, err)
	for {
		if _, err := sub.Recv(); err != nil {
			w.Fatalf("waiting until %s: %v", what, err)
		}
		if holds() {
			return
		}
	}
}

// awaitState returns once the only delivery of a message is in the state.
func (w *world) awaitState(id string, state pb.DeliveryState) *pb.Delivery {
	w.Helper()
	o := w.operator()
	w.await("message "+id+" is "+state.String(), func() bool { return o.state(id) == state })
	return o.delivery(id)
}

// awaitStreams returns once the daemon has as many open streams.
func (w *world) awaitStreams(n int32) {
	w.Helper()
	o := w.operator()
	for o.status().Streams != n {
	}
}

func (a *agent) status() *pb.GetStatusResponse {
	a.Helper()
	return apptest.Must(a, a.GetStatus, &pb.GetStatusRequest{})
}

func (a *agent) deregister() {
	a.Helper()
	apptest.Must(a, a.DeregisterAgent, &pb.DeregisterAgentRequest{Reason: "done"})
}

// send sends one message that is accepted.
func (a *agent) send(m *pb.Message) *pb.SendResult {
	a.Helper()
	return a.sendAll(m)[0]
}

func (a *agent) sendAll(m ...*pb.Message) []*pb.SendResult {
	a.Helper()
	return apptest.Must(a, a.SendMessages, &pb.SendMessagesRequest{Messages: m}).Results
}

// refused sends one message that is refused.
func (a *agent) refused(m *pb.Message) error {
	a.Helper()
	_, err := a.SendMessages(a.Ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	if err == nil {
		a.Fatalf("%v was accepted", m)
	}
	return err
}

// claim takes what is there, up to a number.
func (a *agent) claim(most int32) []*pb.ClaimedMessage {
	a.Helper()
	return a.claimWith(&pb.ClaimMessagesRequest{Max: most}).Claims
}

// claim1 takes one message, which must be there.
func (a *agent) claim1() *pb.ClaimedMessage {
	a.Helper()
	got := a.claim(1)
	if len(got) != 1 {
		a.Fatalf("%s got %d claims", a.Name, len(got))
	}
	return got[0]
}

func (a *agent) claimWith(r *pb.ClaimMessagesRequest) *pb.ClaimMessagesResponse {
	a.Helper()
	return apptest.Must(a, a.ClaimMessages, r)
}

func (a *agent) ack(ids ...string) []string {
	a.Helper()
	return apptest.Must(a, a.AckMessages, &pb.AckMessagesRequest{Ids: ids}).Acked
}

func (a *agent) nack(n *pb.Nack) *pb.NackOutcome {
	a.Helper()
	return apptest.Must(a, a.NackMessages, &pb.NackMessagesRequest{Nacks: []*pb.Nack{n}}).Outcomes[0]
}

// kill makes a dead letter of the next message.
func (a *agent) kill() *pb.ClaimedMessage {
	a.Helper()
	c := a.claim1()
	a.nack(&pb.Nack{ClaimId: c.ClaimId, Fatal: true, Error: "hopeless"})
	return c
}

func (a *agent) release(ids ...string) []string {
	a.Helper()
	return apptest.Must(a, a.ReleaseClaims, &pb.ReleaseClaimsRequest{Ids: ids}).Released
}

func (a *agent) extend(id string, d time.Duration) {
	a.Helper()
	apptest.Must(a, a.ExtendClaims,
		&pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: id, ClaimFor: durationpb.New(d)}}})
}

func (a *agent) get(id string) *pb.GetMessageResponse {
	a.Helper()
	return apptest.Must(a, a.GetMessage, &pb.GetMessageRequest{Id: id})
}

// delivery returns the only delivery of a message.
func (a *agent) delivery(id string) *pb.Delivery {
	a.Helper()
	d := a.get(id).Deliveries
	if len(d) != 1 {
		a.Fatalf("message %s has %d deliveries", id, len(d))
	}
	return d[0]
}

func (a *agent) state(id string) pb.DeliveryState {
	a.Helper()
	return a.delivery(id).State
}

// wantState checks the only delivery of a message.
func (a *agent) wantState(id string, want pb.DeliveryState) {
	a.Helper()
	if got := a.state(id); got != want {
		a.Fatalf("message %s is %v, not %v", id, got, want)
	}
}

// cancel withdraws a message.
func (a *agent) cancel(id string) *pb.CancelMessageResponse {
	a.Helper()
	return apptest.Must(a, a.CancelMessage, &pb.CancelMessageRequest{Id: id})
}

// redrive puts the dead deliveries of messages back.
func (a *agent) redrive(ids ...string) int32 {
	a.Helper()
	return apptest.Must(a, a.RedriveDeadLetters, &pb.RedriveDeadLettersRequest{Ids: ids}).Redriven
}

// receive reads until the stream ends, and returns the items and the last revision.
func (a *agent) receive(r *pb.ReceiveRequest) ([]*pb.InboxItem, int64) {
	a.Helper()
	stream, err := a.Receive(a.Ctx, r)
	apptest.NoError(a, err)
	var items []*pb.InboxItem
	var revision int64
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return items, revision
		}
		apptest.NoError(a, err)
		items, revision = append(items, page.Items...), page.Revision
	}
}

func (a *agent) list(r *pb.ListMessagesRequest) *pb.ListMessagesResponse {
	a.Helper()
	return apptest.Must(a, a.ListMessages, r)
}

// deadLetters lists those that the agent sees.
func (a *agent) deadLetters() []*pb.InboxItem {
	a.Helper()
	return apptest.Must(a, a.ListDeadLetters, &pb.ListDeadLettersRequest{}).Items
}

func (a *agent) subscribe(channels ...string) {
	a.Helper()
	for _, c := range channels {
		apptest.Must(a, a.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: c})
	}
}

// now is the daemon's time, moved.
func (w *world) now(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(w.Clock.Now().Add(d))
}

func subjectsOf(claims []*pb.ClaimedMessage) []string {
	var s []string
	for _, c := range claims {
		s = append(s, c.Message.Subject)
	}
	return s
}

func subjectsIn(items []*pb.InboxItem) []string {
	var s []string
	for _, i := range items {
		s = append(s, i.Message.Subject)
	}
	return s
}

func want[T comparable](t apptest.TB, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s: %v, not %v", what, got, wanted)
	}
}

func wantList[T comparable](t apptest.TB, what string, got []T, wanted ...T) {
	t.Helper()
	if !slices.Equal(got, wanted) {
		t.Fatalf("%s: %v, not %v", what, got, wanted)
	}
}

// drop leaves the error of an answer that does not matter.
func drop[T any](_ T, err error) error { return err }

func newUUID() string { return uuid.Must(uuid.NewV7()).String() }
