package histories_test

import "fmt"

// A revision is one that the broker has given, as far as the answers tell: a number, or one that lies between two others.
// The model learns it once an answer names it.
type revision struct {
	n        int64 // 0 = unknown
	low, top int64 // of an unknown one: it lies between these; top 0 = not known yet
}

// after is a revision of which only the one before is known.
func after(low int64) revision { return revision{low: low} }

// is returns the revision as known to be n, and whether it can be.
func (r revision) is(n int64) (revision, bool) {
	if r.n != 0 {
		return r, r.n == n
	}
	return revision{n: n}, n > r.low && (r.top == 0 || n < r.top)
}

// before returns the revision with what is known once a later one is n.
func (r revision) before(n int64) revision {
	if r.n == 0 && r.top == 0 {
		r.top = n
	}
	return r
}

func (r revision) String() string {
	switch {
	case r.n != 0:
		return fmt.Sprint(r.n)
	case r.top != 0:
		return fmt.Sprintf("%d<?<%d", r.low, r.top)
	default:
		return fmt.Sprintf("%d<?", r.low)
	}
}
