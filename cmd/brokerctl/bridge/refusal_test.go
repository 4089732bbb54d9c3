package bridge_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A refusedFile is a message of the agent scout that the broker refuses.
type refusedFile struct {
	name    string
	from    string // default scout
	to      string // default "lead"
	kind    string
	body    string // default the name
	subject string
	thread  string
	answers string // the id, or for agent-messages the message_id, of a message
	payload string // of agent-messages, JSON

	reason string   // a part of the reason
	only   []string // formats; none = all
}

// refusedFiles are the refusals that the broker has for a send. event is an event that the broker has given scout.
func refusedFiles(event *pb.Message) []refusedFile {
	long := strings.Repeat("t", 129)
	return []refusedFile{
		{name: "agent", to: "laed", reason: "no agent \"laed\""},
		{name: "team", to: "all_pilots", reason: "all_pilots"},
		{name: "pattern", to: "pil*t", reason: "no agent has a name that matches"},
		{name: "bad-pattern", to: "*" + long, reason: "pattern"},
		{name: "bad-role", to: "role:a b", reason: "role"},
		{name: "bad-channel", to: "channel:a b", reason: "channel"},
		{name: "type", kind: "pigeon", reason: "pigeon"},
		{name: "bad-type", kind: "a b", reason: "type"},
		{name: "payload", kind: "vote_cast", payload: `{"option": 7}`, reason: "payload", only: []string{"agent-messages"}},
		{name: "body", body: strings.Repeat("x", 300<<10), reason: "262144"},
		{name: "message", body: strings.Repeat("x", 50<<10), reason: "message_limit"},
		{name: "subject", subject: strings.Repeat("s", 513), reason: "subject"},
		{name: "subject-lines", subject: "two\\nlines", reason: "subject"},
		{name: "thread", thread: long, reason: "thread_id: has 129 bytes"},
		{name: "sender", from: "system", reason: "means the operators", only: []string{"jsonl", "agent-messages"}},
		{name: "sender-2", from: "operator", reason: "means the operators", only: []string{"jsonl", "agent-messages"}},
		{name: "sender-3", from: "everyone", reason: "reserved", only: []string{"jsonl", "agent-messages"}},
		{name: "sender-4", from: "lead", reason: "another client has registered lead", only: []string{"jsonl", "agent-messages"}},
		{name: "full", to: "full", reason: "mailboxes of all recipients are full: full"},
		{name: "directive", kind: "nudge", reason: "nudge"},
		{name: "notice", to: "system", answers: event.GetId(), reason: "takes no reply", only: []string{"jsonl", "maildir"}},
		{name: "notice", to: "system", answers: fmt.Sprintf("msg_20251129_143052_r%012d", event.GetRevision()),
			reason: "takes no reply", only: []string{"agent-messages"}},
	}
}

// file writes a refused file, or a good one, as a file of a format: its name and its text.
func (f refusedFile) file(format string) (name, text string) {
	from, to, body := cmp.Or(f.from, "scout"), cmp.Or(f.to, "lead"), cmp.Or(f.body, f.name)
	object := map[string]string{} // fields whose values are strings
	switch format {
	case "jsonl":
		text = fmt.Sprintf(`"FromAgentId": %q, "ToAgentId": %q, "Content": "%s", "Metadata": {"subject": "%s", "thread_id": %q, "in_reply_to": %q}`,
			from, to, body, f.subject, f.thread, f.answers)
		object["Type"] = f.kind
		name = "mailbox/lead.jsonl"
	case "maildir":
		text = fmt.Sprintf(`"to": %q, "body": "%s", "subject": "%s"`, to, body, f.subject)
		object["type"], object["thread_id"], object["in_reply_to"] = f.kind, f.thread, f.answers
		name = "messages/outbox/" + from + "/" + f.name + ".json"
	default:
		payload := f.payload
		if payload == "" {
			payload = `"` + body + `"`
		}
		text = fmt.Sprintf(`"message_id": %q, "from_agent": %q, "to_agent": %q, "payload": %s, "subject": "%s"`, f.name, from, to, payload, f.subject)
		object["message_type"], object["conversation_id"], object["in_reply_to"] = f.kind, f.thread, f.answers
		name = agentRoot + "outbox/" + from + "-" + f.name + ".json"
	}
	for field, value := range object {
		if value != "" {
			text += fmt.Sprintf(", %q: %q", field, value)
		}
	}
	return name, "{" + text + "}"
}

// put puts a file into the folder, and returns the name that it has in rejected/.
func (d *team) put(f refusedFile) string {
	d.t.Helper()
	name, text := f.file(d.format)
	if d.format == "jsonl" {
		d.appendLine("lead", text+"\n")
		d.lines++
		return fmt.Sprintf("mailbox-lead.jsonl-line-%d", d.lines)
	}
	d.write(name, text)
	return strings.ReplaceAll(strings.TrimPrefix(name, agentRoot), "/", "-")
}

