package agents

import (
	"time"
	"unicode/utf8"

	"brokerd/internal/store"
)

const (
	mostLosses   = 1000 // kept for one agent; how many more there are is counted
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
	LostTask

	lostMore LossKind = 0 // in the table: the revision is how many more were lost
)

// A Loss is something that an agent held when its lease ended.
type Loss struct {
	Kind     LossKind
	Name     string // the claim id, the paths separated by a space, TYPE/SCOPE or the task's id; clipped if it is long
	Revision int64  // of the fence, the ticket, or the claimed message
	At       time.Time
}

// Lost is what an agent has lost and was not told.
type Lost struct {
	Losses []Loss `json:",omitempty"`
	More   int    `json:",omitempty"` // further losses; they are in the event log alone
}

// OnEnd adds a hook that runs in the same transaction when an agent fails or stops, and takes what
// the agent holds: StoppedAt tells the two apart. The hook returns what it has taken; the registry
// sets Loss.At. By then the agent's row says that it has ended.
func (r *Registry) OnEnd(hook func(tx *store.Tx, a Agent) ([]Loss, error)) {
	r.ended = append(r.ended, hook)
}

// take runs the hooks of the end of an agent, and returns what they have taken from it.
func (r *Registry) take(tx *store.Tx, a Agent) ([]Loss, error) {
	r.dir.AgentsChanged(tx)
	var losses []Loss
	for _, hook := range r.ended {
		taken, err := hook(tx, a)
		if err != nil {
			return nil, err
		}
		losses = append(losses, taken...)
	}
	return losses, nil
}

// keepLosses keeps the new losses of an agent until an answer reports them to it: each one up
// to the limit, and the number of the others.
func keepLosses(tx *store.Tx, agent int64, losses []Loss) error {
	if len(losses) == 0 {
		return nil
	}
	var kept int
	if err := tx.QueryRow(countLosses, agent).Scan(&kept); err != nil {
		return err
	}
	free := max(0, min(len(losses), mostLosses-kept))
	if more := len(losses) - free; more > 0 {
		n, err := tx.ExecCount(updateMoreLosses, more, agent)
		if err != nil {
			return err
		}
		if n == 0 {
			tx.Exec(insertLoss, agent, int64(lostMore), "", more, tx.Now())
		}
	}
	for _, l := range losses[:free] {
		tx.Exec(insertLoss, agent, int64(l.Kind), clip(l.Name, mostLossName), l.Revision, tx.Now())
	}
	return nil
}

func hasLosses(q store.Querier, agent int64) (bool, error) {
	var has bool
	err := q.QueryRow(existLosses, agent).Scan(&has)
	return has, err
}

// tellLosses returns what an agent has lost and was not told, and forgets it.
func tellLosses(tx *store.Tx, agent int64) (lost Lost, err error) {
	rows := tx.Query(selectLosses, agent)
	for rows.Next() {
		var l Loss
		var kind int
		if err := rows.Scan(&kind, &l.Name, &l.Revision, &l.At); err != nil {
			return Lost{}, err
		}
		if l.Kind = LossKind(kind); l.Kind == lostMore {
			lost.More += int(l.Revision)
			continue
		}
		lost.Losses = append(lost.Losses, l)
	}
	if err := rows.Err(); err != nil || len(lost.Losses)+lost.More == 0 {
		return Lost{}, err
	}
	tx.Exec(deleteLosses, agent)
	return lost, nil
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
