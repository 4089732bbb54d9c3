package rpc_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"google.golang.org/grpc"

	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// TestTurns_AreThoseOfAgentsAndOfConnectionsWithoutAgent has calls queue functions while the writer
// is busy. An agent on two connections is one caller, and so is a connection of an operator.
func TestTurns_AreThoseOfAgentsAndOfConnectionsWithoutAgent(t *testing.T) {
	t.Parallel()
	s, err := store.Open(context.Background(), store.Options{Dir: t.TempDir(), Clock: clockwork.NewFakeClock()})
	testkit.NoError(t, err)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	held, free := make(chan struct{}), make(chan struct{})
	s.Submit(context.Background(), store.LaneFill, 0, func(*store.Tx) error {
		close(held)
		<-free
		return nil
	}, func(error) {})
	<-held

	w := serve(t)
	var order []string // appended to by the writer
	done := make(chan error)
	queue := func(name string, conn *grpc.ClientConn, metadata ...string) {
		t.Helper()
		w.features.get = func(ctx context.Context) error {
			s.Submit(ctx, store.LaneFill, 0, func(*store.Tx) error {
				order = append(order, name)
				return nil
			}, func(err error) { done <- err })
			return nil
		}
		if _, err := whoami(calling(t, metadata...), conn); err != nil {
			t.Fatal(err)
		}
	}
	one, two := dial(t, w.socket), dial(t, w.socket)
	queue("a, first", one, "brokerd-agent", "a")
	queue("a, second", two, "brokerd-agent", "a")
	queue("b, first", one, "brokerd-agent", "b")
	queue("operator one, first", one)
	queue("operator one, second", one)
	queue("operator two, first", two)
	queue("a elsewhere, first", one, "brokerd-agent", "a", "brokerd-session", "s2")
	close(free)
	for range 7 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"a, first", "b, first", "operator one, first", "operator two, first", "a elsewhere, first",
		"a, second", "operator one, second",
	}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Error(diff)
	}
}
