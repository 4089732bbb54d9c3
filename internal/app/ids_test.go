package app_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// SQLite reuses the largest row id of a table after its row was removed, unless the table has
// AUTOINCREMENT. This is safe only where the broker chooses the id, or where nothing refers to it.
func TestTables_RowIdsThatOthersReferToAreNeverReused(t *testing.T) {
	t.Parallel()
	safe := map[string]string{
		"meta":              "has one row",
		"sessions":          "takes its ids from the counter",
		"events":            "takes its ids from the counter",
		"items":             "takes its ids from the counter",
		"messages":          "takes its ids from the counter",
		"questions":         "has the revision of its message",
		"leftovers":         "has the revision of a message",
		"agent_checkpoints": "takes its ids from the counter",
		"state_keys":        "takes its ids from the counter",
		"state_versions":    "takes its ids from the counter",
		"lock_grants":       "takes its ids from the counter",
		"lock_tickets":      "takes its ids from the counter",
		"tasks":             "takes its ids from the counter",
		"task_texts":        "has the id of its task",
		"task_queues":       "takes its ids from the counter",
		"task_attempts":     "takes its ids from the counter",
		"floors":            "has the id of its session",
		"state_floors":      "has the id of its session",
		"deletions":         "has the id of its session",
		"channels":          "has the id of its mailbox",
		"halts":             "has the id of its mailbox",
		"breakers":          "has the id of its mailbox",
		"departures":        "has the id of its mailbox",
		"reranks":           "has the id of its session",
		"artifact_versions": "takes its ids from the counter",
		"artifact_usage":    "has the id of its session",
		"credentials":       "takes its ids from the counter",
		"restores":          "has the counter's value as its id",
		"drains":            "has one row",
		"requests":          "nothing refers to its ids",
		"agent_losses":      "nothing refers to its ids",
		"work_backlog":      "takes its ids from the counter",
		"agent_floors":      "has the id of its session",
		"lock_closings":     "has the id of its session",
	}
	dir := folder(t)
	a := run(t, app.Config{Dir: dir})
	apptest.NoError(t, a.Stop(patient(t)))
	db, err := sql.Open("sqlite3", filepath.Join(dir, "brokerd.db"))
	apptest.NoError(t, err)
	defer func() { _ = db.Close() }() // it was only read
	rows, err := db.QueryContext(t.Context(), `SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
	apptest.NoError(t, err)
	defer func() { _ = rows.Close() }() // as above
	for rows.Next() {
		var name, text string
		apptest.NoError(t, rows.Scan(&name, &text))
		if !strings.Contains(text, "WITHOUT ROWID") && !strings.Contains(text, "AUTOINCREMENT") && safe[name] == "" {
			t.Errorf("table %s may reuse its row ids: use AUTOINCREMENT, or the store's counter", name)
		}
	}
	apptest.NoError(t, rows.Err())
}
