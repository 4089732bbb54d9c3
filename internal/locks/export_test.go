package locks

import (
	"errors"
	"fmt"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/store"
)

// Compare returns how what the writer remembers differs from the rows of a table whose only session is the given one,
// and which has made all its grants itself, none of them by Hand or Transfer.
func (t *Table) Compare(tx *store.Tx, session int64) (problems []string, err error) {
	differ := func(what, diff string) {
		if diff != "" {
			problems = append(problems, what+" (-rows +memory):\n"+diff)
		}
	}
	var rows spots
	if err := rows.load(tx); err != nil {
		return nil, err
	}
	places := func(m *store.Memory[spot, int]) map[string]int {
		all := map[string]int{}
		for at, n := range m.All() {
			all[fmt.Sprint(at)] = n
		}
		return all
	}
	owners := func(m *store.Memory[agentKey, int]) map[string]int {
		all := map[string]int{}
		for of, n := range m.All() {
			all[fmt.Sprint(of)] = n
		}
		return all
	}
	differ("paths at each place", cmp.Diff(places(&rows.held), places(&t.spots.held)))
	differ("paths of each agent", cmp.Diff(owners(&rows.owned), owners(&t.spots.owned)))

	stored, err := loadQueue(tx, session)
	if err != nil {
		return nil, err
	}
	cached, err := t.queues.Get(tx, session, func() (*queue, error) { return nil, errUnknown })
	if err == nil {
		differ("queue", cmp.Diff(stored.lines(), cached.lines()))
	} else if !errors.Is(err, errUnknown) {
		return nil, err
	}
	var broad bool
	if err := tx.QueryRow(selectBroad, session).Scan(&broad); err != nil {
		return nil, err
	}
	known, err := t.broad.Get(tx, session, func() (bool, error) { return false, errUnknown })
	if err == nil {
		differ("broad", cmp.Diff(broad, known))
	} else if !errors.Is(err, errUnknown) {
		return nil, err
	}

	for number, calls := range t.callers.calls.All() {
		if stored.find(number) == nil || len(calls) == 0 {
			problems = append(problems, fmt.Sprintf("%d calls wait for ticket %d", len(calls), number))
		}
	}
	grants, err := readGrants(tx.Query(selectRunning))
	if err != nil {
		return nil, err
	}
	held := map[int64]*grant{}
	for _, g := range grants {
		held[g.fence] = g
		if of := t.callers.answers.Get(g.fence); g.collected && of.answers == 0 {
			problems = append(problems, fmt.Sprintf("fence %d is collected, and no answer is counted", g.fence))
		}
	}
	for fence, of := range t.callers.answers.All() {
		switch g := held[fence]; {
		case g == nil:
			problems = append(problems, fmt.Sprintf("answers are counted for fence %d, which no row has", fence))
		case of.made != nil:
			differ(fmt.Sprintf("fence %d", fence), cmp.Diff(g.line(), of.made.line()))
		}
		if ended := of.ended.Load(); ended > of.answers {
			problems = append(problems, fmt.Sprintf("%d of %d answers about fence %d have ended", ended, of.answers, fence))
		}
	}
	return problems, nil
}

// errUnknown says that a cache does not have a value.
var errUnknown = errors.New("unknown")

// lines writes a queue out.
func (q *queue) lines() (lines []string) {
	for _, k := range q.tickets {
		lines = append(lines, fmt.Sprint(k.number, k.session, k.owner, k.role, k.claim.kind, k.claim.mode, k.claim.text(),
			k.reason, k.createdAt.UnixNano(), k.maxHold, k.kept, k.place))
	}
	return lines
}

// line writes out what a release needs to know of a grant.
func (g *grant) line() string {
	return fmt.Sprint(g.fence, g.session, g.owner, g.role, g.claim.kind, g.claim.mode, g.claim.text(), g.kept, g.warned,
		g.contested)
}

// Remembered returns how many keys the writer's memory has, apart from caches.
func (t *Table) Remembered() map[string]int {
	return map[string]int{
		"places": t.spots.held.Len(), "owners": t.spots.owned.Len(), "left": t.pending.Len(),
		"calls": t.callers.calls.Len(), "answers": t.callers.answers.Len(),
	}
}

// Unended returns how many answers about grants have neither reached their owners nor been lost.
func (t *Table) Unended() (n int32) {
	for _, of := range t.callers.answers.All() {
		n += of.answers - of.ended.Load()
	}
	return n
}

// SettleLater leaves the tickets of a session from a place on to an alarm.
func (t *Table) SettleLater(tx *store.Tx, session, place int64) error {
	u, err := t.lockTx(tx, session)
	if err != nil {
		return err
	}
	u.settleLater(place)
	return nil
}

// SettleFurther is what that alarm does.
func (t *Table) SettleFurther(tx *store.Tx, session int64) error {
	_, err := alarmRun{t}.settleFurther(tx, session)
	return err
}
