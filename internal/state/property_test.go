package state_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// TestState_EveryHistoryGoesAsTheModelSays tries random histories on a real daemon and on a model that is as plain as can be, and compares
// the two after every step: what is there, what was, and what a watch has sent.
func TestState_EveryHistoryGoesAsTheModelSays(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"":            h.compare,
			"put":         h.put,
			"put another": h.put,
			"delete":      h.delete,
			"append":      h.append,
			"transact":    h.transact,
			"advance":     h.advance,
			"deregister":  h.deregister,
			"restart":     func(*rapid.T) { h.Restart() },
		})
	})
}

type name struct{ namespace, key string }

// A modelKey is a key: all its versions, and what else there is to say of it.
type modelKey struct {
	versions []string // without revision
	alive    bool
	revision int64
	document bool
	value    string
	expires  time.Time
	owner    string
	entries  []string
}

// A history is a broker, and the model of it.
type history struct {
	*apptest.Broker
	t     *rapid.T
	ctx   context.Context
	keys  map[name]*modelKey
	log   []string // of all changes but those of global: key and version, in the order of revisions
	gone  int      // keys that have expired
	after int64    // the watch has been read up to this
	seen  []string
}

var (
	agentNames = rapid.SampledFrom([]string{"", "a", "b"})
	keyNames   = rapid.Custom(func(t *rapid.T) name {
		return name{rapid.SampledFrom([]string{"default", "default", "n", "global"}).Draw(t, "namespace"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "key")}
	})
)

func newHistory(t *rapid.T) *history {
	b := apptest.Start(t, apptest.WithFakeClock())
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	b.Registered("a", "")
	b.Registered("b", "")
	return &history{Broker: b, t: t, ctx: ctx, keys: map[name]*modelKey{}}
}

func (h *history) api(agent string) pb.StateServiceClient {
	return h.Actor("default", agent)
}

func (h *history) key(n name) *modelKey {
	if h.keys[n] == nil {
		h.keys[n] = &modelKey{}
	}
	return h.keys[n]
}

// present is what a compare must say.
func (k *modelKey) present() int64 {
	if !k.alive {
		return 0
	}
	return k.revision
}

// compareWith draws a condition: none, the right one, or some other.
func (h *history) compareWith(t *rapid.T, n name) *int64 {
	switch rapid.IntRange(0, 3).Draw(t, "compare") {
	case 0:
		return new(h.key(n).present())
	case 1:
		return new(rapid.Int64Range(0, 40).Draw(t, "revision"))
	}
	return nil
}

// refusal says why a change must be refused, or nothing.
func (h *history) refusal(agent string, n name, compare *int64, put, own bool) string {
	k := h.key(n)
	switch {
	case k.alive && k.owner != "" && agent != "" && agent != k.owner:
		return "NOT_THE_OWNER"
	case compare != nil && *compare != k.present():
		return "STATE_CHANGED"
	case put && k.alive && k.document:
		return "IS_A_DOCUMENT"
	case put && own && agent == "":
		return "INVALID_ARGUMENT"
	}
	return ""
}

func (h *history) want(err error, reason string) bool {
	if got := testkit.Reason(err); got != reason || (err == nil) != (reason == "") {
		h.t.Fatalf("refused as %q (%v), want %q", got, err, reason)
	}
	return err == nil
}

// changed notes a version.
func (h *history) changed(n name, revision int64, what string) {
	k := h.key(n)
	k.revision = revision
	k.versions = append(k.versions, what)
	if n.namespace != "global" {
		h.log = append(h.log, fmt.Sprintf("%s/%s %d %s", n.namespace, n.key, len(k.versions), what))
	}
}

func (h *history) drawPut(t *rapid.T) (n name, in *pb.PutStateRequest) {
	n = keyNames.Draw(t, "name")
	in = &pb.PutStateRequest{Namespace: n.namespace, Key: n.key, Value: text(rapid.StringMatching(`[a-z]{0,3}`).Draw(t, "value")), CompareRevision: h.compareWith(t, n)}
	if rapid.Bool().Draw(t, "expires") {
		in.Ttl = durationpb.New(time.Duration(rapid.IntRange(1, 20).Draw(t, "ttl")) * time.Second)
	}
	switch rapid.IntRange(0, 5).Draw(t, "own") {
	case 0:
		in.Own = new(true)
	case 1:
		in.Own = new(false)
	}
	return n, in
}

