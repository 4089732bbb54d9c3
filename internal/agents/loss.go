package agents

import (
	"time"
	"unicode/utf8"

	"brokerd/internal/store"
)

const (
	mostLosses   = 1000 // kept for one agent
	mostLossName = 512  // bytes
)

// A LossKind says what was lost. The numbers are those of the API and of the table.
type LossKind int

// What an agent can lose with its lease.
const (
	LostClaim LossKind = 1 + iota
	LostLock
	LostToken
	LostTicket // a place in the queue for a lock or token
)

// A Loss is something that an agent held when its lease ended.
type Loss struct {
	Kind     LossKind
	Name     string // the claim id, the paths separated by a space, or TYPE/SCOPE; clipped if it is long
	Revision int64  // of the fence, the ticket, or the claimed message
	At       time.Time
}

// OnFail adds what is to happen in the same transaction when an agent's lease ends: all that hangs on it goes. The hook
// returns what the agent held; Loss.At is filled in for it. By then the agent's row says that it has failed.
func (r *Registry) OnFail(hook func(tx *store.Tx, a Agent) ([]Loss, error)) {
	r.failed = append(r.failed, hook)
}

// keepLosses keeps what an agent has just lost until it is told, as far as there is room.
func keepLosses(tx *store.Tx, agent int64, losses []Loss) error {
	if len(losses) == 0 {
		return nil
	}
	var kept int
	if err := tx.QueryRow(countLosses, agent).Scan(&kept); err != nil {
		return err
	}
	for _, l := range losses[:max(0, min(len(losses), mostLosses-kept))] {
		if _, err := tx.Exec(insertLoss, agent, int64(l.Kind), clip(l.Name, mostLossName), l.Revision, tx.Now()); err != nil {
			return err
		}
	}
	return nil
}

func hasLosses(q store.Querier, agent int64) (bool, error) {
	var has bool
	err := q.QueryRow(existLosses, agent).Scan(&has)
	return has, err
}

// tellLosses returns what an agent has lost and was not told, and forgets it.
func tellLosses(tx *store.Tx, agent int64) ([]Loss, error) {
	var losses []Loss
	rows := tx.Query(selectLosses, agent)
	for rows.Next() {
		var l Loss
		var kind int
		if err := rows.Scan(&kind, &l.Name, &l.Revision, &l.At); err != nil {
			return nil, err
		}
		l.Kind = LossKind(kind)
		losses = append(losses, l)
	}
	if err := rows.Err(); err != nil || len(losses) == 0 {
		return nil, err
	}
	_, err := tx.Exec(deleteLosses, agent)
	return losses, err
}

// clip cuts a text to at most so many bytes.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for s = s[:most]; !utf8.ValidString(s); {
		s = s[:len(s)-1]
	}
	return s
}