// strict makes the session refuse what it can, with small limits, and an agent whose mailbox is full.
func (d *team) strict() {
	d.t.Helper()
	d.broker.Registered("full", "full")
	d.configure(&pb.SessionSettings{
		UnknownTypes: pb.TypePolicy_TYPE_POLICY_REFUSE, InvalidPayloads: pb.TypePolicy_TYPE_POLICY_REFUSE,
		MessageLimit: proto.Int32(40 << 10), MailboxLimit: proto.Int64(200), SendRate: proto.Float64(0),
	})
	var batch []*pb.Message
	for range 200 {
		batch = append(batch, toAgent("full", "x"))
	}
	if _, err := messages(d.broker.Operator()).SendMessages(d.t.Context(), &pb.SendMessagesRequest{Messages: batch}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *team) configure(settings *pb.SessionSettings) {
	d.t.Helper()
	_, err := pb.NewSessionServiceClient(d.broker.Operator()).ConfigureSession(d.t.Context(), &pb.ConfigureSessionRequest{Settings: settings})
	apptest.NoError(d.t, err)
}

// informed returns a message with which the broker informs an agent of the folder.
func (d *team) informed(agent string) *pb.Message {
	d.t.Helper()
	ctx := d.t.Context()
	channels := pb.NewChannelServiceClient(d.broker.Conn(agent))
	if _, err := channels.SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: "event/probe"}); err != nil {
		d.t.Fatal(err)
	}
	if _, err := pb.NewEventServiceClient(d.broker.Operator()).PublishEvent(ctx, &pb.PublishEventRequest{Type: "probe"}); err != nil {
		d.t.Fatal(err)
	}
	var event *pb.Message
	d.awaitEvents("the event reaches "+agent, func(context.Context) bool {
		out, err := messages(d.broker.Operator()).ListMessages(ctx, &pb.ListMessagesRequest{
			Box: pb.MessageBox_MESSAGE_BOX_ALL, Filter: &pb.MessageFilter{Types: []string{"event"}}})
		apptest.NoError(d.t, err)
		for _, item := range out.GetItems() {
			event = item.GetMessage()
		}
		return event != nil
	})
	return event
}

func TestRefusal_EveryRefusedFileIsRejectedAndTheNextOnesAreSent(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"jsonl", "maildir", "agent-messages"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "worker")
			root := d.empty("scout", "other")
			stop := d.start()
			d.awaitAgent("scout")
			d.awaitAgent("other")
			event := d.informed("scout")
			d.strict()
			wanted := map[string]string{} // the name in rejected/ → a part of the reason
			cases := refusedFiles(event)
			for i, f := range cases {
				if len(f.only) > 0 && !slices.Contains(f.only, format) {
					continue
				}
				wanted[d.put(f)] = f.reason
				if i == len(cases)/2 { // the next bridge finds the rest
					stop()
				}
			}
			stop()
			d.put(refusedFile{name: "zz-good"})
			d.put(refusedFile{name: "zz-other", from: "other"})
			stop = d.start()
			got := map[string]string{}
			for _, m := range d.claim(lead, 2) {
				got[m.GetSender()] = m.GetBody()
			}
			if want := map[string]string{"scout": "zz-good", "other": "zz-other"}; !gocmp.Equal(got, want) {
				t.Errorf("lead received %v", got)
			}
			d.wantRejected(root, wanted)
			d.checkEvents(len(wanted))
			if log := stop(); strings.Contains(log, "rpc error") || strings.Contains(log, "trying again") {
				t.Errorf("the bridge logged:\n%s", log)
			}
			d.start() // nothing is handled again
			d.put(refusedFile{name: "zzz-last"})
			d.claim(lead, 1)
			d.wantRejected(root, wanted)
		})
	}
}

// empty makes the folders of agents, and returns the folder of the bridge below that of the team.
func (d *team) empty(agents ...string) string {
	d.t.Helper()
	for _, name := range agents {
		switch d.format {
		case "jsonl":
			d.write("mailbox/"+name+".jsonl", "")
			d.write("mailbox/lead.jsonl", "")
		case "maildir":
			d.write("messages/outbox/"+name+"/.keep", "")
		default:
			d.write(agentRoot+"inbox/"+name+"/.keep", "")
		}
	}
	if d.format == "agent-messages" {
		return agentRoot
	}
	return ""
}

// wantRejected waits for the rejected files: their names, each with a part of its reason.
func (d *team) wantRejected(root string, wanted map[string]string) {
	d.t.Helper()
	names := d.awaitFiles(root+"rejected", 2*len(wanted))
	for name, reason := range wanted {
		if !slices.Contains(names, name) || !slices.Contains(names, name+".error") {
			d.t.Errorf("%s is not rejected", name)
			continue
		}
		text := d.text(root + "rejected/" + name + ".error")
		if !strings.Contains(text, reason) || strings.Contains(text, "rpc error") || len(text) > 1000 {
			d.t.Errorf("the reason of %s is %.300q; it must contain %q", name, text, reason)
		}
	}
}

