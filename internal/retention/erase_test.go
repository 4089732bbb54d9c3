package retention_test

import (
	"fmt"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// TestDelete_RemovesASessionOfAnySizeInPages has more rows of each kind than one function of the
// writer may change. apptest fails the test if a function does more.
func TestDelete_RemovesASessionOfAnySizeInPages(t *testing.T) {
	t.Parallel()
	const many = store.MaxChanged + 2000
	w := newWorld(t).project(nil)
	keys := w.Actor("project", "lead")
	value := &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}
	apptest.Must(t, keys.PutState, &pb.PutStateRequest{Key: "k", Value: value})
	apptest.Must(t, keys.PutState, &pb.PutStateRequest{Namespace: "global", Key: "k", Value: value})
	apptest.Must(t, keys.AppendState, &pb.AppendStateRequest{Key: "d", Text: "entry"})
	w.die(&pb.Message{})
	apptest.Must(t, w.Root().CloseSession, &pb.CloseSessionRequest{Name: "project"})
	session := testkit.Number(t, w.Dir(), `SELECT id FROM sessions WHERE name = 'project'`)
	numbers := fmt.Sprintf(`
		WITH RECURSIVE n(i) AS (SELECT 1000001 UNION ALL SELECT i + 1 FROM n WHERE i < %d) `, 1000000+many)
	w.Restart(func() {
		for _, statement := range manyRows {
			statement = numbers + strings.ReplaceAll(statement, "SESSION", fmt.Sprint(session))
			testkit.Change(t, w.Dir(), statement)
		}
	})
	if n := testkit.Number(t, w.Dir(), `SELECT count(*) FROM deliveries`); n < 9000 {
		t.Fatalf("the message has %d copies", n)
	}
	apptest.Must(t, w.Root().DeleteSession, &pb.DeleteSessionRequest{Name: "project"})
	for _, rows := range []string{
		"threads WHERE session = SESSION", "producers WHERE session = SESSION",
		"mailboxes WHERE session = SESSION", "channels", "subscriptions", "halts", "breakers",
		"messages", "deliveries", "attempts", "state_keys WHERE scope = SESSION",
		"state_versions WHERE scope = SESSION", "state_keys WHERE owner IS NOT NULL",
		"artifacts", "artifact_usage", "task_queues", "cursors WHERE session = SESSION",
		"lock_tokens", "lock_firsts", "message_types", "items", "item_parts",
		"agents WHERE session = SESSION", "agent_losses", "credentials WHERE state = 1",
		"sessions WHERE id = SESSION", "deletions",
	} {
		rows = strings.ReplaceAll(rows, "SESSION", fmt.Sprint(session))
		if n := testkit.Number(t, w.Dir(), `SELECT count(*) FROM `+rows); n != 0 {
			t.Errorf("%d rows are left of %s", n, rows)
		}
	}
}

