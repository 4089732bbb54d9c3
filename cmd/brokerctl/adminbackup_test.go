package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

func TestAdminBackup_WritesAFileThatRestores(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "role:builder", "one")
	got := must0(t, "admin", "backup", "brokerd.tar")
	if !strings.HasPrefix(got, "wrote brokerd.tar (") || !strings.Contains(got, "with 1 session, 1 message, ") {
		t.Errorf("%q", got)
	}
	if got := ctl(t, "admin", "backup", "brokerd.tar"); got.code != 2 || !strings.Contains(got.err, "brokerd.tar exists; --force replaces it") {
		t.Errorf("over a file: %+v", got)
	}
	if got := ctl(t, "admin", "backup", "none/brokerd.tar"); got.code != 2 || !strings.Contains(got.err, "the folder none does not exist") {
		t.Errorf("into a folder that does not exist: %+v", got)
	}
	if got := ctl(t, "--agent", "lead", "admin", "backup", "other.tar"); got.code != 7 {
		t.Errorf("by an agent: %+v", got)
	}
	made := fields(t, "admin", "backup", "brokerd.tar", "--force", "-o", "json")
	file, err := os.ReadFile(t.path("brokerd.tar"))
	apptest.NoError(t, err)
	if text, ok := made["sha256"].(string); !ok || len(text) != 64 {
		t.Errorf("%v", made)
	}
	if left, err := filepath.Glob(t.path(".*.partial")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	for name, file := range map[string][]byte{"file": file, "standard output": []byte(must0(t, "admin", "backup", "-"))} {
		restored, err := app.Restore(t.Context(), app.Config{Dir: filepath.Join(t.TempDir(), "data")}, bytes.NewReader(file))
		if err != nil || restored.Messages != 1 {
			t.Errorf("%s: %+v, %v", name, restored, err)
		}
	}
	must0(t, "message", "cancel", id)
}