func TestRefusal_AgentMessagesRejectsInEveryFolder(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "worker")
	root := d.empty("scout", "other", "laed")
	stop := d.start()
	d.awaitAgent("scout")
	d.awaitAgent("laed")
	d.strict()
	message := func(id, to, rest string) string {
		return fmt.Sprintf(`{"message_id": %q, "from_agent": "scout", "to_agent": %q, "payload": "x"%s}`, id, to, rest)
	}
	event := func(id, kind, rest string) string {
		return fmt.Sprintf(`{"event_id": %q, "event_type": %q, "source_agent": "scout", "event_data": {"a": 1}%s}`, id, kind, rest)
	}
	files := map[string]struct{ text, reason string }{
		"inbox/lead/m1.json":    {message("m1", "scout", ""), "the inbox belongs to lead"},
		"inbox/lead/m2.json":    {message("m2", "lead", `, "message_type": "pigeon"`), "pigeon"},
		"inbox/other/m3.json":   {message("m3", "other", `, "message_type": "nudge"`), "directive"},
		"inbox/full/m4.json":    {message("m4", "full", ""), "full"},
		"inbox/lead/m5.json":    {event("m5", "probe", ""), ""}, // a copy for a subscriber stays
		"broadcasts/b1.json":    {message("b1", "ALL", `, "message_type": "pigeon"`), "pigeon"},
		"inbox/lead/b1.json":    {message("b1", "ALL", `, "message_type": "pigeon"`), "pigeon"},
		"broadcasts/b2.json":    {event("b2", "probe", ""), "it is an event"},
		"events/a b/e1.json":    {event("e1", "a b", ""), "type"},
		"events/probe/e2.json":  {event("e2", "probe", `, "timestamp": "today"`), "timestamp"},
		"events/probe/e3.json":  {message("e3", "lead", ""), "it is no event"},
		"events/probe/e4.json":  {event("e4", "probe", `, "more": "`+strings.Repeat("x", 70<<10)+`"`), "details"},
		"events/probe/e5.json":  {event("e5", "agent.registered", ""), "agent.registered"},
		"events/probe/e6.json":  {event("e6", "probe", ""), ""},
		"events/probe2/e6.json": {event("e6", "probe2", ""), "another event of scout has the event_id e6"},
		"events/probe/e7.json":  {strings.Replace(event("e7", "probe", ""), `"scout"`, `"system"`, 1), "means the operators"},
		"events/probe/e8.json":  {strings.Replace(event("e8", "probe", ""), `"scout"`, `"lead"`, 1), "another client has registered lead"},
	}
	wanted := map[string]string{}
	for i, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if d.write(root+name, f.text); f.reason != "" {
			wanted[strings.ReplaceAll(name, "/", "-")] = f.reason
		}
		if i == len(files)/2 {
			stop()
		}
	}
	stop = d.start()
	d.write(root+"inbox/lead/good.json", message("good", "lead", ""))
	d.write(root+"events/probe/good.json", event("good", "probe", ""))
	if m := d.claim(lead, 1)[0]; m.GetBody() != "x" {
		t.Errorf("lead received %v", m)
	}
	d.wantRejected(root, wanted)
	d.checkEvents(len(wanted))
	d.archived(root + "events/probe/good.json")
	if log := stop(); strings.Contains(log, "rpc error") || strings.Contains(log, "trying again") {
		t.Errorf("the bridge logged:\n%s", log)
	}
	out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(t.Context(),
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"probe", "probe2"}}})
	if err != nil || len(out.GetEvents()) != 2 {
		t.Errorf("the events are %v, %v", out.GetEvents(), err)
	}
}

// A file that no mailbox takes because all are full is a new send when it is moved back.
func TestRefusal_FileForAFullMailboxIsSentWhenItIsMovedBack(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"maildir", "agent-messages"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			root := d.empty("scout")
			d.start()
			d.awaitAgent("scout")
			d.strict()
			name := d.put(refusedFile{name: "m", to: "full"})
			d.wantRejected(root, map[string]string{name: "full"})
			full := d.broker.Conn("full")
			d.claim(full, 200)
			place, _ := refusedFile{name: "m"}.file(format)
			apptest.NoError(t, os.Rename(filepath.Join(d.dir, root, "rejected", name), filepath.Join(d.dir, place)))
			if m := d.claim(full, 1)[0]; m.GetBody() != "m" || m.GetSender() != "scout" {
				t.Errorf("the agent received %v", m)
			}
		})
	}
}

// The broker cannot be told a name that is not UTF-8.
func TestRefusal_SharedFileWhoseNameIsNotUTF8IsReportedOnce(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.write("messages/outbox/scout/.keep", "")
	d.write("context/a\xff.md", "a")
	d.write("context/b.md", "b")
	stop := d.start()
	d.awaitVersions("context/b.md", 1)
	d.awaitEvents("the report", func(ctx context.Context) bool {
		out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(ctx,
			&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"bridge.file_refused"}}})
		return err == nil && len(out.GetEvents()) == 1
	})
	if log := stop(); strings.Contains(log, "trying again") {
		t.Errorf("the bridge logged:\n%s", log)
	}
}
