package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/authority"
	"brokerd/cmd/brokerctl/bench"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/local"
	"brokerd/cmd/brokerctl/messages"
	"brokerd/cmd/brokerctl/observe"
	"brokerd/cmd/brokerctl/people"
	"brokerd/cmd/brokerctl/setup"
	"brokerd/cmd/brokerctl/work"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/jsonform"
)

// outcomes are what each command prints with -o json: an object of the API or of brokerctl, or a
// text about it.
var outcomes = map[string][]any{
	"ack": {&pb.AckMessagesResponse{}}, "nack": {&pb.NackMessagesResponse{}}, "extend": {&pb.ExtendClaimsResponse{}}, "release": {&pb.ReleaseClaimsResponse{}},
	"agent checkpoint": {&pb.SaveCheckpointResponse{}}, "agent deregister": {&pb.DeregisterAgentResponse{}}, "agent get": {&pb.GetAgentResponse{}},
	"agent heartbeat": {&pb.HeartbeatResponse{}}, "agent list": {&pb.Agent{}, &pb.RoleSummary{}}, "agent register": {&pb.Agent{}},
	"agent halt": {&pb.SendResult{}}, "agent nudge": {&pb.SendResult{}}, "agent resume": {&pb.SendResult{}}, "agent terminate": {&pb.SendResult{}},
	"admin backup": {&pb.Backup{}}, "admin check": {&pb.CheckDatabaseResponse{}}, "admin drain": {&pb.DrainResponse{}},
	"admin move": {&pb.MoveMessagesResponse{}}, "admin prune": {&pb.PruneDataResponse{}}, "ask": {&pb.AskResponse{}},
	"bench": {bench.Measurement{}}, "call": {"the answer of the call"},
	"artifact delete": {&pb.DeleteArtifactResponse{}}, "artifact download": {"without `--to -`:", &pb.ArtifactVersion{}}, "artifact get": {&pb.GetArtifactResponse{}},
	"artifact list": {&pb.ArtifactVersion{}}, "artifact upload": {&pb.UploadArtifactResponse{}},
	"blocker ack": {&pb.Blocker{}}, "blocker get": {&pb.Blocker{}}, "blocker list": {&pb.Blocker{}}, "blocker raise": {&pb.Blocker{}}, "blocker resolve": {&pb.Blocker{}},
	"vote cast": {&pb.Vote{}}, "vote close": {&pb.Vote{}}, "vote get": {&pb.GetVoteResponse{}}, "vote list": {&pb.Vote{}}, "vote open": {&pb.Vote{}, &pb.GetVoteResponse{}},
	"type get": {&pb.MessageType{}}, "type list": {&pb.MessageType{}}, "type register": {&pb.RegisterMessageTypeResponse{}},
	"type validate":  {&pb.ValidatePayloadResponse{}},
	"handoff accept": {&pb.Handoff{}}, "handoff cancel": {&pb.Handoff{}}, "handoff check": {&pb.Handoff{}}, "handoff create": {&pb.Handoff{}},
	"handoff export": {work.Exported{}}, "handoff get": {&pb.Handoff{}}, "handoff list": {&pb.Handoff{}}, "handoff reject": {&pb.Handoff{}},
	"channel configure": {&pb.Channel{}}, "channel get": {&pb.Channel{}}, "channel list": {&pb.Channel{}},
	"channel subscribe": {&pb.SubscribeChannelResponse{}}, "channel unsubscribe": {&pb.UnsubscribeChannelResponse{}},
	"credential tls": {authority.CertificateFiles{}},
	"claim":          {&pb.ClaimedMessage{}}, "dlq delete": {&pb.PurgeDeadLettersResponse{}}, "dlq list": {&pb.InboxItem{}}, "dlq redrive": {&pb.RedriveDeadLettersResponse{}},
	"event follow": {&pb.Event{}}, "event list": {&pb.Event{}}, "event publish": {&pb.PublishEventResponse{}}, "explain": {&pb.Finding{}}, "guide": {work.Guide{}},
	"inbox": {&pb.InboxItem{}, &pb.GetInboxSummaryResponse{}}, "receive": {&pb.InboxItem{}}, "init": {setup.Initialized{}},
	"setup":        {setup.VendorState{}, setup.Outcome{}},
	"lock acquire": {&pb.AcquireLocksResponse{}}, "lock extend": {&pb.ExtendLocksResponse{}}, "lock get": {&pb.ListLocksResponse{}},
	"lock list": {&pb.Lock{}, &pb.LockTicket{}}, "lock release": {&pb.ReleaseLocksResponse{}}, "lock revoke": {&pb.ForceReleaseLocksResponse{}},
	"mailbox list": {&pb.MailboxSummary{}}, "message cancel": {&pb.CancelMessageResponse{}},
	"message get": {&pb.GetMessageResponse{}}, "message list": {&pb.InboxItem{}}, "message report": {messages.MessageReport{}},
	"report":   {work.SessionPage{}},
	"overview": {&pb.WatchOverviewResponse{}}, "message resend": {&pb.ResendMessageResponse{}}, "next": {work.TurnObject{}},
	"ping": {observe.Pong{}}, "reply": {&pb.ReplyResponse{}}, "send": {&pb.SendResult{}},
	"agent shutdown": {&pb.Decision{}}, "decision accept": {&pb.Decision{}}, "decision cancel": {&pb.Decision{}}, "decision decide": {&pb.Decision{}}, "decision defer": {&pb.Decision{}},
	"decision get": {&pb.Decision{}}, "decision list": {&pb.Decision{}}, "decision open": {&pb.Decision{}}, "decision reject": {&pb.Decision{}}, "decision resubmit": {&pb.Decision{}},
	"plan approve": {&pb.Decision{}}, "plan get": {&pb.Decision{}}, "plan list": {&pb.Decision{}}, "plan reject": {&pb.Decision{}}, "plan revise": {&pb.Decision{}}, "plan submit": {&pb.Decision{}},
	"review approve": {&pb.Decision{}}, "review get": {&pb.Decision{}}, "review list": {&pb.Decision{}}, "review reject": {&pb.Decision{}}, "review revise": {&pb.Decision{}}, "review submit": {&pb.Decision{}},
	"credential issue": {&pb.IssueCredentialResponse{}}, "credential list": {&pb.Credential{}}, "credential revoke": {&pb.Credential{}},
	"dashboard": {local.DashboardLink{}}, "down": {local.Background{}}, "up": {local.Background{}},
	"session close": {&pb.Session{}}, "session configure": {&pb.Session{}}, "session create": {&pb.Session{}}, "session delete": {&pb.DeleteSessionResponse{}},
	"session get": {&pb.Session{}}, "session list": {&pb.Session{}},
	"state append": {&pb.AppendStateResponse{}}, "state delete": {&pb.DeleteStateResponse{}}, "state follow": {&pb.StateEntry{}},
	"state get": {"the value; with `--full`:", &pb.GetStateResponse{}}, "state history": {&pb.StateEntry{}}, "state list": {&pb.StateEntry{}}, "state put": {&pb.StateEntry{}},
	"state transact": {&pb.TransactStateResponse{}}, "status": {&pb.GetStatusResponse{}}, "thread get": {&pb.ListMessagesResponse{}}, "thread list": {&pb.ThreadSummary{}},
	"task block": {&pb.UpdateTaskResponse{}}, "task cancel": {&pb.CancelTaskResponse{}}, "task claim": {&pb.ClaimTaskResponse{}},
	"task complete": {&pb.CompleteTaskResponse{}}, "task create": {&pb.CreateTasksResponse{}}, "task fail": {&pb.FailTaskResponse{}},
	"task get": {&pb.GetTaskResponse{}}, "task list": {&pb.Task{}}, "task release": {&pb.ReleaseTaskResponse{}}, "task retry": {&pb.RetryTaskResponse{}},
	"task unblock": {&pb.UpdateTaskResponse{}}, "task update": {&pb.UpdateTaskResponse{}}, "task wait": {&pb.WaitTasksResponse{}},
	"thread resolve": {&pb.ResolveThreadResponse{}}, "token acquire": {&pb.AcquireTokenResponse{}}, "token extend": {&pb.ExtendTokenResponse{}},
	"token get": {&pb.GetTokenResponse{}}, "token list": {&pb.Token{}}, "token pass": {&pb.PassTokenResponse{}}, "token release": {&pb.ReleaseTokenResponse{}},
	"token revoke": {&pb.RevokeTokenResponse{}}, "trust": {local.TrustDone{}, "with `--list`:", local.TrustRow{}}, "version": {versions{}}, "whoami": {people.Identity{}},
}

