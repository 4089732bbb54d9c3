package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSession_IsClosedExportedAndDeleted(t *testing.T) {
	startBroker(t)
	must0(t, "session", "create", "website")
	must0(t, "--session", "website", "--agent", "lead", "agent", "register", "lead")
	must0(t, "--session", "website", "--agent", "lead", "send", "channel:news", "Launched")
	if got := invoke(t.Context(), "", nil, "session", "delete", "website", "--yes"); got.code != exitConflict && got.code != exitError {
		t.Errorf("an open session: %+v", got)
	}
	must0(t, "session", "close", "website", "--reason", "launched")
	dir := filepath.Join(t.TempDir(), "export")
	out := must0(t, "session", "export", "website", "--dir", dir)
	if !strings.Contains(out, "checksums compared") {
		t.Errorf("the export says: %s", out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "messages.jsonl"))
	if err != nil || !strings.Contains(string(text), `"subject":"Launched"`) {
		t.Errorf("the messages are %s (%v)", text, err)
	}
	if got := invoke(t.Context(), "", nil, "session", "delete", "website"); got.code != exitUsage {
		t.Errorf("without --yes: %+v", got)
	}
	if out := must0(t, "session", "delete", "website", "--yes"); !strings.Contains(out, "archive/deleted/website-") {
		t.Errorf("the deletion says: %s", out)
	}
	if got := invoke(t.Context(), "", nil, "session", "get", "website"); got.code != exitNotFound {
		t.Errorf("afterwards: %+v", got)
	}
}
