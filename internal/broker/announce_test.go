package broker_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func (a *agent) publish(e *pb.PublishEventRequest) int64 {
	a.Helper()
	return apptest.Must(a, a.PublishEvent, e).Revision
}

// inbox returns what is in the agent's mailbox and unfinished.
func (a *agent) inbox() []*pb.InboxItem {
	a.Helper()
	items, _ := a.receive(&pb.ReceiveRequest{})
	return items
}

// typesIn returns the types of the events in an inbox.
func typesIn(t *testing.T, items []*pb.InboxItem) []string {
	t.Helper()
	var types []string
	for _, i := range items {
		var e struct{ Type string }
		apptest.NoError(t, json.Unmarshal([]byte(i.Message.Payload), &e))
		types = append(types, e.Type)
	}
	return types
}

func TestAnnounce_PublishedEventReachesEachSubscriberOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, both, one, other := w.agent("lead", "lead"), w.agent("both", ""), w.agent("one", ""), w.agent("other", "")
	both.subscribe("event/build.finished", "event/*")
	one.subscribe("event/build.finished")
	other.subscribe("event/build.started")
	lead.subscribe("event/*")
	revision := lead.publish(&pb.PublishEventRequest{
		Type: "build.finished", Category: pb.EventCategory_EVENT_CATEGORY_WORK, Severity: pb.Severity_SEVERITY_WARNING, Summary: `"two" warnings`,
		Details: ` {"n": 1152921504606846977, "deep": {"x": [1.0]}} `, Related: []string{"4711", "a b"}, TaskId: "t1",
	})
	for _, a := range []*agent{both, one} {
		items := a.inbox()
		want(t, a.Name+"'s copies", len(items), 1)
		m := items[0].Message
		want(t, "type", m.Type, "event")
		want(t, "sender", m.Sender, "system")
		want(t, "priority", m.Priority, 6)
		want(t, "subject", m.Subject, `"two" warnings`)
		want(t, "task", m.TaskId, "t1")
		want(t, "channel", m.Target.GetChannel(), "event/build_finished")
		at := w.Clock.Now().UTC().Format(time.RFC3339Nano)
		if diff := cmp.Diff(fmt.Sprintf(`{"revision":%d,"time":"%s","category":"work","type":"build_finished","type_as_sent":"build.finished","severity":"warning",`+
			`"source":"lead","source_role":"lead","summary":"\"two\" warnings","details":{"n": 1152921504606846977, "deep": {"x": [1.0]}},`+
			`"related":["4711","a b"],"task_id":"t1"}`, revision, at), m.Payload); diff != "" {
			t.Error(diff)
		}
	}
	want(t, "of another type", len(other.inbox()), 0)
	want(t, "of whoever published it", len(lead.inbox()), 0)
	sent := w.Root().Events("message.sent")
	want(t, "messages", len(sent), 1)
	want(t, "their sender", sent[0].Source, "system")
}

func TestAnnounce_EventWithoutASummaryHasASubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	watcher := w.agent("watcher", "")
	watcher.subscribe("event/*")
	w.operator().publish(&pb.PublishEventRequest{Type: "BuildFinished", Details: `{"warnings":2}`})
	wantList(t, "subjects", subjectsIn(watcher.inbox()), "build_finished from system")
}

func TestAnnounce_ReachesWhoIsAwayAndWhoWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, away, here := w.agent("lead", ""), w.agent("away", ""), w.agent("here", "")
	away.subscribe("event/*")
	here.subscribe("event/*")
	claims := make(chan *pb.ClaimMessagesResponse, 1)
	go func() {
		out, err := here.ClaimMessages(here.Ctx, &pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(apptest.LongWait)})
		if err != nil {
			t.Error(err)
		}
		claims <- out
	}()
	<-w.Waits
	lead.publish(&pb.PublishEventRequest{Type: "build.finished", Summary: "done"})
	wantList(t, "a consumer that waits", subjectsOf((<-claims).GetClaims()), "done")
	w.Restart()
	wantList(t, "after a restart", subjectsIn(away.inbox()), "done")
}

