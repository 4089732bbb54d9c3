package locks_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func text(s string) *pb.StateValue {
	return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: s}}
}

// A history is all that there is of the keys "k" and "notes", and what others there are.
type history struct {
	keys     []*pb.StateEntry
	versions [][]*pb.StateEntry
	markdown string
	events   int
}

func (w *daemon) stateHistory() history {
	w.Helper()
	state := w.Actor("default", "")
	h := history{events: len(w.Root().Events("state.*")) + len(w.Root().Events("context_updated"))}
	for _, key := range []string{"k", "notes"} {
		out := apptest.Must(w, state.ListStateHistory, &pb.ListStateHistoryRequest{Namespace: "n", Key: key})
		h.versions = append(h.versions, out.Versions)
	}
	h.keys = apptest.Must(w, state.ListState, &pb.ListStateRequest{Namespace: "n", Values: true}).Entries
	notes := apptest.Must(w, state.GetState, &pb.GetStateRequest{Namespace: "n", Key: "notes", Markdown: true})
	h.markdown = notes.Markdown
	return h
}

func TestFence_StateStaysAsItIsOnceItIsLost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		take func(a, b *player) int64 // a's fence
		lose func(a, b *player, fence int64)
	}{
		{"a lock that was released", func(a, _ *player) int64 { return a.lock("x") }, func(a, _ *player, fence int64) { a.release(fence) }},
		{"a lock that another has now", func(a, _ *player) int64 { return a.lock("x") }, func(a, b *player, fence int64) {
			a.release(fence)
			b.lock("x")
		}},
		{"a token that was passed on", func(a, _ *player) int64 { return a.take().Fence }, func(a, _ *player, _ int64) { a.passTo("b") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newDaemon(t)
			a, b := w.player("a", ""), w.player("b", "")
			state := w.Actor("default", "a")
			fence := test.take(a, b)
			held := a.fenced(fence)
			put := func(id string) error {
				return apptest.Err(state.PutState(held, &pb.PutStateRequest{RequestId: id, Namespace: "n", Key: "k", Value: text("held")}))
			}
			known := newUUID()
			apptest.NoError(t, put(known))
			apptest.NoError(t, apptest.Err(state.AppendState(held, &pb.AppendStateRequest{Namespace: "n", Key: "notes", Text: "held"})))
			before := w.stateHistory()

			test.lose(a, b, fence)
			change := func(key string) *pb.StateChange {
				return &pb.StateChange{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Namespace: "n", Key: key, Value: text("lost")}}}
			}
			for rpc, call := range map[string]func(context.Context) error{
				"PutState": func(ctx context.Context) error {
					return apptest.Err(state.PutState(ctx, &pb.PutStateRequest{Namespace: "n", Key: "k", Value: text("lost")}))
				},
				"PutState with a condition that holds": func(ctx context.Context) error {
					return apptest.Err(state.PutState(ctx, &pb.PutStateRequest{
						Namespace: "n", Key: "k", Value: text("lost"), CompareRevision: proto.Int64(before.versions[0][0].Revision)}))
				},
				"PutState of a new key": func(ctx context.Context) error {
					return apptest.Err(state.PutState(ctx, &pb.PutStateRequest{Namespace: "n", Key: "new", Value: text("lost")}))
				},
				"AppendState": func(ctx context.Context) error {
					return apptest.Err(state.AppendState(ctx, &pb.AppendStateRequest{Namespace: "n", Key: "notes", Text: "lost"}))
				},
				"DeleteState": func(ctx context.Context) error {
					return apptest.Err(state.DeleteState(ctx, &pb.DeleteStateRequest{Namespace: "n", Key: "k"}))
				},
				"DeleteState of what is not there": func(ctx context.Context) error {
					return apptest.Err(state.DeleteState(ctx, &pb.DeleteStateRequest{Namespace: "n", Key: "new"}))
				},
				"TransactState": func(ctx context.Context) error {
					return apptest.Err(state.TransactState(ctx, &pb.TransactStateRequest{Changes: []*pb.StateChange{change("k"), change("new")}}))
				},
			} {
				t.Run(rpc, func(t *testing.T) {
					apptest.Refused(t, call(held), codes.FailedPrecondition, "FENCE_LOST")
					after := w.stateHistory()
					if d := cmp.Diff(before, after, protocmp.Transform(), cmp.AllowUnexported(history{})); d != "" {
						t.Errorf("something has changed: %s", d)
					}
				})
			}
			apptest.NoError(t, put(known)) // it succeeded while the fence was held
			apptest.Must(t, state.DeleteState, &pb.DeleteStateRequest{Namespace: "n", Key: "k"})
		})
	}
}
