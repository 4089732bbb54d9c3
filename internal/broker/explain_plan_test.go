package broker

import (
	"regexp"
	"testing"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/store"
)

// However many messages wait, an Explain without a subject and a look into a mailbox go by an index to the rows that they need. Only
// claims, of which there are as many as agents work on, are scanned.
func TestExplain_GoesByIndexAlone(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Sync: store.SyncNormal, Clock: clockwork.NewRealClock(), Migrations: Migrations()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}()
	argument := regexp.MustCompile(`\?\d*`)
	scan := regexp.MustCompile(`^SCAN (d|deliveries|m|messages|q|questions|a|attempts)\b`)
	for name, query := range map[string]string{
		"stuck deliveries": selectStuckDeliveries, "last attempt": selectLastAttempt, "ahead": countAhead, "ordered before": selectOrderedBefore,
		"first in line": selectFirstInLine, "holder's claims": selectHoldersClaims, "count of holder's claims": countHoldersClaims, "question": selectQuestionOf,
		"fullest": selectFullest, "orderings": selectOrderings, "long claims": selectLongClaims,
		"dead boxes": selectDeadBoxes, "first dead": selectFirstDead, "last dead": selectLastDead, "late": selectLate, "late, asked": selectLateAsked,
		"late, owed": selectLateOwed, "gates": selectGatesOf,
		"look by arrival": selectLookByArrival, "look newest": selectLookNewest, "look by rank": selectLookByRank,
	} {
		err := st.Read(t.Context(), func(s *store.Snapshot) error {
			rows := s.Query(`EXPLAIN QUERY PLAN ` + argument.ReplaceAllString(query, "1"))
			for rows.Next() {
				var id, parent, unused int
				var step string
				if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
					return err
				}
				if scan.MatchString(step) && step != "SCAN d USING INDEX deliveries_claimed" {
					t.Errorf("%s: %s", name, step)
				}
			}
			return rows.Err()
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
