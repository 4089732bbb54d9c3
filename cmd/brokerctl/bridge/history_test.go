package bridge_test

import (
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// withHistory returns a team whose folder is as earlier tools have left it.
func withHistory(t *testing.T, format string) *team {
	t.Helper()
	d := newTeam(t, format)
	apptest.NoError(t, os.CopyFS(d.dir, os.DirFS(filepath.Join("testdata/history", format))))
	return d
}

// texts returns the text of each file in a folder and below, by its path.
func (d *team) texts(dir string) map[string]string {
	d.t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(filepath.Join(d.dir, dir), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			name, _ := filepath.Rel(d.dir, path)
			texts[name] = d.text(name)
		}
		return err
	})
	apptest.NoError(d.t, err)
	return texts
}

func TestHistory_JSONLStaysAndIsNotSent(t *testing.T) {
	t.Parallel()
	d := withHistory(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	before := d.texts("alpha-team")
	d.start()
	d.awaitAgent("scout")
	d.send(lead, toAgent("scout", "new"))
	d.await("alpha-team/mailbox", "new mail", func() bool { return strings.Contains(d.text("alpha-team/mailbox/scout.jsonl"), `"new"`) })
	d.dir = filepath.Join(d.dir, "alpha-team")
	d.appendLine("lead", `{"FromAgentId": "scout", "ToAgentId": "lead", "Content": "answer"}`+"\n")
	if m := d.claim(lead, 1)[0]; m.GetBody() != "answer" {
		t.Errorf("the first message is %v", m)
	}
	for name, text := range before {
		if now := d.text(strings.TrimPrefix(name, "alpha-team/")); !strings.HasPrefix(now, text) {
			t.Errorf("%s does not begin with its history: %s", name, now)
		}
	}
	if names := d.names("rejected"); len(names) > 0 {
		t.Errorf("lines of the history were rejected: %q", names)
	}
}

func TestHistory_MaildirIsTakenOver(t *testing.T) {
	t.Parallel()
	d := withHistory(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	inbox := d.texts("messages/inbox/scout")
	d.start()
	if m := d.claim(lead, 1)[0]; m.GetBody() != "Not sent yet" || m.GetSender() != "scout" || m.GetFiles()[0].GetPath() != "survey.md" {
		t.Errorf("the message of the outbox is %v", m)
	}
	d.awaitFiles("messages/outbox/scout", 0)
	d.send(lead, toAgent("scout", "new"))
	d.awaitFiles("messages/inbox/scout", 2)
	for name, text := range inbox {
		if d.text(name) != text {
			t.Errorf("%s has changed", name)
		}
	}
}

func TestHistory_AgentMessagesAreTakenOver(t *testing.T) {
	t.Parallel()
	d := withHistory(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	inbox := agentRoot + "inbox/builder-2/"
	before := d.texts(agentRoot)
	d.start()

	// The unfinished messages become mail, and their files stay as they are.
	want := map[string]bool{"Unread": false, "Read": true, "RS256": false} // subject → read
	d.awaitEvents("the unfinished messages are mail", func(ctx context.Context) bool {
		return cmp.Equal(want, d.mail(ctx, "builder-2"))
	})
	d.awaitEmpty("builder-1")
	for _, name := range []string{"msg_20251129_143052_aaaaaa.json", "msg_20251129_143053_bbbbbb.json", "bcast_20251129_150000_eeeeee.json"} {
		if d.text(inbox+name) != before[inbox+name] {
			t.Errorf("%s has changed: %s", name, d.text(inbox+name))
		}
	}
	// What is finished is in the archive, and other files are untouched.
	for _, name := range []string{"inbox/builder-1/msg_20251129_120000_cccccc.json", "inbox/builder-1/msg_20251129_120001_dddddd.json",
		"broadcasts/bcast_20251129_150000_eeeeee.json", "events/TaskCompleted/evt_20251129_161530_ffffff.json"} {
		if now := d.text(d.archived(agentRoot + name)); now != before[agentRoot+name] {
			t.Errorf("%s has changed: %s", name, now)
		}
	}
	for name, text := range before {
		for _, dir := range []string{"shared-context", "handoffs", "archive", "routing.json"} {
			if strings.HasPrefix(name, agentRoot+dir) && d.text(name) != text {
				t.Errorf("%s has changed", name)
			}
		}
	}
	// registry.json has the agents of the session, and what others keep in it.
	d.await(agentRoot, "the lead in registry.json", func() bool { return strings.Contains(d.text(agentRoot+"registry.json"), `"lead"`) })
	registry := d.object(agentRoot + "registry.json")
	agents, _ := registry["agents"].(map[string]any)
	if names := slices.Sorted(maps.Keys(agents)); !slices.Equal(names, []string{"builder-1", "builder-2", "lead"}) {
		t.Errorf("registry.json has the agents %q", names)
	}
	builder, _ := agents["builder-2"].(map[string]any)
	if builder["mood"] != "curious" || builder["worktree_path"] != "worktrees/builder-2" || builder["last_seen"] == "2025-11-28T09:00:07Z" ||
		registry["initialized_at"] != "2025-11-28T09:00:00Z" {
		t.Errorf("registry.json is %v", registry)
	}
	// The team goes on: an agent acknowledges, an agent of the session publishes an event.
	name := inbox + "msg_20251129_143052_aaaaaa.json"
	d.write(name, strings.Replace(d.text(name), `"delivered"`, `"acknowledged"`, 1))
	d.archived(name)
	delete(want, "Unread")
	d.awaitEvents("the message is acknowledged", func(ctx context.Context) bool { return cmp.Equal(want, d.mail(ctx, "builder-2")) })
	if _, err := os.Lstat(filepath.Join(d.dir, agentRoot, "outbox/msg_20251129_143052_aaaaaa_to_builder-2.json")); err == nil {
		t.Error("the copy in the sender's log is not archived")
	}
	d.awaitSubscriber("event/task_complete", "builder-2")
	if _, err := pb.NewEventServiceClient(lead).PublishEvent(t.Context(),
		&pb.PublishEventRequest{Type: "TaskCompleted", Details: `{"task_id": "t-7"}`}); err != nil {
		t.Fatal(err)
	}
	d.awaitFiles(inbox, 5)
}

// mail returns the subjects of the unfinished mail of an agent, and whether each was read.
func (d *team) mail(ctx context.Context, agent string) map[string]bool {
	d.t.Helper()
	out, err := messages(d.broker.Conn(agent)).ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	if err != nil {
		return nil // the agent is not registered yet
	}
	mail := map[string]bool{}
	for _, item := range out.GetItems() {
		mail[item.GetMessage().GetSubject()] = item.GetDelivery().GetReadAt() != nil
	}
	return mail
}

// awaitSubscriber waits until an agent subscribes to a channel.
func (d *team) awaitSubscriber(channel, agent string) {
	d.t.Helper()
	d.awaitEvents(agent+" subscribes to "+channel, func(ctx context.Context) bool {
		out, err := pb.NewChannelServiceClient(d.broker.Operator()).ListChannels(ctx, &pb.ListChannelsRequest{})
		apptest.NoError(d.t, err)
		return slices.ContainsFunc(out.GetChannels(), func(c *pb.Channel) bool {
			return c.GetName() == channel && slices.Contains(c.GetSubscribers(), agent)
		})
	})
}
