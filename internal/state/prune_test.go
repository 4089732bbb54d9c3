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
)

// churn makes n changes of keys of its own, and returns the last revision.
func (a *actor) churn(n int) (last int64) {
	a.t.Helper()
	for n > 0 {
		in := &pb.TransactStateRequest{}
		for i := range min(n, 1000) {
			in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Put{
				Put: &pb.PutStateRequest{Namespace: "churn", Key: strconv.Itoa(i), Value: text("x")}}})
		}
		out, err := a.TransactState(a.ctx, in)
		must(a.t, err)
		n -= len(in.Changes)
		last = out.Revision
	}
	return last
}

// oldest waits until a watch from the beginning is refused, and returns from where one can begin.
func (a *actor) oldest() int64 {
	a.t.Helper()
	for {
		s, err := a.WatchState(a.ctx, &pb.WatchStateRequest{AfterRevision: new(int64)})
		must(a.t, err)
		_, err = s.Recv()
		if err == nil {
			continue // it has not begun to remove
		}
		if refused(a.t, err, codes.OutOfRange, "STATE_COMPACTED"); a.t.Failed() {
			a.t.FailNow()
		}
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				oldest, err := strconv.ParseInt(info.Metadata["oldest"], 10, 64)
				must(a.t, err)
				return oldest
			}
		}
	}
}

func TestHistory_KeepsTheLastHundredOfEachKeyAndWhatWatchersNeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	var revisions []int64
	for i := range 120 {
		revisions = append(revisions, a.put("hot", strconv.Itoa(i)))
		a.append("plan", strconv.Itoa(i))
	}
	cold := a.put("cold", "x")
	a.put("gone", "x")
	a.delete("gone")
	a.append("dropped", "x")
	a.delete("dropped")
	if n := len(a.history("hot")); n != 120 {
		t.Errorf("%d versions are kept before anything must go", n)
	}
	before := a.put("mark", "x")
	last := a.churn(110_000)
	for a.oldest() < before { // after the first page, less than a tenth too much is left: the restart ends the pruning
	}
	w.Restart()
	oldest := a.oldest()
	if n := len(a.history("hot")); n != 100 {
		t.Errorf("%d versions of a hot key are kept", n)
	}
	if e := a.get("hot"); e.Version != 120 || a.value("cold") != "x" || a.get("cold").Revision != cold {
		t.Errorf("what is there has changed: %v", e)
	}
	out, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: "plan"})
	must(t, err)
	if len(out.Entries) != 120 {
		t.Errorf("the document has %d entries", len(out.Entries))
	}
	_, err = a.GetState(a.ctx, &pb.GetStateRequest{Key: "hot", AtRevision: revisions[10]})
	refused(t, err, codes.OutOfRange, "STATE_COMPACTED")
	if out, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: "hot", AtRevision: revisions[20]}); err != nil || out.Entry.Version != 21 {
		t.Errorf("%v, %v", out, err)
	}
	for _, key := range []string{"gone", "dropped"} {
		_, err = a.ListStateHistory(a.ctx, &pb.ListStateHistoryRequest{Key: key})
		refused(t, err, codes.NotFound, "KEY_NOT_FOUND")
	}
	_, err = a.GetState(a.ctx, &pb.GetStateRequest{Key: "gone", AtRevision: cold})
	refused(t, err, codes.OutOfRange, "STATE_COMPACTED")
	if e := a.write(&pb.PutStateRequest{Key: "gone", Value: text("y")}); e.Version != 1 {
		t.Errorf("a key whose tombstone has gone begins at %d", e.Version)
	}
	s, _ := a.watch(&pb.WatchStateRequest{AfterRevision: &oldest})
	n := 0
	for at := int64(0); at < last; {
		frame, err := s.Recv()
		must(t, err)
		n += len(frame.Changes)
		at = frame.Revision
	}
	if n < 95_000 {
		t.Errorf("%d changes are kept for watchers", n)
	}
}

func TestState_IsExportedAndRemovedWithItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.session("s")
	a, o := w.member("s", "a"), w.in("s", "")
	keep := w.agent("a")
	keep.put("k", "kept")
	a.put("k", "x")
	a.delete("k")
	a.append("plan", "one")
	a.churn(3000)
	_, err := a.PutState(a.ctx, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("x"), Own: ptr(true)})
	must(t, err)
	_, err = o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "s"})
	must(t, err)
	stream, err := o.sessions.ExportSession(o.ctx, &pb.ExportSessionRequest{Name: "s"})
	must(t, err)
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
	_, err = keep.sessions.DeleteSession(w.operator().ctx, &pb.DeleteSessionRequest{Name: "s"})
	if err == nil {
		t.Error("an agent deleted a session")
	}
	def := w.operator()
	watch, _ := o.watch(&pb.WatchStateRequest{})
	_, err = def.sessions.DeleteSession(def.ctx, &pb.DeleteSessionRequest{Name: "s"})
	must(t, err)
	w.Check()
	_, err = watch.Recv()
	refused(t, err, codes.NotFound, "SESSION_NOT_FOUND")
	_, err = keep.PutState(keep.ctx, &pb.PutStateRequest{Namespace: "global", Key: "g", Value: text("free")})
	must(t, err)
	_, err = keep.PutState(keep.ctx, &pb.PutStateRequest{Namespace: "global", Key: "wake", Value: text("x")})
	must(t, err)
	w.session("s") // another of that name has nothing of it
	b := w.member("s", "a")
	if b.value("k") != "" || keep.value("k") != "kept" {
		t.Error("the state of other sessions has changed")
	}
	list, err := b.ListState(b.ctx, &pb.ListStateRequest{})
	must(t, err)
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
		must(t, json.Unmarshal(text, &l))
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