func TestAnnounce_BrokersOwnEventsOfTheDocumentedTypesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	watcher := w.agent("watcher", "")
	watcher.subscribe("event/*")
	a, b := w.agent("a", ""), w.agent("b", "")
	a.send(to("b"))
	b.kill()
	a.send(to("b"))
	b.ack(b.claim1().ClaimId)
	w.Root().Configure(&pb.SessionSettings{MaxAttempts: new(int32(2))})
	b.deregister()
	wantList(t, "events", typesIn(t, watcher.inbox()),
		"agent.registered", "agent.registered", "message.dead", "session.configured", "agent.deregistered")
}

func TestAnnounce_StaysWithinItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	here, there := w.agent("a", ""), w.in("other", "a")
	there.Register("")
	here.subscribe("event/*")
	there.subscribe("event/*")
	o.publish(&pb.PublishEventRequest{Type: "build.finished"})
	want(t, "here", len(here.inbox()), 1)
	want(t, "there", len(there.inbox()), 0)
}

func TestAnnounce_FollowsSubscriptions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	publish := func() { o.publish(&pb.PublishEventRequest{Type: "build.finished"}) }
	publish()
	a.subscribe("event/build.finished")
	publish()
	want(t, "subscribed", len(a.inbox()), 1)
	a.unsubscribe("event/build.finished")
	publish()
	want(t, "unsubscribed", len(a.inbox()), 1)
	a.subscribe("event/*")
	a.deregister()
	publish()
	a.Register("")
	publish()
	want(t, "registered anew", len(a.inbox()), 0)
	dead := 0
	for _, e := range w.Root().Events("message.dead") {
		if e.Source == "a" {
			dead++
		}
	}
	want(t, "deaths of mail of one that has gone", dead, 1)
}

// A subscriber that fails is not sent the news of that, or each failure would bring the next.
func TestAnnounce_FailedEventMessageIsNotAnnounced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a, b := w.operator(), w.agent("a", ""), w.agent("b", "")
	a.subscribe("event/*")
	b.subscribe("event/message.dead")
	o.publish(&pb.PublishEventRequest{Type: "build.finished"})
	a.kill()
	want(t, "dead letters", len(w.Root().Events("message.dead")), 1)
	want(t, "news of it", len(b.inbox()), 0)
	o.send(to("a"))
	a.kill()
	wantList(t, "news of another's death", typesIn(t, b.inbox()), "message.dead")
	b.kill()
	want(t, "dead letters in the end", len(w.Root().Events("message.dead")), 3)
	want(t, "messages in the end", len(w.Root().Events("message.sent")), 3)
}

func TestAnnounce_ClaimThatRunsOutAnnouncesItsDeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a, b := w.operator(), w.agent("a", ""), w.agent("b", "")
	b.subscribe("event/message.dead")
	id := o.send(to("a", func(m *pb.Message) { m.MaxAttempts = 1 })).Id
	a.claim1()
	w.Clock.Advance(30 * time.Second)
	w.awaitState(id, dead)
	wantList(t, "news", typesIn(t, b.inbox()), "message.dead")
}

func TestAnnounce_FullMailboxRefusesItsCopyAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, full, empty := w.operator(), w.agent("full", ""), w.agent("empty", "")
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(2))})
	full.subscribe("event/*")
	empty.subscribe("event/*")
	o.send(to("full"))
	for i := range 2 {
		o.publish(&pb.PublishEventRequest{Type: "build.finished", Summary: strconv.Itoa(i)})
	}
	want(t, "full", len(full.inbox()), 2)
	want(t, "empty", len(empty.inbox()), 2)
	sent := w.Root().Events("message.sent")
	if last := sent[len(sent)-1]; !strings.Contains(last.Details, `"refused":1`) {
		t.Errorf("%s does not say that one copy was refused", last.Details)
	}
}

