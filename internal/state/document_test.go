package state_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestAppend_KeepsEveryEntryOfConcurrentAuthors(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	names := []string{"a", "b", "c", "d"}
	const each = 20
	var all sync.WaitGroup
	for _, name := range names {
		x := w.Agent(name, "builder")
		all.Go(func() {
			for i := range each {
				if _, err := x.AppendState(x.Ctx, &pb.AppendStateRequest{Key: "plan", Text: fmt.Sprintf("%s %d", name, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	o := w.Root()
	out := apptest.Must(t, o.GetState, &pb.GetStateRequest{Key: "plan"})
	next := map[string]int{}
	var order []string
	for i, e := range out.Entries {
		if want := fmt.Sprintf("%s %d", e.Author, next[e.Author]); e.Text != want || int(e.Number) != i+1 {
			t.Errorf("entry %d is %v, want %q", i+1, e, want)
		}
		if next[e.Author] == 0 {
			order = append(order, e.Author)
		}
		next[e.Author]++
	}
	if n := len(names) * each; len(out.Entries) != n || int(out.Entry.Entries) != n || int(out.Entry.Version) != n || int(out.LastEntry) != n {
		t.Errorf("%d entries, and the document says %v", len(out.Entries), out.Entry)
	}
	if diff := cmp.Diff(order, out.Entry.Contributors); diff != "" {
		t.Error(diff)
	}
	if out.Entry.Value != nil || out.Entry.Type != pb.StateType_STATE_TYPE_DOCUMENT {
		t.Errorf("a document is %v", out.Entry)
	}
}

func TestAppend_RendersAsMarkdown(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a, b := w.Agent("a", "builder"), w.Agent("b", "builder")
	addEntry(a, "plan", "Goals:\n- one\n")
	addEntry(b, "plan", "More")
	out := apptest.Must(t, a.GetState, &pb.GetStateRequest{Key: "plan", Markdown: true})
	want := "# plan\n\n## 1. a, 2026-01-02 03:04:05 UTC\n\nGoals:\n- one\n\n## 2. b, 2026-01-02 03:04:05 UTC\n\nMore\n\n"
	if out.Markdown != want || out.Entries != nil || out.LastEntry != 2 {
		t.Errorf("%q, %v", out.Markdown, out)
	}
	out = apptest.Must(t, a.GetState, &pb.GetStateRequest{Key: "plan", Markdown: true, AfterEntry: 1})
	if !strings.HasPrefix(out.Markdown, "## 2. b") {
		t.Errorf("%q", out.Markdown)
	}
}

func TestAppend_AnnouncesItself(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	w.Agent("b", "builder")
	apptest.Must(t, w.Actor("default", "b").SubscribeChannel,
		&pb.SubscribeChannelRequest{Channel: "event/context_updated"})
	at := addEntry(a, "plan", "Use gRPC\nand nothing else").Entry.Revision
	events := a.Events("context_updated")
	if len(events) != 1 || events[0].Revision != at || events[0].Summary != "a added entry 1 to default/plan: Use gRPC" ||
		events[0].Details != `{"namespace":"default","key":"plan","type":"document","version":1,"entry":1,"bytes":25}` {
		t.Errorf("%v", events)
	}
	out := apptest.Must(t, w.Actor("default", "b").ListMessages, &pb.ListMessagesRequest{})
	if len(out.Items) != 1 || out.Items[0].Message.Type != "event" {
		t.Errorf("in the inbox: %v", out.Items)
	}
}

func TestAppend_IsForDocumentsAndPutForTheRest(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	set(a, "k", "x")
	_, err := a.AppendState(a.Ctx, &pb.AppendStateRequest{Key: "k", Text: "x"})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOT_A_DOCUMENT")
	addEntry(a, "d", "x")
	_, err = a.PutState(a.Ctx, &pb.PutStateRequest{Key: "d", Value: text("x")})
	apptest.Refused(t, err, codes.FailedPrecondition, "IS_A_DOCUMENT")
	remove(a, "k")
	if n := addEntry(a, "k", "now a document").Number; n != 1 {
		t.Errorf("its first entry is %d", n)
	}
	remove(a, "d")
	set(a, "d", "now a value")
}

func TestAppend_BeginsAnewAfterADeletion(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	addEntry(a, "d", "old 1")
	old := addEntry(a, "d", "old 2").Entry.Revision
	remove(a, "d")
	got := addEntry(a, "d", "new")
	if got.Number != 1 || got.Entry.Version != 4 || got.Entry.Entries != 1 {
		t.Errorf("%v", got)
	}
	read := func(at int64) (texts []string) {
		out := apptest.Must(t, a.GetState, &pb.GetStateRequest{Key: "d", AtRevision: at})
		for _, e := range out.Entries {
			texts = append(texts, e.Text)
		}
		return texts
	}
	if diff := cmp.Diff([]string{"new"}, read(0)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"old 1", "old 2"}, read(old)); diff != "" {
		t.Error(diff)
	}
	var kinds []string
	for _, v := range versionsOf(a, "d") {
		kinds = append(kinds, fmt.Sprintf("%d %v %s", v.Version, v.Deleted, v.Appended.GetText()))
	}
	if diff := cmp.Diff([]string{"4 false new", "3 true ", "2 false old 2", "1 false old 1"}, kinds); diff != "" {
		t.Error(diff)
	}
}

func TestAppend_EndsAtFourMebibytesAndIsReadInParts(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Agent("a", "builder")
	part := strings.Repeat("x", 256<<10)
	n := 0
	for {
		_, err := a.AppendState(a.Ctx, &pb.AppendStateRequest{Key: "d", Text: part})
		if err != nil {
			apptest.Refused(t, err, codes.ResourceExhausted, "DOCUMENT_FULL")
			break
		}
		n++
	}
	if n != 15 { // each counts with 64 bytes more
		t.Errorf("%d entries have room", n)
	}
	var numbers []int32
	for after := int32(0); int(after) < n; {
		out := apptest.Must(t, a.GetState, &pb.GetStateRequest{Key: "d", AfterEntry: after})
		for _, e := range out.Entries {
			numbers = append(numbers, e.Number)
		}
		if out.LastEntry <= after {
			t.Fatal("no more entries, and not all were read")
		}
		after = out.LastEntry
	}
	if len(numbers) != n || !slices.IsSorted(numbers) {
		t.Errorf("read %v", numbers)
	}
	if got := len(versionsOf(a, "d")); got != n {
		t.Errorf("the history has %d entries", got)
	}
}
