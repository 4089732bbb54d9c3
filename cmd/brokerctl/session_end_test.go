package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

func TestSession_IsClosedExportedAndDeleted(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "session", "create", "website")
	must0(t, "--session", "website", "--agent", "lead", "agent", "register", "lead")
	must0(t, "--session", "website", "--agent", "lead", "send", "channel:news", "Launched")
	if got := t.invoke(t.Context(), "0123456789", nil, "--session", "website", "artifact", "upload", "-", "site.tar"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := t.invoke(t.Context(), "", nil, "session", "delete", "website", "--yes"); got.code != problem.ExitConflict && got.code != problem.ExitError {
		t.Errorf("an open session: %+v", got)
	}
	must0(t, "session", "close", "website", "--reason", "launched")
	dir := filepath.Join(t.TempDir(), "export")
	out := must0(t, "session", "export", "website", "--dir", dir)
	if !strings.Contains(out, "checksums compared") || !strings.Contains(out, "artifacts/ (1 file)") {
		t.Errorf("the export says: %s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "messages.jsonl"))
	if err != nil || !strings.Contains(string(text), `"subject":"Launched"`) {
		t.Errorf("the messages are %s (%v)", text, err)
	}
	contents, err := filepath.Glob(filepath.Join(dir, "artifacts", "*"))
	if err != nil || len(contents) != 1 {
		t.Fatalf("the contents are %v, %v", contents, err)
	}
	if text, err := os.ReadFile(contents[0]); err != nil || string(text) != "0123456789" {
		t.Errorf("the content is %q, %v", text, err)
	}
	if got := t.invoke(t.Context(), "", nil, "session", "delete", "website"); got.code != problem.ExitUsage {
		t.Errorf("without --yes: %+v", got)
	}
	if out := must0(t, "session", "delete", "website", "--yes"); !strings.Contains(out, "archive/deleted/website-") {
		t.Errorf("the deletion says: %s", out)
	}
	if got := t.invoke(t.Context(), "", nil, "session", "get", "website"); got.code != problem.ExitNotFound {
		t.Errorf("afterwards: %+v", got)
	}
}
