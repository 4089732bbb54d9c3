package crashtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// olderData is what scripts/upgrade-data.sh has packed of an older version, without the events of sent messages in
// their rows.
const olderData = "../app/testdata/upgrade/8583758.tar.gz"

// The data folder of an older version has many messages. It is upgraded while the daemon is killed at random times.
func TestUpgrade_IsKilledAtRandomAndLosesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	d := newDaemon(t, processtest.Build(t))
	want := fillOlder(t, d.Dir())
	began, early := time.Now(), 0
	for range 20 {
		soon, stop := context.WithTimeout(ctx, rand.N(40*time.Millisecond+time.Duration(300*want.messages)))
		if err := d.Start(soon); err != nil {
			early++
		}
		stop()
		d.Kill()
	}
	t.Logf("%d messages, 20 kills, %d of them before the daemon answered: %v", want.messages, early, time.Since(began))
	began = time.Now()
	testkit.NoError(t, d.Start(ctx))
	t.Logf("the last start took %v", time.Since(began))
	wantUpgraded(ctx, t, d, want)
}

// The disk of a data folder is full when it is upgraded. Only root can make a small disk.
func TestUpgrade_OnAFullDiskIsRefusedOrDoneAndLosesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	d := newDaemon(t, processtest.Build(t))
	if err := unix.Mount("none", d.Dir(), "tmpfs", 0, "size=4g,mode=0700"); err != nil {
		t.Skipf("cannot mount a disk: %v", err)
	}
	t.Cleanup(func() {
		d.Kill()
		if err := unix.Unmount(d.Dir(), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	want := fillOlder(t, d.Dir())
	used := usedBytes(t, d.Dir())
	for _, spare := range []int64{0, 16 << 10, 256 << 10} { // bytes of the disk that are left
		testkit.NoError(t, unix.Mount("none", d.Dir(), "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", used+spare)))
		err := d.Start(ctx)
		d.Kill()
		if err != nil && !strings.Contains(err.Error(), "full") && !strings.Contains(err.Error(), "no space left") {
			t.Errorf("the error does not say that the disk is full: %v", err)
		}
		t.Logf("with %d bytes left: %v", spare, err)
	}
	testkit.NoError(t, unix.Mount("none", d.Dir(), "tmpfs", unix.MS_REMOUNT, "size=4g"))
	testkit.NoError(t, d.Start(ctx))
	wantUpgraded(ctx, t, d, want)
}

// A sum is what an upgrade may not change. The events are rows: that of a sent message stays one.
type sum struct {
	messages, revisions, contents int64
	events, waiting               int64
}

// wantUpgraded ends the daemon, and compares its database with the sum. The database must be in order.
func wantUpgraded(ctx context.Context, t *testing.T, d *daemon, want sum) {
	t.Helper()
	if err := d.Terminate(); err != nil {
		t.Error(err)
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
	if got := sumOf(t, d.Dir(), want.messages); got != want {
		t.Errorf("after the upgrade there is %+v, want %+v", got, want)
	}
}

// firstCopy is the first revision of the messages that fillOlder adds.
const firstCopy = 1000

// fillOlder makes the data folder of an older version with UPGRADE_MESSAGES (5,000) messages that wait in one mailbox.
func fillOlder(t *testing.T, dir string) sum {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", olderData, "-C", dir, "--strip-components=1", "data").
		CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	n := fromEnvironment(t, "UPGRADE_MESSAGES", 5000)
	db := openDatabase(t, dir)
	var template int64
	if err := db.QueryRow(`
		SELECT MIN(d.message) FROM deliveries d JOIN messages m ON m.revision = d.message JOIN mailboxes b ON b.id = d.mailbox
		WHERE d.state = 1 AND d.arrival > 0 AND d.ordering_key IS NULL AND b.kind = 1 AND m.expires_at IS NULL`).
		Scan(&template); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`CREATE TABLE copies (revision INTEGER PRIMARY KEY)`,
		fmt.Sprintf(`INSERT INTO copies WITH RECURSIVE r (n) AS (SELECT %d UNION ALL SELECT n + 1 FROM r LIMIT %d) SELECT n FROM r`,
			firstCopy, n),
		`INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, content)
			SELECT c.revision, unhex(substr(hex(m.id), 1, 20) || printf('%012X', c.revision)), m.session, m.sender,
				m.sender_role, m.created_at, m.type, m.priority, m.content
			FROM copies c, messages m WHERE m.revision = TEMPLATE`,
		`INSERT INTO events (revision, session, at, category, severity, type, source, source_role, summary, details)
			SELECT c.revision, e.session, e.at, e.category, e.severity, e.type, e.source, e.source_role, e.summary, e.details
			FROM copies c, events e WHERE e.revision = TEMPLATE`,
		`INSERT INTO deliveries (message, mailbox, state, rank, arrival, max_attempts)
			SELECT c.revision, d.mailbox, 1, d.rank, c.revision, d.max_attempts
			FROM copies c, deliveries d WHERE d.message = TEMPLATE`,
		`UPDATE mailboxes SET waiting = waiting + (SELECT COUNT(*) FROM copies)
			WHERE id IN (SELECT mailbox FROM deliveries WHERE message = TEMPLATE)`,
		`UPDATE meta SET revision = (SELECT MAX(revision) FROM copies)`,
		`DROP TABLE copies`,
	} {
		if _, err := db.Exec(strings.ReplaceAll(statement, "TEMPLATE", strconv.FormatInt(template, 10))); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	testkit.NoError(t, db.Close())
	return sumOf(t, dir, n)
}

// sumOf sums the n messages that fillOlder has added.
func sumOf(t *testing.T, dir string, n int64) (s sum) {
	t.Helper()
	db := openDatabase(t, dir)
	defer func() { _ = db.Close() }()
	err := db.QueryRow(`
		SELECT COUNT(*), SUM(revision), SUM(length(content)), (SELECT COUNT(*) FROM events WHERE revision BETWEEN ?1 AND ?2),
			(SELECT COUNT(*) FROM deliveries WHERE message BETWEEN ?1 AND ?2 AND state = 1)
		FROM messages WHERE revision BETWEEN ?1 AND ?2`, firstCopy, firstCopy+n-1).
		Scan(&s.messages, &s.revisions, &s.contents, &s.events, &s.waiting)
	testkit.NoError(t, err)
	return s
}

// openDatabase opens the database of a data folder on which no daemon runs.
func openDatabase(t *testing.T, dir string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(dir, "brokerd.db"))
	testkit.NoError(t, err)
	return db
}

// usedBytes returns how many bytes of the disk of a folder are used.
func usedBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var disk unix.Statfs_t
	testkit.NoError(t, unix.Statfs(dir, &disk))
	return int64(disk.Blocks-disk.Bfree) * disk.Bsize
}
