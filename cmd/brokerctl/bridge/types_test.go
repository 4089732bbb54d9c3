package bridge_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestTypes_LineHasATypeThatReadersOfTheFormatKnow(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	other := d.broker.Registered("other", "worker")
	d.appendLine("scout", "")
	d.start()
	d.awaitAgent("scout")
	setDirectors(t, d, "lead")
	type line struct{ Type, Content, Kind any }
	wanted := map[string]line{
		"task.assignment":   {"TaskAssignment", "x", nil},
		"shutdown_request":  {"ShutdownRequest", "x", nil},
		"SHUTDOWN_RESPONSE": {"ShutdownResponse", "x", nil},
		"StatusUpdate":      {"StatusUpdate", "x", nil},
		"plan_submission":   {"PlanSubmission", "x", nil},
		"plan_approved":     {"PlanApproval", "x", nil},
		"broadcast":         {"Broadcast", "x", nil},
		"text":              {"Text", "x", nil},
		"":                  {"Text", "x", nil},
		"context.query":     {"Text", "x", "context.query"},
		"question":          {"Text", "x", "question"},
	}
	for kind := range wanted {
		d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Type: kind, Body: "x",
			Labels: map[string]string{"sent": kind}})
	}
	d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Subject: "Take T9",
		Labels: map[string]string{"sent": "subject"}})
	wanted["subject"] = line{"Text", "Take T9", nil}
	d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Subject: "Take T9", Body: "by noon",
		Labels: map[string]string{"sent": "both"}})
	wanted["both"] = line{"Text", "Take T9\nby noon", nil}
	d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Payload: `{"n":1}`,
		Labels: map[string]string{"sent": "payload"}})
	wanted["payload"] = line{"Text", `{"n":1}`, nil}
	got := map[string]line{}
	for _, text := range d.awaitLines("scout", len(wanted)) {
		o := object(t, text)
		metadata := o["Metadata"].(map[string]any)
		sent, _ := metadata["sent"].(string)
		got[sent] = line{o["Type"], o["Content"], metadata["type"]}
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Error(diff)
	}
	// Lines of the folder keep their words, and a number is a type.
	for _, kind := range []string{`"Odd.Kind"`, `1`, `0,"Metadata":{"type":"context.query","subject":"S"}`} {
		d.appendLine("other", `{"FromAgentId":"a","ToAgentId":"other","Content":"x","Type":`+kind+"}\n")
	}
	for i, want := range []string{"odd_kind Odd.Kind", "status_update StatusUpdate", "context_query context.query"} {
		if m := d.claim(other, 1)[0]; m.GetType()+" "+m.GetTypeAsSent() != want || m.GetLabels()["type"] != "" {
			t.Errorf("message %d is %v", i, m)
		}
	}
	d.appendLine("other",
		`{"FromAgentId":"a","ToAgentId":"scout","Content":"x","Type":"Odd.Kind","Metadata":{"subject":"S"}}`+"\n")
	d.appendLine("other", `{"FromAgentId":"a","ToAgentId":"other","Content":"x","Type":8}`+"\n")
	all := d.awaitLines("scout", len(wanted)+1)
	if o := object(t, all[len(wanted)]); o["Type"] != "Odd.Kind" || o["Content"] != "x" {
		t.Errorf("the line is %v", o)
	}
	d.awaitFiles("rejected", 2)
	if text := d.text("rejected/mailbox-other.jsonl-line-5.error"); !strings.Contains(text,
		"a number must be from 0 (Text) to 7 (Broadcast)") {
		t.Errorf("the reason is %q", text)
	}
}

// setDirectors permits the agents of a role to send directives.
func setDirectors(t *testing.T, d *team, role string) {
	t.Helper()
	_, err := pb.NewSessionServiceClient(d.broker.Operator()).ConfigureSession(t.Context(), &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{Directors: &pb.Names{Names: []string{role}}}})
	apptest.NoError(t, err)
}

func TestTypes_FilesHaveTheSpellingOfTheSender(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ inbox, field string }{
		"maildir":        {"messages/inbox/scout/", "type"},
		"agent-messages": {agentRoot + "inbox/scout/", "message_type"},
	}
	for format, test := range tests {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "lead")
			d.write(test.inbox+".keep", "")
			d.start()
			d.awaitAgent("scout")
			spellings := []string{"context.query", "StatusUpdate", "question"}
			for _, kind := range spellings {
				d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Type: kind, Body: "x"})
			}
			// A message that an earlier version of the bridge has sent.
			d.send(lead, &pb.Message{Target: toAgent("scout", "").Target, Type: "task_complete", Body: "x",
				Labels: map[string]string{"file." + test.field: `"Task.Complete"`}})
			var got []string
			for _, name := range d.awaitFiles(strings.TrimSuffix(test.inbox, "/"), len(spellings)+1) {
				kind, _ := d.object(test.inbox + name)[test.field].(string)
				got = append(got, kind)
			}
			if diff := cmp.Diff(append(spellings, "Task.Complete"), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTypes_EventFilesHaveTheNamesOfTheFormat(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := pb.NewEventServiceClient(d.broker.Registered("lead", "lead"))
	d.write(agentRoot+"inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	for _, channel := range []string{"event/task_complete", "event/blocker_encountered", "event/deploy_done"} {
		if _, err := pb.NewChannelServiceClient(d.broker.Conn("scout")).SubscribeChannel(t.Context(),
			&pb.SubscribeChannelRequest{Channel: channel}); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"TaskCompleted", "task_complete", "blocker_encountered", "deploy.done"} {
		apptest.NoError(t, apptest.Err(lead.PublishEvent(t.Context(), &pb.PublishEventRequest{Type: kind})))
	}
	var got []any
	for _, name := range d.awaitFiles(agentRoot+"inbox/scout", 4) {
		got = append(got, d.object(agentRoot + "inbox/scout/" + name)["event_type"])
	}
	if diff := cmp.Diff([]any{"TaskCompleted", "TaskCompleted", "BlockerEncountered", "deploy.done"}, got); diff != "" {
		t.Error(diff)
	}
}
