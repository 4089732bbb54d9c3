package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func part(item int, name string) store.Change {
	return store.Change{Query: insertPart + ` ON CONFLICT DO NOTHING`, Args: []any{item, name}}
}

// parts returns what the table of parts has.
func parts(t *testing.T, s *store.Store) (n int) {
	t.Helper()
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`SELECT count(*) FROM parts`).Scan(&n)
	}))
	return n
}

func TestAside_ChangesAllOrNothing(t *testing.T) {
	t.Parallel()
	s := open(t, postgrestest.Database(t))
	testkit.NoError(t, add(s, "item"))
	if err := s.Aside(t.Context(), part(1, "lost"), part(2, "of no item")); err == nil {
		t.Error("a part without an item was added")
	}
	if n := parts(t, s); n != 0 {
		t.Errorf("%d parts of a failed transaction are there", n)
	}
	testkit.NoError(t, s.Aside(t.Context(), part(1, "a"), part(1, "b")))
	if n := parts(t, s); n != 2 {
		t.Errorf("%d parts were added", n)
	}
}

// The writer waits for no change beside it, however long it takes.
func TestAside_TheWriterGoesOnBesideIt(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	db, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, db.Close(context.Background())) }()
	_, err = db.Exec(t.Context(), `BEGIN; LOCK TABLE parts IN EXCLUSIVE MODE`)
	testkit.NoError(t, err)
	testkit.NoError(t, add(s, "item"))
	done := make(chan error, 1)
	go func() { done <- s.Aside(context.Background(), part(1, "late")) }()
	testkit.NoError(t, add(s, "beside"))
	_, err = db.Exec(t.Context(), `COMMIT`)
	testkit.NoError(t, err)
	testkit.NoError(t, <-done)
}

func TestAside_IsRepeatedOnAnotherConnection(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "item"))
	for _, name := range []string{"a", "b", "c"} {
		admin(t, url, endBackends)
		testkit.NoError(t, s.Aside(t.Context(), part(1, name)))
	}
	if n := parts(t, s); n != 3 {
		t.Errorf("%d parts were added", n)
	}
}

// A broker changes nothing beside its writer once another one has begun to write.
func TestAside_FailsUnderAnotherEpoch(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "item"))
	admin(t, url, `UPDATE meta SET epoch = epoch + 1`)
	if err := s.Aside(t.Context(), part(1, "deposed")); !errors.Is(err, store.ErrUnknown) {
		t.Errorf("a deposed broker's change ends with %v", err)
	}
	if n := parts(t, s); n != 0 {
		t.Errorf("a deposed broker has added %d parts", n)
	}
}

// A transaction that an earlier broker has begun beside its writer ends before the next broker writes.
func TestOpen_EndsTransactionsBesideAnEarlierWriter(t *testing.T) {
	t.Parallel()
	url := postgrestest.Database(t)
	s := open(t, url)
	testkit.NoError(t, add(s, "item"))
	testkit.NoError(t, s.Close())
	frozen, err := pgx.Connect(t.Context(), url)
	testkit.NoError(t, err)
	defer func() { _ = frozen.Close(context.Background()) }() // the server has ended it
	_, err = frozen.Exec(t.Context(), `
		BEGIN;
		SELECT pg_advisory_xact_lock_shared(1651665765);
		INSERT INTO parts (item, name) VALUES (1, 'late')`)
	testkit.NoError(t, err)
	s = open(t, url)
	if _, err := frozen.Exec(t.Context(), `COMMIT`); err == nil {
		t.Error("the transaction of the earlier broker was committed")
	}
	if n := parts(t, s); n != 0 {
		t.Errorf("an earlier broker has added %d parts", n)
	}
}
