package bridge_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// helpers returns texts of programs that agents with files run: the one of testdata, and the one that a function
// finds in the text that defines the format. That text is in the folder BRIDGE_DESIGNS, by default shared/designs
// beside the repository or beside its parent folder. Without it, the test with it is skipped.
func helpers(t *testing.T, file, definition string, find func(text string) string) map[string]string {
	t.Helper()
	own, err := os.ReadFile(filepath.Join("testdata", file))
	apptest.NoError(t, err)
	found := map[string]string{"own": string(own), "definition": ""}
	folders := []string{os.Getenv("BRIDGE_DESIGNS")}
	if folders[0] == "" {
		folders = []string{"../../../../shared/designs", "../../../../../shared/designs"}
	}
	for _, folder := range folders {
		names, _ := filepath.Glob(filepath.Join(folder, definition))
		if len(names) != 1 {
			continue
		}
		text, err := os.ReadFile(names[0])
		apptest.NoError(t, err)
		if found["definition"] = find(string(text)); found["definition"] == "" {
			t.Fatalf("%s has no program", names[0])
		}
	}
	return found
}

// eachHelper runs a test with each text.
func eachHelper(t *testing.T, texts map[string]string, programs []string, test func(t *testing.T, text string)) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	for name, text := range texts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if text == "" {
				t.Skip("the folder with the definition of the format is missing (BRIDGE_DESIGNS)")
			}
			test(t, text)
		})
	}
}

// callHelper calls a method of the class of a text, and prints its result.
const callHelper = `
import sys
method, args, fields = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
print(json.dumps(getattr(MAOSCommunicator(), method)(*args, **fields), default=str))
`

func TestHelpers_PythonClassOfMaildirCrossesTheBridge(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```python\n(.*?)```")
	texts := helpers(t, "maildir.py", "003*.txt", func(text string) string {
		for _, found := range block.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "class MAOSCommunicator") {
				return found[1]
			}
		}
		return ""
	})
	eachHelper(t, texts, []string{"python3"}, testMaildirHelper)
}

func testMaildirHelper(t *testing.T, text string) {
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	program := filepath.Join(t.TempDir(), "helper.py")
	apptest.NoError(t, os.WriteFile(program, []byte(text+callHelper), 0o600))
	const e1, e2, q = "agent_engineer_1_abc123", "agent_engineer_2_def456", "agent_qa_1_fed321"
	call := func(agent, method string, fields map[string]any, args ...any) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "python3", "-W", "ignore", program, method, asJSON(t,
			append([]any{}, args...)), asJSON(t, fields))
		command.Env = append(os.Environ(), "MAOS_AGENT_ID="+agent, "MAOS_AGENT_ROLE=any", "MAOS_SESSION_ID=s1",
			"MAOS_MESSAGE_DIR="+filepath.Join(d.dir, "messages"), "MAOS_SHARED_CONTEXT="+filepath.Join(d.dir, "context"))
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		return strings.TrimSpace(string(out))
	}
	none := map[string]any{}
	for _, agent := range []string{e1, e2, q} {
		d.write("messages/inbox/"+agent+"/.keep", "")
	}
	d.start()
	for _, agent := range []string{e1, e2, q} {
		d.awaitAgent(agent)
	}
	call(e1, "send_message", none, "lead", "progress", "to an id", "outside the folder")
	call(e1, "send_message", map[string]any{"priority": "high"}, e2, "review", "to an id", "inside the folder")
	call(e1, "send_message", none, "all", "announcement", "to all", "text")
	call(e1, "broadcast_to_role", none, "engineer", "question", "to a role", "text")
	call(e1, "broadcast_to_role", none, "engineers", "question", "to a role in plural", "text")
	call(e1, "send_message", none, "engineer_*", "alert", "to a pattern", "text")
	call(e1, "request_from_role", none, "qa", "to qa", "please test")

	subjects := func(agent string, count int) []string {
		t.Helper()
		d.awaitFiles("messages/inbox/"+agent, count)
		var messages []struct{ Subject string }
		apptest.NoError(t, json.Unmarshal([]byte(call(agent, "read_messages", none)), &messages))
		var all []string
		for _, m := range messages {
			all = append(all, m.Subject)
		}
		return all
	}
	if diff := cmp.Diff([]string{"to an id", "to all", "to a role", "to a role in plural", "to a pattern"},
		subjects(e2, 5)); diff != "" {
		t.Errorf("the other engineer: %s", diff)
	}
	if diff := cmp.Diff([]string{"to all", "to qa"}, subjects(q, 2)); diff != "" {
		t.Errorf("qa: %s", diff)
	}
	if got := d.claim(lead, 2); got[0].GetSubject() != "to an id" || got[1].GetSubject() != "to all" ||
		got[0].GetSenderRole() != "engineer" {
		t.Errorf("lead has received %v", got)
	}
	if got := call(q, "get_agents_by_role", none); got != `{"engineer": 2}` {
		t.Errorf("qa knows %s", got)
	}
	var requests []map[string]any
	if err := json.Unmarshal([]byte(call(q, "read_messages", none, "request")), &requests); err != nil ||
		len(requests) != 1 ||
		requests[0]["requires_response"] != true {
		t.Fatalf("the requests are %v, %v", requests, err)
	}
	call(q, "send_message", map[string]any{"thread_id": requests[0]["thread_id"]}, e1, "response", "tested", "all pass")
	if diff := cmp.Diff([]string{"tested"}, subjects(e1, 1)); diff != "" {
		t.Errorf("the engineer that asked: %s", diff)
	}
	call(q, "share_artifact", none, "qa", "report.md", "all tests pass")
	d.awaitVersions("context/qa/report.md", 1)
	d.awaitFiles("messages/inbox/"+e1, 2)
	if m := d.claim(lead, 1)[0]; m.GetTypeAsSent()+m.GetType() != "announcement" || m.GetSender() != q {
		t.Errorf("the announcement is %v", m)
	}
	if names := d.names("rejected"); len(names) > 0 {
		t.Errorf("the bridge rejected %q", names)
	}
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	apptest.NoError(t, err)
	return string(text)
}

