package retention_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// closed closes and deletes the session.
func (w *world) closed() *pb.DeleteSessionResponse {
	w.Helper()
	apptest.Must(w, w.Root().CloseSession, &pb.CloseSessionRequest{Name: w.session})
	return apptest.Must(w, w.Root().DeleteSession, &pb.DeleteSessionRequest{Name: w.session})
}

func TestArchive_IsInTheNamedFolder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "archive") // made at the start
	w := newWorld(t, apptest.With(func(c *app.Config) { c.Archive = dir })).project(short())
	w.busy()
	if lines, _ := w.linesIn(filepath.Dir(dir), "messages"); len(lines) != 3 {
		t.Errorf("the archive has %d messages", len(lines))
	}
	deleted := w.closed()
	if filepath.Dir(deleted.GetArchive()) != filepath.Join(dir, "deleted") {
		t.Errorf("the export is in %s", deleted.GetArchive())
	}
	text, err := os.ReadFile(filepath.Join(deleted.GetArchive(), "messages.jsonl"))
	if n := strings.Count(string(text), "\n"); err != nil || n != 5 {
		t.Errorf("the export has %d messages, %v", n, err)
	}
	if left, _ := filepath.Glob(filepath.Join(w.Dir(), "archive", "*")); len(left) > 0 {
		t.Errorf("the data folder has %v", left)
	}
}

// A broker on PostgreSQL that no folder is named for removes what is due without a trace.
func TestArchive_IsMissingOnAServerWithoutAFolder(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	w := newWorld(t, apptest.With(func(c *app.Config) { c.Store, c.Archive = url, "" })).project(short())
	w.busy()
	pruned := apptest.Must(t, w.Root().PruneData, &pb.PruneDataRequest{OlderThan: short().EventRetention,
		Kinds: []pb.DataKind{pb.DataKind_DATA_KIND_DEAD_LETTERS}})
	if pruned.GetFreeBytes() != 0 {
		t.Errorf("%d bytes of a server's database are free", pruned.GetFreeBytes())
	}
	dir := w.export() // nothing of it is in an archive
	text, err := os.ReadFile(filepath.Join(dir, "messages.jsonl"))
	if n := strings.Count(string(text), "\n"); err != nil || n != 2 {
		t.Errorf("the export has %d messages, %v", n, err)
	}
	if deleted := w.closed(); deleted.GetArchive() != "" {
		t.Errorf("the export is in %s", deleted.GetArchive())
	}
	last := apptest.Must(t, w.Root().ListEvents, &pb.ListEventsRequest{NewestFirst: true, PageSize: 1})
	if summary := last.GetEvents()[0].GetSummary(); summary != "session project deleted" {
		t.Errorf("the event says %q", summary)
	}
	if left, _ := filepath.Glob(filepath.Join(w.Dir(), "archive")); len(left) > 0 {
		t.Errorf("the data folder has %v", left)
	}
}
