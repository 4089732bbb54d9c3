package retention_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/content"
	"brokerd/internal/testkit"
	"brokerd/internal/validate"
)

// A sending is a message with what the log says of it.
type sending struct {
	m                *pb.Message
	summary, details string
}

func toAgent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

// sendings are messages from lead in a session of lead, builder, builder-2 and reviewer. builder and reviewer subscribe
// to news.
func sendings() []sending {
	const unusual = `"quotes" \ <b> & é` + "\u2028☃"
	long := strings.Repeat("long ☃ ", 10_000)
	everyone := &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	return []sending{
		{
			&pb.Message{Type: "task_assignment", Subject: "Add login", TaskId: "t-1", Priority: 8},
			"task_assignment to builder: Add login", `{"target":"builder","type":"task_assignment","priority":8,"recipients":1}`,
		},
		{
			&pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "reviewer"}}, Subject: "one of them"},
			"message to role:reviewer: one of them", `{"target":"role:reviewer","type":"message","priority":5,"recipients":1}`,
		},
		{
			&pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Reach: pb.Reach_REACH_ALL, Body: "all of them"},
			"message to role:builder: all of them", `{"target":"role:builder","type":"message","priority":5,"recipients":1}`,
		},
		{
			&pb.Message{Target: &pb.Target{To: &pb.Target_Channel{Channel: "news"}}, Subject: "hear"},
			"message to channel:news: hear", `{"target":"channel:news","type":"message","priority":5,"recipients":2}`,
		},
		{
			&pb.Message{Target: &pb.Target{To: &pb.Target_Pattern{Pattern: "?uild*"}}},
			"message to ?uild*", `{"target":"?uild*","type":"message","priority":5,"recipients":2}`,
		},
		{
			&pb.Message{Target: everyone, Subject: "Re: all", Body: "\n \n  the first line \nthe second"},
			"message to everyone: the first line", `{"target":"everyone","type":"message","priority":5,"recipients":3}`,
		},
		{
			&pb.Message{Target: toAgent("all"), Subject: "Re: all"},
			"message to everyone: Re: all", `{"target":"everyone","type":"message","priority":5,"recipients":3}`,
		},
		{
			&pb.Message{Subject: unusual, TaskId: `tâche "2" <b>`, Artifacts: []string{"a/b", "c"}, Channel: "label"},
			"message to builder: " + unusual, `{"target":"builder","type":"message","priority":5,"recipients":1}`,
		},
		{
			&pb.Message{Type: "BuildFinished", Body: long, Payload: `{"text":"` + long + `"}`},
			"build_finished to builder: " + content.Clip(strings.TrimSpace(long), validate.MaxLine),
			`{"target":"builder","type":"build_finished","priority":5,"recipients":1}`,
		},
		{
			&pb.Message{Target: &pb.Target{To: &pb.Target_Channel{Channel: "quiet"}}, Subject: "no agent hears"},
			"message to channel:quiet: no agent hears", `{"target":"channel:quiet","type":"message","priority":5,"recipients":0}`,
		},
	}
}

// A recording is what a follower of a session's events receives while they happen.
type recording struct {
	w      *world
	events []*pb.Event
	pages  chan *pb.SubscribeEventsResponse
	ended  chan struct{}
}

// record begins to record after a revision.
func (w *world) record(after int64) *recording {
	w.Helper()
	r := &recording{w: w, pages: make(chan *pb.SubscribeEventsResponse, 10_000)}
	r.resume(after)
	return r
}

func (r *recording) resume(after int64) {
	r.w.Helper()
	stream, err := r.w.log().SubscribeEvents(r.w.ctx, &pb.SubscribeEventsRequest{AfterRevision: &after})
	apptest.NoError(r.w, err)
	r.ended = make(chan struct{})
	go func() {
		defer close(r.ended)
		for {
			page, err := stream.Recv()
			if err != nil {
				return
			}
			r.pages <- page
		}
	}()
}

// all returns all events so far. It ends the list with one that it publishes.
func (r *recording) all() []*pb.Event {
	r.w.Helper()
	mark, err := r.w.log().PublishEvent(r.w.ctx, &pb.PublishEventRequest{Type: "mark"})
	apptest.NoError(r.w, err)
	for len(r.events) == 0 || r.events[len(r.events)-1].GetRevision() < mark.GetRevision() {
		select {
		case page := <-r.pages:
			r.events = append(r.events, page.GetEvents()...)
		case <-r.w.ctx.Done():
			r.w.Fatal(r.w.ctx.Err())
		}
	}
	return r.events
}

// await returns the revision of the next event with a summary.
func (r *recording) await(summary string) int64 {
	r.w.Helper()
	for {
		select {
		case page := <-r.pages:
			r.events = append(r.events, page.GetEvents()...)
		case <-r.w.ctx.Done():
			r.w.Fatal(r.w.ctx.Err())
		}
		for _, e := range r.events {
			if e.GetSummary() == summary {
				return e.GetRevision()
			}
		}
	}
}