// bashFunctions returns the definitions of functions in a text, without what is between them.
func bashFunctions(text string) string {
	var out strings.Builder
	inside, heredoc := false, false
	for line := range strings.Lines(text) {
		inside = inside || strings.HasPrefix(line, "function ")
		if !inside {
			continue
		}
		out.WriteString(line)
		switch {
		case heredoc:
			heredoc = line != "EOF\n"
		case strings.Contains(line, "<<EOF"):
			heredoc = true
		case line == "}\n":
			inside = false
		}
	}
	return out.String()
}

// aroundFunctions is what functions of a text call and do not define.
const aroundFunctions = `
random_string() { LC_ALL=C tr -dc a-z0-9 </dev/urandom | head -c "$1"; }
for name in interface_contract decision blocker handoff question; do eval "process_$name() { :; }"; done
send_acknowledgment() { send_message "$1" "$2" acknowledgment "read" '{}'; }
`

func TestHelpers_BashFunctionsOfAgentMessagesCrossTheBridge(t *testing.T) {
	t.Parallel()
	texts := helpers(t, "agent-messages-functions.sh", "004*.txt", bashFunctions)
	eachHelper(t, texts, []string{"bash", "jq"}, testAgentMessagesHelper)
}

func testAgentMessagesHelper(t *testing.T, text string) {
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	program := filepath.Join(t.TempDir(), "functions.sh")
	apptest.NoError(t, os.WriteFile(program, []byte(text+aroundFunctions+`"$@"`+"\n"), 0o600))
	call := func(function string, args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "bash", append([]string{program, function}, args...)...)
		command.Dir = d.dir
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v", function, err)
		}
		return string(out)
	}
	call("initialize_message_bus", ".")
	call("register_agent", "builder-1", "backend", "worktrees/builder-1", `["go", "sql"]`)
	call("register_agent", "builder-2", "builder", "worktrees/builder-2", `[]`)
	registry := agentRoot + "registry.json"
	d.write(registry, asJSON(t, withSubscription(d.object(registry), "TaskCompleted", "builder-2")))
	if _, err := pb.NewChannelServiceClient(lead).SubscribeChannel(t.Context(),
		&pb.SubscribeChannelRequest{Channel: "event/TaskCompleted"}); err != nil {
		t.Fatal(err)
	}
	d.start()
	d.awaitAgent("builder-1")
	d.awaitAgent("builder-2")
	if a := d.agent("builder-1"); a.GetRole() != "backend" || !cmp.Equal(a.GetCapabilities(), []string{"go", "sql"}) {
		t.Errorf("builder-1 is %v", a)
	}
	d.awaitEvents("builder-2 is subscribed", func(ctx context.Context) bool {
		out, err := pb.NewChannelServiceClient(d.broker.Operator()).ListChannels(ctx,
			&pb.ListChannelsRequest{Subscriber: "builder-2"})
		return err == nil && len(out.GetChannels()) == 1
	})
	d.await(agentRoot+"inbox", "the inbox of lead", func() bool { return slices.Contains(d.names(agentRoot+"inbox"), "lead") })

	call("send_message", "builder-1", "builder-2", "interface_contract", "inside", `{"interface": "IUserService"}`, "high")
	d.awaitFiles(agentRoot+"inbox/builder-2", 1)
	d.awaitSent("builder-1", 1)
	call("send_message", "builder-1", "lead", "question", "outside", `{"n": 1}`, "high")
	if m := d.claim(lead, 1)[0]; m.GetSubject() != "outside" || m.GetPriority() != 7 || m.GetType() != "question" {
		t.Errorf("lead has received %v", m)
	}
	call("broadcast_message", "builder-1", "decision_announcement", "to all", `{"decision": "RS256"}`)
	if m := d.claim(lead, 1)[0]; m.GetSubject() != "to all" {
		t.Errorf("lead has received %v", m)
	}
	d.awaitFiles(agentRoot+"inbox/builder-2", 2)
	call("publish_event", "TaskCompleted", "builder-1", `{"task_id": "t-1"}`)
	if m := d.claim(lead, 1)[0]; m.GetTypeAsSent() != "TaskCompleted" || !strings.Contains(m.GetPayload(),
		`"task_id":"t-1"`) {
		t.Errorf("lead has received %v", m)
	}
	d.awaitFiles(agentRoot+"inbox/builder-2", 3)

	question := d.send(lead, &pb.Message{Target: toAgent("builder-2", "").Target, Type: "question",
		Subject: "How many?", Payload: `{"of": "tests"}`})
	d.awaitFiles(agentRoot+"inbox/builder-2", 4)
	var mail string
	for file := range strings.Lines(call("check_inbox", "builder-2")) {
		if file = strings.TrimSpace(file); strings.HasSuffix(file, ".json") && d.object(file)["subject"] == "How many?" {
			mail = file
		}
	}
	if out := call("read_message", "builder-2", mail); !strings.Contains(out, "How many?") {
		t.Errorf("read_message wrote %q", out)
	}
	call("respond_to_message", "builder-2", mail, `{"count": 1000}`)
	if m := d.claim(lead, 1)[0]; m.GetInReplyTo() != question.GetId() || m.GetSubject() != "Re: How many?" ||
		m.GetType() != "response" {
		t.Errorf("lead has received %v", m)
	}

	d.write("design.md", "the design")
	call("create_handoff_package", "builder-1", "lead", "Build it", `["design.md"]`, "It is designed.")
	notice := d.claim(lead, 1)[0]
	handoffs := pb.NewHandoffServiceClient(lead)
	list, err := handoffs.ListHandoffs(t.Context(), &pb.ListHandoffsRequest{ToAgent: "lead"})
	if err != nil || len(list.GetHandoffs()) != 1 || notice.GetType() != "handoff_request" ||
		list.GetHandoffs()[0].GetTitle() != "Build it" {
		t.Fatalf("the handoffs are %v, %v; lead has received %v", list, err, notice)
	}
	if _, err := handoffs.AcceptHandoff(t.Context(), &pb.AcceptHandoffRequest{Id: list.GetHandoffs()[0].GetId(),
		Notes: "read"}); err != nil {
		t.Fatal(err)
	}
	first := d.awaitFiles(agentRoot+"inbox/builder-1", 1)[0]
	if file := d.object(agentRoot + "inbox/builder-1/" + first); file["message_type"] != "handoff_accepted" {
		t.Errorf("the notice is %v", file)
	}
	call("create_handoff_package", "builder-1", "builder-2", "Test it", `["design.md"]`, "It is built.")
	var id string
	d.await(agentRoot+"inbox/builder-2", "the request", func() bool {
		names, _ := filepath.Glob(filepath.Join(d.dir, agentRoot, "inbox/builder-2/*.json"))
		for _, name := range names {
			data, _ := os.ReadFile(name) // the bridge may be archiving it
			var file struct {
				Type    string            `json:"message_type"`
				Payload map[string]string `json:"payload"`
			}
			if _ = json.Unmarshal(data, &file); file.Type == "handoff_request" {
				id = file.Payload["handoff_id"]
			}
		}
		return id != ""
	})
	// accept_handoff of the definition names no recipient, because its jq program fails. It means this message.
	accept := func(to, id string) {
		call("send_message", "builder-2", to, "handoff_accepted", "Handoff "+id+" accepted",
			`{"handoff_id": "`+id+`", "notes": "Starting."}`)
	}
	accept("builder-1", id)
	d.awaitFiles(agentRoot+"inbox/builder-1", 2)
	d.awaitSent("builder-2", 2)
	created, err := handoffs.CreateHandoff(t.Context(), &pb.CreateHandoffRequest{Title: "Release it",
		ToAgent: "builder-2"})
	apptest.NoError(t, err)
	accept("lead", created.GetHandoff().GetId())
	settled, err := handoffs.GetHandoff(t.Context(), &pb.GetHandoffRequest{Id: created.GetHandoff().GetId(),
		Wait: durationpb.New(apptest.Patience)})
	if h := settled.GetHandoff(); err != nil || h.GetSettledBy() != "builder-2" || h.GetNotes() != "Starting." {
		t.Errorf("the handoff is %v, %v", h, err)
	}
	if names := d.names(agentRoot + "rejected"); len(names) > 0 {
		t.Errorf("the bridge rejected %q", names)
	}
}

// withSubscription adds a subscription to a registry.json.
func withSubscription(registry map[string]any, event, agent string) map[string]any {
	registry["event_subscriptions"] = map[string]any{event: []string{agent}}
	return registry
}
