package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

func TestType_ListAndGet(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	out := must0(t, "type", "list", "--family", "task")
	if !strings.Contains(out, "task_complete") || strings.Contains(out, "shutdown_request") {
		t.Errorf("list:\n%s", out)
	}
	out = must0(t, "type", "list", "Shutdown.R")
	if !strings.Contains(out, "shutdown_request") || strings.Contains(out, "task_complete") {
		t.Errorf("list with a prefix:\n%s", out)
	}
	for _, spelling := range []string{"ShutdownRequest", "shutdown.request"} {
		out := must0(t, "type", "get", spelling)
		for _, want := range []string{"shutdown_request (directive)", "request_shutdown", `"reason"`} {
			if !strings.Contains(out, want) {
				t.Errorf("get %s lacks %s:\n%s", spelling, want, out)
			}
		}
	}
	got := fields(t, "type", "get", "task_progress")
	if at(t, got, "schema", "type") != "object" || at(t, got, "example", "task_id") != "t-4711" {
		t.Errorf("get -o json: %v", got)
	}
	wrong := ctl(t, "type", "get", "task_complet")
	if wrong.code != problem.ExitNotFound || !strings.Contains(wrong.err, "task_complete") {
		t.Errorf("a misspelled type: %+v", wrong)
	}
}

func TestType_ValidateGivesTheVerdictOfASend(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	file := filepath.Join(t.TempDir(), "payload.json")
	apptest.NoError(t, os.WriteFile(file, []byte(`{"task_id": 7}`), 0o600))
	const fault = "/task_id: got number, want string"
	out := must0(t, "type", "validate", "TaskProgress", "--payload", `{"progress":0.4}`)
	if out != "task_progress: accepted\n" {
		t.Errorf("a payload that fits: %s", out)
	}
	warned := ctl(t, "type", "validate", "task_progress", "--payload", "@"+file)
	sent := ctl(t, "--agent", "lead", "send", "builder-1", "x", "--type", "task_progress", "--payload", "@"+file)
	if warned.code != 0 || warned.out != "task_progress: warned\n" || !strings.Contains(warned.err, fault) ||
		sent.code != 0 || sent.err != warned.err {
		t.Errorf("the check: %+v\nthe send: %+v", warned, sent)
	}
	unknown := ctl(t, "--agent", "lead", "send", "builder-1", "x", "--type", "task_complet")
	if unknown.code != 0 || !strings.Contains(unknown.err, "did you mean task_complete?") {
		t.Errorf("an unknown type: %+v", unknown)
	}
	must0(t, "session", "configure", "--invalid-payloads", "refuse", "--unknown-types", "refuse")
	refused := ctl(t, "type", "validate", "task_progress", "--payload", "@"+file)
	sent = ctl(t, "--agent", "lead", "send", "builder-1", "x", "--type", "task_progress", "--payload", "@"+file)
	if refused.code != problem.ExitUsage || !strings.Contains(refused.err, fault) ||
		sent.code != problem.ExitUsage || !strings.Contains(sent.err, fault) {
		t.Errorf("the check: %+v\nthe send: %+v", refused, sent)
	}
}

func TestType_Register(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	args := []string{
		"type", "register", "DeployFinished", "--alias", "deploy.done", "--title", "It is out.",
		"--schema", `{"required":["host"]}`, "--example", `{"host":"a"}`,
	}
	if out := must0(t, append([]string{"--agent", "lead"}, args...)...); out != "registered deploy_finished, version 1\n" {
		t.Errorf("register: %s", out)
	}
	if out := must0(t, args...); out != "replaced deploy_finished, version 2\n" {
		t.Errorf("register again: %s", out)
	}
	if got := ctl(t, append([]string{"--agent", "builder-1"}, args...)...); got.code != problem.ExitDenied {
		t.Errorf("an agent that is no director: %+v", got)
	}
	if out := must0(t, "type", "list", "--family", "session"); !strings.Contains(out, "deploy_finished") {
		t.Errorf("list:\n%s", out)
	}
	sent := ctl(t, "--agent", "lead", "send", "builder-1", "x", "--type", "DeployDone", "--payload", `{"host":"a"}`)
	if sent.code != 0 || sent.err != "" {
		t.Errorf("send: %+v", sent)
	}
	out := must0(t, "--agent", "builder-1", "inbox", "--type", "deploy-done")
	if !strings.Contains(out, "deploy_finished") {
		t.Errorf("inbox:\n%s", out)
	}
	if got := ctl(t, "type", "register", "task_done"); got.code != problem.ExitConflict {
		t.Errorf("a name that is taken: %+v", got)
	}
}

func TestType_RegisterReplacesABuiltInSchema(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	out := must0(t, "--agent", "lead", "type", "register", "context.query", "--schema", `{"required":["query"]}`)
	if out != "replaced the built-in type context_query, version 1\n" {
		t.Errorf("register: %s", out)
	}
	out = must0(t, "type", "get", "ContextQuery")
	if !regexp.MustCompile(`built in, replaced +by lead, .*, version 1\n`).MatchString(out) ||
		!strings.Contains(out, "context_request") || !strings.Contains(out, `{"required":["query"]}`) {
		t.Errorf("get:\n%s", out)
	}
	out = must0(t, "type", "list", "context")
	if !regexp.MustCompile(`context_query +context \(replaced\) `).MatchString(out) || strings.Count(out, "(replaced)") != 1 {
		t.Errorf("list:\n%s", out)
	}
	if got := ctl(t, "--agent", "builder-1", "send", "lead", "x", "--type", "context.query", "--payload", `{}`); got.code != 0 ||
		!strings.Contains(got.err, "query") {
		t.Errorf("send: %+v", got)
	}
}
