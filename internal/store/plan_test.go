package store_test

import (
	"context"
	"testing"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestStatement_IsPlannedOnceWhateverItsArguments(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(tx *store.Tx, limit int) error{
		"Query": func(tx *store.Tx, limit int) error {
			rows := tx.Query(`SELECT revision FROM items WHERE revision > ? ORDER BY revision LIMIT ?`, 0, limit)
			for rows.Next() {
			}
			return rows.Err()
		},
		"Exec": func(tx *store.Tx, limit int) error {
			insert(tx, itoa(int64(limit)), make([]byte, limit<<14))
			tx.Exec(`DELETE FROM items WHERE revision IN (SELECT revision FROM items WHERE name < ? ORDER BY revision LIMIT ?)`,
				itoa(int64(limit)), limit)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, way option) {
				planned := 0
				s := open(t, way, func(o *store.Options) { o.Planned = func(string) { planned++ } })
				count := func(limit int) int {
					t.Helper()
					planned = 0
					testkit.NoError(t, s.Write(context.Background(), func(tx *store.Tx) error { return run(tx, limit) }))
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
			})
		})
	}
}
