package locks

import (
	"errors"

	"brokerd/internal/fault"
)

// What one function of the writer does, or one read.
const (
	maxRows  = 15_000  // of held paths that a call reads
	maxPairs = 100_000 // of paths that it compares
	longPair = 64 * 64 // the product of the lengths of a glob and a path that counts as one more pair

	settlePage = 10_000 // of view.spent, after which settle leaves the rest of the queue
	alarmPage  = 20_000 // of view.spent, after which the next alarms get another function
	listPage   = 100_000
	closePage  = 20_000
	grantCost  = 20 // in units of view.spent
	pathCost   = 5
	alarmCost  = 20
)

// A budget is how much a call may still read and compare.
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
	v.spent += cost
	if v.budget == nil {
		return nil
	}
	if v.budget.pairs -= cost; v.budget.pairs >= 0 {
		return nil
	}
	return exhausted(reasonTooBroad, maxPairs,
		"the call would compare more than %d pairs of a named and a held path, where long globs count several times: "+
			"name fewer paths or shorter globs, or directories", maxPairs)
}

// conflict is claim.conflicts, and counts the work.
func (v *view) conflict(a, b *claim) bool {
	v.spent += 1 + (len(a.paths)+len(b.paths))/8
	return a.conflicts(b)
}
