package backup_test

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/auth"
	"brokerd/internal/backup"
	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// small returns a backup with a message, an artifact and a state key.
func small(t *testing.T) []byte {
	t.Helper()
	b := apptest.Start(t)
	b.Registered("a", "worker")
	_, err := send(patient(t), b, "a", "hello")
	must(t, err)
	_, err = upload(patient(t), b, "a", "data", random(3000))
	must(t, err)
	file, _ := backUp(t, b)
	return file
}

// wantRefused restores a file and expects the reason of the error. Nothing may be left.
func wantRefused(t *testing.T, file []byte, reason string) string {
	t.Helper()
	dir := newFolder(t)
	_, err := app.Restore(patient(t), app.Config{Dir: dir}, bytes.NewReader(file))
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != reason {
		t.Fatalf("got %v, want %s", err, reason)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is left (%v)", err)
	}
	return f.Message
}

// forge changes the manifest and the database of a backup, with right hashes.
func forge(t *testing.T, file []byte, statement string, change func(*backup.Manifest)) []byte {
	t.Helper()
	all := entries(t, file)
	path := filepath.Join(t.TempDir(), "forged.db")
	must(t, os.WriteFile(path, all[1].text, 0o600))
	db, err := sql.Open("sqlite3", path)
	must(t, err)
	_, err = db.ExecContext(t.Context(), statement)
	must(t, err)
	must(t, db.Close())
	all[1].text, err = os.ReadFile(path)
	must(t, err)
	var m backup.Manifest
	must(t, json.Unmarshal(all[0].text, &m))
	sum := sha256.Sum256(all[1].text)
	m.Database = backup.Database{Bytes: int64(len(all[1].text)), SHA256: hex.EncodeToString(sum[:])}
	change(&m)
	all[0].text, err = json.Marshal(m)
	must(t, err)
	return pack(t, all[:len(all)-1])
}

func TestRestore_RefusesADamagedFileAndLeavesNothing(t *testing.T) {
	t.Parallel()
	file := small(t)
	altered := func(at int) []byte {
		copied := bytes.Clone(file)
		copied[at] ^= 1
		return copied
	}
	wantRefused(t, altered(10), "NOT_A_BACKUP") // in the name of the manifest
	for _, at := range []int{700, len(file) / 3, len(file) / 2, len(file) - 4000, len(file) - 2040} {
		wantRefused(t, altered(at), "DAMAGED_BACKUP")
	}
	for _, n := range []int{len(file) - 1, len(file) - 1024, len(file) - 2048, len(file) - 5000, len(file) / 2, 1600, 1024} {
		wantRefused(t, file[:n], "DAMAGED_BACKUP")
	}
	wantRefused(t, append(bytes.Clone(file), 0), "DAMAGED_BACKUP")
	wantRefused(t, append(bytes.Clone(file), file...), "DAMAGED_BACKUP")
}

func TestRestore_RefusesWhatIsNoBackupOrIsNewer(t *testing.T) {
	t.Parallel()
	file := small(t)
	wantRefused(t, nil, "NOT_A_BACKUP")
	wantRefused(t, []byte(strings.Repeat("text ", 1000)), "NOT_A_BACKUP")
	wantRefused(t, pack(t, []entry{{"manifest.json", []byte("{}")}}), "NOT_A_BACKUP")
	newer := forge(t, file, `SELECT 1`, func(m *backup.Manifest) { m.Format, m.Version = 2, "9.9.9" })
	if text := wantRefused(t, newer, "NEWER_BACKUP"); !strings.Contains(text, "9.9.9") {
		t.Errorf("%q does not name the version", text)
	}
	wantRefused(t, forge(t, file, `INSERT INTO migrations VALUES ('future/001', 'x', 0)`, func(*backup.Manifest) {}), "NEWER_DATABASE")
}

