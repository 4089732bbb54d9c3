package work

import (
	"errors"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/store"
)

// An Invariant is a query for the rows that break a rule, and what is wrong with them. The query has
// one column, by which Checks names the row.
type Invariant struct{ Says, Query string }

// Checks returns the checks of a feature's tables, one for each invariant, for separate snapshots.
// A check returns one line per row that breaks the rule, at most most of them. It may run while the
// broker does.
func Checks[K any](most int, invariants []Invariant, name func(K) string) []func(q store.Querier) ([]string, error) {
	checks := make([]func(store.Querier) ([]string, error), len(invariants))
	for i, one := range invariants {
		checks[i] = func(q store.Querier) (problems []string, err error) {
			rows := q.Query(one.Query)
			defer rows.Close()
			for len(problems) < most && rows.Next() {
				var key K
				if err := rows.Scan(&key); err != nil {
					return nil, err
				}
				problems = append(problems, name(key)+": "+one.Says)
			}
			return problems, rows.Close()
		}
	}
	return checks
}

// Checks returns the checks of the items of a kind, for separate snapshots: whether each item can be
// decoded, has the columns that belong to it, and passes Check. A check returns one line per problem, about
// most of them.
func (k Kind[T]) Checks(most int) []func(q store.Querier) ([]string, error) {
	return []func(store.Querier) ([]string, error){func(q store.Querier) (problems []string, err error) {
		t := &reader[T]{Kind: k}
		rows := q.Query(checkItems, k.Number)
		defer rows.Close()
		for len(problems) < most && rows.Next() {
			found, err := t.check(q, rows)
			if err != nil {
				return nil, err
			}
			problems = append(problems, found...)
		}
		return problems, rows.Close()
	}}
}

// check returns what is wrong with the item of a row of checkItems.
func (t *reader[T]) check(q store.Querier, rows *store.Rows) (problems []string, err error) {
	var c Columns
	var state int32
	var revision int64
	r, err := t.scan(rows, &state, &c.Opener, &c.Agent, &c.Role, &c.Task, &c.Scope, &c.Due, &c.Finished, &revision)
	name := t.Noun + " " + ID(t.Letter, r.key) + ": "
	if errors.Is(err, ErrDamaged) {
		return []string{name + "it cannot be decoded"}, nil
	}
	if err != nil {
		return nil, err
	}
	c.State = protoreflect.EnumNumber(state)
	if r.item.GetId() != ID(t.Letter, r.key) || r.item.GetRevision() != revision || !c.equal(t.Columns(r.item)) {
		problems = append(problems, name+"its columns are not those of its message")
	}
	parts, err := t.allParts(q, r.key)
	if err != nil {
		return nil, err
	}
	for _, p := range parts {
		if p.Revision > revision {
			problems = append(problems, name+"the part "+p.Name+" is newer than the item")
		}
	}
	if _, err := t.merge(q, r, math.MaxInt64); errors.Is(err, ErrDamaged) {
		return append(problems, name+"its parts cannot be decoded"), nil
	} else if err != nil {
		return nil, err
	}
	if t.Kind.Check != nil {
		for _, says := range t.Kind.Check(r.item, parts) {
			problems = append(problems, name+says)
		}
	}
	return problems, nil
}

// equal reports whether two items have the same columns. The table has times in nanoseconds, as the
// messages.
func (c Columns) equal(other Columns) bool {
	same := c.Due.Equal(other.Due) && c.Finished.Equal(other.Finished)
	c.Due, c.Finished, other.Due, other.Finished = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return same && c == other
}

// CheckParts is a check of all kinds: each part belongs to an item.
func CheckParts(q store.Querier) (problems []string, err error) {
	return store.Collect(q.Query(checkParts), func(r *store.Rows) (says string, err error) {
		var item int64
		err = r.Scan(&item)
		return "the item with the number " + strconv.FormatInt(item, 10) + " does not exist, but has a part", err
	})
}
