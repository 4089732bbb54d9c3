package broker

import (
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/store"
)

// A message that has changed since it was read stays, with all that were to be removed with it.
func TestRemove_RefusesWhatHasChanged(t *testing.T) {
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
			st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Clock: clockwork.NewRealClock(), Migrations: Migrations()})
			must(err)
			defer func() { must(st.Close()) }()
			must(st.Write(t.Context(), func(tx *store.Tx) error {
				for _, revision := range []int64{10, 15, 20, 30, 40} {
					if _, err := tx.Exec(insertMessage, revision, []byte{}, 1, "a", "", time.Unix(1, 0), nil, "t", 5, nil, nil, nil, nil, nil, nil, []byte{}); err != nil {
						return err
					}
				}
				_, err := tx.Exec(`INSERT INTO deliveries (message, mailbox, state, rank, max_attempts, claims, finished_at)
					VALUES (10, 1, 5, 0, 3, 1, 5000000000), (20, 1, 5, 0, 3, 1, 5000000000), (20, 2, 5, 0, 3, 2, 6000000000), (30, 1, 6, 0, 3, 3, 7000000000)`)
				return err
			}))
			b := &Broker{}
			var found []Standing
			must(st.Read(t.Context(), func(s *store.Snapshot) (err error) {
				found, err = b.Standings(s, 0, 0, 4)
				return err
			}))
			must(st.Write(t.Context(), func(tx *store.Tx) error {
				_, err := tx.Exec(c.change)
				return err
			}))
			err = st.Write(t.Context(), func(tx *store.Tx) error { return b.Remove(tx, found) })
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