func TestRestore_ChecksContentsAndInvariants(t *testing.T) {
	t.Parallel()
	file := small(t)
	for name, forged := range map[string][]byte{
		"a broken invariant": forge(t, file, `UPDATE mailboxes SET waiting = waiting + 1`, func(*backup.Manifest) {}),
		"another revision":   forge(t, file, `UPDATE meta SET revision = revision + 1`, func(*backup.Manifest) {}),
		"a missing content": pack(t, func() []entry {
			all := entries(t, forge(t, file, `SELECT 1`, func(m *backup.Manifest) { m.Contents = 0 }))
			return all[:2]
		}()),
	} {
		t.Run(name, func(t *testing.T) { wantRefused(t, forged, "DAMAGED_BACKUP") })
	}
}

func TestRestore_ChecksThatNoRevisionCanBeIssuedTwice(t *testing.T) {
	t.Parallel()
	file := small(t)
	unchanged := func(*backup.Manifest) {}
	for want, forged := range map[string][]byte{
		"above the counter": forge(t, file, `UPDATE meta SET revision = revision - 1`, func(m *backup.Manifest) { m.Revision-- }),
		"left out":          forge(t, file, `INSERT INTO restores VALUES (1, 3, 0)`, unchanged),
		"passed the jump":   forge(t, file, `INSERT INTO restores VALUES (1000, 2000, 0)`, unchanged),
	} {
		if text := wantRefused(t, forged, "DAMAGED_BACKUP"); !strings.Contains(text, want) {
			t.Errorf("%q does not contain %q", text, want)
		}
	}
}

func TestRestore_NeverWritesIntoAFolderWithData(t *testing.T) {
	t.Parallel()
	file := small(t)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "notes"), []byte("mine"), 0o600))
	_, err := app.Restore(patient(t), app.Config{Dir: dir}, bytes.NewReader(file))
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != "FOLDER_NOT_EMPTY" || !strings.Contains(f.Message, "notes") {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the folder has %v, %v", left, err)
	}

	empty := t.TempDir()
	must(t, os.Mkdir(filepath.Join(empty, "lost+found"), 0o700))
	if _, err := app.Restore(patient(t), app.Config{Dir: empty}, bytes.NewReader(file)); err != nil {
		t.Errorf("the root of an empty file system: %v", err)
	}
	if _, err := app.Restore(patient(t), app.Config{Dir: empty}, bytes.NewReader(file)); !errors.As(err, &f) || f.Reason != "FOLDER_NOT_EMPTY" {
		t.Errorf("a second time: %v", err)
	}
}

func TestRestore_InterruptedIsRepeatedAndNeverServed(t *testing.T) {
	t.Parallel()
	file := small(t)
	dir := newFolder(t)
	claimed, err := backup.Claim(dir)
	must(t, err)
	if _, err := claimed.Unpack(bytes.NewReader(file[:len(file)/2])); err == nil {
		t.Fatal("half a file was unpacked")
	}
	if _, err := backup.Claim(dir); err == nil {
		t.Error("two restores into one folder")
	}
	_, err = app.Start(patient(t), app.Config{Dir: dir})
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != "RESTORE_INCOMPLETE" {
		t.Fatalf("a start on an incomplete folder: %v", err)
	}
	must(t, claimed.Close()) // as the end of the process does
	apptest.NoError(t, apptest.Err(app.Restore(patient(t), app.Config{Dir: dir}, bytes.NewReader(file))))
	run(t, dir)
}

func TestRestore_KeepsInstanceAndMakesANewOperatorCredential(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	file, _ := backUp(t, b)
	dir, restored := restore(t, file)
	if restored.Next <= restored.Revision+1_000_000_000_000 {
		t.Errorf("the counter jumps from %d to %d", restored.Revision, restored.Next)
	}
	for _, name := range []string{auth.CredentialFile, store.IncompleteFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("the restored folder has %s (%v)", name, err)
		}
	}
	r := run(t, dir)
	if r.Credential() == b.Credential() {
		t.Error("the operator's credential is in the backup")
	}
	after := restored.Revision // from the beginning, the jump would cost an empty page
	events := apptest.Must(t, r.Root().ListEvents,
		&pb.ListEventsRequest{AfterRevision: after, Filter: &pb.EventFilter{Types: []string{"broker.restored"}}})
	if all := events.GetEvents(); len(all) != 1 || all[0].GetRevision() != restored.Next {
		t.Errorf("the events are %v, want one of revision %d", all, restored.Next)
	}
}
