package bridge_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
)

const agentRoot = ".agent-messages/"

func TestAgentMessages_FileInAnotherInboxIsSentAndGetsTheStatusOfTheMessage(t *testing.T) {
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
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	if err := os.MkdirAll(filepath.Join(d.dir, agentRoot, "inbox/scout"), 0o755); err != nil {
		t.Fatal(err)
	}
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