// settle has an agent acknowledge all that waits for it.
func (w *world) settle(agent string) {
	w.Helper()
	for {
		out := apptest.Must(w, w.as(agent).ClaimMessages, &pb.ClaimMessagesRequest{Max: 100})
		if len(out.GetClaims()) == 0 {
			return
		}
		for _, c := range out.GetClaims() {
			apptest.Must(w, w.as(agent).AckMessages, &pb.AckMessagesRequest{Ids: []string{c.GetClaimId()}})
		}
	}
}

// log is the service as an agent calls it, which sees the events of its session alone.
func (w *world) log() pb.EventServiceClient {
	return w.Actor(w.session, "lead")
}

// listed returns all events that a list has, oldest first.
func (w *world) listed(in *pb.ListEventsRequest) (all []*pb.Event) {
	w.Helper()
	in = proto.Clone(in).(*pb.ListEventsRequest)
	for {
		page := apptest.Must(w, w.log().ListEvents, in)
		all = append(all, page.GetEvents()...)
		if in.PageToken = page.GetNextPageToken(); in.PageToken == "" {
			break
		}
	}
	if in.NewestFirst {
		slices.Reverse(all)
	}
	return all
}

func wantEvents(t *testing.T, what string, got, want []*pb.Event) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantListed compares what lists and subscriptions have with events, which are all that are kept.
func (w *world) wantListed(t *testing.T, when string, want []*pb.Event) {
	t.Helper()
	middle := want[len(want)/2].GetTime()
	isSent := func(e *pb.Event) bool { return e.GetType() == "message.sent" }
	for what, f := range map[string]struct {
		filter *pb.EventFilter
		has    func(*pb.Event) bool
	}{
		"all":  {nil, func(*pb.Event) bool { return true }},
		"type": {&pb.EventFilter{Types: []string{"message.sent"}}, isSent},
		"other types": {
			&pb.EventFilter{Types: []string{"agent.*", "mark"}},
			func(e *pb.Event) bool { return strings.HasPrefix(e.GetType(), "agent.") || e.GetType() == "mark" },
		},
		"prefix": {
			&pb.EventFilter{Types: []string{"message.*"}},
			func(e *pb.Event) bool { return strings.HasPrefix(e.GetType(), "message.") },
		},
		"category": {
			&pb.EventFilter{Categories: []pb.EventCategory{pb.EventCategory_EVENT_CATEGORY_MESSAGE}},
			func(e *pb.Event) bool { return e.GetCategory() == pb.EventCategory_EVENT_CATEGORY_MESSAGE },
		},
		"severity": {
			&pb.EventFilter{LowestSeverity: pb.Severity_SEVERITY_WARNING},
			func(e *pb.Event) bool { return e.GetSeverity() >= pb.Severity_SEVERITY_WARNING },
		},
		"source": {
			&pb.EventFilter{Sources: []string{"builder", "system"}},
			func(e *pb.Event) bool { return e.GetSource() == "builder" || e.GetSource() == "system" },
		},
		"role": {
			&pb.EventFilter{SourceRoles: []string{"lead"}},
			func(e *pb.Event) bool { return e.GetSourceRole() == "lead" },
		},
		"task": {&pb.EventFilter{TaskId: "t-1"}, func(e *pb.Event) bool { return e.GetTaskId() == "t-1" }},
		"since": {
			&pb.EventFilter{Since: middle},
			func(e *pb.Event) bool { return !e.GetTime().AsTime().Before(middle.AsTime()) },
		},
		"until": {
			&pb.EventFilter{Until: middle},
			func(e *pb.Event) bool { return e.GetTime().AsTime().Before(middle.AsTime()) },
		},
		"role and type": {
			&pb.EventFilter{SourceRoles: []string{"builder"}, Types: []string{"message.sent"}},
			func(e *pb.Event) bool { return e.GetSourceRole() == "builder" && isSent(e) },
		},
		"none": {&pb.EventFilter{Sources: []string{"nobody"}}, func(*pb.Event) bool { return false }},
	} {
		chosen := slices.DeleteFunc(slices.Clone(want), func(e *pb.Event) bool { return !f.has(e) })
		for _, size := range []int32{1, 7, 1000} {
			for _, newest := range []bool{false, true} {
				in := &pb.ListEventsRequest{Filter: f.filter, PageSize: size, NewestFirst: newest}
				wantEvents(t, fmt.Sprintf("%s: %s, pages of %d, newest first %v", when, what, size, newest), w.listed(in), chosen)
			}
		}
		stream, err := w.log().SubscribeEvents(w.ctx, &pb.SubscribeEventsRequest{AfterRevision: new(int64), Filter: f.filter})
		apptest.NoError(t, err)
		var followed []*pb.Event
		for len(followed) < len(chosen) {
			page, err := stream.Recv()
			apptest.NoError(t, err)
			followed = append(followed, page.GetEvents()...)
		}
		wantEvents(t, when+": followed: "+what, followed, chosen)
	}
	at := want[len(want)/3].GetRevision()
	part := slices.DeleteFunc(slices.Clone(want), func(e *pb.Event) bool { return e.GetRevision() <= at })
	in := &pb.ListEventsRequest{AfterRevision: at, NewestFirst: true, PageSize: 3}
	wantEvents(t, when+": the newest after a revision", w.listed(in), part)
}

