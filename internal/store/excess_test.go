package store_test

import (
	"context"
	"strings"
	"testing"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

const insertNumbers = `
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO items (name) SELECT 'item' FROM numbers`

func TestExcess_ReportsAFunctionThatChangesOrReadsTooManyRows(t *testing.T) {
	t.Parallel()
	var reports []store.Excess
	s := open(t, func(o *store.Options) { o.Excess = func(e store.Excess) { reports = append(reports, e) } })
	write := func(fn func(tx *store.Tx) error) []store.Excess {
		t.Helper()
		reports = nil
		testkit.NoError(t, s.Write(context.Background(), fn))
		return reports
	}
	insert := func(n int) func(tx *store.Tx) error {
		return func(tx *store.Tx) error {
			tx.Exec(insertNumbers, n)
			return nil
		}
	}
	read := func(tx *store.Tx) error {
		rows := tx.Query(`SELECT revision FROM items LIMIT 20001`)
		for rows.Next() {
		}
		return rows.Err()
	}

	for range 2 { // 20,000 rows in two functions of as many as are allowed
		if got := write(insert(store.MaxChanged)); len(got) != 0 {
			t.Fatalf("a function within the bounds was reported: %+v", got)
		}
	}
	if got := write(read); len(got) != 0 {
		t.Fatalf("a function within the bounds was reported: %+v", got)
	}
	if got := write(insert(store.MaxChanged + 1)); len(got) != 1 || got[0].Changed != store.MaxChanged+1 {
		t.Errorf("reports of a function that changed one row too many: %+v", got)
	}
	got := write(read)
	if len(got) != 1 || got[0].Read != store.MaxRead+1 || !strings.Contains(got[0].Query, "LIMIT 20001") {
		t.Errorf("reports of a function that read one row too many: %+v", got)
	}
}
