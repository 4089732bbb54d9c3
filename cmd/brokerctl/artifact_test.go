package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
)

func TestArtifact_FilesAreSharedWithVersions(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder", "b/builder")
	t.Chdir(t.TempDir())
	file := filepath.Join("docs", "plan.md")
	write := func(text string) {
		t.Helper()
		apptest.NoError(t, os.MkdirAll(t.path("docs"), 0o700))
		apptest.NoError(t, os.WriteFile(t.path(file), []byte(text), 0o600))
	}
	write("one\n")
	if got := must0(t, "--agent", "a", "artifact", "upload", file, "--description", "the plan", "--task", "t1", "--label", "stage=draft"); got != "uploaded docs/plan.md@1 (4 B)\n" {
		t.Errorf("%q", got)
	}
	write("two!\n")
	up := fields(t, "--agent", "b", "artifact", "upload", "./docs/plan.md", "--media-type", "text/x-plan")
	if at(t, up, "artifact", "version") != json.Number("2") || at(t, up, "artifact", "author") != "b" || at(t, up, "artifact", "media_type") != "text/x-plan" {
		t.Errorf("%v", up)
	}
	if got := must0(t, "--agent", "b", "artifact", "upload", file); got != "kept docs/plan.md@2 (5 B; it has this content already)\n" {
		t.Errorf("%q", got)
	}
	if got := must0(t, "--agent", "b", "artifact", "upload", file, "copy"); got != "uploaded copy@1 (5 B; the broker has the content already)\n" {
		t.Errorf("%q", got)
	}
	if got := must0(t, "artifact", "download", "docs/plan.md@1", "--to", "-"); got != "one\n" {
		t.Errorf("%q", got)
	}
	if got := ctl(t, "artifact", "download", "docs/plan.md", "--to", "none/x"); got.code != 2 || !strings.Contains(got.err, "cannot write none/x: the folder none does not exist") {
		t.Errorf("into a folder that does not exist: %+v", got)
	}
	if got := must0(t, "artifact", "download", "docs/plan.md"); got != "downloaded docs/plan.md@2 (5 B) to plan.md\n" {
		t.Errorf("%q", got)
	}
	if got, err := os.ReadFile(t.path("plan.md")); err != nil || string(got) != "two!\n" {
		t.Errorf("%q, %v", got, err)
	}
	if left, err := filepath.Glob(t.path(".plan.md*")); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	got := withoutFrames(must0(t, "artifact", "get", "docs/plan.md@1", "-o", "prompt"))
	if !strings.HasPrefix(got, "docs/plan.md@1 (4 B, text/") || !strings.Contains(got, "task t1: the plan)\n") || !strings.Contains(got, "\nversion 2: 5 B, text/x-plan, by b") ||
		!strings.Contains(got, "\nlabels: stage=draft\n") {
		t.Errorf("%q", got)
	}
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"copy@1", "docs/plan.md@2"}}, {"docs/", []string{"docs/plan.md@2"}}, {"--versions --from a", []string{"docs/plan.md@1"}},
		{"--task t1 --versions", []string{"docs/plan.md@1"}},
	} {
		text := withoutFrames(must0(t, append([]string{"artifact", "list", "-o", "prompt"}, strings.Fields(c.args)...)...))
		for _, line := range c.want {
			if !strings.Contains(text, line+" (") || strings.Count(text, "\n") != len(c.want) {
				t.Errorf("list %s: %q", c.args, text)
			}
		}
	}
	if got := t.invoke(t.Context(), "", nil, "--agent", "a", "artifact", "delete", "docs/plan.md"); got.code != problem.ExitDenied {
		t.Errorf("%+v", got)
	}
	if got := must0(t, "artifact", "delete", "docs/plan.md"); got != "deleted docs/plan.md: 2 versions, 4 B freed\n" {
		t.Errorf("%q", got)
	}
	if got := t.invoke(t.Context(), "", nil, "artifact", "download", "docs/plan.md"); got.code != problem.ExitNotFound {
		t.Errorf("%+v", got)
	}
}