// manyRows fill a session with a row for each i of n, which follow what the calls of the test have
// made.
var manyRows = []string{
	`UPDATE meta SET revision = 2000000`,
	`INSERT INTO threads (session, thread, outcome, resolved_by, resolved_at)
		SELECT SESSION, 't' || i, '', 'lead', 1 FROM n`,
	`INSERT INTO producers (id, session, sender, name, number, last, used_at)
		SELECT i, SESSION, 'lead', 'p' || i, 1, 1, 1 FROM n`,
	`INSERT INTO mailboxes (id, session, kind, name) SELECT i, SESSION, 3, 'c' || i FROM n`,
	`INSERT INTO channels (mailbox) SELECT i FROM n`,
	`INSERT INTO subscriptions (channel, agent) SELECT 1000001, i FROM n`,
	`INSERT INTO halts (agent, message, halted_at) SELECT i, 1, 1 FROM n`,
	`INSERT INTO breakers (agent, failures) SELECT i, 1 FROM n`,
	`INSERT INTO deliveries (message, mailbox, state, rank, max_attempts, attempts, finished_at)
		SELECT message, i, state, rank, max_attempts, attempts, finished_at FROM deliveries, n
		WHERE mailbox < 1000000 AND i < 1009500`,
	`INSERT INTO attempts (message, mailbox, claim, number, holder, consumer, claimed_at,
			ended_at, error)
		SELECT message, i, 1, 1, holder, consumer, claimed_at, ended_at, error FROM attempts, n
		WHERE mailbox < 1000000`,
	`INSERT INTO state_versions
			(id, scope, key, version, revision, type, size, author, changed_at, created_at, owner,
				deleted, number, value)
		SELECT i, SESSION, i, 1, i, 1, 1, 'lead', 1, 1, 'lead', 0, 0, '"v"' FROM n`,
	`INSERT INTO state_keys (id, scope, namespace, key, type, version, revision, current, first,
			created_at, owner, owner_session, deleted, entries, bytes)
		SELECT i, SESSION, 'x', 'k' || i, 1, 1, i, i, i, 1, 'lead', SESSION, 0, 0, 0 FROM n`,
	`INSERT INTO state_versions
			(id, scope, key, version, revision, type, size, author, changed_at, created_at, owner,
				deleted, number, value)
		SELECT i + 100000, 0, i + 100000, 1, i + 100000, 1, 1, 'lead', 1, 1, 'lead', 0, 0, '"v"'
			FROM n`,
	`INSERT INTO state_keys (id, scope, namespace, key, type, version, revision, current, first,
			created_at, owner, owner_session, deleted, entries, bytes)
		SELECT i + 100000, 0, 'global', 'k' || i, 1, 1, i + 100000, i + 100000, i + 100000, 1,
			'lead', SESSION, 0, 0, 0 FROM n`,
	`INSERT INTO state_versions
			(id, scope, key, version, revision, type, size, author, changed_at, created_at,
				deleted, number, value)
		SELECT i + 200000, SESSION, k.id, i - 999999, i + 200000, 5, 1, 'lead', 1, 1, 0, i - 999999, 'e'
		FROM state_keys k, n WHERE k.scope = SESSION AND k.key = 'd'`,
	`UPDATE state_keys SET (version, revision, current, entries, bytes) = (
			SELECT max(version), max(revision), max(id), count(*), sum(size + 64)
			FROM state_versions v WHERE v.key = state_keys.id)
		WHERE scope = SESSION AND key = 'd'`,
	`INSERT INTO artifacts (session, name, last, deleted_at) SELECT SESSION, 'a' || i, 1, 1 FROM n`,
	`INSERT INTO artifact_usage (session, names, versions, bytes)
		SELECT SESSION, count(*), 0, 0 FROM n`,
	`INSERT INTO task_queues (id, session, assignee, role, capabilities)
		SELECT i, SESSION, 'a' || i, '', '[]' FROM n`,
	`INSERT INTO cursors (session, owner, kind, name, revision)
		SELECT SESSION, 'system', 'events', 'c' || i, 1 FROM n`,
	`INSERT INTO lock_tokens (session, token, longest) SELECT SESSION, 't/' || i, 1 FROM n`,
	`INSERT INTO lock_firsts (session, token, agent, revision, passed_by, note)
		SELECT SESSION, 't/' || i, 'lead', 1, '', '' FROM n`,
	`INSERT INTO items (id, session, kind, state, opener, revision, item) SELECT i, SESSION, 2, 2, 'lead', i, x'' FROM n
		WHERE i < 1000500`,
	`INSERT INTO item_parts (item, part, revision, body)
		SELECT i, 'timeline-' || b.id, 1, x'' FROM n, (SELECT id FROM items LIMIT 50) AS b WHERE i < 1000500`,
	`INSERT INTO agent_losses (agent, kind, name, revision, lost_at) SELECT a.id, 1, 'x', 1, 1
		FROM agents a, n WHERE a.session = SESSION AND i <= 1001000`,
	`INSERT INTO credentials (id, revision, secret_sha256, access, session_id, session, agent,
			role, description, issued_at,
			state, end_reason, last_used_from)
		SELECT i, i, CAST('0000000000000000000000000' || i AS BLOB), 2, SESSION, 'project', 'lead', '', '', 1,
			1, '', '' FROM n`,
}
