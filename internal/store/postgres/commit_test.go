package postgres_test

import (
	"testing"

	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/testkit"
)

// A commit that the server refuses leaves the connection ready for the next transaction.
func TestCommit_ThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "before"))
	admin(t, url, `
		CREATE FUNCTION fail() RETURNS TRIGGER LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END';
		CREATE TRIGGER refuse BEFORE UPDATE ON meta FOR EACH ROW EXECUTE FUNCTION fail()`)
	for range 3 {
		wantReason(t, add(s, "lost"), fault.Unavailable, "DISK_FULL")
		wantNames(t, s, "before")
	}
	admin(t, url, `DROP FUNCTION fail CASCADE`)
	testkit.NoError(t, add(s, "after"))
	wantNames(t, s, "before", "after")
}