// textual are the commands that print no JSON: what they run prints its own output, or they write
// text or files.
var textual = []string{
	"agent run", "lock run", "token run", "work", "task work", "demo", "hook", "bridge", "mcp", "session export",
	"completion", "man", "top",
}

const jsonMark = "<!-- The commands make the rest of this page. -->\n"

func TestJSONPage_DescribesEveryCommand(t *testing.T) {
	d := &jsonPage{}
	d.text.WriteString("| command | prints |\n|---|---|\n")
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		name := strings.TrimPrefix(cmd.CommandPath(), "brokerctl ")
		if cmd.HasSubCommands() || cmd.RunE == nil || cmd.IsAdditionalHelpTopicCommand() || slices.Contains(textual, name) {
			return
		}
		prints := outcomes[name]
		if prints == nil {
			t.Errorf("what does %s print with -o json? Add it to outcomes or textual", name)
		}
		var words []string
		for _, p := range prints {
			words = append(words, d.refer(p))
		}
		fmt.Fprintf(&d.text, "| `%s` | %s |\n", name, strings.ReplaceAll(strings.Join(words, " or "), ": or ", " "))
	}
	walk(newRoot(command.New(setting.Environment{})))
	for i := 0; i < len(d.types); i++ {
		d.describe(d.types[i])
	}
	const page = "../../docs/json.md"
	old, err := os.ReadFile(page)
	apptest.NoError(t, err)
	head, _, _ := strings.Cut(string(old), jsonMark)
	want := head + jsonMark + "\n" + d.text.String()
	if *update {
		apptest.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	if diff := cmp.Diff(string(old), want); diff != "" {
		t.Errorf("docs/json.md is not what the commands print; run make generate (-file +commands):\n%s", diff)
	}
}

