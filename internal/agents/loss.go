package agents

import (
	"unicode/utf8"

	"brokerd/internal/directory"
	"brokerd/internal/store"
)

const (
	mostLosses   = 1000 // kept for one agent; how many more there are is counted
	mostLossName = 512  // bytes

	lostMore directory.LossKind = 0 // in the table: the revision is how many more were lost
)

// Lost is what an agent has lost and was not told.
type Lost struct {
	Losses []directory.Loss `json:",omitempty"`
	More   int              `json:",omitempty"` // further losses; they are in the event log alone
}

// keepLosses keeps the new losses of an agent until an answer reports them to it: each one up
// to the limit, and the number of the others.
func keepLosses(tx *store.Tx, agent int64, losses []directory.Loss) error {
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
		var l directory.Loss
		var kind int
		if err := rows.Scan(&kind, &l.Name, &l.Revision, &l.At); err != nil {
			return Lost{}, err
		}
		if l.Kind = directory.LossKind(kind); l.Kind == lostMore {
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
