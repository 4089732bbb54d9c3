package broker_test

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"
	_ "github.com/mattn/go-sqlite3" // to make statements of the daemon fail
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// patience is how long a test waits for what should come at once. Machines have been seen to stand still for a minute.
const patience = 5 * time.Minute

// A world is a daemon whose clock stands still until the test advances it. At the end of the test its
// database must be sound.
type world struct {
	*apptest.Broker
	Clock  watchedClock
	logged chan string // warnings and errors
	t      testing.TB
}

// longWait is how long calls wait that are to be woken: like nothing else, and shorter than the time that a read may take, which
// the clock's leap must not exceed.
const longWait = 9876 * time.Millisecond

// A watchedClock tells when somebody begins to wait for longWait.
type watchedClock struct {
	*clockwork.FakeClock
	waits chan struct{}
}

// NewTimer implements clockwork.Clock.
func (c watchedClock) NewTimer(d time.Duration) clockwork.Timer {
	timer := c.FakeClock.NewTimer(d)
	if d == longWait {
		c.waits <- struct{}{}
	}
	return timer
}

func newWorld(t testing.TB, options ...apptest.Option) *world {
	t.Helper()
	clock := watchedClock{clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), make(chan struct{}, 100)}
	logged := make(chan string, 1000)
	options = append(options, apptest.With(func(c *app.Config) {
		c.Clock, c.StopTimeout, c.Log = clock, patience, logTo(logged)
	}))
	w := &world{apptest.Start(t, options...), clock, logged, t}
	w.configure(&pb.SessionSettings{SendRate: ptr(0.0)}) // the tests of the limit set their own
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

// An agent is one identity's view of the daemon. The system has no name.
type agent struct {
	pb.MessageServiceClient
	channels pb.ChannelServiceClient
	registry pb.AgentServiceClient
	sessions pb.SessionServiceClient
	events   pb.EventServiceClient
	admin    pb.AdminServiceClient

	t    testing.TB
	name string
	ctx  context.Context // ends with the test, or when its patience does
}

// in returns somebody's view of a session, who need not be registered.
func (w *world) in(session, name string) *agent {
	w.t.Helper()
	conn := w.In(session, name)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	return &agent{
		pb.NewMessageServiceClient(conn), pb.NewChannelServiceClient(conn), pb.NewAgentServiceClient(conn),
		pb.NewSessionServiceClient(conn), pb.NewEventServiceClient(conn), pb.NewAdminServiceClient(conn), w.t, name, ctx,
	}
}

func (w *world) operator() *agent { return w.in("default", "") }

// agent returns a registered agent.
func (w *world) agent(name, role string) *agent {
	w.t.Helper()
	a := w.in("default", name)
	a.register(role)
	return a
}

// agents returns registered agents of one role.
func (w *world) agents(role string, names ...string) []*agent {
	w.t.Helper()
	all := make([]*agent, len(names))
	for i, name := range names {
		all[i] = w.agent(name, role)
	}
	return all
}

// sql changes the database behind the daemon's back.
func (w *world) sql(statements ...string) {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.Dir(), "brokerd.db")+"?_busy_timeout=10000")
	must(w.t, err)
	for _, statement := range statements {
		must(w.t, drop(db.ExecContext(w.t.Context(), statement)))
	}
	must(w.t, db.Close())
}

// number returns the one number that a query finds in the database.
func (w *world) number(query string) (n int) {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.Dir(), "brokerd.db")+"?_busy_timeout=10000")
	must(w.t, err)
	must(w.t, db.QueryRowContext(w.t.Context(), query).Scan(&n))
	must(w.t, db.Close())
	return n
}

// awaitNone returns once a query that counts finds nothing.
func (w *world) awaitNone(query string) {
	w.t.Helper()
	for late := time.Now().Add(patience); w.number(query) > 0; {
		if time.Now().After(late) {
			w.t.Fatalf("%d are left of %s", w.number(query), query)
		}
		w.operator().status() // it takes its turn behind the pages
	}
}

// awaitLog returns once the daemon has logged a warning or an error with this text.
func (w *world) awaitLog(text string) {
	w.t.Helper()
	late := time.After(patience)
	for {
		select {
		case got := <-w.logged:
			if got == text {
				return
			}
		case <-late:
			w.t.Fatalf("the daemon did not log %q", text)
		}
	}
}

