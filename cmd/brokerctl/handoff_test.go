package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

const handoffYAML = `to: role:builder
title: Login page
task_id: t1
background: |
  Users log in.
artifacts: [api.yaml@1, gone.txt]
context_links:
  - {kind: state, target: default/design, title: the design}
next_steps: [call it]
checklist: [tests pass]
`

func TestHandoff_IsOfferedCheckedAndAccepted(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "architect-1/architect", "builder-1/builder")
	fence := at(t, fields(t, "--agent", "architect-1", "lock", "acquire", "src/"), "fence")
	h := fields(t, "--agent", "architect-1", "handoff", "create", "builder-1", "Login page", "--task", "t1", "--fence", number(fence),
		"--background", "Users log in.", "--link", "https://example.org/a", "--link", "state:default/design", "--next", "call it", "--check", "tests pass")
	id := at(t, h, "id").(string)
	if at(t, h, "content", "context_links", 0, "kind") != "url" || at(t, h, "content", "context_links", 1, "target") != "default/design" ||
		at(t, h, "task_id") != "t1" || at(t, h, "grants", 0, "name") != "src/" {
		t.Errorf("created %v", h)
	}
	if got := ctl(t, "--agent", "architect-1", "handoff", "get", id, "--wait", "10ms"); got.code != problem.ExitNothing {
		t.Errorf("a wait that ended: %+v", got)
	}
	out := must0(t, "--agent", "builder-1", "-o", "prompt", "handoff", "get", id)
	if !strings.Contains(out, "## Background") || !strings.Contains(out, "handoff accept "+id) {
		t.Errorf("get:\n%s", out)
	}
	if out := must0(t, "handoff", "list", "--to", "builder-1"); !strings.Contains(out, "0 of 1") {
		t.Errorf("list:\n%s", out)
	}
	if out := must0(t, "--agent", "builder-1", "handoff", "check", id, "1"); !strings.Contains(out, "1 of 1 are checked") {
		t.Errorf("check: %s", out)
	}
	out = must0(t, "--agent", "builder-1", "handoff", "accept", id, "thanks")
	if !strings.Contains(out, "holds the lock src/, fence ") {
		t.Errorf("accept: %s", out)
	}
	if got := ctl(t, "--agent", "architect-1", "lock", "extend", number(fence)); got.code != problem.ExitLost {
		t.Errorf("the sender extends the lock: %+v", got)
	}
	must0(t, "--agent", "architect-1", "handoff", "get", id, "--wait", "1m")
	if got := ctl(t, "handoff", "list"); got.out != "" {
		t.Errorf("pending handoffs: %+v", got)
	}
}

func TestHandoff_CreateReadsAFileAndWaitsForTheAnswer(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "architect-1/architect", "builder-1/builder")
	writeText(t, "handoff.yaml", handoffYAML)
	writeText(t, "gone.txt", "x")
	writeText(t, "api.yaml", "openapi: 3.1.0\n")
	must0(t, "--agent", "architect-1", "artifact", "upload", "api.yaml")
	done := make(chan result, 1)
	go func() {
		done <- ctl(t, "--agent", "architect-1", "handoff", "create", "-f", "handoff.yaml", "--wait", "25s")
	}()
	claim := fields(t, "--agent", "builder-1", "claim", "--wait", "25s")
	id := at(t, claim, "message", "payload", "handoff_id").(string)
	must0(t, "--agent", "builder-1", "handoff", "reject", id, "no time")
	if got := <-done; got.code != problem.ExitRejected || got.out != id+" rejected by builder-1: no time\n" || !strings.Contains(got.err, "rejected by builder-1") {
		t.Errorf("create --wait: %+v", got)
	}
	id = at(t, fields(t, "--agent", "architect-1", "handoff", "create", "-f", "handoff.yaml", "--check", "docs read"), "id").(string)
	if h := fields(t, "handoff", "get", id); at(t, h, "checklist", 1, "text") != "docs read" || at(t, h, "to_role") != "builder" {
		t.Errorf("created %v", h)
	}
	must0(t, "--agent", "architect-1", "handoff", "cancel", id)
}

