package state_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	pb "brokerd/gen/brokerd/v1"
)

func TestPut_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	for i, want := range []*pb.StateValue{
		text("it's \"one\"\nand two"),
		text(""),
		{Value: &pb.StateValue_IntegerValue{IntegerValue: -1 << 63}},
		{Value: &pb.StateValue_BooleanValue{BooleanValue: true}},
		{Value: &pb.StateValue_BooleanValue{BooleanValue: false}},
		{Value: &pb.StateValue_JsonValue{JsonValue: `{"b": [1, 2.50], "a":null}`}},
	} {
		key := "k" + strconv.Itoa(i)
		put := a.write(&pb.PutStateRequest{Key: key, Value: want})
		got := a.get(key)
		if diff := cmp.Diff(want, got.Value, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want, put.Value, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		if put.Revision != got.Revision || put.Version != 1 || got.Author != "a" || got.Namespace != "default" ||
			!got.ChangedAt.AsTime().Equal(w.Clock.Now()) || !got.CreatedAt.AsTime().Equal(w.Clock.Now()) || got.Type != put.Type {
			t.Errorf("put %v, got %v", put, got)
		}
	}
}

func TestPut_EveryChangeIsAVersionAndAnEventOfTheSameRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	first := a.put("k", "1")
	second := a.put("k", "2")
	gone := a.delete("k")
	third := a.put("k", "3")
	if e := a.get("k"); e.Version != 4 || e.Revision != third {
		t.Errorf("a key that was made again: %v", e)
	}
	var versions, revisions []int64
	for _, e := range a.history("k") {
		versions, revisions = append(versions, e.Version), append(revisions, e.Revision)
	}
	if diff := cmp.Diff([]int64{4, 3, 2, 1}, versions); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int64{third, gone, second, first}, revisions); diff != "" {
		t.Error(diff)
	}
	var logged []int64
	for _, e := range a.listed("state.*") {
		logged = append(logged, e.Revision)
	}
	if diff := cmp.Diff([]int64{first, second, gone, third}, logged); diff != "" {
		t.Error(diff)
	}
}

func TestPut_ComparesTheRevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	at := func(revision int64) error {
		_, err := a.PutState(a.ctx, &pb.PutStateRequest{Key: "k", Value: text("x"), CompareRevision: &revision})
		return err
	}
	changed := func(err error, present int64) {
		t.Helper()
		refused(t, err, codes.Aborted, "STATE_CHANGED")
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && info.Metadata["revision"] != strconv.FormatInt(present, 10) {
				t.Errorf("the error tells %v, want revision %d", info.Metadata, present)
			}
		}
	}
	changed(at(7), 0)
	must(t, at(0))
	first := a.get("k").Revision
	changed(at(0), first)
	must(t, at(first))
	second := a.get("k").Revision
	changed(at(first), second)
	_, err := a.DeleteState(a.ctx, &pb.DeleteStateRequest{Key: "k", CompareRevision: &first})
	changed(err, second)
	_, err = a.DeleteState(a.ctx, &pb.DeleteStateRequest{Key: "k", CompareRevision: &second})
	must(t, err)
	changed(at(second), 0)
	must(t, at(0))
}

func TestDelete_OfWhatIsNotThereChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	for range 2 {
		out, err := a.DeleteState(a.ctx, &pb.DeleteStateRequest{Key: "k", CompareRevision: ptr[int64](0)})
		must(t, err)
		if out.Deleted || out.Revision != 0 {
			t.Error(out)
		}
		a.put("k", "x")
		a.delete("k")
	}
}

func TestGet_OfWhatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	a.put("gone", "x")
	a.delete("gone")
	for _, key := range []string{"never", "gone"} {
		_, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: key})
		refused(t, err, codes.NotFound, "KEY_NOT_FOUND")
	}
}

func TestGet_ReadsAnOlderVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	before := a.put("other", "x")
	first := a.put("k", "1")
	between := a.put("other", "x")
	second := a.put("k", "2")
	gone := a.delete("k")
	at := func(revision int64) string {
		out, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: "k", AtRevision: revision})
		if status.Code(err) == codes.NotFound {
			return "none"
		}
		must(t, err)
		return out.Entry.Value.GetStringValue()
	}
	for revision, want := range map[int64]string{before: "none", first: "1", between: "1", second: "2", gone: "none"} {
		if got := at(revision); got != want {
			t.Errorf("at %d it is %q, want %q", revision, got, want)
		}
	}
	_, err := a.GetState(a.ctx, &pb.GetStateRequest{Key: "k", AtRevision: gone + 1})
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestList_PagesByNamespaceAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	var want []string
	greatest := strings.Repeat("\U0010FFFF", 128) // 512 bytes, as long as a key may be
	for _, n := range []string{"alpha", "beta", "global"} {
		for _, k := range []string{"a", "a/1", "a/2", "b", "é/3", greatest} {
			a.write(&pb.PutStateRequest{Namespace: n, Key: k, Value: text(n + k)})
			want = append(want, n+" "+k+" "+n+k)
		}
	}
	a.write(&pb.PutStateRequest{Namespace: "alpha", Key: "gone", Value: text("x")})
	_, err := a.DeleteState(a.ctx, &pb.DeleteStateRequest{Namespace: "alpha", Key: "gone"})
	must(t, err)
	for _, c := range []struct {
		in   *pb.ListStateRequest
		want []string
	}{
		{&pb.ListStateRequest{}, want[:12]},
		{&pb.ListStateRequest{Namespace: "global"}, want[12:]},
		{&pb.ListStateRequest{Namespace: "beta"}, want[6:12]},
		{&pb.ListStateRequest{Namespace: "beta", KeyPrefix: "a/"}, want[7:9]},
		{&pb.ListStateRequest{KeyPrefix: "a/"}, []string{want[1], want[2], want[7], want[8]}},
		{&pb.ListStateRequest{KeyPrefix: "é"}, []string{want[4], want[10]}},
		{&pb.ListStateRequest{Namespace: "beta", KeyPrefix: greatest[:4]}, want[11:12]},
		{&pb.ListStateRequest{Owner: "a"}, nil},
	} {
		for _, size := range []int32{1, 2, 3, 100} {
			var got []string
			c.in.PageSize, c.in.PageToken, c.in.Values = size, "", true
			for {
				out, err := a.ListState(a.ctx, c.in)
				must(t, err)
				for _, e := range out.Entries {
					got = append(got, e.Namespace+" "+e.Key+" "+e.Value.GetStringValue())
				}
				if c.in.PageToken = out.NextPageToken; out.NextPageToken == "" {
					break
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%v: %s", c.in, diff)
			}
		}
	}
	out, err := a.ListState(a.ctx, &pb.ListStateRequest{Namespace: "beta", KeyPrefix: "b"})
	must(t, err)
	if len(out.Entries) != 1 || out.Entries[0].Value != nil {
		t.Errorf("without values: %v", out.Entries)
	}
}
