package diskguard_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/diskguard"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a daemon on a disk that is as full as the test says, with an agent "a".
type world struct {
	*apptest.Broker
	t        *testing.T
	ctx      context.Context
	messages pb.MessageServiceClient
	used     atomic.Uint64 // float64 bits; NaN = nobody knows
	looks    atomic.Int64
}

func newWorld(t *testing.T, used float64) *world {
	t.Helper()
	w := &world{t: t}
	w.set(used)
	w.Broker = apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) {
			w.looks.Add(1)
			used := math.Float64frombits(w.used.Load())
			if math.IsNaN(used) {
				return 0, errors.New("no such file system")
			}
			return used, nil
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	t.Cleanup(cancel)
	w.ctx, w.messages = ctx, pb.NewMessageServiceClient(w.Registered("a", ""))
	return w
}

func (w *world) set(used float64) { w.used.Store(math.Float64bits(used)) }

// later makes the disk due to be looked at again.
func (w *world) later(used float64) {
	w.set(used)
	w.Clock.Advance(10 * time.Second)
}

func (w *world) send() error {
	_, err := w.messages.SendMessages(w.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{toA()}})
	return err
}

func toA() *pb.Message { return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}} }

func (w *world) must(err error) {
	w.t.Helper()
	apptest.NoError(w.t, err)
}

func (w *world) wantRefused(err error) {
	w.t.Helper()
	if status.Code(err) != codes.ResourceExhausted || testkit.Reason(err) != "DISK_NEARLY_FULL" {
		w.t.Fatalf("got %v", err)
	}
	for _, d := range status.Convert(err).Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok && retry.RetryDelay.AsDuration() == 10*time.Second {
			return
		}
	}
	w.t.Error("the error does not say when to try again")
}

// events returns the details of the broker's own events of a type, waiting until there are as many as wanted.
func (w *world) events(kind string, n int) []string {
	w.t.Helper()
	api := pb.NewEventServiceClient(w.Operator())
	stream, err := api.SubscribeEvents(w.ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64), Filter: &pb.EventFilter{Types: []string{kind}}})
	w.must(err)
	var details []string
	for len(details) < n {
		page, err := stream.Recv()
		w.must(err)
		for _, e := range page.GetEvents() {
			details = append(details, e.GetSeverity().String()+e.GetDetails())
		}
	}
	list := apptest.Must(w.t, api.ListEvents, &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{kind}}})
	if len(list.GetEvents()) != n {
		w.t.Fatalf("%d events %s, want %d", len(list.GetEvents()), kind, n)
	}
	return details
}

func TestDisk_WarnsOnceUntilItHasRecovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0.5)
	w.must(w.send())
	w.later(0.86)
	w.must(w.send())
	for range 3 {
		w.later(0.9)
		w.must(w.send())
	}
	if got := w.events("system.disk_low", 1)[0]; got != `SEVERITY_WARNING{"used_percent":86,"sends_refused":false}` {
		t.Error(got)
	}
	w.later(0.84)
	w.must(w.send())
	w.events("system.disk_recovered", 1)
	w.later(0.85)
	w.must(w.send())
	w.events("system.disk_low", 2)
}

func TestDisk_NearlyFullRefusesSendsAndNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0.5)
	w.must(w.send())
	w.must(w.send())
	sender, err := w.messages.Send(w.ctx)
	w.must(err)
	w.later(0.95)
	w.wantRefused(w.send())
	if got := w.events("system.disk_low", 1)[0]; got != `SEVERITY_ERROR{"used_percent":95,"sends_refused":true}` {
		t.Error(got)
	}
	w.must(sender.Send(&pb.SendRequest{Messages: []*pb.Message{toA(), toA()}}))
	answer, err := sender.Recv()
	w.must(err)
	for _, r := range answer.GetResults() {
		if r.GetError().GetReason() != "DISK_NEARLY_FULL" || codes.Code(r.GetError().GetCode()) != codes.ResourceExhausted {
			t.Errorf("on a stream: %v", r)
		}
	}
	_, err = w.Root().SendMessages(w.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{toA()}})
	w.wantRefused(err)

	claims := apptest.Must(w.t, w.messages.ClaimMessages, &pb.ClaimMessagesRequest{Max: 2})
	if len(claims.GetClaims()) != 2 {
		t.Fatalf("%d claims", len(claims.GetClaims()))
	}
	apptest.Must(w.t, w.messages.AckMessages, &pb.AckMessagesRequest{Ids: []string{claims.Claims[0].ClaimId}})
	apptest.Must(w.t, w.messages.NackMessages,
		&pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: claims.Claims[1].ClaimId, Fatal: true}}})
	apptest.Must(w.t, w.messages.ListMessages, &pb.ListMessagesRequest{})
	apptest.Must(w.t, w.Root().PurgeDeadLetters, &pb.PurgeDeadLettersRequest{Mailbox: "a"})

	w.later(0.94)
	w.must(w.send())
	w.must(sender.Send(&pb.SendRequest{Messages: []*pb.Message{toA()}}))
	answer, err = sender.Recv()
	w.must(err)
	if answer.GetResults()[0].GetError() != nil {
		t.Errorf("after it has recovered: %v", answer)
	}
}

func TestDisk_IsFullFromTheStartOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0.99)
	w.wantRefused(w.send())
}

func TestDisk_IsLookedAtEveryTenSecondsAndOnlyWhenSomebodySends(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0.5)
	before := w.looks.Load()
	for range 100 {
		w.must(w.send())
	}
	w.Clock.Advance(10*time.Second - 1)
	w.must(w.send())
	if n := w.looks.Load() - before; n != 0 {
		t.Errorf("looked at %d times within 10 s", n)
	}
	w.Clock.Advance(time.Hour)
	if n := w.looks.Load() - before; n != 0 {
		t.Errorf("looked at %d times while nobody sends", n)
	}
	w.must(w.send())
	w.must(w.send())
	if n := w.looks.Load() - before; n != 1 {
		t.Errorf("looked at %d times", n)
	}
}

func TestDisk_OfUnknownSizeHasRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, math.NaN())
	w.must(w.send())
}

func TestUsed_AsksTheFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if used, err := diskguard.Used(dir); err != nil || used <= 0 || used > 1 {
		t.Errorf("got %v, %v", used, err)
	}
	if _, err := diskguard.Used(filepath.Join(dir, "missing")); err == nil {
		t.Error("a folder that does not exist has a file system")
	}
}