func TestHandoff_ExportWritesItsFilesAndArtifacts(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "architect-1/architect", "builder-1/builder")
	writeText(t, "handoff.yaml", handoffYAML)
	writeText(t, "api.yaml", "openapi: 3.1.0\n")
	writeText(t, "gone.txt", "x")
	must0(t, "--agent", "architect-1", "artifact", "upload", "api.yaml")
	id := at(t, fields(t, "--agent", "architect-1", "handoff", "create", "-f", "handoff.yaml"), "id").(string)
	must0(t, "artifact", "delete", "gone.txt")
	got := ctl(t, "-o", "json", "handoff", "export", id, "out")
	if got.code != 0 || !strings.Contains(got.err, "gone.txt") {
		t.Fatalf("export: %+v", got)
	}
	if files := decode(t, got.out); len(at(t, files, "files").([]any)) != 5 || len(at(t, files, "missing").([]any)) != 1 {
		t.Errorf("exported %v", files)
	}
	for name, want := range map[string]string{
		"HANDOFF.md": "# Handoff " + id + ": Login page", "context-links.md": "- state `default/design`: the design\n",
		"acceptance-checklist.md": "- [ ] tests pass\n", "metadata.json": `"title":"Login page"`, "artifacts/api.yaml": "openapi: 3.1.0\n",
	} {
		text, err := os.ReadFile(filepath.Join(t.path("out"), name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

func TestHandoff_CreateUploadsTheFilesThatTheBrokerDoesNotHave(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "architect-1/architect", "builder-1/builder")
	apptest.NoError(t, os.Mkdir(t.path("docs"), 0o700))
	writeText(t, "docs/plan.md", "step 1\n")
	writeText(t, "docs/api.md", "a later draft\n")
	writeText(t, "api.yaml", "openapi: 3.1.0\n")
	must0(t, "--agent", "architect-1", "artifact", "upload", "api.yaml", "docs/api.md")
	create := []string{"--agent", "architect-1", "handoff", "create", "builder-1", "Login page", "--task", "t1"}
	got := ctl(t, append(create, "--artifact", "./docs/plan.md", "--artifact", "docs/api.md", "-o", "json")...)
	if got.code != 0 || got.err != "brokerctl: uploaded docs/plan.md@1 (7 B)\n" {
		t.Fatalf("%+v", got)
	}
	h := decode(t, got.out)
	if at(t, h, "content", "artifacts", 0) != "docs/plan.md" || at(t, h, "content", "artifacts", 1) != "docs/api.md" {
		t.Errorf("created %v", h)
	}
	if v := fields(t, "artifact", "get", "docs/plan.md"); at(t, v, "artifact", "task_id") != "t1" {
		t.Errorf("uploaded %v", v)
	}
	must0(t, "handoff", "export", at(t, h, "id").(string), "out")
	for name, want := range map[string]string{"plan.md": "step 1\n", "api.md": "openapi: 3.1.0\n"} {
		text, err := os.ReadFile(filepath.Join(t.path("out"), "artifacts", "docs", name))
		if err != nil || string(text) != want {
			t.Errorf("exported %s: %q, %v", name, text, err)
		}
	}
	for artifact, c := range map[string]struct {
		code int
		says string
	}{
		"docs/none.md":   {problem.ExitNotFound, "no file of this path: upload it first (brokerctl --agent architect-1 artifact upload FILE docs/none.md)"},
		"docs/plan.md@2": {problem.ExitNotFound, "its newest version is 1"},
		"docs":           {problem.ExitUsage, "docs is no regular file"},
		"../secret":      {problem.ExitUsage, "artifact upload ../secret NAME"},
	} {
		if got := ctl(t, append(create, "--artifact", artifact)...); got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: %+v", artifact, got)
		}
	}
	if out := must0(t, "handoff", "list", "-o", "json"); strings.Count(out, "\n") != 1 {
		t.Errorf("a refused command has created a handoff: %s", out)
	}
}

func TestHandoff_MistakesAreNamed(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "architect-1/architect", "builder-1/builder")
	writeText(t, "bad.yaml", "to: builder-1\ntitel: x\n")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no title":         {[]string{"create", "builder-1"}, problem.ExitUsage, "title is missing"},
		"unknown field":    {[]string{"create", "-f", "bad.yaml"}, problem.ExitUsage, "titel"},
		"everyone":         {[]string{"create", "everyone", "x"}, problem.ExitUsage, "an agent or a role"},
		"bad link":         {[]string{"create", "builder-1", "x", "--link", "picture:1"}, problem.ExitUsage, "none of state, message, file, url"},
		"not held":         {[]string{"create", "builder-1", "x", "--fence", "7"}, problem.ExitConflict, "does not hold"},
		"bad item":         {[]string{"check", "h-1", "first"}, problem.ExitUsage, "not the number of an item"},
		"unknown handoff":  {[]string{"accept", "h-1"}, problem.ExitNotFound, `no handoff "h-1"`},
		"unknown receiver": {[]string{"create", "builder-2", "x"}, problem.ExitNotFound, "builder-1"},
	} {
		if got := ctl(t, append([]string{"--agent", "architect-1", "handoff"}, c.args...)...); got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func writeText(t *shell, name, text string) {
	t.Helper()
	apptest.NoError(t, os.WriteFile(t.path(name), []byte(text), 0o600))
}
