package store_test

import (
	"errors"
	"testing"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestCommitted_IsToldOfEveryCommitBeforeItsCallersAreAnswered(t *testing.T) {
	t.Parallel()
	var commits []store.Commit // appended to by the writer, read after an answer
	s := open(t, func(o *store.Options) { o.Committed = func(c store.Commit) { commits = append(commits, c) } })
	release := hold(t, s)
	var outcomes []<-chan error
	for _, name := range []string{"a", "b"} {
		outcomes = append(outcomes, submit(s, store.LaneFill, add(name)))
	}
	refused := submit(s, store.LaneFill, func(*store.Tx) error { return errors.New("no") })
	release()
	for _, o := range outcomes {
		testkit.NoError(t, <-o)
	}
	if err := <-refused; err == nil {
		t.Fatal("not refused")
	}
	if len(commits) != 1 || commits[0].Rows != 2 || commits[0].Functions != 4 { // hold's is one of them
		t.Errorf("%+v", commits)
	}
	write(t, s, func(*store.Tx) error { return nil })
	if len(commits) != 1 {
		t.Errorf("a transaction that changed nothing: %+v", commits)
	}
}