// configure changes the settings of the session "default".
func (w *world) configure(s *pb.SessionSettings) {
	w.t.Helper()
	o := w.operator()
	must(w.t, drop(o.sessions.ConfigureSession(o.ctx, &pb.ConfigureSessionRequest{Settings: s})))
}

// unbroken has agents get work however often they fail.
func (w *world) unbroken() {
	w.t.Helper()
	w.configure(&pb.SessionSettings{BreakerFailures: new(int32)})
}

// await returns once the condition holds. It looks again after every event.
func (w *world) await(what string, holds func() bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	sub, err := w.operator().events.SubscribeEvents(ctx, &pb.SubscribeEventsRequest{})
	must(w.t, err)
	for {
		if _, err := sub.Recv(); err != nil {
			w.t.Fatalf("waiting until %s: %v", what, err)
		}
		if holds() {
			return
		}
	}
}

// awaitState returns once the only delivery of a message is in the state.
func (w *world) awaitState(id string, state pb.DeliveryState) *pb.Delivery {
	w.t.Helper()
	o := w.operator()
	w.await("message "+id+" is "+state.String(), func() bool { return o.state(id) == state })
	return o.delivery(id)
}

// pass advances the clock to a deadline.
func (w *world) pass(d time.Duration) { w.Clock.Advance(d) }

// awaitStreams returns once the daemon has as many open streams.
func (w *world) awaitStreams(n int32) {
	w.t.Helper()
	o := w.operator()
	for o.status().Streams != n {
	}
}

func (a *agent) status() *pb.GetStatusResponse {
	a.t.Helper()
	s, err := a.admin.GetStatus(a.ctx, &pb.GetStatusRequest{})
	must(a.t, err)
	return s
}

// events returns the events of a type, oldest first.
func (w *world) events(kind string) []*pb.Event {
	w.t.Helper()
	o := w.operator()
	out, err := o.events.ListEvents(o.ctx, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{kind}}})
	must(w.t, err)
	return out.Events
}

func (a *agent) register(role string) {
	a.t.Helper()
	must(a.t, drop(a.registry.RegisterAgent(a.ctx, &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(apptest.LongLease)})))
}

func (a *agent) deregister() {
	a.t.Helper()
	must(a.t, drop(a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{Reason: "done"})))
}

// send sends one message that is accepted.
func (a *agent) send(m *pb.Message) *pb.SendResult {
	a.t.Helper()
	return a.sendAll(m)[0]
}

func (a *agent) sendAll(m ...*pb.Message) []*pb.SendResult {
	a.t.Helper()
	out, err := a.SendMessages(a.ctx, &pb.SendMessagesRequest{Messages: m})
	must(a.t, err)
	return out.Results
}

// refused sends one message that is refused.
func (a *agent) refused(m *pb.Message) error {
	a.t.Helper()
	_, err := a.SendMessages(a.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	if err == nil {
		a.t.Fatalf("%v was accepted", m)
	}
	return err
}

// claim takes what is there, up to a number.
func (a *agent) claim(most int32) []*pb.ClaimedMessage {
	a.t.Helper()
	return a.claimWith(&pb.ClaimMessagesRequest{Max: most}).Claims
}

// claim1 takes one message, which must be there.
func (a *agent) claim1() *pb.ClaimedMessage {
	a.t.Helper()
	got := a.claim(1)
	if len(got) != 1 {
		a.t.Fatalf("%s got %d claims", a.name, len(got))
	}
	return got[0]
}

func (a *agent) claimWith(r *pb.ClaimMessagesRequest) *pb.ClaimMessagesResponse {
	a.t.Helper()
	out, err := a.ClaimMessages(a.ctx, r)
	must(a.t, err)
	return out
}

func (a *agent) ack(ids ...string) []string {
	a.t.Helper()
	out, err := a.AckMessages(a.ctx, &pb.AckMessagesRequest{Ids: ids})
	must(a.t, err)
	return out.Acked
}

func (a *agent) nack(n *pb.Nack) *pb.NackOutcome {
	a.t.Helper()
	out, err := a.NackMessages(a.ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{n}})
	must(a.t, err)
	return out.Outcomes[0]
}

// kill makes a dead letter of the next message.
func (a *agent) kill() *pb.ClaimedMessage {
	a.t.Helper()
	c := a.claim1()
	a.nack(&pb.Nack{ClaimId: c.ClaimId, Fatal: true, Error: "hopeless"})
	return c
}

