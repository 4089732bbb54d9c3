package testkit

import (
	"testing"

	"brokerd/internal/store"
)

const insertAgent = `
INSERT INTO agents (session, name, role, incarnation, registered, instance, worktree, lease, display_name, description,
                    status, status_reason, activity, task_id, progress, registered_at, changed_at, last_seen_at, revision)
VALUES (1, ?, ?, 1, 1, '', '', 60000000000, '', '', 0, '', '', '', 0, 0, 0, 0, 0)`

// Agents adds registered agents of a role to the session "default" of a store that has the tables of sessions and
// agents. The daemon's registry is not needed for it.
func Agents(t testing.TB, st *store.Store, role string, names ...string) {
	t.Helper()
	err := st.Write(t.Context(), func(tx *store.Tx) error {
		for _, name := range names {
			tx.Exec(insertAgent, name, role)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
