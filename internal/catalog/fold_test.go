package catalog_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/msgtype"
)

// spellings returns a name in snake_case as different tools write it.
func spellings(name string) []string {
	var pascal strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		pascal.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return []string{
		name, pascal.String(), strings.ToUpper(name), strings.ReplaceAll(name, "_", "."), strings.ReplaceAll(name, "_", "-"),
	}
}

func TestSend_EverySpellingOfEveryNameFindsTheCanonicalType(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead, b := w.Agent("a", "lead"), w.Agent("b", "")
	for _, family := range msgtype.Families() {
		var messages []*pb.Message
		var want []string
		for _, kind := range family.Types {
			for _, name := range append([]string{kind.Name}, kind.Aliases...) {
				for _, spelling := range spellings(name) {
					messages = append(messages, &pb.Message{Type: spelling, Body: "text", Payload: kind.Example})
					want = append(want, kind.Name)
				}
			}
		}
		results, err := send(lead, messages...)
		apptest.NoError(t, err)
		for i, r := range results {
			if len(r.Warnings) > 0 {
				t.Errorf("%s: warnings %q", messages[i].Type, r.Warnings)
			}
			if got := stored(b, r.Id); got != want[i] {
				t.Errorf("%s is stored as %s, want %s", messages[i].Type, got, want[i])
			}
		}
	}
}

func TestSend_DirectiveInEverySpelling(t *testing.T) {
	t.Parallel()
	w := start(t)
	builder, b := w.Agent("a", "builder"), w.Agent("b", "")
	for _, spelling := range spellings("shutdown_request") {
		if _, err := send(builder, &pb.Message{Type: spelling}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s of an agent that is no director: %v", spelling, err)
		}
		sent(w.Root(), "text", "")
		id := sent(w.Root(), spelling, "").Id
		claims := apptest.Must(t, b.ClaimMessages, &pb.ClaimMessagesRequest{})
		if len(claims.Claims) != 1 || claims.Claims[0].Message.Id != id {
			t.Fatalf("%s does not come first: %v", spelling, claims)
		}
		apptest.Must(t, b.AckMessages, &pb.AckMessagesRequest{})
	}
}

func TestSend_TwoSpellingsOfAnUnknownTypeAreOneType(t *testing.T) {
	t.Parallel()
	w := start(t)
	o, b := w.Root(), w.Agent("b", "")
	for _, spelling := range spellings("deploy_started") {
		if got := stored(b, sent(o, spelling, "").Id); got != "deploy_started" {
			t.Errorf("%s is stored as %s", spelling, got)
		}
	}
	_, err := send(o, &pb.Message{Type: strings.Repeat("aB", 64)})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a name that is too long in snake_case: %v", err)
	}
}

func TestFilters_TakeEverySpelling(t *testing.T) {
	t.Parallel()
	w := start(t)
	o, b := w.Root(), w.Agent("b", "")
	for _, spelling := range append(spellings("task_complete"), "TaskCompleted", "task.done") {
		id := sent(o, "TASK-COMPLETED", "").Id
		sent(o, "text", "")
		filter := &pb.MessageFilter{Types: []string{spelling}}
		list := apptest.Must(t, b.ListMessages, &pb.ListMessagesRequest{Filter: filter, NewestFirst: true})
		if len(list.Items) == 0 || list.Items[0].Message.Id != id {
			t.Errorf("list with filter %s: %v", spelling, list.Items)
		}
		stream, err := b.Receive(b.Ctx, &pb.ReceiveRequest{Filter: filter, Cursor: "c"})
		apptest.NoError(t, err)
		received, err := stream.Recv()
		apptest.NoError(t, err)
		if len(received.Items) != 1 || received.Items[0].Message.Id != id {
			t.Errorf("receive with filter %s: %v", spelling, received.Items)
		}
		apptest.Must(t, b.ClaimMessages, &pb.ClaimMessagesRequest{Types: []string{"no_such_type"}})
		claims := apptest.Must(t, b.ClaimMessages, &pb.ClaimMessagesRequest{Types: []string{spelling}})
		if len(claims.Claims) != 1 || claims.Claims[0].Message.Id != id {
			t.Fatalf("claim with filter %s: %v", spelling, claims.Claims)
		}
		apptest.Must(t, b.AckMessages, &pb.AckMessagesRequest{})
	}
}