// asLine returns an event as the archive writes it.
func asLine(t *testing.T, e *pb.Event) map[string]any {
	t.Helper()
	line := map[string]any{
		"revision": float64(e.GetRevision()), "time": e.GetTime().AsTime().Format(time.RFC3339Nano),
		"category": strings.TrimPrefix(e.GetCategory().String(), "EVENT_CATEGORY_"), "type": e.GetType(), "type_as_sent": e.GetTypeAsSent(),
		"severity": strings.TrimPrefix(e.GetSeverity().String(), "SEVERITY_"), "source": e.GetSource(), "source_role": e.GetSourceRole(),
		"summary": e.GetSummary(), "details": nil, "related": nil, "task_id": e.GetTaskId(), "session": e.GetSession(),
	}
	if e.GetDetails() != "" {
		var details any
		apptest.NoError(t, json.Unmarshal([]byte(e.GetDetails()), &details))
		line["details"] = details
	}
	if len(e.GetRelated()) > 0 {
		var related []any
		for _, about := range e.GetRelated() {
			related = append(related, about)
		}
		line["related"] = related
	}
	return line
}

// wantKept compares the archive, together with what is listed, and the export with all that ever happened.
func (w *world) wantKept(t *testing.T, when string, all []*pb.Event) {
	t.Helper()
	want := make([]map[string]any, len(all))
	for i, e := range all {
		want[i] = asLine(t, e)
	}
	archived, _ := w.lines("events")
	for _, e := range w.listed(&pb.ListEventsRequest{}) {
		archived = append(archived, asLine(t, e))
	}
	if diff := cmp.Diff(want, archived); diff != "" {
		t.Errorf("%s: the archive and what is listed (-want +got):\n%s", when, diff)
	}
	text, err := os.ReadFile(filepath.Join(w.export(), "events.jsonl"))
	apptest.NoError(t, err)
	var exported []map[string]any
	for l := range bytes.Lines(text) {
		var line map[string]any
		apptest.NoError(t, json.Unmarshal(l, &line))
		delete(line, "archived")
		exported = append(exported, line)
	}
	if diff := cmp.Diff(want, exported); diff != "" {
		t.Errorf("%s: the export (-want +got):\n%s", when, diff)
	}
}

