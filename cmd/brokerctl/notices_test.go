package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

// passToken leaves a notice for builder-1: lead passes it a token.
func passToken(t *shell) {
	t.Helper()
	must0(t, "--agent", "lead", "token", "acquire", "deploy", "staging")
	must0(t, "--agent", "lead", "token", "pass", "deploy", "staging", "builder-1")
}

const passedNotice = "Notice: lead has passed you the token deploy staging: acquire it within 2 min to collect it\n"

func TestNotice_IsShownOnceByEachCommandThatShowsMail(tt *testing.T) {
	t := newShell(tt)
	for name, show := range map[string][]string{
		"next":             {"next"},
		"next for a model": {"next", "-o", "prompt"},
		"inbox":            {"inbox"},
		"a model's inbox":  {"inbox", "-o", "prompt"},
		"reading":          {"receive", "-o", "prompt"},
		"heartbeat":        {"agent", "heartbeat"},
	} {
		t.Run(name, func(t *shell) {
			t.Parallel()
			startBroker(t)
			register(t, "lead/lead", "builder-1/builder")
			t.Setenv("BROKERD_AGENT", "builder-1")
			passToken(t)
			if out := withoutFrames(must0(t, show...)); !strings.HasSuffix(out, passedNotice) {
				t.Errorf("%q", out)
			}
			if got := ctl(t, show...); strings.Contains(got.out+got.err, "Notice") {
				t.Errorf("again: %+v", got)
			}
		})
	}
}

func TestNotice_EndsATurnOfACodingAgentOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	passToken(t)
	got := hooked(t, stopInput)
	if answer := decode(t, got.out); got.code != 0 || withoutFrames(at(t, answer, "reason").(string)) != passedNotice {
		t.Errorf("%+v", got)
	}
	if got := hooked(t, stopInput); got.out != "" {
		t.Errorf("again: %+v", got)
	}
}

func TestNotice_StaysBesideMailInOneBlock(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	passToken(t)
	out := must0(t, "inbox")
	if !strings.HasSuffix(out, passedNotice) || strings.Count(out, "\n") != 3 || strings.Contains(out, "token_passed") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "inbox", "-o", "json"); strings.Contains(got.out, "token_passed") {
		t.Errorf("shown again: %+v", got)
	}
}

func TestNotice_IsInTheJSONOfNextAndInbox(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	passToken(t)
	got := fields(t, "inbox", "--summary")
	if fmt.Sprintf("%v %v", at(t, got, "notices"), at(t, got, "total")) != "1 0" {
		t.Errorf("%v", got)
	}
	got = fields(t, "next")
	if at(t, got, "notices", 0, "type") != "token_passed" || len(at(t, got, "claims").([]any)) != 0 {
		t.Errorf("%v", got)
	}
}

func TestNotice_NeverReachesTheCommandOfWork(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	passToken(t)
	sent(t, "--agent", "lead", "builder-1", "Add login", "--type", "task_assignment", "--priority", "low")
	if got := ctl(t, "work", "--once", "--", "sh", "-c", `echo "$BROKERD_TYPE"`); got.out != "task_assignment\n" {
		t.Errorf("%+v", got)
	}
	must0(t, "token", "acquire", "deploy", "staging")
	if got := ctl(t, "next"); got.code != 4 {
		t.Errorf("after the token was collected: %+v", got)
	}
}

// A command of a model prints notices that the model may never get: its session's next events say whether it did.
func TestNotice_OfACommandOfAModelIsReadWhenTheTurnGoesOn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	hooked(t, eventOf("s1", "UserPromptSubmit"))
	model := t.environWith("CLAUDE_CODE_SESSION_ID", "s1")
	passToken(t)
	conversation := filepath.Join(t.TempDir(), "s1.jsonl")
	shows := func(what string, want bool) {
		t.Helper()
		next := exec.CommandContext(t.Context(), os.Args[0], "next", "-o", "prompt") // each run has a mark of its own
		next.Env, next.Dir = model.environ(asProgram+"=1"), t.dir
		out, _ := next.Output() // exit code 4 if there is nothing
		if strings.Contains(string(out), "token") != want {
			t.Errorf("%s: %s", what, out)
		}
		apptest.NoError(t, os.WriteFile(conversation, append(out, `{"role":"assistant"}`...), 0o600))
	}
	shows("the first time", true)
	shows("while it is offered", false)
	hooked(t, eventOf("s1", "UserPromptSubmit")) // after Esc
	shows("after Esc", true)
	hooked(t, strings.Replace(eventOf("s1", "Stop"), `"cwd"`, `"transcript_path":"`+conversation+`","cwd"`, 1))
	hooked(t, eventOf("s1", "UserPromptSubmit"))
	shows("after the end of a turn whose conversation has it", false)
}