func TestArtifact_StandardInputIsUploaded(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder")
	if got := t.invoke(t.Context(), "from a pipe", nil, "--agent", "a", "artifact", "upload", "-", "report.txt"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := must0(t, "artifact", "download", "report.txt", "-O", "-"); got != "from a pipe" {
		t.Errorf("%q", got)
	}
	for _, args := range [][]string{{"-"}, {"/no/such/file"}, {t.TempDir()}} {
		if got := t.invoke(t.Context(), "", nil, append([]string{"--agent", "a", "artifact", "upload"}, args...)...); got.code != problem.ExitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

func TestSend_LargePayloadFitsItsTypeAndKeepsItsBytes(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "a/builder")
	must0(t, "session", "configure", "--payload-limit", "10240", "--invalid-payloads", "refuse")
	file := filepath.Join(t.TempDir(), "task.json")
	content := "\n " + `{"task_id":"t1","title":"` + strings.Repeat("x", 12<<10) + `"}` + "\n\n"
	apptest.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	must0(t, "type", "register", "task_plan", "--schema", `{"required":["task_id"]}`)
	args := []string{"--agent", "lead", "send", "a", "The task", "--type", "task_plan"}
	must0(t, append(args, "--payload", "@"+file)...)
	if got := ctl(t, append(args, "--payload", `{"artifact":"task.json"}`)...); got.code != problem.ExitUsage {
		t.Errorf("a payload that does not fit: %+v", got)
	}
	claimed := fields(t, "--agent", "a", "claim")
	sum := sha256.Sum256([]byte(content))
	if at(t, claimed, "message", "payload", "sha256") != hex.EncodeToString(sum[:]) {
		t.Errorf("the artifact has other bytes than the file: %v", claimed)
	}
	if got := must0(t, "artifact", "download", "payloads/task.json", "--to", "-"); got != content {
		t.Errorf("downloaded %d bytes, the file has %d", len(got), len(content))
	}
}

func TestSend_LargePayloadArrivesAsArtifact(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "a/builder")
	must0(t, "session", "configure", "--payload-limit", "10240")
	file := filepath.Join(t.TempDir(), "big plan.json")
	content := `{"text":"` + strings.Repeat("x", 12<<10) + `"}`
	apptest.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	got := t.invoke(t.Context(), "", nil, "--agent", "lead", "send", "a", "The plan", "--payload", "@"+file, "--task", "t1")
	if got.code != 0 || !strings.Contains(got.err, "it is the artifact payloads/big_plan.json@1, and the message has a reference to it") {
		t.Fatalf("%+v", got)
	}
	claimed := fields(t, "--agent", "a", "claim")
	sum := sha256.Sum256([]byte(content))
	if at(t, claimed, "message", "payload", "sha256") != hex.EncodeToString(sum[:]) || at(t, claimed, "message", "artifacts", 0) != "payloads/big_plan.json@1" {
		t.Errorf("%v", claimed)
	}
	revision := at(t, claimed, "message", "revision").(json.Number).String()
	for _, format := range []string{"table", "prompt"} {
		shown := must0(t, "message", "get", revision, "-o", format)
		if !strings.Contains(shown, "payloads/big_plan.json@1") || !strings.Contains(shown, "brokerctl artifact download NAME") {
			t.Errorf("%s: %s", format, shown)
		}
	}
	if got := must0(t, "artifact", "download", "payloads/big_plan.json@1", "--to", "-"); got != content {
		t.Errorf("%d bytes", len(got))
	}
	// A payload that is written on the command line is refused: the broker names the field.
	got = t.invoke(t.Context(), "", nil, "--agent", "lead", "send", "a", "The plan", "--payload", content)
	if got.code == 0 || !strings.Contains(got.err, "payload") {
		t.Errorf("%+v", got)
	}
	// A small one stays in the message.
	got = t.invoke(t.Context(), `{"n":1}`, nil, "--agent", "lead", "send", "a", "The plan", "--payload", "-", "-o", "json")
	if got.code != 0 || got.err != "" {
		t.Errorf("%+v", got)
	}
}