func (a *agent) release(ids ...string) []string {
	a.t.Helper()
	out, err := a.ReleaseClaims(a.ctx, &pb.ReleaseClaimsRequest{Ids: ids})
	must(a.t, err)
	return out.Released
}

func (a *agent) extend(id string, d time.Duration) {
	a.t.Helper()
	must(a.t, drop(a.ExtendClaims(a.ctx, &pb.ExtendClaimsRequest{Extensions: []*pb.Extension{{ClaimId: id, ClaimFor: durationpb.New(d)}}})))
}

func (a *agent) get(id string) *pb.GetMessageResponse {
	a.t.Helper()
	out, err := a.GetMessage(a.ctx, &pb.GetMessageRequest{Id: id})
	must(a.t, err)
	return out
}

// delivery returns the only delivery of a message.
func (a *agent) delivery(id string) *pb.Delivery {
	a.t.Helper()
	d := a.get(id).Deliveries
	if len(d) != 1 {
		a.t.Fatalf("message %s has %d deliveries", id, len(d))
	}
	return d[0]
}

func (a *agent) state(id string) pb.DeliveryState {
	a.t.Helper()
	return a.delivery(id).State
}

// wantState checks the only delivery of a message.
func (a *agent) wantState(id string, want pb.DeliveryState) {
	a.t.Helper()
	if got := a.state(id); got != want {
		a.t.Fatalf("message %s is %v, not %v", id, got, want)
	}
}

// cancel withdraws a message.
func (a *agent) cancel(id string) *pb.CancelMessageResponse {
	a.t.Helper()
	out, err := a.CancelMessage(a.ctx, &pb.CancelMessageRequest{Id: id})
	must(a.t, err)
	return out
}

// redrive puts the dead deliveries of messages back.
func (a *agent) redrive(ids ...string) int32 {
	a.t.Helper()
	out, err := a.RedriveDeadLetters(a.ctx, &pb.RedriveDeadLettersRequest{Ids: ids})
	must(a.t, err)
	return out.Redriven
}

// receive reads until the stream ends, and returns the items and the last revision.
func (a *agent) receive(r *pb.ReceiveRequest) ([]*pb.InboxItem, int64) {
	a.t.Helper()
	stream, err := a.Receive(a.ctx, r)
	must(a.t, err)
	var items []*pb.InboxItem
	var revision int64
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return items, revision
		}
		must(a.t, err)
		items, revision = append(items, page.Items...), page.Revision
	}
}

func (a *agent) list(r *pb.ListMessagesRequest) *pb.ListMessagesResponse {
	a.t.Helper()
	out, err := a.ListMessages(a.ctx, r)
	must(a.t, err)
	return out
}

// deadLetters lists those that the agent sees.
func (a *agent) deadLetters() []*pb.InboxItem {
	a.t.Helper()
	out, err := a.ListDeadLetters(a.ctx, &pb.ListDeadLettersRequest{})
	must(a.t, err)
	return out.Items
}

func (a *agent) subscribe(channels ...string) {
	a.t.Helper()
	for _, c := range channels {
		must(a.t, drop(a.channels.SubscribeChannel(a.ctx, &pb.SubscribeChannelRequest{Channel: c})))
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

func want[T comparable](t testing.TB, what string, got, wanted T) {
	t.Helper()
	if got != wanted {
		t.Fatalf("%s: %v, not %v", what, got, wanted)
	}
}

func wantList[T comparable](t testing.TB, what string, got []T, wanted ...T) {
	t.Helper()
	if !slices.Equal(got, wanted) {
		t.Fatalf("%s: %v, not %v", what, got, wanted)
	}
}

// wantError checks code and reason of an error.
func wantError(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Fatalf("%v (%s), not %v (%s)", err, testkit.Reason(err), code, reason)
	}
}

// wantField checks that an error names a field as invalid.
func wantField(t testing.TB, err error, field string) {
	t.Helper()
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), field) {
		t.Errorf("%v (fields %v), not the field %s", err, testkit.Fields(err), field)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drop leaves the error of an answer that does not matter.
func drop[T any](_ T, err error) error { return err }

func newUUID() string { return uuid.Must(uuid.NewV7()).String() }
