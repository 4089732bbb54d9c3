package store_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jonboulle/clockwork"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

const messageTables = `
CREATE TABLE messages (
	revision   INTEGER PRIMARY KEY,
	id         BLOB NOT NULL,
	session    INTEGER NOT NULL,
	sender     TEXT NOT NULL,
	type       TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	content    BLOB NOT NULL
);
CREATE UNIQUE INDEX messages_id ON messages (id);
CREATE TABLE deliveries (
	message    INTEGER NOT NULL,
	mailbox    INTEGER NOT NULL,
	state      INTEGER NOT NULL,
	rank       INTEGER NOT NULL,
	holder     INTEGER,
	claims     INTEGER NOT NULL DEFAULT 0,
	claimed_at INTEGER,
	acked_at   INTEGER,
	PRIMARY KEY (message, mailbox)
) WITHOUT ROWID;
CREATE INDEX deliveries_ready ON deliveries (mailbox, rank, message) WHERE state = 1;
CREATE TABLE events (
	revision   INTEGER PRIMARY KEY,
	session    INTEGER NOT NULL,
	type       INTEGER NOT NULL,
	source     TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	subject    INTEGER NOT NULL
);
`

const (
	insertMessage = `
		INSERT INTO messages (revision, id, session, sender, type, created_at, content)
		VALUES (?, ?, ?, ?, ?, ?, ?)`
	insertDelivery = `
		INSERT INTO deliveries (message, mailbox, state, rank)
		VALUES (?, ?, 1, ?)`
	insertEvent = `
		INSERT INTO events (revision, session, type, source, created_at, subject)
		VALUES (?, ?, ?, ?, ?, ?)`
	selectReady = `
		SELECT d.message, d.claims, m.id, m.sender, m.type, m.created_at, m.content
		FROM deliveries d JOIN messages m ON m.revision = d.message
		WHERE d.mailbox = ? AND d.state = 1
		ORDER BY d.rank, d.message
		LIMIT ?`
	updateClaim = `
		UPDATE deliveries SET state = 2, holder = ?, claims = claims + 1, claimed_at = ?
		WHERE message = ? AND mailbox = ?`
	updateAck = `
		UPDATE deliveries SET state = 3, acked_at = ?, holder = NULL
		WHERE message = ? AND mailbox = ? AND state = 2`
)

const payload = 1024

// send inserts n messages to one mailbox.
func send(tx *store.Tx, mailbox int64, n int, content []byte) {
	now := tx.Now().UnixNano()
	for range n {
		revision := tx.NextRevision()
		id := uuid.Must(uuid.NewV7())
		tx.Exec(insertMessage, revision, id[:], int64(1), "coder-1", "task.assign", now, content)
		tx.Exec(insertDelivery, revision, mailbox, now)
		tx.Exec(insertEvent, revision, int64(1), int64(7), "coder-1", now, revision)
	}
}

// claim hands out up to n messages of a mailbox and returns their revisions.
func claim(tx *store.Tx, mailbox int64, n int, claimed []int64) ([]int64, error) {
	rows := tx.Query(selectReady, mailbox, int64(n))
	defer rows.Close()
	for rows.Next() {
		var (
			revision, claims, created int64
			id, content               []byte
			sender, kind              string
		)
		if err := rows.Scan(&revision, &claims, &id, &sender, &kind, &created, &content); err != nil {
			return nil, err
		}
		claimed = append(claimed, revision)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	now := tx.Now().UnixNano()
	for _, revision := range claimed {
		tx.Exec(updateClaim, int64(42), now, revision, mailbox)
	}
	return claimed, nil
}

func ack(tx *store.Tx, mailbox int64, revisions []int64) {
	now := tx.Now().UnixNano()
	for _, revision := range revisions {
		tx.Exec(updateAck, now, revision, mailbox)
	}
}

// BenchmarkMessageLifecycle is the ceiling of the engine: everything that SQL does in the life of a
// message of 1 KiB (insert message, delivery and event, claim, ack), in one goroutine, every commit
// synced. It reports messages a second.
func BenchmarkMessageLifecycle(b *testing.B) {
	for _, size := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			s := open(b, withClock(clockwork.NewRealClock()), withMigrations(store.Migration{Name: "bench/001", SQL: messageTables}))
			content := make([]byte, payload)
			_, _ = rand.Read(content)
			ctx := context.Background()
			claimed := make([]int64, 0, size)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += size {
				n := min(size, b.N-done)
				steps := []func(*store.Tx) error{
					func(tx *store.Tx) error {
						send(tx, 1, n, content)
						return nil
					},
					func(tx *store.Tx) (err error) { claimed, err = claim(tx, 1, n, claimed[:0]); return err },
					func(tx *store.Tx) error {
						ack(tx, 1, claimed)
						return nil
					},
				}
				for _, step := range steps {
					testkit.NoError(b, s.Write(ctx, step))
				}
				if len(claimed) != n {
					b.Fatalf("claimed %d of %d", len(claimed), n)
				}
			}
			b.StopTimer()
			report(b, s)
		})
	}
}

func report(b *testing.B, s *store.Store) {
	st := s.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	b.ReportMetric(float64(st.CommitTime.Microseconds())/float64(max(1, st.Commits)), "µs/commit")
	b.ReportMetric(float64(st.SlowestCommit.Microseconds())/1000, "ms-slowest-commit")
	b.ReportMetric(float64(st.SlowestCheckpoint.Microseconds())/1000, "ms-slowest-checkpoint")
}

// BenchmarkWrite is the price of one durable change, with 1 and with 64 callers who each wait for the
// confirmation of one message before they send the next.
func BenchmarkWrite(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := open(b, withClock(clockwork.NewRealClock()), withMigrations(store.Migration{Name: "bench/001", SQL: messageTables}))
			content := make([]byte, payload)
			b.ReportAllocs()
			b.ResetTimer()
			var all sync.WaitGroup
			for c := range callers {
				ctx := store.WithCaller(context.Background(), c)
				all.Go(func() {
					for range b.N / callers {
						err := s.Write(ctx, func(tx *store.Tx) error {
							send(tx, int64(c), 1, content)
							return nil
						})
						if err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			report(b, s)
		})
	}
}

// BenchmarkRead is the price of one snapshot with one query.
func BenchmarkRead(b *testing.B) {
	s := open(b)
	testkit.NoError(b, s.Write(context.Background(), add("one")))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		err := s.Read(context.Background(), func(snap *store.Snapshot) error {
			_, err := namesIn(snap)
			return err
		})
		testkit.NoError(b, err)
	}
}
