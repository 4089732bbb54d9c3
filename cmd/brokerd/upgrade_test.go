package main

import (
	"database/sql"
	"os"
	"os/exec"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3" // to add the migration of a newer version

	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

func TestDowngrade_NeedsACopyOfTheDataFolder(t *testing.T) {
	t.Parallel()
	p := launch(t)
	p.end(t)
	before := t.TempDir() + "/copy"
	if out, err := exec.Command("cp", "-a", p.dir, before).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	db, err := sql.Open("sqlite3", p.dir+"/brokerd.db")
	apptest.NoError(t, err)
	if _, err := db.Exec(`INSERT INTO migrations (name, sha256, applied_at) VALUES ('broker/999_newer', '', 0)`); err != nil {
		t.Fatal(err)
	}
	apptest.NoError(t, db.Close())
	upgraded, err := os.ReadFile(p.dir + "/brokerd.db")
	apptest.NoError(t, err)
	for _, args := range [][]string{{"--log-format", "console"}, {"check"}} {
		cmd := exec.Command(os.Args[0], append(args, "--data", p.dir)...)
		cmd.Env = append(processtest.Environment(t), asProgram+"=1")
		text, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(text), "the database was made by a newer brokerd (it has broker/999_newer): use that version, or restore a backup") {
			t.Errorf("%q on a newer database: %v, %s", args, err, text)
		}
	}
	if after, err := os.ReadFile(p.dir + "/brokerd.db"); err != nil || string(after) != string(upgraded) {
		t.Errorf("the refused database has changed, or cannot be read: %v", err)
	}

	old := &program{dir: before}
	old.cmd = command(t, "--data", before, "--log-format", "console")
	old.cmd.Stderr = &old.stderr
	old.start(t)
	old.end(t)
}
