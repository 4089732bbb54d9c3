package importer_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"
	"go.uber.org/goleak"

	"brokerd/client"
	"brokerd/cmd/brokerd/importer"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// schema is that of the system that is imported from.
const schema = `
CREATE TABLE messages (
    id TEXT PRIMARY KEY, type TEXT NOT NULL, version TEXT NOT NULL, timestamp TEXT NOT NULL, correlation_id TEXT,
    from_agent TEXT NOT NULL, to_agent TEXT, channel TEXT NOT NULL, priority INTEGER NOT NULL DEFAULT 5,
    payload TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'pending', created_at TEXT NOT NULL, expires_at TEXT,
    delivery_count INTEGER DEFAULT 0, last_delivered_at TEXT, error TEXT
);
CREATE TABLE channel_subscriptions (
    channel_name TEXT NOT NULL, agent_id TEXT NOT NULL, subscribed_at TEXT NOT NULL,
    PRIMARY KEY (channel_name, agent_id)
);
CREATE TABLE agent_status (
    agent_id TEXT PRIMARY KEY, status TEXT NOT NULL, current_task TEXT, last_heartbeat TEXT NOT NULL,
    messages_pending INTEGER DEFAULT 0, messages_processed INTEGER DEFAULT 0, error_count INTEGER DEFAULT 0
);
CREATE TABLE dead_letter_queue (
    id TEXT PRIMARY KEY, original_message TEXT NOT NULL, error TEXT NOT NULL, moved_at TEXT NOT NULL,
    retry_count INTEGER NOT NULL
);`

// A team is a database file, and a broker to import it into.
type team struct {
	t      *testing.T
	file   string
	db     *sql.DB
	broker *apptest.Broker
	client *client.Client
}

// newTeam makes an empty database, in WAL mode as its agents have it open.
func newTeam(t *testing.T, options ...apptest.Option) *team {
	t.Helper()
	d := &team{t: t, file: filepath.Join(t.TempDir(), "messages.db"), broker: apptest.Start(t, options...)}
	d.db = open(t, d.file, "WAL")
	d.exec(schema)
	var err error
	if d.client, err = client.Dial(t.Context(), client.WithAddress(d.broker.Socket())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.client.Close)
	return d
}

// open opens a database as an agent does, until the end of the test.
func open(t *testing.T, file, journal string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+file+"?_journal_mode="+journal+
		"&_synchronous=NORMAL&_busy_timeout=5000&_cache_size=-64000")
	apptest.NoError(t, err)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func (d *team) exec(statement string, args ...any) {
	d.t.Helper()
	apptest.NoError(d.t, apptest.Err(d.db.ExecContext(d.t.Context(), statement, args...)))
}

// A columns changes columns of a message.
type columns map[string]any

// message adds a message of an id. Without changes it is pending, from a to b.
func (d *team) message(id string, changes columns) {
	d.t.Helper()
	row := columns{
		"id": id, "type": "context.query", "version": "1.0", "timestamp": "2025-11-08T15:30:00Z",
		"correlation_id": "req-" + id, "from_agent": "a", "to_agent": "b", "channel": "work", "priority": 5,
		"payload": `{"query": "` + id + `"}`,
		"status":  "pending", "created_at": "2025-11-08T15:30:00Z",
	}
	for c, v := range changes {
		row[c] = v
	}
	var names []string
	var values []any
	for c, v := range row {
		names, values = append(names, c), append(values, v)
	}
	places := "?" + strings.Repeat(", ?", len(names)-1)
	d.exec("INSERT INTO messages ("+strings.Join(names, ", ")+") VALUES ("+places+")", values...)
}

// dead adds a dead letter from a.
func (d *team) dead(id string, to any) {
	d.t.Helper()
	original, err := json.Marshal(columns{
		"id": id, "type": "task.update", "version": "1.0", "timestamp": "2025-11-08T15:00:00Z", "from_agent": "a",
		"to_agent": to, "channel": "work", "priority": 8, "payload": columns{"n": 1}, "correlation_id": nil,
	})
	apptest.NoError(d.t, err)
	d.exec("INSERT INTO dead_letter_queue VALUES (?, ?, ?, '2025-11-08T15:30:00Z', 3)",
		id, string(original), "error of "+id)
}

// run imports the file.
func (d *team) run(change ...func(*importer.Options)) (*importer.Report, error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), apptest.Patience)
	defer cancel()
	o := importer.Options{File: d.file, Log: func(string) {}, Connect: func(ctx context.Context) (*client.Client, error) {
		return client.Dial(ctx, client.WithAddress(d.broker.Socket()))
	}}
	for _, f := range change {
		f(&o)
	}
	return importer.Run(ctx, o)
}

// imports imports the file and returns the report.
func (d *team) imports(change ...func(*importer.Options)) *importer.Report {
	d.t.Helper()
	report, err := d.run(change...)
	apptest.NoError(d.t, err)
	return report
}

// counts returns the counts of a report, without the kinds of which nothing was read.
func counts(r *importer.Report) map[string]importer.Count {
	all := map[string]importer.Count{}
	for _, c := range r.Kinds {
		if c.Read > 0 {
			all[c.Kind] = *c
		}
	}
	return all
}

// count is a count for comparisons.
func count(kind string, read int, change func(*importer.Count)) importer.Count {
	c := importer.Count{Kind: kind, Read: read}
	if change(&c); c.Kind != kind {
		panic("the kind has changed")
	}
	return c
}

// sent returns all messages of the session in the order in which they were sent.
func (d *team) sent() []*pb.Message {
	d.t.Helper()
	var all []*pb.Message
	for token := ""; ; {
		page, err := d.client.Messages().ListMessages(d.t.Context(),
			&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1000, PageToken: token})
		apptest.NoError(d.t, err)
		for _, item := range page.GetItems() {
			all = append(all, item.GetMessage())
		}
		if token = page.GetNextPageToken(); token == "" {
			return all
		}
	}
}

// ids returns the original ids of messages.
func ids(messages []*pb.Message) []string {
	var all []string
	for _, m := range messages {
		all = append(all, m.GetLabels()["original_id"])
	}
	return all
}

// lines downloads an artifact with one JSON object per line.
func (d *team) lines(name string) []map[string]any {
	d.t.Helper()
	var content bytes.Buffer
	request := &pb.DownloadArtifactRequest{Name: name}
	if _, err := d.client.DownloadArtifact(d.t.Context(), request, &content, nil); err != nil {
		d.t.Fatalf("%s: %v", name, err)
	}
	var all []map[string]any
	for text := range strings.Lines(content.String()) {
		var object map[string]any
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			d.t.Fatalf("%s: %v", text, err)
		}
		all = append(all, object)
	}
	return all
}

// revision returns the broker's counter, which every change raises.
func (d *team) revision() int64 {
	d.t.Helper()
	out, err := d.client.Sessions().GetSession(d.t.Context(), &pb.GetSessionRequest{})
	apptest.NoError(d.t, err)
	return out.GetRevision()
}

// stamp returns the time of the message with a number.
func stamp(n int) string { return fmt.Sprintf("2025-11-08T%02d:%02d:%02dZ", n/3600, n/60%60, n%60) }