func TestAnnounce_ChannelsTimeToLiveHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	a.subscribe("event/*", "event/build.finished")
	set := func(channel string, ttl time.Duration) {
		apptest.Must(t, o.ConfigureChannel,
			&pb.ConfigureChannelRequest{Channel: channel, DefaultTtl: durationpb.New(ttl)})
	}
	set("event/*", time.Hour)
	set("event/build.finished", time.Minute)
	o.publish(&pb.PublishEventRequest{Type: "build.started", Summary: "long"})
	o.publish(&pb.PublishEventRequest{Type: "build.finished", Summary: "short"})
	items := a.inbox()
	wantList(t, "inbox", subjectsIn(items), "long", "short")
	want(t, "all events'", items[0].Message.ExpiresAt.AsTime(), w.Clock.Now().Add(time.Hour).UTC())
	want(t, "the type's", items[1].Message.ExpiresAt.AsTime(), w.Clock.Now().Add(time.Minute).UTC())
}

func TestAnnounce_ReceiveChoosesByChannel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	a.subscribe("event/*")
	o.publish(&pb.PublishEventRequest{Type: "build.started", Summary: "started"})
	o.publish(&pb.PublishEventRequest{Type: "build.finished", Summary: "finished"})
	items, _ := a.receive(&pb.ReceiveRequest{Filter: &pb.MessageFilter{Channels: []string{"event/build.finished"}}})
	wantList(t, "chosen", subjectsIn(items), "finished")
}

func TestEventChannel_OnlyTheBrokerSendsToIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.subscribe("event/*")
	for _, channel := range []string{"event/*", "event/build.finished", "event/"} {
		apptest.Invalid(t, a.refused(toChannel(channel)), "messages[0].target.channel")
		m := toChannel(channel)
		m.Reach = pb.Reach_REACH_ONE
		apptest.Invalid(t, a.refused(m), "messages[0].target.channel")
	}
	apptest.Invalid(t, a.refused(to("a", func(m *pb.Message) { m.Channel = "event/build.finished" })), "messages[0].channel")
	for _, channel := range []string{"event/", "event/1", "event/a b", "event/message.sent", "event/state.put", "event/**", "news/x"} {
		_, err := a.SubscribeChannel(a.Ctx, &pb.SubscribeChannelRequest{Channel: channel})
		apptest.Invalid(t, err, "channel")
	}
}

func TestAnnounce_SeveritySetsThePriority(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a := w.operator(), w.agent("a", "")
	a.subscribe("event/*")
	var got []int32
	for _, s := range []pb.Severity{
		pb.Severity_SEVERITY_UNSPECIFIED, pb.Severity_SEVERITY_DEBUG, pb.Severity_SEVERITY_INFO, pb.Severity_SEVERITY_WARNING,
		pb.Severity_SEVERITY_ERROR, pb.Severity_SEVERITY_CRITICAL,
	} {
		o.publish(&pb.PublishEventRequest{Type: "build.finished", Severity: s})
	}
	for _, i := range a.inbox() {
		got = append(got, i.Message.Priority)
	}
	wantList(t, "priorities", got, 5, 3, 5, 6, 7, 10)
}

func TestPublish_AnswersHowManySubscribersItReaches(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o, a, b, c, full := w.operator(), w.agent("a", ""), w.agent("b", ""), w.agent("c", ""), w.agent("full", "")
	w.Root().Configure(&pb.SessionSettings{MailboxLimit: new(int64(1))})
	a.subscribe("event/build.finished", "event/*")
	b.subscribe("event/*")
	c.subscribe("event/build.started")
	full.subscribe("event/*")
	o.send(to("full"))
	for _, f := range []*pb.EventFilter{
		nil, {Types: []string{"build.*"}, Sources: []string{"system"}}, {Types: []string{"test.*"}}, {Sources: []string{"a"}}, {TaskId: "t"},
	} {
		sub, err := o.SubscribeEvents(o.Ctx, &pb.SubscribeEventsRequest{Filter: f})
		apptest.NoError(t, err)
		apptest.NoError(t, drop(sub.Recv()))
	}
	request := &pb.PublishEventRequest{Type: "build.finished", RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f"}
	out := apptest.Must(t, o.PublishEvent, request)
	want(t, "subscribers", out.Subscribers, 4) // two mailboxes and two streams
	again := apptest.Must(t, o.PublishEvent, request)
	want(t, "subscribers of the same request", again.Subscribers, 4)
}
