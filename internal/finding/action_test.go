package finding_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "brokerd/gen/brokerd/v1" // registers the API
	"brokerd/internal/finding"
)

func TestAction_IsACallOfTheAPI(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		command finding.Command
		want    finding.Action
	}{
		{finding.Command{"dlq", "redrive", "7", "--mailbox", "role:it's"}, finding.Action{
			Method: "MessageService/RedriveDeadLetters", Request: `{"ids":["7"],"mailbox":"role:it's"}`}},
		{finding.Command{"dlq", "delete", "--mailbox", "a"}, finding.Action{
			Method: "MessageService/PurgeDeadLetters", Request: `{"mailbox":"a"}`}},
		{finding.Command{"--agent", "builder-1", "release", "7.1"}, finding.Action{
			Method: "MessageService/ReleaseClaims", Request: `{"ids":["7.1"]}`, Agent: "builder-1"}},
		{finding.Command{"agent", "nudge", "channel:build", "answer message 7"}, finding.Action{
			Method:  "MessageService/SendMessages",
			Request: `{"messages":[{"priority":10,"subject":"answer message 7","target":{"channel":"build"},"type":"nudge"}]}`}},
		{finding.Command{"agent", "register", "a", "--role", "r", "--capability", "x", "--capability", "y",
			"--label", "k=a=b",
			"--lease", "1h0m0.5s"}, finding.Action{
			Method:  "AgentService/RegisterAgent",
			Request: `{"capabilities":["x","y"],"labels":{"k":"a=b"},"lease":"3600.5s","role":"r"}`, Agent: "a"}},
		{finding.Command{"decision", "defer", "d-7", "30m"}, finding.Action{
			Method:  "DecisionService/Decide",
			Request: `{"id":"d-7","until":"2026-01-02T03:34:05Z","verdict":"defer"}`}},
		{finding.Command{"decision", "decide", "d-7", "sqlite"}, finding.Action{
			Method: "DecisionService/Decide", Request: `{"id":"d-7","verdict":"sqlite"}`}},
		{finding.Command{"lock", "revoke", "7", "--reason", "--why"}, finding.Action{
			Method: "LockService/ForceReleaseLocks", Request: `{"reason":"--why","revisions":[7]}`}},
		{finding.Command{"admin", "drain", "--resume"},
			finding.Action{Method: "AdminService/Drain", Request: `{"resume":true}`}},
	} {
		got, found := c.command.Action(now)
		c.want.Method = "/brokerd.v1." + c.want.Method
		if !found || got != c.want {
			t.Errorf("%q: %v, want %v", c.command, got, c.want)
		}
		name := strings.ReplaceAll(got.Method[1:], "/", ".")
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		kind, err := protoregistry.GlobalTypes.FindMessageByName(d.(protoreflect.MethodDescriptor).Input().FullName())
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal([]byte(got.Request), kind.New().Interface()); err != nil {
			t.Errorf("%q: %v", c.command, err)
		}
	}
}

func TestAction_NoneForACommandThatIsNoCall(t *testing.T) {
	for _, c := range []finding.Command{
		nil, {"status"}, {"agent", "get", "a"}, {"--agent", "a", "inbox"},
		{"--agent", "a", "agent", "run", "--role", "r", "--", "release", "--x"},
		{"decision", "resubmit", "d-7", "--body", "-"}, {"session", "configure", "--mailbox-limit", "x"},
	} {
		if got, found := c.Action(time.Time{}); found {
			t.Errorf("%q is %v", c, got)
		}
	}
}
