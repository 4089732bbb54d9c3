package main

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

func TestTraceparent_GoesFromTheEnvironmentThroughAMessageToTheCommandOfAWorker(tt *testing.T) {
	t := newShell(tt)
	const caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	spans := apptest.NewCollector(t)
	startBrokerWith(t, func(c *app.Config) { c.Traces, c.TraceSample = spans.Address(), 1 })
	register(t, "lead", "builder-1")
	t.Setenv("TRACEPARENT", caller)
	must0(t, "--agent", "lead", "send", "builder-1", "build it")
	sent := spans.Await(t, 1)[0]
	if got := hex.EncodeToString(sent.ParentSpanId); got != caller[36:52] {
		t.Errorf("the parent of the message is %q", got)
	}
	file := filepath.Join(t.TempDir(), "traceparent")
	must0(t, "--agent", "builder-1", "work", "--once", "--wait", "20s", "--", "sh", "-c", `printf %s "$TRACEPARENT" > `+file)
	claimed := spans.Await(t, 2)[1]
	want := "00-" + hex.EncodeToString(sent.TraceId) + "-" + hex.EncodeToString(claimed.SpanId) + "-01"
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want || !strings.HasPrefix(claimed.Name, "process") {
		t.Errorf("the command has the context %q instead of %q: %v; the span is %s", got, want, err, claimed.Name)
	}
}
