package main

import (
	"strings"
	"testing"
)

// A job of three agents that have only a shell: two tasks, one question, one token that is passed
// on. All that the models read costs them at most 1,400 tokens, the guide included, and notices
// less than 60 of these.
func TestJob_CostsLittleToRead(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder", "builder-2/builder")
	t.Setenv("BROKERD_OUTPUT", "prompt")
	total, notices := 0, 0
	as := func(name string, args ...string) string {
		t.Helper()
		t.Setenv("BROKERD_AGENT", name)
		got := ctl(t, args...)
		if got.code != 0 && got.code != 4 {
			t.Fatalf("%s, %v: %+v", name, args, got)
		}
		read := got.out + got.err
		total += tokens(read)
		for line := range strings.Lines(read) {
			if strings.HasPrefix(line, "Notice: ") {
				notices += tokens(line)
			}
		}
		return read
	}
	as("builder-1", "guide")
	as("lead", "send", "role:builder", "Add a login form to src/login.html; the API is POST /login", "--type", "task_assignment")
	as("lead", "send", "role:builder", "Write tests for POST /login in api_test.go", "--type", "task_assignment")
	as("builder-1", "next", "--wait", "90s")
	as("builder-1", "lock", "acquire", "src/login.html", "--wait", "90s")
	as("builder-2", "next", "--wait", "90s")
	as("builder-2", "send", "lead", "Which status does a wrong password give?", "--requires-response")
	as("lead", "next", "--wait", "90s")
	as("lead", "reply", "--ack", "401, with an empty body")
	answer := as("builder-2", "inbox")
	_, id, _ := strings.Cut(answer, " message ")
	id, _, _ = strings.Cut(id, ":")
	as("builder-2", "ack", id)
	as("builder-2", "token", "acquire", "test_run", "api")
	as("builder-2", "reply", "--ack", "Done: 6 tests in api_test.go, all pass")
	as("builder-2", "token", "pass", "test_run", "api", "builder-1")
	as("builder-1", "next", "--wait", "90s")
	as("builder-1", "token", "acquire", "test_run", "api")
	as("builder-1", "token", "release", "test_run", "api")
	as("builder-1", "lock", "release", "src/login.html")
	as("builder-1", "reply", "--ack", "Done: login form in src/login.html, posts to /login")
	for range 2 {
		as("lead", "next", "--wait", "90s")
		as("lead", "ack")
	}
	for _, name := range []string{"lead", "builder-1", "builder-2"} {
		if got := as(name, "next"); !strings.Contains(got, "nothing to claim") {
			t.Errorf("%s has more to do: %s", name, got)
		}
	}
	if total > 1400 || notices == 0 || notices >= 60 {
		t.Errorf("%d tokens, %d of them for notices", total, notices)
	}
}
