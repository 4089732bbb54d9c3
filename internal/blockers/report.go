package blockers

import (
	"strings"

	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// RaiseReported raises a blocker in the transaction of an event that the caller publishes about it. The
// awaited agent counts only if it is registered. The board's own event goes to no channels. Errors: as
// for Raise.
func (b *Board) RaiseReported(tx *store.Tx, c identity.Caller, d Draft) (Blocker, error) {
	s, a, err := b.acting(tx, c)
	if err != nil {
		return Blocker{}, err
	}
	if d.Awaited.Kind == Agent {
		_, found, err := b.dir.Find(tx, s.ID, d.Awaited.Name)
		if err != nil {
			return Blocker{}, err
		}
		if !found {
			d.Awaited = Awaited{}
		}
	}
	d.quiet = true
	return b.raise(tx, s, a, d)
}

// ResolveReported resolves a blocker in the transaction of an event that the caller publishes about it:
// the blocker with an id or, without an id of this broker, the unresolved blocker of the caller with a task or, without
// a task, its only one. The board's own event goes to no channels. Errors: fault.NotFound if there is
// none; fault.Precondition (AMBIGUOUS_BLOCKER) if there are several; as for Resolve.
func (b *Board) ResolveReported(tx *store.Tx, c identity.Caller, id, task, resolution string) (Blocker, error) {
	s, a, err := b.acting(tx, c)
	if err != nil {
		return Blocker{}, err
	}
	if _, err := work.ParseID(noun, letter, id); err != nil {
		if id, err = ownBlocker(tx, s.ID, a.Name, task); err != nil {
			return Blocker{}, err
		}
	}
	x, err := find(tx, s.ID, id)
	if err == nil && x.State == Resolved {
		err = x.errResolved()
	}
	if err != nil {
		return x, err
	}
	x.quiet = true
	return x, b.resolve(tx, a, &x, resolution)
}

// mostNamed is how many blockers an error names.
const mostNamed = 5

// ownBlocker returns the id of the unresolved blocker of an agent with a task; without a task, of its
// only one.
func ownBlocker(q store.Querier, session int64, agent, task string) (string, error) {
	found, err := store.Collect(q.Query(selectOwn, session, agent, task, task, mostNamed+1), scanID)
	if err != nil {
		return "", err
	}
	of := ""
	if task != "" {
		of = " of the task " + task
	}
	switch len(found) {
	case 0:
		return "", fault.Missing(noun, task, "%s has no unresolved blocker%s", agent, of)
	case 1:
		return work.ID(letter, found[0]), nil
	}
	var ids []string
	for _, id := range found[:min(len(found), mostNamed)] {
		ids = append(ids, work.ID(letter, id))
	}
	return "", fault.New(fault.Precondition, "AMBIGUOUS_BLOCKER",
		"%s has more than one unresolved blocker%s: %s; name one as blocker_id in the details",
		agent, of, strings.Join(ids, ", "))
}
