package content_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/content"
	"brokerd/internal/fault"
)

var fields = map[content.Field]protoreflect.Name{
	content.Subject: "subject", content.Body: "body", content.Payload: "payload", content.Correlation: "correlation_id",
	content.Task: "task_id", content.TraceParent: "trace_parent",
}

func TestText_IsTheFieldOfThatName(t *testing.T) {
	t.Parallel()
	m := &pb.Message{
		Subject: "s", Body: "b", Payload: `{"p":1}`, CorrelationId: "c", TaskId: "t", TraceParent: "p",
		Labels: map[string]string{"a": "b"},
	}
	stored := marshal(t, m)
	for number, name := range fields {
		want := m.ProtoReflect().Get(m.ProtoReflect().Descriptor().Fields().ByName(name)).String()
		if got := content.Text(stored, number); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
		if got := content.Text(nil, number); got != "" {
			t.Errorf("%s of no content is %q", name, got)
		}
	}
}

func TestAdded_BecomesPartOfTheMessage(t *testing.T) {
	t.Parallel()
	given := &pb.Message{Type: "question", Subject: "given", Body: "b", TaskId: "task-1"}
	deadline := time.Unix(1_700_000_000, 5).UTC()
	added := content.Added{
		Agent: "lead", ReplyTo: "7", Correlation: "c", Subject: "added", Deadline: deadline, TraceParent: "p",
	}
	stored := slices.Concat(marshal(t, given), added.Marshal())
	if got := content.Text(stored, content.Subject); got != "added" {
		t.Errorf("the subject is %q", got)
	}
	wantMessage(t, stored, &pb.Message{
		Type: "question", Subject: "added", Body: "b", TaskId: "task-1", InReplyTo: "7", CorrelationId: "c",
		TraceParent: "p", Target: &pb.Target{To: &pb.Target_Agent{Agent: "lead"}},
		ResponseDeadline: timestamppb.New(deadline),
	})
	none := content.Added{}
	wantMessage(t, slices.Concat(marshal(t, given), none.Marshal()), given)
}

func TestMessage_HasOneTarget(t *testing.T) {
	t.Parallel()
	says := content.Message{
		Type: "note", TypeAsSent: "Note", Priority: 6, Subject: "s", Body: "b", Payload: "{}", Task: "t", Thread: "th",
		InReplyTo: 12, Artifacts: []string{"a"},
	}
	want := &pb.Message{
		Type: "note", TypeAsSent: "Note", Version: "1.0", Priority: 6, Subject: "s", Body: "b", Payload: "{}", TaskId: "t",
		ThreadId: "th", InReplyTo: "12", Artifacts: []string{"a"},
	}
	for _, c := range []struct {
		agent, role, channel string
		one                  bool
		target               *pb.Target
		reach                pb.Reach
	}{
		{agent: "a", target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, reach: pb.Reach_REACH_ALL},
		{role: "r", target: &pb.Target{To: &pb.Target_Role{Role: "r"}}, reach: pb.Reach_REACH_ALL},
		{role: "r", one: true, target: &pb.Target{To: &pb.Target_Role{Role: "r"}}, reach: pb.Reach_REACH_ONE},
		{channel: "c", target: &pb.Target{To: &pb.Target_Channel{Channel: "c"}}, reach: pb.Reach_REACH_ALL},
	} {
		says.Agent, says.Role, says.Channel, says.One = c.agent, c.role, c.channel, c.one
		stored, err := says.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		want.Target, want.Reach = c.target, c.reach
		wantMessage(t, stored, want)
	}
}

func TestMarshal_RefusesWhatIsTooLarge(t *testing.T) {
	t.Parallel()
	says := content.Message{Agent: "a", Body: strings.Repeat("x", content.Max)}
	if _, err := says.Marshal(); fault.KindOf(err) != fault.Exhausted {
		t.Fatalf("%v", err)
	}
}

func marshal(t *testing.T, m *pb.Message) []byte {
	t.Helper()
	stored, err := content.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

func wantMessage(t *testing.T, stored []byte, want *pb.Message) {
	t.Helper()
	var got pb.Message
	if err := proto.Unmarshal(stored, &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, want) {
		t.Errorf("the content is %v, want %v", &got, want)
	}
}

// Target reads the target as protobuf merges it.
func TestTarget_IsTheLastOneAsAPersonWritesIt(t *testing.T) {
	t.Parallel()
	builder := &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}
	for want, targets := range map[string][]*pb.Target{
		"builder":      {builder},
		"role:dev":     {{To: &pb.Target_Role{Role: "dev"}}},
		"channel:news": {builder, {To: &pb.Target_Channel{Channel: "news"}}},
		"b*":           {{To: &pb.Target_Pattern{Pattern: "b*"}}, {}},
		"everyone":     {{To: &pb.Target_Role{Role: "dev"}}, {To: &pb.Target_Everyone{Everyone: true}}},
		"":             nil,
	} {
		stored := []byte{}
		for _, to := range targets {
			b, err := content.Marshal(&pb.Message{Target: to, Subject: "role:no"})
			if err != nil {
				t.Fatal(err)
			}
			stored = append(stored, b...)
		}
		if got := content.Target(stored); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A client can send fields of the right number and the wrong kind, which protobuf keeps as unknown.
func TestTarget_HasNoFieldOfAnotherKind(t *testing.T) {
	t.Parallel()
	for name, field := range map[string][]byte{
		"a number as the agent": protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7),
		"a text as everyone":    protowire.AppendString(protowire.AppendTag(nil, 5, protowire.BytesType), "x"),
	} {
		to := &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}
		to.ProtoReflect().SetUnknown(field)
		stored, err := content.Marshal(&pb.Message{Target: to})
		if err != nil {
			t.Fatal(err)
		}
		if got := content.Target(stored); got != "builder" {
			t.Errorf("%s: the target is %q", name, got)
		}
	}
}
