package bridge_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
)

func TestMaildir_FileInAnOutboxIsSentAndRemoved(t *testing.T) {
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.start()
	d.write("messages/outbox/scout-1/2026-01-01-lead-m1.json", `{"id": "m1", "timestamp": "2026-01-01T00:00:00Z", "from": "scout-1",
		"to": "lead", "type": "TaskComplete", "subject": "Done", "body": "All tests pass", "context": {"file": "a.go", "line": 7},
		"priority": "high", "requires_response": true, "thread_id": "t-1", "mood": {"score": 3}}`)
	m := d.claim(lead, 1)[0]
	got := map[string]any{"sender": m.GetSender(), "role": m.GetSenderRole(), "type": m.GetType(), "subject": m.GetSubject(),
		"body": m.GetBody(), "file": m.GetFiles()[0].GetPath(), "line": m.GetFiles()[0].GetLine(), "priority": m.GetPriority(),
		"requires_response": m.GetRequiresResponse(), "thread": m.GetThreadId(), "mood": m.GetLabels()["file.mood"]}
	want := map[string]any{"sender": "scout-1", "role": "scout", "type": "task_complete", "subject": "Done",
		"body": "All tests pass", "file": "a.go", "line": int32(7), "priority": int32(7),
		"requires_response": true, "thread": "t-1", "mood": `{"score":3}`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	d.awaitFiles("messages/outbox/scout-1", 0)
	agent := d.awaitAgent("scout-1")
	if agent.GetLabels()["via"] != "bridge" || agent.GetLease().AsDuration().Hours() != 24 {
		t.Errorf("the agent is registered as %v", agent)
	}
}

func TestMaildir_MailAppearsInTheInboxAndIsAcknowledgedWhenRemoved(t *testing.T) {
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	inbox := "messages/inbox/scout"
	if err := os.MkdirAll(filepath.Join(d.dir, inbox), 0o755); err != nil {
		t.Fatal(err)
	}
	stop := d.start()
	d.awaitAgent("scout")
	first := d.send(lead, toAgent("scout", "one"))
	d.send(lead, toAgent("scout", "two"))
	names := d.awaitFiles(inbox, 2)
	if got := d.object(inbox + "/" + names[0]); got["body"] != "one" || got["from"] != "lead" || got["to"] != "scout" {
		t.Errorf("the first file is %v", got)
	}
	stop() // what its agent does meanwhile counts
	if err := os.Remove(filepath.Join(d.dir, inbox, names[0])); err != nil {
		t.Fatal(err)
	}
	d.start()
	d.awaitState(first.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	if rest := d.awaitFiles(inbox, 1); rest[0] != names[1] {
		t.Errorf("the inbox has %q", rest)
	}
	if err := os.Rename(filepath.Join(d.dir, inbox, names[1]), filepath.Join(d.dir, "done.json")); err != nil {
		t.Fatal(err)
	}
	d.awaitEmpty("scout")
}
