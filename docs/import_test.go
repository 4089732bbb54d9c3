package docs_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"brokerd/internal/processtest"
)

// A reader runs the commands of the page.
func TestImport_MovesTheTeamOfThePage(t *testing.T) {
	t.Parallel()
	dir, env := t.TempDir(), processtest.Environment(t)
	file := filepath.Join(dir, ".claude", "communications", "messages.db")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite3", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `
		CREATE TABLE messages (id, type, version, timestamp, correlation_id, from_agent, to_agent, channel, priority,
			payload, status, expires_at);
		CREATE TABLE dead_letter_queue (id, original_message, error, moved_at, retry_count);
		INSERT INTO messages VALUES
			('1', 'context.query', '1.0', '2025-11-08T15:30:00Z', 'req-001', 'frontend-dev-01', 'context-manager', 'general', 5,
			 '{"query": "Which components?"}', 'pending', NULL),
			('2', 'context.query', '1.0', '2025-11-08T15:00:00Z', 'req-000', 'frontend-dev-01', 'context-manager', 'general', 5,
			 '{"query": "Which colours?"}', 'done', NULL);
		INSERT INTO dead_letter_queue VALUES ('3', '{"id": "3", "type": "task.update", "version": "1.0",
			"timestamp": "2025-11-08T14:00:00Z", "from_agent": "frontend-dev-01", "to_agent": "context-manager",
			"channel": "general", "priority": 5, "payload": {}}',
			'no such task', '2025-11-08T14:30:00Z', 3)`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	startBroker(t, dir, env)
	shell := openTerminal(t, dir, env)
	shell.run(`export PATH="$PWD/bin:$PATH"`)
	var printed strings.Builder
	for _, command := range commandsOf(t, "import.md") {
		printed.WriteString(shell.run(command))
	}
	for _, want := range []string{"would import", "Which components?", "no such task", "Which colours?"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in\n%s", want, printed.String())
		}
	}
}