func TestFilters_OfAClaimStreamTakeEverySpelling(t *testing.T) {
	t.Parallel()
	w := start(t)
	o, b := w.Root(), w.Agent("b", "")
	stream, err := b.Claim(b.Ctx)
	apptest.NoError(t, err)
	open := &pb.ClaimOpen{Types: []string{"DeployStarted", "TaskCompleted"}, MaxInFlight: 10}
	apptest.NoError(t, stream.Send(&pb.ClaimRequest{Open: open}))
	apptest.NoError(t, apptest.Err(stream.Recv()))
	sent(o, "text", "")
	for _, spelling := range []string{"deploy.started", "task_done"} {
		id := sent(o, spelling, "").Id
		frame, err := stream.Recv()
		apptest.NoError(t, err)
		if got := frame.GetDeliver().GetClaims(); len(got) != 1 || got[0].Message.Id != id {
			t.Errorf("%s: %v", spelling, frame)
		}
	}
}

func TestSendStream_FoldsAndWarnsItemByItem(t *testing.T) {
	t.Parallel()
	w := start(t)
	w.Agent("b", "")
	o := w.Root()
	stream, err := o.Send(o.Ctx)
	apptest.NoError(t, err)
	target := &pb.Target{To: &pb.Target_Agent{Agent: "b"}}
	var messages []*pb.Message
	for _, kind := range []string{"TaskCompleted", "Mystery", "text"} {
		messages = append(messages, &pb.Message{Target: target, Type: kind, Body: "text"})
	}
	apptest.NoError(t, stream.Send(&pb.SendRequest{Messages: messages, Producer: "p", FirstNumber: 1}))
	answer, err := stream.Recv()
	apptest.NoError(t, err)
	var warned []int
	for i, r := range answer.Results {
		if len(r.Warnings) > 0 {
			warned = append(warned, i)
		}
	}
	if !slices.Equal(warned, []int{1}) {
		t.Errorf("warned %v", warned)
	}
	for i, want := range [][2]string{{"task_complete", "TaskCompleted"}, {"mystery", "Mystery"}, {"text", ""}} {
		if m := get(o, answer.Results[i].Id); m.Type != want[0] || m.TypeAsSent != want[1] {
			t.Errorf("%s is stored as %s, sent as %q", messages[i].Type, m.Type, m.TypeAsSent)
		}
	}
}

