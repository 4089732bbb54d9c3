package archive_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/archive"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/messagesrpc"
	"brokerd/internal/schema"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

const insertMessage = `
	INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, content)
	VALUES (?, ?, 1, 'a', '', ?, 't', 5, x'')`

func migrations() []store.Migration { return slices.Concat(events.Migrations(), schema.Migrations()) }

// A message that has changed since it was read stays, with all that were to be removed with it.
func TestRemove_RefusesWhatHasChanged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		stays  bool
	}{
		"nothing":               {`UPDATE messages SET type = type`, false},
		"another message":       {`UPDATE deliveries SET state = 1, finished_at = NULL WHERE message = 40`, false},
		"redriven":              {`UPDATE deliveries SET state = 1, finished_at = NULL WHERE message = 20`, true},
		"redriven and finished": {`UPDATE deliveries SET claims = claims + 1 WHERE message = 20`, true},
		"finished later":        {`UPDATE deliveries SET finished_at = finished_at + 1 WHERE message = 20`, true},
		"acknowledged late":     {`UPDATE deliveries SET state = 5 WHERE message = 30`, true},
		"read":                  {`UPDATE deliveries SET read_at = 7 WHERE message = 20`, true},
		"another delivery":      {`INSERT INTO deliveries (message, mailbox, state, rank, max_attempts) VALUES (20, 9, 5, 0, 3)`, true},
		"a delivery gone":       {`DELETE FROM deliveries WHERE message = 20`, true},
		"a message gone":        {`DELETE FROM messages WHERE revision = 15`, true},
		"a response awaited":    {`INSERT INTO questions (message, session, sender, thread, deadline) VALUES (20, 1, 'a', 't', 9)`, true},
	} {
		t.Run(name, func(t *testing.T) {
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Clock: clockwork.NewRealClock(), Migrations: migrations()})
			must(err)
			defer func() { must(st.Close()) }()
			must(st.Write(t.Context(), func(tx *store.Tx) error {
				for _, revision := range []int64{10, 15, 20, 30, 40} {
					tx.Exec(insertMessage, revision, make([]byte, 16), time.Unix(1, 0))
				}
				tx.Exec(`INSERT INTO mailboxes (id, session, kind, name) VALUES (1, 1, 1, 'a'), (2, 1, 1, 'b')`)
				tx.Exec(`INSERT INTO deliveries (message, mailbox, state, rank, max_attempts, claims, finished_at)
					VALUES (10, 1, 5, 0, 3, 1, 5000000000), (20, 1, 5, 0, 3, 1, 5000000000), (20, 2, 5, 0, 3, 2, 6000000000), (30, 1, 6, 0, 3, 3, 7000000000)`)
				return nil
			}))
			m := archive.New(nil, nil, events.New(st, clockwork.NewRealClock(), zap.NewNop()), messagesrpc.AppendRecord)
			var found []work.Standing
			must(st.Read(t.Context(), func(s *store.Snapshot) error {
				all, err := m.Standings(s, 0, 0, 4, false)
				if err != nil {
					return err
				}
				return m.Records(s, all, func(s *work.Standing, _ []byte) bool {
					if s.Follows {
						found[len(found)-1].Join(s)
					} else {
						found = append(found, *s)
					}
					return true
				})
			}))
			must(st.Write(t.Context(), func(tx *store.Tx) error {
				tx.Exec(c.change)
				return nil
			}))
			err = st.Write(t.Context(), func(tx *store.Tx) error { return m.Remove(tx, found) })
			if got := fault.KindOf(err) == fault.Conflict; got != c.stays {
				t.Fatalf("got %v", err)
			}
			left := 0
			must(st.Read(t.Context(), func(s *store.Snapshot) error {
				return s.QueryRow(`SELECT COUNT(*) FROM messages WHERE revision <= 30`).Scan(&left)
			}))
			if (left == 0) == c.stays {
				t.Errorf("%d messages are left", left)
			}
		})
	}
}

// Messages are looked at together only where no look at each of them would say anything else.
func TestStandings_TogetherOnlyWhatIsAlike(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		want   int
	}{
		"alike":              {`UPDATE messages SET type = type`, 1},
		"one channel":        {`UPDATE messages SET channel = 'c'`, 1},
		"another channel":    {`UPDATE messages SET channel = 'c' WHERE revision = 20`, 3},
		"two channels":       {`UPDATE messages SET channel = revision`, 3},
		"another session":    {`UPDATE messages SET session = 2 WHERE revision = 30`, 3},
		"one is unfinished":  {`UPDATE deliveries SET state = 2, finished_at = NULL WHERE message = 20`, 3},
		"one is dead":        {`UPDATE deliveries SET state = 6 WHERE message = 20`, 3},
		"one has nobody":     {`DELETE FROM deliveries WHERE message = 30`, 1},
		"a response awaited": {`INSERT INTO questions (message, session, sender, thread, deadline) VALUES (20, 1, 'a', 't', 9)`, 3},
		"a response came":    {`INSERT INTO questions (message, session, sender, thread, deadline, settled) VALUES (20, 1, 'a', 't', 9, 10)`, 1},
		"none is left":       {`DELETE FROM messages`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Clock: clockwork.NewRealClock(), Migrations: migrations()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = st.Close() }()
			err = st.Write(t.Context(), func(tx *store.Tx) error {
				for _, revision := range []int64{10, 20, 30} {
					tx.Exec(insertMessage, revision, make([]byte, 16), time.Unix(revision, 0))
					tx.Exec(`INSERT INTO deliveries (message, mailbox, state, rank, max_attempts, finished_at)
						VALUES (?1, 1, 5, 0, 3, ?1 * 2000000000)`, revision)
				}
				tx.Exec(c.change)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			m := archive.New(nil, nil, events.New(st, clockwork.NewRealClock(), zap.NewNop()), messagesrpc.AppendRecord)
			var found, each []work.Standing
			err = st.Read(t.Context(), func(s *store.Snapshot) (err error) {
				if found, err = m.Standings(s, 0, 0, 10, false); err != nil {
					return err
				}
				each, err = m.Standings(s, 0, 0, 10, true)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(found) != c.want {
				t.Fatalf("got %+v", found)
			}
			if c.want != 1 {
				return
			}
			want := each[0]
			for _, s := range each[1:] {
				want.Join(&s)
				want.CreatedAt = s.CreatedAt
				if s.FinishedAt.After(want.FinishedAt) {
					want.FinishedAt = s.FinishedAt
				}
			}
			if found[0] != want {
				t.Errorf("got %+v, want %+v", found[0], want)
			}
		})
	}
}
