package state_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

type watch = grpc.ServerStreamingClient[pb.WatchStateResponse]

// startWatch opens a watch and reads its first mark.
func startWatch(a *apptest.Actor, in *pb.WatchStateRequest) (watch, int64) {
	a.Helper()
	ctx, cancel := context.WithCancel(a.Ctx)
	a.Cleanup(cancel)
	stream, err := a.WatchState(ctx, in)
	apptest.NoError(a, err)
	first, err := stream.Recv()
	apptest.NoError(a, err)
	if len(first.Changes) > 0 {
		a.Fatalf("the first frame is no mark: %v", first)
	}
	return stream, first.Revision
}

// changes reads frames until there are so many changes, and says of each what it is.
func changes(t testing.TB, s watch, n int) (list []string) {
	t.Helper()
	for len(list) < n {
		frame, err := s.Recv()
		apptest.NoError(t, err)
		for _, e := range frame.Changes {
			list = append(list, is(e))
		}
	}
	return list
}

// is says what a version is.
func is(e *pb.StateEntry) string {
	what := e.Value.GetStringValue()
	if e.Deleted {
		what = "deleted"
	} else if e.Appended != nil {
		what = fmt.Sprint("entry ", e.Appended.Number, " ", e.Appended.Text)
	}
	return fmt.Sprint(e.Namespace, "/", e.Key, " ", e.Version, " at ", e.Revision, ": ", what)
}

func TestWatch_SendsAllChangesFromARevisionOn(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	before := set(a, "a", "0")
	var want []string
	add := func(e *pb.StateEntry) { want = append(want, is(e)) }
	write := func(key, value string) {
		e := write(a, &pb.PutStateRequest{Key: key, Value: text(value)})
		e.Value = text(value)
		add(e)
	}
	write("a", "1")
	write("b", "2")
	add(&pb.StateEntry{Namespace: "default", Key: "a", Version: 3, Revision: remove(a, "a"), Deleted: true})
	old, _ := startWatch(a, &pb.WatchStateRequest{AfterRevision: &before})
	now, position := startWatch(a, &pb.WatchStateRequest{})
	soon := len(want)
	write("a", "3")
	e := addEntry(a, "d", "x").Entry
	e.Appended = &pb.DocumentEntry{Number: 1, Text: "x"}
	add(e)
	if diff := cmp.Diff(want, changes(t, old, len(want))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want[soon:], changes(t, now, len(want)-soon)); diff != "" {
		t.Error(diff)
	}
	all, _ := startWatch(a, &pb.WatchStateRequest{AfterRevision: new(int64)})
	if got := changes(t, all, len(want)+1); got[0] != "default/a 1 at "+strconv.FormatInt(before, 10)+": 0" {
		t.Errorf("from the beginning: %v", got)
	}
	resumed, _ := startWatch(a, &pb.WatchStateRequest{AfterRevision: &position})
	if diff := cmp.Diff(want[soon:], changes(t, resumed, len(want)-soon)); diff != "" {
		t.Error(diff)
	}
}

