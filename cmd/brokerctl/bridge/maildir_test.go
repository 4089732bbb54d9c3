package bridge_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMaildir_FileInAnOutboxIsSentAndRemoved(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	inbox := "messages/inbox/scout"
	apptest.NoError(t, os.MkdirAll(filepath.Join(d.dir, inbox), 0o755))
	stop := d.start()
	d.awaitAgent("scout")
	first := d.send(lead, toAgent("scout", "one"))
	d.send(lead, toAgent("scout", "two"))
	names := d.awaitFiles(inbox, 2)
	if got := d.object(inbox + "/" + names[0]); got["body"] != "one" || got["from"] != "lead" || got["to"] != "scout" {
		t.Errorf("the first file is %v", got)
	}
	stop() // what its agent does meanwhile counts
	apptest.NoError(t, os.Remove(filepath.Join(d.dir, inbox, names[0])))
	d.start()
	d.awaitState(first.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	if rest := d.awaitFiles(inbox, 1); rest[0] != names[1] {
		t.Errorf("the inbox has %q", rest)
	}
	apptest.NoError(t, os.Rename(filepath.Join(d.dir, inbox, names[1]), filepath.Join(d.dir, "done.json")))
	d.awaitEmpty("scout")
}

func TestMaildir_ContextFilesAreArtifactsWithVersions(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.write("context/architecture/api.yaml", "one")
	stop := d.start()
	d.awaitVersions("context/architecture/api.yaml", 1)
	d.write("context/architecture/api.yaml", "two")
	d.awaitVersions("context/architecture/api.yaml", 2)
	stop()
	d.start()
	d.write("context/new/later.md", "in a folder that did not exist")
	d.awaitVersions("context/new/later.md", 1)
	d.awaitVersions("context/architecture/api.yaml", 2) // the next start adds none
}

func TestMaildir_ForeignFieldsOfAnyLengthReturn(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.start()
	d.write("messages/inbox/b/.keep", "")
	long := strings.Repeat("long ", 200)
	d.write("messages/outbox/a/1.json", `{"id":"x","to":"b","body":"hi","priority":"urgent","type":"Status.Update",`+
		`"labels":{"short":"s","long":"`+long+`"},"nested":{"deep":[1,{"two":null}]},"note":"`+long+`","context":{"file":"f","column":3}}`)
	got := d.object("messages/inbox/b/" + d.awaitFiles("messages/inbox/b", 1)[0])
	want := map[string]any{"from": "a", "to": "b", "body": "hi", "priority": "urgent", "type": "Status.Update", "thread_id": "x",
		"labels": map[string]any{"short": "s", "long": long}, "nested": map[string]any{"deep": []any{1.0, map[string]any{"two": nil}}},
		"note": long, "context": map[string]any{"file": "f", "column": 3.0}, "original_id": "x"}
	delete(got, "id")
	delete(got, "timestamp")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMaildir_IncompleteFileWaitsForItsWriterAndDelaysLaterFiles(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.start(func(o *engine.Options) { o.Settle = time.Hour })
	path := filepath.Join(d.dir, "messages/outbox/a/1.json")
	d.write("messages/outbox/a/1.json", `{"to":"lead","body":"fir`)
	d.write("messages/outbox/a/2.json", `{"to":"lead","body":"second"}`)
	d.write("messages/outbox/b/3.json", `{"to":"lead","body":"third"}`)
	if m := d.claim(lead, 1)[0]; m.GetBody() != "third" {
		t.Fatalf("%q came first", m.GetBody())
	}
	apptest.NoError(t, os.WriteFile(path, []byte(`{"to":"lead","body":"first"}`), 0o644))
	if got := d.claim(lead, 2); got[0].GetBody() != "first" || got[1].GetBody() != "second" {
		t.Errorf("the order is %q, %q", got[0].GetBody(), got[1].GetBody())
	}
}

func TestMaildir_ReplyReachesAWaitingQuestion(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	for n, thread := range []string{"", "its-own-name"} {
		question := toAgent("scout", "How many?")
		question.ThreadId = thread
		answered := make(chan error, 1)
		go func() {
			out, err := messages(lead).Ask(t.Context(), &pb.AskRequest{Message: question, Wait: durationpb.New(apptest.Patience)})
			if err == nil && out.GetReply().GetBody() != "three" {
				err = fmt.Errorf("the reply is %v", out)
			}
			answered <- err
		}()
		name := "messages/inbox/scout/" + d.awaitFiles("messages/inbox/scout", 1)[0]
		d.write(fmt.Sprintf("messages/outbox/scout/%d.json", n),
			fmt.Sprintf(`{"to":"lead","body":"three","thread_id":%q}`, d.object(name)["thread_id"]))
		if err := <-answered; err != nil {
			t.Errorf("thread %q: %v", thread, err)
		}
		apptest.NoError(t, os.Remove(filepath.Join(d.dir, name)))
		d.awaitFiles("messages/inbox/scout", 0)
	}
}

// The tests below begin with what a kill at one point of a transfer leaves.

const takenKey = "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f"

func TestMaildir_FileTakenBeforeAKillIsSent(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write(".bridge/sending/a/"+takenKey+"-1.json", `{"to":"lead","body":"one"}`)
	d.write("messages/outbox/a/2.json", `{"to":"lead","body":"two"}`)
	d.start()
	if got := d.claim(lead, 2); got[0].GetBody() != "one" || got[1].GetBody() != "two" {
		t.Errorf("the order is %q, %q", got[0].GetBody(), got[1].GetBody())
	}
	d.awaitFiles(".bridge/sending/a", 0)
}

func TestMaildir_FileSentBeforeAKillIsNotSentAgainDaysLater(t *testing.T) {
	d := newTeamWith(t, "maildir", apptest.WithFakeClock())
	lead := d.broker.Registered("lead", "lead")
	const text = `{"to":"lead","body":"one"}`
	d.write("messages/outbox/a/1.json", text)
	stop := d.start()
	sent := d.claim(lead, 1)[0]
	d.awaitFiles("messages/outbox/a", 0)
	stop()
	d.write(".bridge/sending/a/"+strings.TrimPrefix(sent.GetCorrelationId(), "bridge:")+"-1.json", text)
	d.broker.Clock.Advance(50 * time.Hour) // the broker has forgotten the request id
	d.start()
	d.awaitFiles(".bridge/sending/a", 0)
	d.awaitSent("a", 1)
}

func TestMaildir_FileWrittenBeforeAKillWithoutAnEntryIsRemoved(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.write(".bridge/inbox/a/stale.json", "{}")
	d.write("messages/inbox/a/.keep", "")
	d.start()
	d.awaitFiles(".bridge/inbox/a", 0)
	if names := d.names("messages/inbox/a"); len(names) > 0 {
		t.Errorf("the inbox has %q", names)
	}
}

func TestMaildir_FileWithAnEntryBeforeAKillAppearsOnce(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/a/.keep", "")
	stop := d.start()
	d.awaitAgent("a")
	sent := d.send(lead, toAgent("a", "one"))
	name := d.awaitFiles("messages/inbox/a", 1)[0]
	stop()
	if err := os.Rename(filepath.Join(d.dir, "messages/inbox/a", name), filepath.Join(d.dir, ".bridge/inbox/a", name)); err != nil {
		t.Fatal(err)
	}
	d.start()
	if again := d.awaitFiles("messages/inbox/a", 1)[0]; again != name {
		t.Errorf("the file is %s, not %s", again, name)
	}
	apptest.NoError(t, os.Remove(filepath.Join(d.dir, "messages/inbox/a", name)))
	d.awaitState(sent.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
}

func TestMaildir_MessageToARoleIsTakenOneAtATime(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout-1/.keep", "")
	stop := d.start()
	d.awaitAgent("scout-1")
	for _, body := range []string{"one", "two"} {
		d.send(lead, &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "scout"}}, Body: body})
	}
	d.awaitFiles("messages/inbox/scout-1", 1)
	stop()
	d.start()
	d.send(lead, toAgent("scout-1", "own"))
	names := d.awaitFiles("messages/inbox/scout-1", 2)
	if o := d.object("messages/inbox/scout-1/" + names[0]); o["body"] != "one" || o["to"] != "role:scout" {
		t.Fatalf("the first file is %v", o)
	}
	if o := d.object("messages/inbox/scout-1/" + names[1]); o["body"] != "own" {
		t.Fatalf("the second file is %v", o)
	}
	apptest.NoError(t, os.Remove(filepath.Join(d.dir, "messages/inbox/scout-1", names[0])))
	if o := d.object("messages/inbox/scout-1/" + d.awaitFiles("messages/inbox/scout-1", 2)[1]); o["body"] != "two" {
		t.Errorf("the next file is %v", o)
	}
}

