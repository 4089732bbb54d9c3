// Package model has the rules of waiting for locks and tokens for tests: the property test of locks and the check of
// histories apply the same ones. The rules are loops over everything, without indexes and without code of package locks.
package model

import (
	"iter"
	"slices"
)

// A Queue is the grants of locks and tokens, and the tickets, oldest first. Owners are numbers from 0 to 63.
type Queue[P any] struct {
	Held, Waiting []P
	Owner         func(P) int
	Conflicts     func(a, b P) bool // of two owners
}

func (q *Queue[P]) conflict(a, b P) bool { return q.Owner(a) != q.Owner(b) && q.Conflicts(a, b) }

// Obstacles yields the grants and tickets that a request waits for when the first tickets are older: not the tickets
// whose owner waits for the owner of the request.
func (q *Queue[P]) Obstacles(r P, first int) iter.Seq[P] {
	return func(yield func(P) bool) {
		for _, h := range q.Held {
			if q.conflict(r, h) && !yield(h) {
				return
			}
		}
		dependents, known := uint64(0), false
		for _, t := range q.Waiting[:first] {
			if !q.conflict(r, t) {
				continue
			}
			if !known {
				dependents, known = q.dependents(q.Owner(r)), true
			}
			if dependents&(1<<q.Owner(t)) == 0 && !yield(t) {
				return
			}
		}
	}
}

// dependents returns the owners that wait for an owner, directly or not, as bits: for its grants or behind its tickets.
func (q *Queue[P]) dependents(owner int) uint64 {
	found := uint64(1) << owner
	for more := true; more; {
		more = false
		for i, t := range q.Waiting {
			if found&(1<<q.Owner(t)) != 0 {
				continue
			}
			waits := func(p P) bool { return found&(1<<q.Owner(p)) != 0 && q.conflict(t, p) }
			if slices.ContainsFunc(q.Held, waits) || slices.ContainsFunc(q.Waiting[:i], waits) {
				found |= 1 << q.Owner(t)
				more = true
			}
		}
	}
	return found &^ (1 << owner)
}

// Next returns the index of the first ticket that waits for nothing, -1 if there is none.
func (q *Queue[P]) Next() int {
	for i, t := range q.Waiting {
		if q.Free(t, i) {
			return i
		}
	}
	return -1
}

// Free reports whether a request waits for nothing when the first tickets are older.
func (q *Queue[P]) Free(r P, first int) bool {
	for range q.Obstacles(r, first) {
		return false
	}
	return true
}

// Cycles returns the index of the youngest ticket of each cycle through an owner, in order. In a cycle, each ticket
// waits for a grant of the owner of the next one.
func (q *Queue[P]) Cycles(owner int) (found []int) {
	var walk func(at int, seen uint64, youngest int)
	walk = func(at int, seen uint64, youngest int) {
		for i, t := range q.Waiting {
			if q.Owner(t) != at {
				continue
			}
			for _, h := range q.Held {
				if !q.conflict(t, h) {
					continue
				}
				last, next := max(youngest, i), q.Owner(h)
				if next == owner && !slices.Contains(found, last) {
					found = append(found, last)
				}
				if seen&(1<<next) == 0 {
					walk(next, seen|1<<next, last)
				}
			}
		}
	}
	walk(owner, 1<<owner, -1)
	slices.Sort(found)
	return found
}
