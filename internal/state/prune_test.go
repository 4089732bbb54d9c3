package state_test

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// churn makes n changes of keys of its own, and returns the last revision.
func churn(a *apptest.Actor, n int) (last int64) {
	a.Helper()
	for n > 0 {
		in := &pb.TransactStateRequest{}
		for i := range min(n, 1000) {
			in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Put{
				Put: &pb.PutStateRequest{Namespace: "churn", Key: strconv.Itoa(i), Value: text("x")}}})
		}
		out := apptest.Must(a, a.TransactState, in)
		n -= len(in.Changes)
		last = out.Revision
	}
	return last
}

// oldest waits until a watch from the beginning is refused, and returns from where one can begin.
func oldest(a *apptest.Actor) int64 {
	a.Helper()
	for {
		s, err := a.WatchState(a.Ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
		apptest.NoError(a, err)
		_, err = s.Recv()
		if err == nil {
			continue // it has not begun to remove
		}
		if !apptest.Refused(a, err, codes.OutOfRange, "STATE_COMPACTED") {
			a.Fatal("the watch ends")
		}
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				oldest, err := strconv.ParseInt(info.Metadata["oldest"], 10, 64)
				apptest.NoError(a, err)
				return oldest
			}
		}
	}
}

func TestHistory_KeepsTheLastHundredOfEachKeyAndWhatWatchersNeed(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	var revisions []int64
	for i := range 120 {
		revisions = append(revisions, set(a, "hot", strconv.Itoa(i)))
		addEntry(a, "plan", strconv.Itoa(i))
	}
	cold := set(a, "cold", "x")
	set(a, "gone", "x")
	remove(a, "gone")
	addEntry(a, "dropped", "x")
	remove(a, "dropped")
	if n := len(versionsOf(a, "hot")); n != 120 {
		t.Errorf("%d versions are kept before anything must go", n)
	}
	before := set(a, "mark", "x")
	last := churn(a, 110_000)
	for oldest(a) < before { // after the first page, less than a tenth too much is left: the restart ends the pruning
	}
	w.Restart()
	oldest := oldest(a)
	if n := len(versionsOf(a, "hot")); n != 100 {
		t.Errorf("%d versions of a hot key are kept", n)
	}
	if e := get(a, "hot"); e.Version != 120 || value(a, "cold") != "x" || get(a, "cold").Revision != cold {
		t.Errorf("what is there has changed: %v", e)
	}
	out := apptest.Must(t, a.GetState, &pb.GetStateRequest{Key: "plan"})
	if len(out.Entries) != 120 {
		t.Errorf("the document has %d entries", len(out.Entries))
	}
	_, err := a.GetState(a.Ctx, &pb.GetStateRequest{Key: "hot", AtRevision: revisions[10]})
	apptest.Refused(t, err, codes.OutOfRange, "STATE_COMPACTED")
	if out, err := a.GetState(a.Ctx, &pb.GetStateRequest{Key: "hot", AtRevision: revisions[20]}); err != nil || out.Entry.Version != 21 {
		t.Errorf("%v, %v", out, err)
	}
	for _, key := range []string{"gone", "dropped"} {
		apptest.Refuses(t, a.ListStateHistory, &pb.ListStateHistoryRequest{Key: key}, codes.NotFound, "KEY_NOT_FOUND")
	}
	_, err = a.GetState(a.Ctx, &pb.GetStateRequest{Key: "gone", AtRevision: cold})
	apptest.Refused(t, err, codes.OutOfRange, "STATE_COMPACTED")
	if e := write(a, &pb.PutStateRequest{Key: "gone", Value: text("y")}); e.Version != 1 {
		t.Errorf("a key whose tombstone has gone begins at %d", e.Version)
	}
	s, _ := startWatch(a, &pb.WatchStateRequest{AfterRevision: &oldest})
	n := 0
	for at := int64(0); at < last; {
		frame, err := s.Recv()
		apptest.NoError(t, err)
		n += len(frame.Changes)
		at = frame.Revision
	}
	if n < 95_000 {
		t.Errorf("%d changes are kept for watchers", n)
	}
}

func TestState_IsExportedAndRemovedWithItsSession(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Session("s", nil)
	a, o := w.Actor("s", "a").Register("builder"), w.Actor("s", "")
	keep := w.Agent("a", "builder")
	set(keep, "k", "kept")
	set(a, "k", "x")
	remove(a, "k")
	addEntry(a, "plan", "one")
	churn(a, 3000)
	apptest.Must(t, a.PutState, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("x"), Own: new(true)})
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "s"})
	stream, err := o.ExportSession(o.Ctx, &pb.ExportSessionRequest{Name: "s"})
	apptest.NoError(t, err)
	var file []byte
	for {
		piece, err := stream.Recv()
		if err != nil {
			break
		}
		if piece.File == "state.jsonl" {
			file = append(file, piece.Data...)
		}
	}
	checkExport(t, file, 3003)
	_, err = keep.DeleteSession(w.Root().Ctx, &pb.DeleteSessionRequest{Name: "s"})
	if err == nil {
		t.Error("an agent deleted a session")
	}
	def := w.Root()
	watch, _ := startWatch(o, &pb.WatchStateRequest{})
	apptest.Must(t, def.DeleteSession, &pb.DeleteSessionRequest{Name: "s"})
	w.Check()
	apptest.Refused(t, apptest.Err(watch.Recv()), codes.NotFound, "SESSION_NOT_FOUND")
	apptest.Must(t, keep.PutState, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("free")})
	apptest.Must(t, keep.PutState, &pb.PutStateRequest{Namespace: "global", Key: "wake", Value: text("x")})
	w.Session("s", nil) // another of that name has nothing of it
	b := w.Actor("s", "a").Register("builder")
	if value(b, "k") != "" || value(keep, "k") != "kept" {
		t.Error("the state of other sessions has changed")
	}
	list := apptest.Must(t, b.ListState, &pb.ListStateRequest{})
	if len(list.Entries) > 0 {
		t.Errorf("the new session has %v", list.Entries)
	}
}

// checkExport looks whether each line is JSON with the value as it is, and each key has one current version.
func checkExport(t *testing.T, file []byte, lines int) {
	t.Helper()
	type line struct {
		Namespace, Key, Type, Text string
		Value                      any
		Version                    int64
		Current, Deleted           bool
	}
	current := map[string]line{}
	n := 0
	for text := range bytes.Lines(file) {
		n++
		var l line
		apptest.NoError(t, json.Unmarshal(text, &l))
		if l.Current {
			if _, twice := current[l.Namespace+"/"+l.Key]; twice {
				t.Errorf("%s/%s has two current versions", l.Namespace, l.Key)
			}
			current[l.Namespace+"/"+l.Key] = l
		}
	}
	if n != lines || len(current) != 1002 {
		t.Errorf("%d lines, %d keys", n, len(current))
	}
	if l := current["default/k"]; !l.Deleted || l.Version != 2 || l.Value != nil {
		t.Errorf("%+v", l)
	}
	if l := current["default/plan"]; l.Type != "document" || l.Text != "one" {
		t.Errorf("%+v", l)
	}
	if l := current["churn/7"]; l.Type != "string" || l.Value != "x" || l.Version != 3 {
		t.Errorf("%+v", l)
	}
}
