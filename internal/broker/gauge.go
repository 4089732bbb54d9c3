package broker

import (
	"context"
	"time"

	"brokerd/internal/store"
)

// An Observer is told what the broker measures. Its methods are called by many goroutines and must be quick.
type Observer interface {
	// Acked says how long a claim had lasted when it was finished.
	Acked(after time.Duration)
	// Full says how many copies of a message were refused because the mailbox was full.
	Full(copies int)
}

// Observe has the observer told from now on. It is called before Start.
func (b *Broker) Observe(o Observer) { b.observer = o }

// MostDead is up to how many dead letters Gauges counts.
const MostDead = 100_000

// A Gauge says what lies in all mailboxes of one kind, in all sessions.
type Gauge struct {
	Kind    string // agent, role or channel
	Waiting int64
	Claimed int64
	Oldest  time.Time // when the oldest was sent that could be handed out; zero if there is none
}

// Gauges returns what lies in the mailboxes, by kind, and how many dead letters there are.
//
// It is quick whatever waits: of an agent's mailbox it reads the first arrival that nobody has claimed, of a role's or channel's the
// first thousand in the order of handing out, among which the oldest is.
func (b *Broker) Gauges(ctx context.Context) (gauges []Gauge, dead int64, err error) {
	err = b.store.Read(ctx, func(s *store.Snapshot) error {
		gauges = []Gauge{agentBox - 1: {Kind: "agent"}, roleBox - 1: {Kind: "role"}, channelBox - 1: {Kind: "channel"}}
		oldest := make([]int64, len(gauges))
		rows := s.Query(selectGauges)
		for rows.Next() {
			var kind int
			var waiting, revision int64
			if err := rows.Scan(&kind, &waiting, &revision); err != nil {
				return err
			}
			gauges[kind-1].Waiting, oldest[kind-1] = waiting, revision
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for i, revision := range oldest {
			if revision == 0 {
				continue
			}
			if err := s.QueryRow(selectSentAt, revision).Scan(&gauges[i].Oldest); err != nil {
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
			gauges[kind-1].Claimed = n
		}
		if err := rows.Err(); err != nil {
			return err
		}
		return s.QueryRow(countDead, MostDead).Scan(&dead)
	})
	return gauges, dead, err
}
