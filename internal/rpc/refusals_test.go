package rpc_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"

	"brokerd/internal/fault"
	"brokerd/internal/rpc"
)

// logging makes a server write its log into the returned memory, from the level info on. The channel
// gets the message of each line.
func logging(o *rpc.Options) (*observer.ObservedLogs, <-chan string) {
	core, logs := observer.New(zap.InfoLevel)
	lines := make(chan string, 1000)
	o.Log = zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		lines <- e.Message
		return nil
	}))
	return logs, lines
}

func TestRefusals_AreLoggedWithoutTheTextOfTheError(t *testing.T) {
	t.Parallel()
	var logs *observer.ObservedLogs
	w := serve(t, func(o *rpc.Options) { logs, _ = logging(o) })
	w.features.get = func(context.Context) error {
		return fault.New(fault.NotFound, "KEY_NOT_FOUND", "no key hidden-content")
	}
	_, err := whoami(calling(t, "brokerd-agent", "a", "brokerd-session", "s"), dial(t, w.socket))
	expect(t, err, codes.NotFound, "KEY_NOT_FOUND", "")
	_, err = whoami(calling(t, "authorization", "Bearer hidden-secret"), dial(t, w.tcp))
	expect(t, err, codes.Unauthenticated, "CREDENTIAL_UNKNOWN", "")
	var got []map[string]any
	for _, line := range logs.All() {
		fields := line.ContextMap()
		if took, ok := fields["took"].(time.Duration); !ok || took < 0 {
			t.Errorf("took is %v", fields["took"])
		}
		delete(fields, "took")
		fields["message"], fields["level"] = line.Message, line.Level.String()
		got = append(got, fields)
		if text := fmt.Sprint(fields); strings.Contains(text, "hidden") {
			t.Errorf("the line has a text of the caller: %s", text)
		}
	}
	const method = "SessionService/GetSession"
	want := []map[string]any{
		{"message": "a call was refused", "level": "info", "method": method, "session": "s", "agent": "a", "remote": "local peer",
			"code": "NotFound", "reason": "KEY_NOT_FOUND"},
		{"message": "a call was refused", "level": "info", "method": method, "session": "", "agent": "", "remote": "plain TCP",
			"code": "Unauthenticated", "reason": "CREDENTIAL_UNKNOWN"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRefusals_HaveABoundedNumberOfLinesPerMinute(t *testing.T) {
	t.Parallel()
	const rest = "further calls were refused"
	clock := clockwork.NewFakeClock()
	var logs *observer.ObservedLogs
	var lines <-chan string
	w := serve(t, func(o *rpc.Options) { logs, lines = logging(o); o.Clock = clock })
	conn := dial(t, w.socket)
	refused := func(agent, reason string, times int) {
		t.Helper()
		w.features.get = func(context.Context) error { return fault.New(fault.NotFound, reason, "no") }
		for range times {
			_, err := whoami(calling(t, "brokerd-agent", agent), conn)
			expect(t, err, codes.NotFound, reason, "")
		}
	}
	wantLines := func(want int) {
		t.Helper()
		if n := logs.FilterMessage("a call was refused").Len(); n != want {
			t.Errorf("%d lines, want %d", n, want)
		}
	}
	wantRest := func(want map[string]int) {
		t.Helper()
		for line := ""; line != rest; {
			select {
			case line = <-lines:
			case <-time.After(patience):
				t.Fatal("the end of the window was not logged")
			}
		}
		found := logs.FilterMessage(rest).All()
		if diff := cmp.Diff(want, found[len(found)-1].ContextMap()["left_out"]); diff != "" {
			t.Error(diff)
		}
	}
	refused("a", "ONE", 5)
	refused("a", "OTHER", 1)
	refused("b", "ONE", 2)
	wantLines(3)
	for i := range 100 {
		refused(fmt.Sprintf("many-%d", i), "ONE", 1)
	}
	wantLines(60)
	clock.Advance(time.Minute)
	wantRest(map[string]int{"ONE": 48})
	refused("a", "ONE", 3)
	wantLines(61)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	w.server.Stop(calling(t))
	wantRest(map[string]int{"ONE": 2})
}

func TestRefusals_LeaveOutCallsThatTheCallerOrTheBrokerEnds(t *testing.T) {
	t.Parallel()
	var logs *observer.ObservedLogs
	w := serve(t, func(o *rpc.Options) { logs, _ = logging(o) })
	conn := dial(t, w.socket)
	for _, err := range []error{context.Canceled, context.DeadlineExceeded, fault.New(fault.Unavailable, "SHUTTING_DOWN", "the broker stops")} {
		w.features.get = func(context.Context) error { return err }
		if _, err := whoami(calling(t), conn); err == nil {
			t.Error("the call succeeded")
		}
	}
	if logs.Len() > 0 {
		t.Errorf("the log has %v", logs.All())
	}
}