// wrote notes a put.
func (h *history) wrote(agent string, n name, in *pb.PutStateRequest, revision int64) {
	k := h.key(n)
	if !k.alive {
		k.owner = ""
	}
	k.alive, k.document, k.value, k.expires = true, false, in.Value.GetStringValue(), time.Time{}
	if in.Ttl != nil {
		k.expires = h.Clock.Now().Add(in.Ttl.AsDuration())
	}
	if in.Own != nil {
		k.owner = ""
		if *in.Own {
			k.owner = agent
		}
	}
	h.changed(n, revision, "= "+k.value)
}

func (h *history) put(t *rapid.T) {
	agent := agentNames.Draw(t, "agent")
	n, in := h.drawPut(t)
	out, err := h.api(agent).PutState(h.ctx, in)
	if h.want(err, h.refusal(agent, n, in.CompareRevision, true, in.GetOwn())) {
		h.wrote(agent, n, in, out.Entry.Revision)
	}
}

// removed notes a deletion.
func (h *history) removed(n name, revision int64) {
	k := h.key(n)
	k.alive, k.owner, k.expires, k.entries = false, "", time.Time{}, nil
	h.changed(n, revision, "deleted")
}

func (h *history) delete(t *rapid.T) {
	agent, n := agentNames.Draw(t, "agent"), keyNames.Draw(t, "name")
	compare := h.compareWith(t, n)
	out, err := h.api(agent).DeleteState(h.ctx, &pb.DeleteStateRequest{Namespace: n.namespace, Key: n.key, CompareRevision: compare})
	if !h.want(err, h.refusal(agent, n, compare, false, false)) {
		return
	}
	if out.Deleted != h.key(n).alive {
		h.t.Fatalf("%v was deleted: %v", n, out)
	}
	if out.Deleted {
		h.removed(n, out.Revision)
	}
}

func (h *history) append(t *rapid.T) {
	agent, n := agentNames.Draw(t, "agent"), keyNames.Draw(t, "name")
	text := rapid.StringMatching(`[a-z]{1,3}`).Draw(t, "text")
	k := h.key(n)
	out, err := h.api(agent).AppendState(h.ctx, &pb.AppendStateRequest{Namespace: n.namespace, Key: n.key, Text: text})
	reason := ""
	if k.alive && !k.document {
		reason = "NOT_A_DOCUMENT"
	}
	if !h.want(err, reason) {
		return
	}
	k.alive, k.document, k.value = true, true, ""
	k.entries = append(k.entries, text)
	if int(out.Number) != len(k.entries) {
		h.t.Fatalf("entry %d of %v", out.Number, k.entries)
	}
	h.changed(n, out.Entry.Revision, "+ "+text)
}

func (h *history) transact(t *rapid.T) {
	agent := agentNames.Draw(t, "agent")
	in := &pb.TransactStateRequest{}
	reason := ""
	refuse := func(r string) {
		if reason == "" {
			reason = r
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "compares") {
		n := keyNames.Draw(t, "name")
		if c := h.compareWith(t, n); c != nil {
			in.Compares = append(in.Compares, &pb.StateCompare{Namespace: n.namespace, Key: n.key, Revision: *c})
			if *c != h.key(n).present() {
				refuse("STATE_CHANGED")
			}
		}
	}
	var names []name
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		n, put := h.drawPut(t)
		if slices.Contains(names, n) {
			continue
		}
		names = append(names, n)
		if rapid.Bool().Draw(t, "deletes") {
			in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Delete{
				Delete: &pb.DeleteStateRequest{Namespace: n.namespace, Key: n.key, CompareRevision: put.CompareRevision}}})
			refuse(h.refusal(agent, n, put.CompareRevision, false, false))
			continue
		}
		in.Changes = append(in.Changes, &pb.StateChange{Change: &pb.StateChange_Put{Put: put}})
		refuse(h.refusal(agent, n, put.CompareRevision, true, put.GetOwn()))
	}
	out, err := h.api(agent).TransactState(h.ctx, in)
	if !h.want(err, reason) {
		return
	}
	for i, n := range names {
		if put := in.Changes[i].GetPut(); put != nil {
			h.wrote(agent, n, put, out.Revision)
		} else if h.key(n).alive {
			h.removed(n, out.Revision)
		}
	}
}

