package main

import (
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

// ask ends at once: its --wait is longer than the test may take.
func TestAsk_SaysWhyNoAnswerCanCome(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	ask := func(args ...string) <-chan result {
		asked := make(chan result, 1)
		go func() {
			asked <- t.invoke(t.Context(), "", nil, append([]string{"--agent", "lead", "ask", "builder-1", "How far?", "--wait", "1h"}, args...)...)
		}()
		return asked
	}
	fail := []string{"--agent", "builder-1", "work", "--once", "--wait", "5m", "--", "sh", "-c", "exit 65"}
	asked := ask()
	ctl(t, fail...)
	if got := <-asked; got.code != problem.ExitNothing || !strings.Contains(got.err, "it is a dead letter of builder-1 (brokerctl") ||
		!strings.Contains(got.err, "exit status 65") {
		t.Errorf("%+v", got)
	}
	asked = ask("-o", "prompt")
	ctl(t, fail...)
	got := <-asked
	line, frame, _ := strings.Cut(got.err, "\n")
	if strings.Contains(line, "exit status") || !strings.Contains(frame, "exit status 65") {
		t.Errorf("the words of the recipient are outside of a frame:\n%s", got.err)
	}
	asked = ask()
	must0(t, "--agent", "builder-1", "claim", "--wait", "5m")
	must0(t, "--agent", "builder-1", "ack")
	if got := <-asked; got.code != problem.ExitNothing || !strings.Contains(got.err, "builder-1 has acknowledged it without an answer") {
		t.Errorf("%+v", got)
	}
}
