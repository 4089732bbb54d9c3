package gauges

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"brokerd/internal/mail"
	"brokerd/internal/store"
)

// MostDead is the highest number of dead letters that Mail counts.
const MostDead = 100_000

// A Kind counts the deliveries in all mailboxes of one kind, in all sessions.
type Kind struct {
	Name    string // agent, role or channel
	Waiting int64
	Claimed int64
	Largest int64     // deliveries that wait in the fullest mailbox
	Oldest  time.Time // when the oldest was sent that a claim could take; zero if there is none
}

// Mail counts the deliveries in the mailboxes of each kind, and the dead letters, up to MostDead.
//
// The time that it takes does not depend on how much waits. It examines 1,000 deliveries of each mailbox: see
// mail.CaseOldestReady.
func Mail(ctx context.Context, st *store.Store) (kinds []Kind, dead int64, err error) {
	err = st.Read(ctx, func(s *store.Snapshot) error {
		kinds = []Kind{
			mail.AgentMailbox - 1:   {Name: "agent"},
			mail.RoleMailbox - 1:    {Name: "role"},
			mail.ChannelMailbox - 1: {Name: "channel"},
		}
		oldest := make([]int64, len(kinds))
		rows := s.Query(selectGauges)
		for rows.Next() {
			var kind int
			var waiting, largest, revision int64
			if err := rows.Scan(&kind, &waiting, &largest, &revision); err != nil {
				return err
			}
			kinds[kind-1].Waiting, kinds[kind-1].Largest, oldest[kind-1] = waiting, largest, revision
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for i, revision := range oldest {
			if revision == 0 {
				continue
			}
			if err := s.QueryRow(selectSentAt, revision).Scan(&kinds[i].Oldest); err != nil {
				return err
			}
		}
		rows = s.Query(countClaimedByKind)
		for rows.Next() {
			var kind int
			var n int64
			if err := rows.Scan(&kind, &n); err != nil {
				return err
			}
			kinds[kind-1].Claimed = n
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return s.QueryRow(countDead, MostDead).Scan(&dead)
	})
	return kinds, dead, err
}

// OldestReady returns the times at which the oldest messages were sent that a claim could take, by the id of the
// mailbox. It examines 1,000 deliveries of each mailbox: see mail.CaseOldestReady.
func OldestReady(q store.Querier, mailboxes []int64) (map[int64]time.Time, error) {
	list, err := json.Marshal(mailboxes)
	if err != nil {
		return nil, fmt.Errorf("list mailboxes: %w", err)
	}
	oldest := map[int64]time.Time{}
	rows := q.Query(selectOldest, string(list))
	for rows.Next() {
		var id int64
		var at time.Time
		if err := rows.Scan(&id, &at); err != nil {
			return nil, err
		}
		oldest[id] = at
	}
	return oldest, rows.Err()
}