// The row of a message is also the event that it was sent. A reader of the log sees no difference.
func TestSent_EventsAreTheSameWhereverTheyAreReadAndWhateverWasRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	apptest.Must(t, w.Root().CreateSession, &pb.CreateSessionRequest{Name: "project", Settings: keep(0)})
	w.session = "project"
	r := w.record(0)
	w.register("lead", "builder", "reviewer")
	noRole := &pb.RegisterAgentRequest{Lease: durationpb.New(apptest.LongLease)}
	apptest.Must(t, w.as("builder-2").RegisterAgent, noRole)
	for channel, names := range map[string][]string{"news": {"builder", "reviewer"}, "event/build_finished": {"builder"}} {
		for _, name := range names {
			channels := w.Actor(w.session, name)
			apptest.Must(t, channels.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: channel})
		}
	}

	var want []string
	expect := func(summary, details string, related ...int64) {
		want = append(want, fmt.Sprintln(summary, details, related))
	}
	var sent []*pb.SendResult
	for _, s := range sendings() {
		sent = append(sent, w.send(s.m))
		expect(s.summary, s.details)
		w.Clock.Advance(time.Second)
	}
	// A reply has the task and the subject of the message that it answers.
	reply := func(to string, ask bool) {
		t.Helper()
		out := apptest.Must(t, w.as("builder").Reply, &pb.ReplyRequest{Id: to, Message: &pb.Message{Body: "done"}})
		if out.GetAwaited() != ask {
			t.Errorf("awaited: %v", out)
		}
	}
	reply(sent[0].GetId(), false)
	expect("message to lead: done", `{"target":"lead","type":"message","priority":5,"recipients":1}`, sent[0].GetRevision())
	w.send(&pb.Message{Subject: "again", InReplyTo: sent[1].GetId()})
	expect("message to builder: again", `{"target":"builder","type":"message","priority":5,"recipients":1}`, sent[1].GetRevision())
	asked := make(chan *pb.AskResponse, 1)
	go func() {
		answer, _ := w.as("lead").Ask(w.ctx, &pb.AskRequest{Message: &pb.Message{Target: toAgent("builder"), Subject: "when?"}})
		asked <- answer
	}()
	question := r.await("message to builder: when?")
	expect("message to builder: when?", `{"target":"builder","type":"message","priority":5,"recipients":1}`)
	reply(strconv.FormatInt(question, 10), true)
	expect("message to lead: done", `{"target":"lead","type":"message","priority":5,"recipients":1,"awaited":true}`, question)
	if answer := <-asked; answer.GetReply() == nil {
		t.Fatal("no reply")
	}
	w.as("").Configure(&pb.SessionSettings{MailboxLimit: proto.Int64(1)})
	if refused := w.send(&pb.Message{Subject: "full"}); refused.GetRevision() == 0 {
		t.Fatal(refused)
	}
	expect("message to builder: full", `{"target":"builder","type":"message","priority":5,"recipients":1,"refused":1}`)
	w.as("").Configure(&pb.SessionSettings{MailboxLimit: proto.Int64(0)})
	apptest.Must(t, w.log().PublishEvent,
		&pb.PublishEventRequest{
			Type: "build_finished", Summary: "it is <built>", Details: `{"ok": true}`, Related: []string{"<a>", "b\"c"}, TaskId: "t-1",
			Severity: pb.Severity_SEVERITY_WARNING,
		})
	expect("event to channel:event/build_finished: it is <built>",
		`{"target":"channel:event/build_finished","type":"event","priority":6,"recipients":1}`)
	fromPeople := &pb.SendMessagesRequest{Messages: []*pb.Message{{Target: toAgent("builder-2"), Subject: "from people"}}}
	apptest.Must(t, w.as("").SendMessages, fromPeople)
	expect("message to builder-2: from people", `{"target":"builder-2","type":"message","priority":5,"recipients":1}`)

	all := r.all()
	var got []string
	for _, e := range all {
		if e.GetType() == "message.sent" {
			related := make([]int64, len(e.GetRelated()))
			for i, text := range e.GetRelated() {
				related[i], _ = strconv.ParseInt(text, 10, 64)
			}
			got = append(got, fmt.Sprintln(e.GetSummary(), e.GetDetails(), related))
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the texts (-want +got):\n%s", diff)
	}
	w.wantListed(t, "at first", all)
	w.wantKept(t, "at first", all)
	w.Restart()
	<-r.ended
	w.wantListed(t, "after a restart", all)
	r.resume(all[len(all)-1].GetRevision())

	// Messages are removed, and their events stay.
	w.settle("builder")
	w.Clock.Advance(2 * time.Hour)
	w.as("").Configure(keep(time.Hour)) // which starts a run
	w.gone(sent[0])
	w.turned()
	const alone = `SELECT count(*) FROM messages m WHERE NOT EXISTS (SELECT 1 FROM events WHERE revision = m.revision)`
	if testkit.Number(t, w.Dir(), alone) == 0 {
		t.Error("no message is left whose event has no row")
	}
	all = r.all()
	w.wantListed(t, "after messages were removed", all)
	w.wantKept(t, "after messages were removed", all)

	// Events are removed, some of them before their messages.
	oldest := w.Clock.Now().Add(-time.Hour)
	w.as("").Configure(&pb.SessionSettings{EventRetention: durationpb.New(time.Hour)})
	removed := func() {
		t.Helper()
		w.eventually("old events are removed", func() bool {
			page := apptest.Must(t, w.log().ListEvents, &pb.ListEventsRequest{PageSize: 1})
			return len(page.GetEvents()) > 0 && page.GetEvents()[0].GetTime().AsTime().After(oldest)
		})
	}
	removed()
	if !w.there(sent[1]) {
		t.Fatal("a message that waits was removed")
	}
	all = r.all()
	kept := func() []*pb.Event {
		return slices.DeleteFunc(slices.Clone(all), func(e *pb.Event) bool { return !e.GetTime().AsTime().After(oldest) })
	}
	w.wantListed(t, "after events were removed", kept())
	w.wantKept(t, "after events were removed", all)
	w.settle("reviewer")
	w.settle("builder-2")
	all = r.all() // before the events that the stream has yet to send are old enough to be removed
	w.Clock.Advance(2 * time.Hour)
	oldest = w.Clock.Now().Add(-time.Hour)
	w.as("").Configure(keep(59 * time.Minute))
	all = r.all()
	w.gone(sent[1])
	removed()
	w.Restart()
	<-r.ended
	w.wantListed(t, "after the other messages were removed", kept())
	w.wantKept(t, "after the other messages were removed", all)
}