// jsonPage lists objects; each is described once.
type jsonPage struct {
	text  bytes.Buffer
	types []any
}

// refer returns the name of an object, as a link to its description.
func (d *jsonPage) refer(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	name := nameOf(v)
	if !slices.ContainsFunc(d.types, func(known any) bool { return nameOf(known) == name }) {
		d.types = append(d.types, v)
	}
	return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
}

func nameOf(v any) string {
	if m, ok := v.(proto.Message); ok {
		return strings.TrimSuffix(string(m.ProtoReflect().Descriptor().Name()), "Response")
	}
	name := reflect.TypeOf(v).Name()
	return strings.ToUpper(name[:1]) + name[1:]
}

// describe lists the fields of an object.
func (d *jsonPage) describe(v any) {
	fmt.Fprintf(&d.text, "\n### %s\n| field | value |\n|---|---|\n", nameOf(v))
	m, ok := v.(proto.Message)
	if !ok {
		d.describeStruct(reflect.TypeOf(v))
		return
	}
	descriptor := m.ProtoReflect().Descriptor()
	if kind := jsonform.Kind(descriptor); kind != "" {
		fmt.Fprintf(&d.text, "| `kind` | `%s` |\n", kind)
	}
	for i := range descriptor.Fields().Len() {
		f := descriptor.Fields().Get(i)
		if f.Name() == output.PageToken {
			continue
		}
		value := d.valueOf(m.ProtoReflect(), f)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
			value += ", if this is the one that is set"
		}
		fmt.Fprintf(&d.text, "| `%s` | %s |\n", f.Name(), value)
	}
}

func (d *jsonPage) describeStruct(t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous:
			d.describeStruct(f.Type)
		case name != "":
			fmt.Fprintf(&d.text, "| `%s` | %s |\n", name, d.goValue(f.Type))
		}
	}
}

func (d *jsonPage) goValue(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return d.goValue(t.Elem()) + " or null"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 { // json.RawMessage
			return "object of the API"
		}
		return "list of " + d.goValue(t.Elem())
	case reflect.Struct:
		return d.refer(reflect.New(t).Elem().Interface())
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "number"
	}
	return "integer"
}

// valueOf says what a field of the API may be.
func (d *jsonPage) valueOf(m protoreflect.Message, f protoreflect.FieldDescriptor) string {
	var value string
	switch {
	case f.IsMap():
		return "object of texts"
	case jsonform.IsJSONText(f):
		return "any JSON, or null"
	case f.Kind() == protoreflect.EnumKind:
		value = "`" + strings.Join(jsonform.EnumNames(f.Enum()), "`, `") + "`"
		if !f.IsList() {
			value += " or null"
		}
	case f.Kind() == protoreflect.MessageKind:
		switch f.Message().FullName() {
		case "google.protobuf.Timestamp":
			value = "time"
		case "google.protobuf.Duration":
			value = "duration"
		case "brokerd.v1.StateValue":
			value = "any JSON"
		case "brokerd.v1.Names":
			value = "list of texts"
		default:
			nested := m.NewField(f)
			if f.IsList() {
				value = d.refer(nested.List().NewElement().Message().Interface())
			} else {
				value = d.refer(nested.Message().Interface())
			}
		}
	default:
		value = map[protoreflect.Kind]string{protoreflect.StringKind: "text", protoreflect.BoolKind: "true or false", protoreflect.DoubleKind: "number"}[f.Kind()]
		if value == "" {
			value = "integer"
		}
	}
	switch {
	case f.IsList():
		return "list of " + value
	case f.HasPresence() && f.Kind() != protoreflect.EnumKind && f.ContainingOneof() == nil, f.HasOptionalKeyword() && f.Kind() != protoreflect.EnumKind:
		return value + " or null"
	}
	return value
}

func TestJSON_LooksAsInTheGoldenFile(t *testing.T) {
	var all bytes.Buffer
	for _, shown := range tables {
		c, cmd, out := printer(output.FormatJSON)
		apptest.NoError(t, shown.print(c, cmd, io.Discard))
		if out.Len() > 0 { // the others only print text
			fmt.Fprintf(&all, "# %s\n%s\n", shown.name, out)
		}
	}
	golden(t, "json.txt", all.String())
}