func TestMaildir_MessageToAllOfARoleReachesItsAgentsInTheFolder(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	scout := d.broker.Registered("scout-9", "scout")
	d.write("messages/inbox/scout-1/.keep", "")
	d.write("messages/inbox/critic/.keep", "")
	d.start()
	d.awaitAgent("scout-1")
	d.awaitAgent("critic")
	d.write("messages/outbox/critic/1.json", `{"to":"all_scouts","body":"to the scouts"}`)
	d.write("messages/outbox/critic/2.json", `{"to":"all","body":"to all"}`)
	d.claim(scout, 2)
	d.awaitFiles("messages/inbox/scout-1", 2)
	if names := d.names("messages/inbox/critic"); len(names) > 0 {
		t.Errorf("the sender got %q", names)
	}
}

func TestMaildir_PatternThatMatchesNoNameReachesTheNamesThatContainIt(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	names := []string{"agent_engineer_1_abc123", "agent_engineer_2_def456", "agent_qa_1_fed321"}
	for _, name := range names {
		d.write("messages/inbox/"+name+"/.keep", "")
	}
	d.start()
	for _, name := range names {
		d.awaitAgent(name)
	}
	sender := "messages/outbox/" + names[0]
	d.write(sender+"/1.json", `{"to":"engineer_*","body":"to the other engineer"}`)
	d.write(sender+"/2.json", `{"to":"agent_qa*","body":"to qa"}`)
	d.write(sender+"/3.json", `{"to":"writer_*","body":"to no agent"}`)
	d.awaitFiles("rejected", 2)
	for agent, body := range map[string]string{names[1]: "to the other engineer", names[2]: "to qa"} {
		inbox := "messages/inbox/" + agent
		if got := d.object(inbox + "/" + d.awaitFiles(inbox, 1)[0]); got["body"] != body {
			t.Errorf("%s has %v", agent, got)
		}
	}
	if mail := d.names("messages/inbox/" + names[0]); len(mail) > 0 {
		t.Errorf("the sender got %q", mail)
	}
	const reason = `no agent has a name that matches "writer_*"; patterns match whole names: no name contains it either`
	if text := d.text("rejected/messages-outbox-" + names[0] + "-3.json.error"); !strings.Contains(text, reason) {
		t.Errorf("the reason is %q", text)
	}
}

func TestMaildir_MailThatHasExpiredInTheInboxDoesNotStopTheBridge(t *testing.T) {
	d := newTeamWith(t, "maildir", apptest.WithFakeClock())
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout/.keep", "")
	stop := d.start()
	d.awaitAgent("scout")
	m := toAgent("scout", "brief")
	m.Ttl = durationpb.New(time.Second)
	sent := d.send(lead, m)
	name := d.awaitFiles("messages/inbox/scout", 1)[0]
	d.broker.Clock.Advance(time.Second)
	d.awaitState(sent.GetId(), pb.DeliveryState_DELIVERY_STATE_EXPIRED)
	apptest.NoError(t, os.Remove(filepath.Join(d.dir, "messages/inbox/scout", name)))
	d.send(lead, toAgent("scout", "next"))
	d.awaitFiles("messages/inbox/scout", 1)
	if text := stop(); strings.Contains(text, "trying again") {
		t.Errorf("the bridge logged\n%s", text)
	}
}
