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
	"brokerd/internal/apptest"
)

func TestPut_IsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	for i, want := range []*pb.StateValue{
		text("it's \"one\"\nand two"),
		text(""),
		{Value: &pb.StateValue_IntegerValue{IntegerValue: -1 << 63}},
		{Value: &pb.StateValue_BooleanValue{BooleanValue: true}},
		{Value: &pb.StateValue_BooleanValue{BooleanValue: false}},
		{Value: &pb.StateValue_JsonValue{JsonValue: `{"b": [1, 2.50], "a":null}`}},
	} {
		key := "k" + strconv.Itoa(i)
		put := write(a, &pb.PutStateRequest{Key: key, Value: want})
		got := get(a, key)
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
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	first := set(a, "k", "1")
	second := set(a, "k", "2")
	gone := remove(a, "k")
	third := set(a, "k", "3")
	if e := get(a, "k"); e.Version != 4 || e.Revision != third {
		t.Errorf("a key that was made again: %v", e)
	}
	var versions, revisions []int64
	for _, e := range versionsOf(a, "k") {
		versions, revisions = append(versions, e.Version), append(revisions, e.Revision)
	}
	if diff := cmp.Diff([]int64{4, 3, 2, 1}, versions); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int64{third, gone, second, first}, revisions); diff != "" {
		t.Error(diff)
	}
	var logged []int64
	for _, e := range a.Events("state.*") {
		logged = append(logged, e.Revision)
	}
	if diff := cmp.Diff([]int64{first, second, gone, third}, logged); diff != "" {
		t.Error(diff)
	}
}

func TestPut_ComparesTheRevision(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	at := func(revision int64) error {
		_, err := a.PutState(a.Ctx, &pb.PutStateRequest{Key: "k", Value: text("x"), CompareRevision: &revision})
		return err
	}
	changed := func(err error, present int64) {
		t.Helper()
		apptest.Refused(t, err, codes.Aborted, "STATE_CHANGED")
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok && info.Metadata["revision"] != strconv.FormatInt(present, 10) {
				t.Errorf("the error tells %v, want revision %d", info.Metadata, present)
			}
		}
	}
	changed(at(7), 0)
	apptest.NoError(t, at(0))
	first := get(a, "k").Revision
	changed(at(0), first)
	apptest.NoError(t, at(first))
	second := get(a, "k").Revision
	changed(at(first), second)
	_, err := a.DeleteState(a.Ctx, &pb.DeleteStateRequest{Key: "k", CompareRevision: &first})
	changed(err, second)
	apptest.Must(t, a.DeleteState, &pb.DeleteStateRequest{Key: "k", CompareRevision: &second})
	changed(at(second), 0)
	apptest.NoError(t, at(0))
}

func TestDelete_OfWhatIsNotThereChangesNothing(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	for range 2 {
		out := apptest.Must(t, a.DeleteState, &pb.DeleteStateRequest{Key: "k", CompareRevision: new(int64(0))})
		if out.Deleted || out.Revision != 0 {
			t.Error(out)
		}
		set(a, "k", "x")
		remove(a, "k")
	}
}

func TestGet_OfWhatIsNotThereIsNotFound(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	set(a, "gone", "x")
	remove(a, "gone")
	for _, key := range []string{"never", "gone"} {
		apptest.Refuses(t, a.GetState, &pb.GetStateRequest{Key: key}, codes.NotFound, "KEY_NOT_FOUND")
	}
}

func TestGet_ReadsAnOlderVersion(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	before := set(a, "other", "x")
	first := set(a, "k", "1")
	between := set(a, "other", "x")
	second := set(a, "k", "2")
	gone := remove(a, "k")
	at := func(revision int64) string {
		out, err := a.GetState(a.Ctx, &pb.GetStateRequest{Key: "k", AtRevision: revision})
		if status.Code(err) == codes.NotFound {
			return "none"
		}
		apptest.NoError(t, err)
		return out.Entry.Value.GetStringValue()
	}
	for revision, want := range map[int64]string{before: "none", first: "1", between: "1", second: "2", gone: "none"} {
		if got := at(revision); got != want {
			t.Errorf("at %d it is %q, want %q", revision, got, want)
		}
	}
	_, err := a.GetState(a.Ctx, &pb.GetStateRequest{Key: "k", AtRevision: gone + 1})
	apptest.Refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestList_PagesByNamespaceAndKey(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	var want []string
	greatest := strings.Repeat("\U0010FFFF", 128) // 512 bytes, as long as a key may be
	for _, n := range []string{"alpha", "beta", "global"} {
		for _, k := range []string{"a", "a/1", "a/2", "b", "é/3", greatest} {
			write(a, &pb.PutStateRequest{Namespace: n, Key: k, Value: text(n + k)})
			want = append(want, n+" "+k+" "+n+k)
		}
	}
	write(a, &pb.PutStateRequest{Namespace: "alpha", Key: "gone", Value: text("x")})
	apptest.Must(t, a.DeleteState, &pb.DeleteStateRequest{Namespace: "alpha", Key: "gone"})
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
				out := apptest.Must(t, a.ListState, c.in)
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
	out := apptest.Must(t, a.ListState, &pb.ListStateRequest{Namespace: "beta", KeyPrefix: "b"})
	if len(out.Entries) != 1 || out.Entries[0].Value != nil {
		t.Errorf("without values: %v", out.Entries)
	}
}
