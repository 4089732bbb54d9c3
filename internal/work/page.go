package work

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"

	"brokerd/internal/store"
)

// MostPaged is how many items a page reads at most.
const MostPaged = 200

// MostRead is how many rows a page of a list reads at most. If fewer of them match its filter than the
// page may have, the next page continues after them.
const MostRead = 20_000

// PageRows is about how many rows a page changes: some 10 ms of the writer's time. With 1,000 rows, a
// call that comes every 5 ms beside 30,000 dependents of a task waits for 2 s (the 99th percentile).
const PageRows = 200

// A Page bounds what one function of the writer does of a change of many items.
type Page struct {
	tx   *store.Tx
	from int
}

// NewPage begins a page.
func NewPage(tx *store.Tx) Page { return Page{tx, tx.Changed()} }

// Full reports whether the page has changed about 200 rows: the next page does the rest.
func (p Page) Full() bool { return p.tx.Changed()-p.from >= PageRows }

// Newest returns the highest key that belongs to a chore. A chore without a bound, in its first page,
// has all.
func (c *Chore) Newest() int64 { return cmp.Or(c.Bound, math.MaxInt64) }

// Rest ends a page that is not the last one. The first page bounds the chore by the next revision, so
// that later pages leave out newer items.
func (c *Chore) Rest(tx *store.Tx) (more bool, err error) {
	if c.Bound == 0 {
		c.Bound = tx.NextRevision()
	}
	return true, nil
}

// IsDamage reports whether an error comes from a column whose JSON is damaged.
func IsDamage(err error) bool {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	return errors.As(err, &syntax) || errors.As(err, &mismatch)
}
