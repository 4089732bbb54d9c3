package main

import (
	"strings"
	"testing"
)

func TestExec_TheEndOfTheBrokerEndsTheCommand(t *testing.T) {
	t.Parallel()
	cmd, out, errs := executes(t, "--", "sh", "-c", `sleep 60 >/dev/null 2>&1 & trap "kill $!; echo got TERM; exit 3" TERM
		for p in $(cat /proc/$PPID/task/*/children); do test $p = $$ || kill -KILL $p; done; wait`)
	_ = cmd.Run() // the exit code tells
	if got := cmd.ProcessState.ExitCode(); got != exitOwnFailure || out.String() != "got TERM\n" || !strings.Contains(errs.String(), "brokerd has ended: signal: killed") {
		t.Errorf("exit code %d, %q, %q", got, out, errs)
	}
}
