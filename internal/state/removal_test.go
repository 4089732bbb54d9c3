package state_test

import (
	"testing"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/apptest"
	"brokerd/internal/state"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// A crash may end the deletion of a session after each page.
func TestErase_LeavesEachKeySoundAfterEachPage(t *testing.T) {
	t.Parallel()
	st := testkit.Store(t, t.TempDir(), clockwork.NewFakeClock(), state.Migrations())
	write := func(fn func(tx *store.Tx) error) {
		t.Helper()
		apptest.NoError(t, st.Write(t.Context(), fn))
	}
	write(func(tx *store.Tx) error {
		for _, statement := range []string{
			// The document d had an entry, was deleted, and has 30 others; k has 10 versions
			// between these.
			`INSERT INTO state_keys (id, scope, namespace, key, type, version, revision, current,
				first, created_at, deleted, entries, bytes)
			VALUES (1, 7, '', 'd', 5, 32, 62, 62, 4, 1, 0, 30, 30 * 65), (3, 7, '', 'k', 1, 10, 63, 63, 3, 1, 0, 0, 0)`,
			`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 32)
			INSERT INTO state_versions (id, scope, key, version, revision, type, size, author,
				changed_at, created_at, deleted, number)
			SELECT CASE i WHEN 1 THEN 1 WHEN 2 THEN 2 ELSE 2 * i - 2 END, 7, 1, i,
				CASE i WHEN 1 THEN 1 WHEN 2 THEN 2 ELSE 2 * i - 2 END, 5, 1, 'a', 1, 1,
				CASE i WHEN 2 THEN 1 ELSE 0 END, CASE WHEN i < 3 THEN 1 ELSE i - 2 END FROM n`,
			`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10)
			INSERT INTO state_versions (id, scope, key, version, revision, type, size, author,
				changed_at, created_at, deleted, number)
			SELECT CASE i WHEN 10 THEN 63 ELSE 2 * i + 1 END, 7, 3, i,
				CASE i WHEN 10 THEN 63 ELSE 2 * i + 1 END, 1, 1, 'a', 1, 1, 0, 0
			FROM n`,
		} {
			tx.Exec(statement)
		}
		return nil
	})
	var keys state.Keys
	pages := 0
	for more := true; more; pages++ {
		apptest.NoError(t, st.Read(t.Context(), func(snap *store.Snapshot) error {
			for _, check := range state.Checks(10) {
				problems, err := check(snap)
				if err != nil {
					return err
				}
				for _, problem := range problems {
					t.Errorf("after %d pages: %s", pages, problem)
				}
			}
			return nil
		}))
		write(func(tx *store.Tx) (err error) {
			more, err = keys.Erase(tx, 7, 5)
			return err
		})
	}
	if pages < 8 {
		t.Errorf("42 versions went in %d pages of 5", pages)
	}
	apptest.NoError(t, st.Read(t.Context(), func(snap *store.Snapshot) error {
		var left int
		err := snap.QueryRow(`SELECT (SELECT count(*) FROM state_keys) + (SELECT count(*) FROM state_versions)`).Scan(&left)
		if left != 0 {
			t.Errorf("%d rows are left", left)
		}
		return err
	}))
}
