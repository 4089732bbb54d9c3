package gauges

import (
	"slices"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/schema"
	"brokerd/internal/store"
)

// Whatever waits, Mail looks each mailbox up in an index. It counts the claimed deliveries and the dead letters in
// indexes that have nothing else.
func TestMail_WalkThroughNothingThatWaits(t *testing.T) {
	t.Parallel()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Clock: clockwork.NewRealClock(), Migrations: schema.Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	allowed := []string{
		"SCAN b",
		"SCAN x", "SEARCH x", // the rows of the next two, which end at 1,000
		"SEARCH b USING INTEGER PRIMARY KEY (rowid=?)",
		"SEARCH d USING INDEX deliveries_arrival (mailbox=? AND arrival>?)",
		"SEARCH d USING COVERING INDEX deliveries_ready (mailbox=?)",
		"SCAN d USING COVERING INDEX deliveries_claimed",
		"SCAN deliveries USING COVERING INDEX deliveries_dead",
	}
	err = st.Read(t.Context(), func(s *store.Snapshot) error {
		for query, args := range map[string][]any{selectGauges: nil, countClaimedByKind: nil, countDead: {MostDead}} {
			rows := s.Query("EXPLAIN QUERY PLAN "+query, args...)
			for rows.Next() {
				var id, parent, unused int
				var step string
				if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
					return err
				}
				if (strings.HasPrefix(step, "SCAN") || strings.HasPrefix(step, "SEARCH")) && !strings.Contains(step, "subquery") && !slices.Contains(allowed, step) {
					t.Errorf("%s, in%s", step, query)
				}
			}
			if err := rows.Err(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
