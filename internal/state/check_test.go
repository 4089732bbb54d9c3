package state_test

import (
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestCheck_FindsWhatDoesNotAgree(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, o := w.Agent("a", "builder"), w.Root()
	set(a, "k", "1")
	middle := set(a, "k", "2")
	set(a, "k", "3")
	addEntry(a, "d", "x")
	set(a, "gone", "x")
	remove(a, "gone")
	for _, c := range []struct{ breaks, mends, says string }{
		{`UPDATE state_keys SET version = version + 1 WHERE key = 'k'`, `UPDATE state_keys SET version = version - 1 WHERE key = 'k'`, "newest version"},
		{`UPDATE state_keys SET current = ? WHERE key = 'k'`, `UPDATE state_keys SET current = (SELECT max(id) FROM state_versions v WHERE v.key = state_keys.id) WHERE key = 'k'`, "newest version"},
		{`UPDATE state_versions SET version = version + 10 WHERE id = ?`, `UPDATE state_versions SET version = version - 10 WHERE id = ?`, "missing among those that are kept"},
		{`UPDATE state_versions SET revision = 1 WHERE id = ?`, `UPDATE state_versions SET revision = id WHERE id = ?`, "order of revisions"},
		{`UPDATE state_versions SET key = key + 1000 WHERE id = ?`, `UPDATE state_versions SET key = key - 1000 WHERE id = ?`, "has versions and is not there"},
		{`UPDATE state_keys SET entries = 2 WHERE key = 'd'`, `UPDATE state_keys SET entries = 1 WHERE key = 'd'`, "entries that it says"},
		{`UPDATE state_keys SET owner = 'a' WHERE key = 'gone'`, `UPDATE state_keys SET owner = NULL WHERE key = 'gone'`, "is owned"},
	} {
		change := func(statement string) {
			var args []any
			if strings.Contains(statement, "?") {
				args = append(args, middle)
			}
			testkit.Change(t, w.Dir(), statement, args...)
		}
		change(c.breaks)
		out := apptest.Must(t, o.CheckDatabase, &pb.CheckDatabaseRequest{})
		if !strings.Contains(strings.Join(out.Problems, "\n"), c.says) {
			t.Errorf("%s: found %q", c.breaks, out.Problems)
		}
		change(c.mends)
	}
}
