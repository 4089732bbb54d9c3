package store_test

import (
	"context"
	"testing"

	"brokerd/internal/store"
)

func TestStatement_IsPlannedOnceWhateverItsLimit(t *testing.T) {
	t.Parallel()
	planned := 0
	s := open(t, func(o *store.Options) { o.Planned = func(string) { planned++ } })
	count := func(limit int) int {
		t.Helper()
		planned = 0
		err := s.Write(context.Background(), func(tx *store.Tx) error {
			rows := tx.Query(`SELECT revision FROM items WHERE revision > ? ORDER BY revision LIMIT ?`, 0, limit)
			for rows.Next() {
			}
			return rows.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		return planned
	}
	if count(1) == 0 {
		t.Fatal("the first run of a statement was not planned")
	}
	for limit := range 5 {
		if n := count(limit); n > 0 {
			t.Errorf("LIMIT %d: the statement was planned again, %d parts", limit, n)
		}
	}
}
