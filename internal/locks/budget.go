package locks

import (
	"errors"

	"brokerd/internal/fault"
)

// What one function of the writer does, or one read.
const (
	maxRows    = 15_000  // of held paths that a call reads
	ticketRows = 10_000  // of held paths that are read to grant a ticket
	maxPairs   = 100_000 // of paths that are compared
	longPair   = 64 * 64 // the product of the lengths of a glob and a path that counts as one more pair

	// The rows that one function reads are at most the sum of these two, of ticketRows and of the locks of one
	// agent: less than store.MaxRead.
	settlePage = 4000 // of view.spent, after which settle leaves the rest of the queue
	alarmPage  = 3000 // of view.spent, after which the next alarms get another function

	listPage  = 100_000
	closePage = 20_000
	grantCost = 20 // in units of view.spent
	pathCost  = 5
	alarmCost = 20
)

// A budget is how much a call, or the grant of a ticket, may still read and compare.
type budget struct{ rows, pairs int }

func newBudget() *budget { return &budget{rows: maxRows, pairs: maxPairs} }

const reasonTooBroad = "LOCK_TOO_BROAD"

// tooBroad reports whether an error says that a budget is used up.
func tooBroad(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Reason == reasonTooBroad
}

// read counts a row. fault.Exhausted (LOCK_TOO_BROAD) beyond the budget.
func (v *view) read() error {
	v.spent++
	if v.budget == nil {
		return nil
	}
	if v.budget.rows--; v.budget.rows >= 0 {
		return nil
	}
	return exhausted(reasonTooBroad, maxRows,
		"the call would read more than %d held paths: name fewer or narrower paths, or wait until other agents release theirs", maxRows)
}

// compare counts a pair of paths. fault.Exhausted (LOCK_TOO_BROAD) beyond the budget.
func (v *view) compare(a, b Path) error {
	cost := 1
	if a.glob != nil || b.glob != nil {
		cost += len(a.text) * len(b.text) / longPair
	}
	v.count(cost)
	return v.compared()
}

// count counts pairs of paths.
func (v *view) count(pairs int) {
	v.spent += pairs
	if v.budget != nil {
		v.budget.pairs -= pairs
	}
}

// compared returns fault.Exhausted (LOCK_TOO_BROAD) if more pairs were counted than the budget has.
func (v *view) compared() error {
	if v.budget == nil || v.budget.pairs >= 0 {
		return nil
	}
	return exhausted(reasonTooBroad, maxPairs,
		"the call would compare more than %d pairs of paths that are named, held or waited for, "+
			"where long globs count several times: "+
			"name fewer paths or shorter globs, or directories", maxPairs)
}

// conflict is claim.conflicts, and counts the pairs. A loop over many claims checks with compared that
// they are within the budget.
func (v *view) conflict(a, b *claim) bool {
	v.count(a.pairs(b))
	return a.conflicts(b)
}