func TestWatch_ChoosesByNamespaceAndPrefix(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	w.Session("other", nil)
	a, b := w.Agent("a", "builder"), w.Actor("other", "b").Register("builder")
	put := func(x *apptest.Actor, namespace, key string) {
		write(x, &pb.PutStateRequest{Namespace: namespace, Key: key, Value: text("x")})
	}
	watches := map[string]watch{}
	for name, in := range map[string]*pb.WatchStateRequest{
		"all": {}, "one": {Namespace: "one"}, "prefix": {KeyPrefix: "a/"}, "both": {Namespace: "one", KeyPrefix: "a/"}, "global": {Namespace: "global"},
	} {
		watches[name], _ = startWatch(a, in)
	}
	put(b, "", "k")
	put(b, "global", "a/g")
	put(a, "one", "a/1")
	put(a, "one", "b/2")
	put(a, "two", "a/3")
	put(a, "global", "h")
	for _, n := range []string{"one", "two", "global"} {
		put(a, n, "a/end")
	}
	for name, want := range map[string]string{
		"all":    "one/a/1 one/b/2 two/a/3 one/a/end two/a/end",
		"one":    "one/a/1 one/b/2 one/a/end",
		"prefix": "one/a/1 two/a/3 one/a/end two/a/end",
		"both":   "one/a/1 one/a/end",
		"global": "global/a/g global/h global/a/end",
	} {
		var got []string
		for _, c := range changes(t, watches[name], len(strings.Fields(want))) {
			got = append(got, strings.Fields(c)[0])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestWatch_HasAllChangesOfARevisionInOneFrame(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	start := set(a, "first", "x")
	sizes := map[int64]int{}
	for n := range 12 {
		in := &pb.TransactStateRequest{}
		for i := range 1 + n*80 {
			in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Put{
				Put: &pb.PutStateRequest{Key: strconv.Itoa(i), Value: text(strings.Repeat("x", 1000))}}})
		}
		out := apptest.Must(t, a.TransactState, in)
		sizes[out.Revision] = len(in.Changes)
	}
	big := &pb.TransactStateRequest{} // larger than what a frame usually has
	for i := range 3 {
		big.Changes = append(big.Changes, &pb.StateChange{Change: &pb.StateChange_Put{
			Put: &pb.PutStateRequest{Key: strconv.Itoa(i), Value: text(strings.Repeat("x", 1_000_000))}}})
	}
	out := apptest.Must(t, a.TransactState, big)
	sizes[out.Revision] = 3
	s, _ := startWatch(a, &pb.WatchStateRequest{AfterRevision: &start})
	for len(sizes) > 0 {
		frame, err := s.Recv()
		apptest.NoError(t, err)
		got := map[int64]int{}
		for _, e := range frame.Changes {
			got[e.Revision]++
		}
		for revision, n := range got {
			if sizes[revision] != n || revision > frame.Revision {
				t.Errorf("a frame up to %d has %d changes of revision %d, want %d", frame.Revision, n, revision, sizes[revision])
			}
			delete(sizes, revision)
		}
	}
}

func TestWatch_IsCompleteAndInOrderUnderConcurrentWriters(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	const writers, each, watchers = 6, 200, 20
	a := w.Agent("a", "builder")
	var readers, all sync.WaitGroup
	seen := make([][]string, watchers)
	for i := range watchers {
		s, _ := startWatch(a, &pb.WatchStateRequest{})
		readers.Go(func() {
			last := int64(0)
			for len(seen[i]) < writers*each {
				frame, err := s.Recv()
				if err != nil {
					t.Error(err)
					return
				}
				for _, e := range frame.Changes {
					if e.Revision <= last {
						t.Errorf("revision %d after %d", e.Revision, last)
					}
					last = e.Revision
					seen[i] = append(seen[i], is(e))
				}
			}
		})
	}
	for n := range writers {
		x := w.Agent("w"+strconv.Itoa(n), "builder")
		all.Go(func() {
			for i := range each {
				if _, err := x.PutState(x.Ctx, &pb.PutStateRequest{Key: strconv.Itoa(i % 10), Value: text(x.Name)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	readers.Wait()
	want := map[string]bool{}
	for i := range 10 {
		for _, e := range versionsOf(a, strconv.Itoa(i)) {
			want[is(e)] = true
		}
	}
	for i := range seen {
		if diff := cmp.Diff(seen[0], seen[i]); diff != "" {
			t.Fatal(diff)
		}
	}
	for _, c := range seen[0] {
		if !want[c] {
			t.Errorf("%s is not in the history", c)
		}
	}
	if len(seen[0]) != len(want) {
		t.Errorf("saw %d changes, the histories have %d", len(seen[0]), len(want))
	}
}

func TestWatch_MarksHowFarItHasLooked(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	s, first := startWatch(a, &pb.WatchStateRequest{KeyPrefix: "none"})
	w.Clock.Advance(time.Second)
	last := set(a, "k", "x")
	frame, err := s.Recv()
	apptest.NoError(t, err)
	if len(frame.Changes) > 0 || frame.Revision < last || frame.Revision <= first {
		t.Errorf("the mark is %v, the last change %d", frame, last)
	}
	last = set(a, "k", "y") // its mark is put off
	marked := make(chan *pb.WatchStateResponse)
	go func() {
		defer close(marked)
		for f, err := s.Recv(); err == nil; f, err = s.Recv() {
			marked <- f
			if f.Revision >= last {
				return
			}
		}
	}()
	retry := time.NewTicker(10 * time.Millisecond) // the watch may set its timer after the clock has moved
	defer retry.Stop()
	for frame.Revision < last {
		select {
		case f, ok := <-marked:
			if !ok {
				t.Fatal("the watch has ended")
			}
			frame = f
		case <-retry.C:
			w.Clock.Advance(100 * time.Millisecond)
		}
	}
}

func TestWatch_RefusesTheFuture(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	s, err := a.WatchState(a.Ctx, &pb.WatchStateRequest{AfterRevision: new(int64(1 << 40))})
	apptest.NoError(t, err)
	apptest.Refused(t, apptest.Err(s.Recv()), codes.InvalidArgument, "INVALID_ARGUMENT")
}

func TestWatch_EndsWithTheBrokerAndGoesOnAfterIt(t *testing.T) {
	apptest.WithoutReplicas(t, "the follower stops first, and cuts its connections off")
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	s, _ := startWatch(a, &pb.WatchStateRequest{})
	last := set(a, "k", "1")
	changes(t, s, 1)
	w.Restart()
	apptest.Refused(t, apptest.Err(s.Recv()), codes.Unavailable, "SHUTTING_DOWN")
	write(a, &pb.PutStateRequest{Key: "k", Value: text("2"), Ttl: durationpb.New(time.Hour)})
	s, _ = startWatch(a, &pb.WatchStateRequest{AfterRevision: &last})
	if got := changes(t, s, 1); !strings.HasSuffix(got[0], ": 2") {
		t.Error(got)
	}
}

func TestWatch_ThereAreAThousandAtMost(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	o := w.Root()
	ctx, cancel := context.WithCancel(o.Ctx)
	defer cancel()
	var open []watch
	for range 1000 {
		s, err := o.WatchState(ctx, &pb.WatchStateRequest{})
		apptest.NoError(t, err)
		open = append(open, s)
	}
	for _, s := range open {
		_, err := s.Recv()
		apptest.NoError(t, err)
	}
	other := w.Agent("a", "builder")
	s, err := other.WatchState(o.Ctx, &pb.WatchStateRequest{})
	apptest.NoError(t, err)
	apptest.Refused(t, apptest.Err(s.Recv()), codes.ResourceExhausted, "TOO_MANY_WATCHES")
	cancel()
	for _, s := range open {
		for err = nil; err == nil; {
			_, err = s.Recv()
		}
		if errors.Is(err, io.EOF) {
			t.Error("it ended by itself")
		}
	}
	for err != nil { // until the daemon notices that they have gone
		s, err = other.WatchState(o.Ctx, &pb.WatchStateRequest{})
		apptest.NoError(t, err)
		_, err = s.Recv()
	}
}
