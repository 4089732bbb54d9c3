package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

func TestStart_AndCleanStopAreEventsOfTheBroker(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Restart()
	list := func(agent string) (types []string) {
		t.Helper()
		filter := &pb.EventFilter{Types: []string{"broker.*"}, Categories: []pb.EventCategory{pb.EventCategory_EVENT_CATEGORY_SYSTEM}}
		out := apptest.Must(t, b.Actor("default", agent).ListEvents, &pb.ListEventsRequest{Filter: filter})
		for _, e := range out.GetEvents() {
			types = append(types, e.GetType())
		}
		return types
	}
	if diff := cmp.Diff([]string{"broker.started", "broker.stopped", "broker.started"}, list("")); diff != "" {
		t.Error(diff)
	}
	if got := list("agent"); got != nil {
		t.Errorf("an agent sees %v", got)
	}
}

// life returns the events of the broker itself, as an operator sees them.
func life(t *testing.T, conn *grpc.ClientConn) []*pb.Event {
	t.Helper()
	out := apptest.Must(t, pb.NewEventServiceClient(conn).ListEvents,
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"broker.*"}}})
	return out.GetEvents()
}

func TestStart_EventSaysHowTheLastRunEndedAndForHowLongTheBrokerWasDown(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it names --sync")
	clock := clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	config := app.Config{Dir: folder(t), Sync: "normal", Version: "test", Clock: clock}
	ctx, cancel := context.WithCancelCause(t.Context())
	apptest.NoError(t, app.Run(ctx, config, func(app.Daemon) { cancel(errors.New("the lamp is out")) }))
	clock.Advance(90 * time.Second)
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Dir, c.Clock = config.Dir, clock }))
	var details []string
	for _, e := range life(t, b.Operator()) {
		details = append(details, e.GetDetails())
	}
	want := []string{
		`{"version":"test","sync":"normal"}`,
		`{"reason":"the lamp is out"}`,
		`{"version":"test","sync":"normal","clean_stop":true,"down_seconds":90}`,
	}
	if diff := cmp.Diff(want, details); diff != "" {
		t.Error(diff)
	}
}

func TestStart_EventWarnsAfterAKillAlsoIfTheDatabaseWasCheckedSince(t *testing.T) {
	t.Parallel()
	d := processtest.New(t, processtest.Build(t))
	start := func() {
		t.Helper()
		apptest.NoError(t, d.Start(patient(t)))
	}
	start()
	apptest.NoError(t, d.Terminate())
	start()
	d.Kill()
	apptest.NoError(t, d.Check(patient(t)))
	start()
	conn, err := grpc.NewClient(d.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	defer func() { _ = conn.Close() }()
	type report struct {
		Clean *bool    `json:"clean_stop"`
		Down  *float64 `json:"down_seconds"`
	}
	for i, want := range []struct {
		kind     string
		severity pb.Severity
		clean    bool
	}{
		{"broker.started", pb.Severity_SEVERITY_INFO, false},
		{"broker.stopped", pb.Severity_SEVERITY_INFO, false},
		{"broker.started", pb.Severity_SEVERITY_INFO, true},
		{"broker.started", pb.Severity_SEVERITY_WARNING, false},
	} {
		e := life(t, conn)[i]
		if e.GetType() != want.kind || e.GetSeverity() != want.severity {
			t.Errorf("event %d is %v", i, e)
		}
		var got report
		apptest.NoError(t, json.Unmarshal([]byte(e.GetDetails()), &got))
		if i >= 2 && (got.Clean == nil || *got.Clean != want.clean || got.Down == nil || *got.Down < 0) {
			t.Errorf("event %d: %s", i, e.GetDetails())
		}
	}
}
