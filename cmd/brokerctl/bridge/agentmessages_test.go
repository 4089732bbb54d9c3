package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const agentRoot = ".agent-messages/"

func TestAgentMessages_FileInAnotherInboxIsSentAndGetsTheStatusOfTheMessage(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/lead/msg_1.json", `{
  "message_id": "msg_1",
  "protocol_version": "1.0",
  "timestamp": "2026-01-01T00:00:00Z",
  "from_agent": "builder-1",
  "to_agent": "lead",
  "message_type": "interface_contract",
  "priority": "high",
  "subject": "IUserService",
  "payload": {"methods": ["findById", "create"]},
  "requires_response": true,
  "response_deadline": "2026-01-01T01:00:00Z",
  "conversation_id": "conv_1",
  "metadata": {"task_id": "t-1", "related_files": ["a.ts", "b.ts"], "branch": "main", "effort": 3},
  "status": "delivered",   "mood": ["curious"]
}
`)
	d.start()
	m := d.claim(lead, 1)[0]
	got := map[string]any{"sender": m.GetSender(), "type": m.GetType(), "priority": m.GetPriority(), "subject": m.GetSubject(),
		"payload": m.GetPayload(), "requires_response": m.GetRequiresResponse(), "thread": m.GetThreadId(), "task": m.GetTaskId(),
		"files": []string{m.GetFiles()[0].GetPath(), m.GetFiles()[1].GetPath()}, "branch": m.GetLabels()["branch"],
		"effort": m.GetLabels()["file.metadata.effort"], "mood": m.GetLabels()["file.mood"]}
	want := map[string]any{"sender": "builder-1", "type": "interface_contract", "priority": int32(7), "subject": "IUserService",
		"payload": `{"methods": ["findById", "create"]}`, "requires_response": true, "thread": "conv_1", "task": "t-1",
		"files": []string{"a.ts", "b.ts"}, "branch": "main", "effort": "3", "mood": `["curious"]`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	name := d.archived(agentRoot + "inbox/lead/msg_1.json")
	if text := d.text(name); !strings.Contains(text, `  "status": "acknowledged",   "mood": ["curious"]`) {
		t.Errorf("the archived file does not have the status in its place: %s", text)
	}
}

// archived waits until a file has moved from its folder to archive/, and returns its new path.
func (d *team) archived(name string) string {
	d.t.Helper()
	d.await(filepath.Dir(name), "the archiving of "+name, func() bool {
		_, err := os.Lstat(filepath.Join(d.dir, name))
		return errors.Is(err, fs.ErrNotExist)
	})
	found, _ := filepath.Glob(filepath.Join(d.dir, agentRoot, "archive/*", filepath.Base(name)))
	if len(found) != 1 {
		d.t.Fatalf("%s has moved to %v", name, found)
	}
	path, _ := filepath.Rel(d.dir, found[0])
	return path
}

func TestAgentMessages_MailAppearsInTheInboxUntilItsFileSaysAcknowledged(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	apptest.NoError(t, os.MkdirAll(filepath.Join(d.dir, agentRoot, "inbox/scout"), 0o755))
	d.start()
	d.awaitAgent("scout")
	question := d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Type: "question", Subject: "How many?", Payload: `{"of": "tests"}`,
		Priority: 10, RequiresResponse: true, ThreadId: "t-9", TaskId: "t-1", Labels: map[string]string{"branch": "main"}})
	name := agentRoot + "inbox/scout/" + d.awaitFiles(agentRoot+"inbox/scout", 1)[0]
	file := d.object(name)
	id, _ := file["message_id"].(string)
	for _, field := range []string{"message_id", "timestamp", "response_deadline"} {
		if file[field] == nil || field == "message_id" && filepath.Base(name) != id+".json" {
			t.Errorf("%s is %v in %s", field, file[field], name)
		}
		delete(file, field)
	}
	want := map[string]any{"protocol_version": "1.0", "from_agent": "lead", "to_agent": "scout", "message_type": "question",
		"priority": "critical", "subject": "How many?", "payload": map[string]any{"of": "tests"}, "requires_response": true,
		"conversation_id": "t-9", "status": "delivered", "metadata": map[string]any{"task_id": "t-1", "branch": "main"}}
	if diff := cmp.Diff(want, file); diff != "" {
		t.Error(diff)
	}

	d.write(agentRoot+"inbox/lead/resp_1.json", `{"message_id": "resp_1", "from_agent": "scout", "to_agent": "lead", "message_type": "response",
		"payload": "1,000", "in_reply_to": "`+id+`", "conversation_id": "t-9"}`)
	answer := d.claim(lead, 1)[0]
	if answer.GetBody() != "1,000" || answer.GetInReplyTo() != question.GetId() {
		t.Errorf("the answer is %v", answer)
	}

	d.write(name, strings.Replace(d.text(name), `"delivered"`, `"acknowledged"`, 1))
	d.awaitState(question.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	d.archived(name)
}

// toLead is a message of the agent scout.
func toLead(id, to, payload string) string {
	return `{"message_id": "` + id + `", "from_agent": "scout", "to_agent": "` + to + `", "payload": "` + payload + `"}`
}

func TestAgentMessages_BroadcastThatItsSenderCopiesReachesEachAgentOnce(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/with-copy/.keep", "")
	d.write(agentRoot+"inbox/without/.keep", "")
	d.start(func(o *engine.Options) { o.Settle = time.Hour })
	d.awaitAgent("with-copy")
	d.awaitAgent("without")
	d.write(agentRoot+"inbox/with-copy/b1.json", toLead("b1", "ALL", "all")) // as the copy may come first
	d.write(agentRoot+"inbox/lead/probe.json", toLead("probe", "lead", "the bridge has read the copy"))
	d.claim(lead, 1)
	d.write(agentRoot+"broadcasts/b1.json", toLead("b1", "ALL", "all"))
	d.write(agentRoot+"inbox/with-copy/b2.json", toLead("b2", "with-copy", "last"))
	d.write(agentRoot+"broadcasts/b3.json", toLead("b3", "ALL", "end"))
	for _, want := range []string{"all", "end"} {
		if m := d.claim(lead, 1)[0]; m.GetBody() != want || m.GetSender() != "scout" {
			t.Errorf("lead has received %v, not %s", m, want)
		}
	}
	for agent, want := range map[string][]string{"with-copy": {"b1.json", "b2.json", "b3.json"}, "without": {"b1.json", "b3.json"}} {
		dir := agentRoot + "inbox/" + agent + "/"
		if names := d.awaitFiles(dir, len(want)); !cmp.Equal(names, want) {
			t.Errorf("%s has %q", agent, names)
		}
		for _, name := range want {
			file := d.object(dir + name)
			file["status"] = "resolved"
			text, _ := json.Marshal(file)
			d.write(dir+name, string(text))
		}
		d.awaitEmpty(agent)
		for _, name := range want {
			d.age(dir + name)
			d.archived(dir + name)
		}
	}
	broadcast := agentRoot + "broadcasts/b1.json"
	d.await(agentRoot+"broadcasts", "the status of b1.json", func() bool { // it is written into the file, which is new then
		return d.object(broadcast)["status"] == "acknowledged"
	})
	d.age(broadcast)
	d.archived(broadcast)
	if sent := d.sentBy("scout"); len(sent) != 4 {
		t.Errorf("scout has sent %v", sent)
	}
}

func TestAgentMessages_OutboxIsSentAndALogInItIsNot(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.start()
	d.write(agentRoot+"inbox/lead/m1.json", toLead("m1", "lead", "direct"))
	d.write(agentRoot+"outbox/m1_to_lead.json", toLead("m1", "lead", "direct"))
	d.claim(lead, 1)
	d.archived(agentRoot + "outbox/m1_to_lead.json")
	d.write(agentRoot+"outbox/m2_to_lead.json", toLead("m2", "lead", "a log without its message"))
	d.write(agentRoot+"outbox/m3.json", toLead("m3", "lead", "pending"))
	if m := d.claim(lead, 1)[0]; m.GetBody() != "pending" {
		t.Errorf("lead has received %v", m)
	}
	if file := d.object(d.archived(agentRoot + "outbox/m3.json")); file["status"] != "acknowledged" {
		t.Errorf("the file of the outbox is %v", file)
	}
	if names := d.names(agentRoot + "outbox"); !cmp.Equal(names, []string{"m2_to_lead.json"}) {
		t.Errorf("outbox/ has %q", names)
	}
}

func TestAgentMessages_SecondMessageWithAnIDIsRejectedUnlessItIsACopy(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.start()
	d.write(agentRoot+"inbox/lead/a.json", toLead("m1", "lead", "one"))
	d.claim(lead, 1)
	d.archived(agentRoot + "inbox/lead/a.json")
	d.write(agentRoot+"inbox/lead/b.json", toLead("m1", "lead", "one"))
	d.archived(agentRoot + "inbox/lead/b.json")
	d.write(agentRoot+"inbox/lead/c.json", toLead("m1", "lead", "another"))
	names := d.awaitFiles(agentRoot+"rejected", 2)
	if text := d.text(agentRoot + "rejected/" + names[1]); !strings.Contains(text, "another message of scout has the message_id m1") {
		t.Errorf("the reason is %q", text)
	}
	d.write(agentRoot+"inbox/lead/d.json", toLead("m2", "somebody", "wrong inbox"))
	d.awaitFiles(agentRoot+"rejected", 4)
	if sent := d.sentBy("scout"); len(sent) != 1 {
		t.Errorf("scout has sent %v", sent)
	}
}

func TestAgentMessages_EventFileIsPublishedAndArchived(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	if _, err := pb.NewChannelServiceClient(lead).SubscribeChannel(t.Context(),
		&pb.SubscribeChannelRequest{Channel: "event/BlockerEncountered"}); err != nil {
		t.Fatal(err)
	}
	d.start()
	name := agentRoot + "events/BlockerEncountered/evt_1.json"
	d.write(name, `{"event_id": "evt_1", "event_type": "BlockerEncountered", "timestamp": "2026-01-01T00:00:00Z", "source_agent": "scout",
		"event_data": {"task_id": "t-1", "description": "no model"}, "mood": "low"}`)
	var payload struct {
		Source  string            `json:"source"`
		Details map[string]string `json:"details"`
	}
	apptest.NoError(t, json.Unmarshal([]byte(d.claim(lead, 1)[0].GetPayload()), &payload))
	want := map[string]string{"task_id": "t-1", "description": "no model", "file.mood": "low", "file.event_id": "evt_1",
		"file.timestamp": "2026-01-01T00:00:00Z"}
	if diff := cmp.Diff(want, payload.Details); diff != "" || payload.Source != "scout" {
		t.Errorf("%s published: %s", payload.Source, diff)
	}
	d.archived(name)
	d.write(agentRoot+"events/BlockerEncountered/message.json", toLead("m1", "lead", "no event"))
	d.awaitFiles(agentRoot+"rejected", 2)
}

func TestAgentMessages_BlockerEventsRaiseAndResolveBlockers(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	if _, err := pb.NewChannelServiceClient(lead).SubscribeChannel(t.Context(),
		&pb.SubscribeChannelRequest{Channel: "event/BlockerResolved"}); err != nil {
		t.Fatal(err)
	}
	stop := d.start(func(o *engine.Options) { o.Blockers = true })
	publish := func(kind, id, data string) {
		name := agentRoot + "events/" + kind + "/" + id + ".json"
		d.write(name, `{"event_id": "`+id+`", "event_type": "`+kind+`", "source_agent": "scout", "event_data": `+data+`}`)
		d.archived(name)
	}
	blockers := func() []*pb.Blocker {
		t.Helper()
		out, err := pb.NewBlockerServiceClient(lead).ListBlockers(t.Context(), &pb.ListBlockersRequest{})
		apptest.NoError(t, err)
		return out.GetBlockers()
	}
	publish("BlockerEncountered", "evt_1",
		`{"task_id": "t-1", "description": "no model", "dependency": {"responsible_agent": "lead"}}`)
	got := blockers()
	if len(got) != 1 || got[0].GetReason() != "no model" || got[0].GetAgent() != "scout" || got[0].GetTaskId() != "t-1" ||
		got[0].GetAwaited().GetAgent() != "lead" {
		t.Fatalf("the blockers are %v", got)
	}
	publish("BlockerResolved", "evt_2", `{"task_id": "t-1", "resolution": "here it is"}`)
	if got = blockers(); len(got) != 1 || got[0].GetState() != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("the blockers are %v", got)
	}
	publish("BlockerResolved", "evt_3", `{"task_id": "t-2"}`) // there is none: the event is published
	for _, m := range d.claim(lead, 2) {
		if m.GetTypeAsSent() != "BlockerResolved" {
			t.Errorf("lead has received %v", m)
		}
	}
	if text := stop(); !strings.Contains(text, "publishes BlockerResolved of scout without a blocker") {
		t.Errorf("the bridge logged\n%s", text)
	}
}

// sentBy returns the messages that an agent has sent.
func (d *team) sentBy(agent string) []*pb.InboxItem {
	d.t.Helper()
	out, err := messages(d.broker.Operator()).ListMessages(d.t.Context(), &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{Senders: []string{agent}}})
	apptest.NoError(d.t, err)
	return out.GetItems()
}

func TestAgentMessages_MessageToOneAgentOfARoleIsAcknowledgedByItsFile(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/scout-1/.keep", "")
	d.start()
	d.awaitAgent("scout-1")
	order := d.send(lead, &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "scout"}}, Body: "survey"})
	name := agentRoot + "inbox/scout-1/" + d.awaitFiles(agentRoot+"inbox/scout-1", 1)[0]
	d.write(name, strings.Replace(d.text(name), `"delivered"`, `"resolved"`, 1))
	d.awaitState(order.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	d.archived(name)
}

func TestAgentMessages_FileRemovedWhileItsSendWasInterruptedIsAcknowledged(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/scout/.keep", "")
	stop := d.start()
	d.awaitAgent("scout")
	stop()
	// A kill came between the send and its entry in the ledger. Then the recipient removed the file.
	key := uuid.NewString()
	message := toAgent("scout", "removed")
	message.CorrelationId = "bridge:" + key
	removed := d.send(lead, message)
	id := strings.TrimSpace(d.text(agentRoot + ".bridge/id"))
	for _, key := range []string{key, uuid.NewString()} { // the second one was not sent
		if _, err := pb.NewStateServiceClient(d.broker.Operator()).PutState(t.Context(), &pb.PutStateRequest{
			Namespace: "bridge", Key: id + "/inbox/scout/key:" + key,
			Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: key + ".json"}}}); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	d.awaitState(removed.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	d.awaitEvents("the ledger is empty", func(ctx context.Context) bool {
		out, err := pb.NewStateServiceClient(d.broker.Operator()).ListState(ctx,
			&pb.ListStateRequest{Namespace: "bridge", KeyPrefix: id + "/inbox/scout/"})
		return err == nil && len(out.GetEntries()) == 0
	})
	if names := d.names(agentRoot + "inbox/scout"); len(names) > 0 {
		t.Errorf("the inbox has %q", names)
	}
}

func TestAgentMessages_RegistryNamesRoleAndCapabilities(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/builder-1/.keep", "")
	d.write(agentRoot+"registry.json", `{"agents": {"builder-1": {"role": "backend", "capabilities": ["go", "no name", "sql"]},
		"builder-2": {"role": "no name"}}}`)
	d.start()
	d.awaitAgent("builder-2")
	if role := d.agent("builder-2").GetRole(); role != "builder" {
		t.Errorf("the role without a valid name is %q", role)
	}
	d.awaitAgent("builder-1")
	if a := d.agent("builder-1"); a.GetRole() != "backend" || !cmp.Equal(a.GetCapabilities(), []string{"go", "sql"}) {
		t.Errorf("builder-1 is %v", a)
	}
	toRole := func(role string) *pb.Message {
		return &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: role}}, Body: role}
	}
	order := d.send(lead, toRole("backend"))
	name := agentRoot + "inbox/builder-1/" + d.awaitFiles(agentRoot+"inbox/builder-1", 1)[0]
	d.write(name, strings.Replace(d.text(name), `"delivered"`, `"acknowledged"`, 1))
	d.awaitState(order.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	d.archived(name)

	d.write(agentRoot+"registry.json", strings.Replace(d.text(agentRoot+"registry.json"), `"backend"`, `"frontend"`, 1))
	d.awaitEvents("the role changes", func(context.Context) bool { return d.agent("builder-1").GetRole() == "frontend" })
	d.send(lead, toRole("frontend"))
	d.awaitFiles(agentRoot+"inbox/builder-1", 1)
	if n := d.agent("builder-1").GetIncarnation(); n != 2 {
		t.Errorf("builder-1 was registered %d times", n)
	}
}

func TestAgentMessages_NameThatIsNotUTF8IsRejectedAndHindersNoOther(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/lead/a\xff.json", toLead("m1", "lead", "one"))
	d.start()
	d.write(agentRoot+"events/probe\xff/e.json", `{"event_id": "e1", "source_agent": "scout", "event_data": {}}`)
	d.write(agentRoot+"inbox/lead/b.json", toLead("m2", "lead", "two"))
	if m := d.claim(lead, 1)[0]; m.GetBody() != "two" {
		t.Errorf("lead has received %v", m)
	}
	names := d.awaitFiles(agentRoot+"rejected", 4)
	for _, name := range names {
		if text := d.text(agentRoot + "rejected/" + name); strings.HasSuffix(name, ".error") &&
			!strings.Contains(text, "its name is not UTF-8") {
			t.Errorf("the reason is %q", text)
		}
	}
}

func TestAgentMessages_FileThatBecomesAnotherMessageIsSentAgain(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.write(agentRoot+"inbox/scout/.keep", "")
	name := agentRoot + "inbox/lead/latest.json"
	stop := d.start()
	d.awaitAgent("scout")
	d.write(name, toLead("m1", "lead", "one"))
	d.awaitSent("scout", 1)
	d.write(name, toLead("m2", "lead", "two"))
	d.awaitSent("scout", 2)
	stop()
	d.write(name, toLead("m3", "lead", "three"))
	d.start()
	d.awaitSent("scout", 3)
	for i, m := range d.claim(lead, 3) {
		if want := []string{"one", "two", "three"}[i]; m.GetBody() != want {
			t.Errorf("message %d is %v", i, m)
		}
	}
	if text := d.text(d.archived(name)); !strings.Contains(text, "three") {
		t.Errorf("the archived file is %s", text)
	}
}

func TestAgentMessages_EventIsPublishedOnceIfTheNextBridgeKeepsNoBlockers(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("first with blockers: %v", first), func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, "agent-messages")
			d.broker.Registered("lead", "lead")
			published := func(ctx context.Context) bool {
				out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(ctx,
					&pb.ListEventsRequest{Filter: &pb.EventFilter{Sources: []string{"scout"}}})
				count := 0
				for _, e := range out.GetEvents() {
					if strings.Contains(e.GetDetails(), `"file.event_id"`) {
						count++
					}
				}
				return err == nil && count == 1
			}
			stop := d.start(func(o *engine.Options) { o.Blockers, o.Settle = first, time.Hour }) // the file stays
			name := agentRoot + "events/BlockerEncountered/e.json"
			d.write(name, `{"event_id": "e", "source_agent": "scout", "event_data": {"task_id": "t-1", "description": "no model"}}`)
			d.awaitEvents("the event", published)
			stop()
			d.start(func(o *engine.Options) { o.Blockers = !first })
			d.archived(name)
			if names := d.names(agentRoot + "rejected"); len(names) > 0 || !published(t.Context()) {
				t.Errorf("the bridge rejected %q, or published the event again", names)
			}
		})
	}
}

func TestAgentMessages_EventsThatCannotBeHandledDoNotHinderOthers(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	d.broker.Registered("lead", "lead")
	d.start(func(o *engine.Options) { o.Settle = 1 })
	d.write(agentRoot+"rejected", "a file: nothing can be rejected")
	for n := range 30 {
		d.write(fmt.Sprintf("%sevents/probe/a%02d.json", agentRoot, n), "[]")
	}
	d.write(agentRoot+"events/probe/z.json", `{"event_id": "z", "source_agent": "scout", "event_data": {}}`)
	d.archived(agentRoot + "events/probe/z.json")
}
