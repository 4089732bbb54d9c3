package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// operatorsMail waits for the mail of the operators, and returns it.
func (d *team) operatorsMail(count int) []*pb.Message {
	d.t.Helper()
	var mail []*pb.Message
	d.awaitEvents("the operators receive the mail", func(ctx context.Context) bool {
		out, err := messages(d.broker.Operator()).ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
		apptest.NoError(d.t, err)
		mail = nil
		for _, item := range out.GetItems() {
			mail = append(mail, item.GetMessage())
		}
		return len(mail) == count
	})
	return mail
}

func TestOperators_ReceiveAnswersAndMailOfFiles(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		inbox string
		// answers are files, or lines, that answer the message o of the operators; mail is mail to them.
		answers map[string]func(o map[string]any) (name, text string)
		mail    map[string]string
	}{
		"jsonl": {
			inbox: "mailbox",
			answers: map[string]func(o map[string]any) (string, string){
				"in_reply_to": func(o map[string]any) (string, string) {
					return "system", fmt.Sprintf(`{"MessageId":"1","FromAgentId":"scout","ToAgentId":%q,"Content":"in_reply_to","Metadata":{"in_reply_to":%q}}`,
						o["FromAgentId"], o["MessageId"])
				},
				"thread_id": func(o map[string]any) (string, string) {
					return "scout", fmt.Sprintf(`{"MessageId":"2","FromAgentId":"scout","ToAgentId":%q,"Content":"thread_id","Metadata":{"thread_id":%q}}`,
						o["FromAgentId"], o["Metadata"].(map[string]any)["thread_id"])
				},
			},
			mail: map[string]string{
				"operator": `{"MessageId":"3","FromAgentId":"scout","ToAgentId":"operator","Content":"mail"}`,
				"system":   `{"MessageId":"4","FromAgentId":"scout","ToAgentId":"system","Content":"mail"}`,
				"scout":    `{"MessageId":"5","FromAgentId":"scout","ToAgentId":"operator","Content":"mail"}`,
			},
		},
		"maildir": {
			inbox: "messages/inbox/scout",
			answers: map[string]func(o map[string]any) (string, string){
				"in_reply_to": func(o map[string]any) (string, string) {
					return "messages/outbox/scout/1.json", fmt.Sprintf(`{"to":%q,"body":"in_reply_to","in_reply_to":%q}`, o["from"], o["id"])
				},
				"thread_id": func(o map[string]any) (string, string) {
					return "messages/outbox/scout/2.json", fmt.Sprintf(`{"to":%q,"body":"thread_id","thread_id":%q}`, o["from"], o["thread_id"])
				},
			},
			mail: map[string]string{
				"messages/outbox/scout/3.json": `{"to": "operator", "body": "mail"}`,
				"messages/outbox/scout/4.json": `{"to": "system", "body": "mail"}`,
			},
		},
		"agent-messages": {
			inbox: agentRoot + "inbox/scout",
			answers: map[string]func(o map[string]any) (string, string){
				"in_reply_to": func(o map[string]any) (string, string) { // as a script answers in the sender's inbox
					return agentRoot + "inbox/" + o["from_agent"].(string) + "/r1.json", fmt.Sprintf(`{"message_id":"r1","from_agent":"scout",
						"to_agent":%q,"message_type":"response","payload":"in_reply_to","in_reply_to":%q,"conversation_id":%q,"status":"delivered"}`,
						o["from_agent"], o["message_id"], o["conversation_id"])
				},
				"thread_id": func(o map[string]any) (string, string) {
					return agentRoot + "outbox/r2.json", fmt.Sprintf(`{"message_id":"r2","from_agent":"scout","to_agent":%q,"payload":"thread_id","conversation_id":%q}`,
						o["from_agent"], o["conversation_id"])
				},
			},
			mail: map[string]string{
				agentRoot + "inbox/operator/m3.json": `{"message_id": "m3", "from_agent": "scout", "to_agent": "operator", "payload": "mail"}`,
				agentRoot + "inbox/system/m4.json":   `{"message_id": "m4", "from_agent": "scout", "payload": "mail"}`,
				agentRoot + "outbox/m5.json":         `{"message_id": "m5", "from_agent": "scout", "to_agent": "operator", "payload": "mail"}`,
			},
		},
	}
	for format, test := range tests {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			d.empty("scout")
			stop := d.start()
			d.awaitAgent("scout")
			for kind, answer := range test.answers {
				question := toAgent("scout", kind)
				question.RequiresResponse = true
				asked := d.send(d.broker.Operator(), question)
				var o map[string]any
				switch format {
				case "jsonl":
					d.awaitEmpty("scout")
					lines := strings.Split(strings.TrimSpace(d.text("mailbox/scout.jsonl")), "\n")
					o = object(t, lines[len(lines)-1])
				default:
					d.awaitFiles(test.inbox, 1)
					file := test.inbox + "/" + d.names(test.inbox)[0]
					if o = d.object(file); format == "agent-messages" {
						d.await(agentRoot+"inbox", "the inbox of the operators", func() bool {
							_, err := os.Stat(filepath.Join(d.dir, agentRoot+"inbox/system"))
							return err == nil
						})
					}
					apptest.NoError(t, os.Remove(filepath.Join(d.dir, file)))
				}
				name, text := answer(o)
				if format == "jsonl" {
					d.appendLine(name, text+"\n")
				} else {
					d.write(name, text)
				}
				got := d.operatorsMail(1)[0]
				if got.GetBody() != kind || got.GetInReplyTo() != asked.GetId() || got.GetSender() != "scout" {
					t.Errorf("%s: the operators received %v", kind, got)
				}
				if _, err := messages(d.broker.Operator()).AckMessages(t.Context(), &pb.AckMessagesRequest{Ids: []string{got.GetId()}}); err != nil {
					t.Fatal(err)
				}
			}
			for name, text := range test.mail {
				if format == "jsonl" {
					d.appendLine(name, text+"\n")
				} else {
					d.write(name, text)
				}
			}
			for _, m := range d.operatorsMail(len(test.mail)) {
				if m.GetBody() != "mail" {
					t.Errorf("the operators received %v", m)
				}
			}
			if log := stop(); strings.Contains(log, "rejects") || strings.Contains(log, "trying again") {
				t.Errorf("the bridge logged:\n%s", log)
			}
			out, err := pb.NewAgentServiceClient(d.broker.Operator()).ListAgents(t.Context(), &pb.ListAgentsRequest{})
			apptest.NoError(t, err)
			for _, a := range out.GetAgents() {
				if a.GetName() == "system" || a.GetName() == "operator" {
					t.Errorf("%s is an agent", a.GetName())
				}
			}
		})
	}
}
