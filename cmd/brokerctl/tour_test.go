package main

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

// program is brokerctl in a folder to be put in front of PATH: the test binary under another name.
func program(t *shell) (env []string) {
	t.Helper()
	self, err := os.Executable()
	apptest.NoError(t, err)
	dir := t.TempDir()
	apptest.NoError(t, os.Symlink(self, filepath.Join(dir, "brokerctl")))
	return t.environ(asProgram+"=1", "PATH="+dir+":"+t.Getenv("PATH"), "PWD="+t.dir)
}

// The lines are those of the tour that the API's page promises, word for word, through a shell.
func TestTour_WorksWordForWord(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	env := program(t)
	shell := func(line string) string {
		t.Helper()
		cmd := t.command("sh", "-c", line)
		cmd.Env = env
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v, %s", line, err, stderr.String())
		}
		return string(out)
	}

	shell(`brokerctl agent register lead --role lead`)
	shell(`brokerctl agent register builder-1 --role builder --capability go --capability sql`)
	send := decode(t, shell(`brokerctl --agent lead send builder-1 "Add login" --type task_assignment --payload '{"task_id":"t1"}' -o json`))
	id, revision := at(t, send, "id").(string), at(t, send, "revision").(json.Number)
	if got := at(t, send, "recipients", 0); at(t, got, "mailbox") != "builder-1" || at(t, got, "outcome") != "queued" {
		t.Errorf("recipient is %v", got)
	}
	if inbox := shell(`brokerctl --agent builder-1 inbox`); !strings.Contains(inbox, "Add login") {
		t.Errorf("the inbox does not show the message:\n%s", inbox)
	}
	claim := decode(t, shell(`brokerctl --agent builder-1 claim --limit 1 --wait 5s -o json`))
	if got := at(t, claim, "claim_id"); got != revision.String()+".1" {
		t.Errorf("claim_id is %v, want %s.1", got, revision)
	}
	if got := at(t, claim, "attempt"); got != json.Number("1") {
		t.Errorf("attempt is %v", got)
	}
	if got := at(t, claim, "message", "payload", "task_id"); got != "t1" {
		t.Errorf("the payload's task_id is %v", got)
	}
	shell(`brokerctl --agent builder-1 ack`)
	get := decode(t, shell(strings.Replace(`brokerctl --agent lead message get ID -o json`, "ID", id, 1)))
	if got := at(t, get, "deliveries", 0, "state"); got != "acked" {
		t.Errorf("the delivery is %v, want ACKED", got)
	}
	followUntil(t, env, `brokerctl event follow --after 0 -o json`, "message.acked")
}

// followUntil reads what a command prints until an event of the type comes, and then ends it as Ctrl-C does.
func followUntil(t *shell, env []string, line, until string) {
	t.Helper()
	cmd := t.command("sh", "-c", "exec "+line)
	cmd.Env = env
	out, err := cmd.StdoutPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, cmd.Start())
	timeout := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	seen, last := "", json.Number("0")
	for lines := bufio.NewScanner(out); lines.Scan(); {
		event := decode(t, lines.Text())
		if got := at(t, event, "revision").(json.Number); len(got) < len(last) || len(got) == len(last) && got <= last {
			t.Errorf("revision %s after %s", got, last)
		} else {
			last = got
		}
		if seen = at(t, event, "type").(string); seen == until {
			break
		}
	}
	if seen != until {
		t.Errorf("the last event was %q, %q never came", seen, until)
	}
	apptest.NoError(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait() // the exit code says it all
	if got := cmd.ProcessState.ExitCode(); got != problem.ExitSignal+int(syscall.SIGINT) {
		t.Errorf("ended with %d, want %d", got, problem.ExitSignal+int(syscall.SIGINT))
	}
}