func TestAskAndReply_Fold(t *testing.T) {
	t.Parallel()
	w := start(t)
	a, b := w.Agent("a", ""), w.Agent("b", "")
	done := make(chan *pb.AskResponse, 1)
	stream, err := b.Receive(b.Ctx, &pb.ReceiveRequest{Follow: true})
	apptest.NoError(t, err)
	go func() {
		r, err := a.Ask(a.Ctx, &pb.AskRequest{Message: &pb.Message{
			Target: &pb.Target{To: &pb.Target_Agent{Agent: "b"}}, Type: "ClarificationRequest", Body: "which?",
		}})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	var question *pb.Message
	for question == nil {
		r, err := stream.Recv()
		apptest.NoError(t, err)
		if len(r.Items) > 0 {
			question = r.Items[0].Message
		}
	}
	if question.Type != "clarification" || question.TypeAsSent != "ClarificationRequest" {
		t.Errorf("the question is stored as %s, sent as %q", question.Type, question.TypeAsSent)
	}
	apptest.Must(t, b.Reply, &pb.ReplyRequest{Id: question.Id, Message: &pb.Message{Type: "Answer", Body: "this"}})
	if r := <-done; r.GetReply().GetType() != "response" || r.GetReply().GetTypeAsSent() != "Answer" {
		t.Errorf("the reply is %v", r.GetReply())
	}
}

func TestEvents_PublishedTypesFold(t *testing.T) {
	t.Parallel()
	w := start(t)
	a, b := w.Agent("a", ""), w.Agent("b", "")
	for _, channel := range []string{"event/TaskCompleted", "event/Deploy.Started"} {
		apptest.Must(t, b.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: channel})
	}
	spelling := map[int64]string{} // by revision
	for published, want := range map[string]string{
		"TaskCompleted": "task_complete", "task-done": "task_complete", "BlockerEncountered": "blocker_encountered",
		"deploy.started": "deploy_started", "DeployStarted": "deploy_started", "MessageSent": "message_sent", "deploy_started": "deploy_started",
	} {
		r := apptest.Must(t, a.PublishEvent, &pb.PublishEventRequest{Type: published})
		found := a.Events(published)
		if len(found) == 0 || found[len(found)-1].Revision != r.Revision || found[len(found)-1].Type != want {
			t.Errorf("%s: %v, want type %s", published, found, want)
			continue
		}
		spelling[r.Revision] = published
		if e := found[len(found)-1]; e.TypeAsSent != published && e.Type != published || e.TypeAsSent == e.Type {
			t.Errorf("%s is in the log as sent as %q", published, e.TypeAsSent)
		}
	}
	for types, want := range map[string]int{
		"task_completed": 2, "TASK_COMPLETE": 2, "Deploy.*": 3, "deploy.started": 3, "message_sent": 1, "MessageSent": 1,
	} {
		n := 0
		for _, e := range b.Events(types) {
			if e.Source == "a" && !strings.Contains(e.Type, ".") {
				n++
			}
		}
		if n != want {
			t.Errorf("filter %s finds %d events of agents, want %d", types, n, want)
		}
	}
	list := apptest.Must(t, b.ListMessages, &pb.ListMessagesRequest{
		Filter: &pb.MessageFilter{Channels: []string{"event/task.done"}},
	})
	if len(list.Items) != 2 || list.Items[0].Message.GetTarget().GetChannel() != "event/task_complete" {
		t.Errorf("messages of the channel: %v", list.Items)
	}
	all := apptest.Must(t, b.ListMessages, &pb.ListMessagesRequest{})
	if len(all.Items) != 5 {
		t.Errorf("%d messages of events, want 5", len(all.Items))
	}
	for _, i := range all.Items {
		var e struct{ Revision int64 }
		apptest.NoError(t, json.Unmarshal([]byte(i.Message.Payload), &e))
		if got := i.Message.TypeAsSent; got == "" || got != spelling[e.Revision] {
			t.Errorf("the message of the event %q has %q as its type as sent", spelling[e.Revision], got)
		}
	}
	_, err := a.PublishEvent(a.Ctx, &pb.PublishEventRequest{Type: "task.completed"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("one of the broker's own types: %v", err)
	}
}

func TestEvents_FilterFindsTheBrokersOwnTypesToo(t *testing.T) {
	t.Parallel()
	w := start(t)
	a, b := w.Agent("a", ""), w.Agent("b", "")
	stream, err := b.SubscribeEvents(b.Ctx, &pb.SubscribeEventsRequest{
		Filter: &pb.EventFilter{Types: []string{"AgentDegraded", "MessageSent"}},
	})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(stream.Recv()))
	apptest.Must(t, b.SubscribeChannel, &pb.SubscribeChannelRequest{Channel: "event/AgentRegistered"})
	sent := sent(a, "text", "")
	page, err := stream.Recv()
	apptest.NoError(t, err)
	if len(page.Events) != 1 || page.Events[0].Revision != sent.Revision || page.Events[0].Type != "message.sent" {
		t.Errorf("%v", page)
	}
	apptest.Must(t, a.PublishEvent, &pb.PublishEventRequest{Type: "message_sent"})
	if own := b.Events("message.sent"); len(own) != 1 {
		t.Errorf("the filter for one of the broker's own types finds %v", own)
	}
	w.Agent("c", "")
	list := apptest.Must(t, b.ListMessages, &pb.ListMessagesRequest{
		Filter: &pb.MessageFilter{Channels: []string{"event/agent.registered"}},
	})
	if len(list.Items) != 1 || list.Items[0].Message.TypeAsSent != "" ||
		!strings.Contains(list.Items[0].Message.Payload, `"type":"agent.registered"`) {
		t.Errorf("messages of the channel: %v", list.Items)
	}
}