// advance lets time pass, and waits until the broker has deleted what has expired.
func (h *history) advance(t *rapid.T) {
	h.Clock.Advance(time.Duration(rapid.IntRange(1, 15).Draw(t, "seconds")) * time.Second)
	var due []name
	for n, k := range h.keys {
		if k.alive && !k.expires.IsZero() && !k.expires.After(h.Clock.Now()) {
			due = append(due, n)
		}
	}
	if len(due) == 0 {
		return
	}
	h.gone += len(due)
	events, err := h.Root().SubscribeEvents(h.ctx,
		&pb.SubscribeEventsRequest{AfterRevision: new(int64), Filter: &pb.EventFilter{Types: []string{"state.expired"}}})
	apptest.NoError(h.t, err)
	for n := 0; n < h.gone; {
		page, err := events.Recv()
		apptest.NoError(h.t, err)
		n += len(page.Events)
	}
	at := map[name]int64{}
	for _, n := range due {
		at[n] = h.versions(n)[0].Revision
	}
	slices.SortFunc(due, func(a, b name) int { return int(at[a] - at[b]) })
	for _, n := range due {
		h.removed(n, at[n])
	}
}

func (h *history) deregister(t *rapid.T) {
	agent := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "agent")
	apptest.Must(h.t, h.Actor("default", agent).DeregisterAgent, &pb.DeregisterAgentRequest{})
	for _, k := range h.keys {
		if k.owner == agent {
			k.owner = ""
		}
	}
	h.Registered(agent, "")
}

// versions returns the history of a key.
func (h *history) versions(n name) []*pb.StateEntry {
	out, err := h.api("").ListStateHistory(h.ctx, &pb.ListStateHistoryRequest{Namespace: n.namespace, Key: n.key, PageSize: 1000})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	apptest.NoError(h.t, err)
	return out.Versions
}

// compare looks whether broker and model agree.
func (h *history) compare(*rapid.T) {
	var want, got []string
	for n, k := range h.keys {
		if k.alive {
			want = append(want, fmt.Sprintf("%v v%d at %d %q doc:%v %d of %q until %v", n, len(k.versions), k.revision, k.value, k.document, len(k.entries), k.owner, k.expires))
		}
		var versions []string
		for _, v := range h.versions(n) {
			versions = append(versions, what(v))
		}
		slices.Reverse(versions)
		if diff := cmp.Diff(k.versions, versions); diff != "" {
			h.t.Fatalf("versions of %v: %s", n, diff)
		}
	}
	for _, namespace := range []string{"", "global"} {
		out := apptest.Must(h.t, h.api("").ListState, &pb.ListStateRequest{Namespace: namespace, Values: true})
		for _, e := range out.Entries {
			var expires time.Time
			if e.ExpiresAt != nil {
				expires = e.ExpiresAt.AsTime()
			}
			got = append(got, fmt.Sprintf("%v v%d at %d %q doc:%v %d of %q until %v", name{e.Namespace, e.Key}, e.Version, e.Revision,
				e.Value.GetStringValue(), e.Type == pb.StateType_STATE_TYPE_DOCUMENT, e.Entries, e.Owner, expires))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		h.t.Fatal(diff)
	}
	h.watch()
}

// watch reads on from where it stopped, to the present.
func (h *history) watch() {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	s, err := h.api("").WatchState(ctx, &pb.WatchStateRequest{AfterRevision: &h.after})
	apptest.NoError(h.t, err)
	for len(h.seen) < len(h.log) {
		frame, err := s.Recv()
		apptest.NoError(h.t, err)
		for _, e := range frame.Changes {
			h.seen = append(h.seen, fmt.Sprintf("%s/%s %d %s", e.Namespace, e.Key, e.Version, what(e)))
		}
		h.after = frame.Revision
	}
	if diff := cmp.Diff(h.log, h.seen); diff != "" {
		h.t.Fatalf("watched: %s", diff)
	}
}

// what says what a version is, without its number.
func what(e *pb.StateEntry) string {
	switch {
	case e.Deleted:
		return "deleted"
	case e.Appended != nil:
		return "+ " + e.Appended.Text
	}
	return "= " + strings.Trim(strconv.Quote(e.Value.GetStringValue()), `"`)
}
