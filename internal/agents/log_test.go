package agents_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

func TestLog_HasALineForEachAgentThatFails(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zapcore.InfoLevel)
	failed := make(chan struct{}, 2)
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if strings.HasPrefix(e.Message, "an agent has failed") {
			failed <- struct{}{}
		}
		return nil
	}))
	w := &team{apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) { c.Log = log }))}
	w.register("a")
	w.register("b")
	w.send(3)
	w.claim("a", 3, time.Hour)
	locks := w.Actor("default", "a")
	apptest.Must(t, locks.AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{"src/a.go", "docs/"}})
	apptest.Must(t, w.Actor("default", "b").DeregisterAgent, &pb.DeregisterAgentRequest{Reason: "its work is done"})
	for ctx, waiting := w.ctx(), true; waiting; {
		select {
		case <-failed:
			waiting = false
		case <-ctx.Done():
			t.Fatal("no line about the agent that failed")
		default:
			w.pass(time.Second)
		}
	}
	w.pass(lease)

	type line struct {
		Level  zapcore.Level
		Text   string
		Fields map[string]any
	}
	var got []line
	for _, e := range lines.FilterFieldKey("agent").All() {
		got = append(got, line{e.Level, e.Message, e.ContextMap()})
	}
	want := []line{
		{zapcore.InfoLevel, "an agent has registered", map[string]any{"agent": "a", "session": "default", "role": "builder", "incarnation": int64(1)}},
		{zapcore.InfoLevel, "an agent has registered", map[string]any{"agent": "b", "session": "default", "role": "builder", "incarnation": int64(1)}},
		{zapcore.InfoLevel, "an agent has deregistered", map[string]any{"agent": "b", "session": "default", "reason": "its work is done"}},
		{zapcore.WarnLevel, "an agent has failed: the broker received no call from it during its lease", map[string]any{
			"agent": "a", "session": "default", "role": "builder", "incarnation": int64(2), "lease": lease,
			"claims": int64(3), "locks": int64(1), "tokens": int64(0), "tickets": int64(0)}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the log (-want +got):\n%s", diff)
	}
}
