package jsonform_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/jsonform"
)

// requests returns an empty request of every RPC.
func requests() (all []protoreflect.Message) {
	types := map[protoreflect.FullName]bool{}
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_brokerd_v1_admin_proto, pb.File_brokerd_v1_agent_proto, pb.File_brokerd_v1_artifact_proto,
		pb.File_brokerd_v1_blocker_proto, pb.File_brokerd_v1_catalog_proto, pb.File_brokerd_v1_channel_proto,
		pb.File_brokerd_v1_credential_proto, pb.File_brokerd_v1_decision_proto, pb.File_brokerd_v1_event_proto,
		pb.File_brokerd_v1_handoff_proto, pb.File_brokerd_v1_lock_proto, pb.File_brokerd_v1_message_proto,
		pb.File_brokerd_v1_session_proto, pb.File_brokerd_v1_state_proto, pb.File_brokerd_v1_task_proto,
		pb.File_brokerd_v1_token_proto, pb.File_brokerd_v1_vote_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				types[methods.Get(j).Input().FullName()] = true
			}
		}
	}
	protoregistry.GlobalTypes.RangeMessages(func(found protoreflect.MessageType) bool {
		if types[found.Descriptor().FullName()] {
			all = append(all, found.New())
		}
		return true
	})
	return all
}

func TestDecode_ReadsEveryFieldOfTheAPI(t *testing.T) {
	for _, m := range requests() {
		for choice := range 10 { // of the fields of each oneof
			filled := fill(m.New(), choice, 0).Interface()
			text := jsonOf(t, filled)
			read := m.New().Interface()
			if err := jsonform.Decode([]byte(text), read); err != nil {
				t.Errorf("%s: %v\n%s", m.Descriptor().Name(), err, text)
				continue
			}
			if !proto.Equal(read, filled) {
				t.Errorf("%s: read %v\nwant %v\nfrom %s", m.Descriptor().Name(), read, filled, text)
			}
		}
	}
}

// fill sets every field of a message, and one field of every oneof.
func fill(m protoreflect.Message, choice, depth int) protoreflect.Message {
	switch m.Interface().(type) {
	case *timestamppb.Timestamp:
		return timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)).ProtoReflect()
	case *durationpb.Duration:
		return durationpb.New(90*time.Second + 1).ProtoReflect()
	case *pb.StateValue:
		values := []*pb.StateValue{
			{Value: &pb.StateValue_StringValue{StringValue: "1"}},
			{Value: &pb.StateValue_IntegerValue{IntegerValue: math.MinInt64}},
			{Value: &pb.StateValue_BooleanValue{BooleanValue: true}},
			{Value: &pb.StateValue_JsonValue{JsonValue: `{"a":[1.5]}`}},
		}
		return values[choice%len(values)].ProtoReflect()
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && o.Fields().Get(choice%o.Fields().Len()) != f {
			continue
		}
		switch {
		case f.Message() != nil && depth > 4: // no request nests deeper
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString(`a "key"`).MapKey(), sample(f.MapValue()))
		case f.IsList() && f.Message() != nil:
			list := m.Mutable(f).List()
			list.Append(protoreflect.ValueOfMessage(fill(list.NewElement().Message(), choice, depth+1)))
		case f.IsList():
			list := m.Mutable(f).List()
			list.Append(sample(f))
			list.Append(sample(f))
		case f.Message() != nil:
			m.Set(f, protoreflect.ValueOfMessage(fill(m.NewField(f).Message(), choice, depth+1)))
		default:
			m.Set(f, sample(f))
		}
	}
	return m
}

// sample returns a value of a scalar field.
func sample(f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		if jsonform.IsJSONText(f) {
			return protoreflect.ValueOfString(`{"n":9007199254740993}`)
		}
		return protoreflect.ValueOfString("a <\"text\">\n\u2028")
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(math.MinInt32)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(math.MaxInt64)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(0.1)
	default:
		return protoreflect.ValueOfBytes([]byte{0, 255})
	}
}

func TestDecode_KeepsNestedJSONExactly(t *testing.T) {
	var m pb.Message
	const payload = "{ \"b\": 1.0,\n\t\"a\": 9007199254740993 }"
	if err := jsonform.Decode([]byte(`{"subject":null,"payload":`+payload+`}`), &m); err != nil ||
		m.GetPayload() != payload {
		t.Errorf("%q, %v", m.GetPayload(), err)
	}
	for text, want := range map[string]string{
		`"x"`: `string_value:"x"`, `1.5`: `json_value:"1.5"`, `[1]`: `json_value:"[1]"`,
		`9223372036854775808`: `json_value:"9223372036854775808"`} {
		var put pb.PutStateRequest
		if err := jsonform.Decode([]byte(`{"value":`+text+`}`), &put); err != nil || put.GetValue().String() != want {
			t.Errorf("%s: %v, %v", text, put.GetValue(), err)
		}
	}
}

func TestDecode_ReadsNumbersAndEnumsAsProtojsonWritesThem(t *testing.T) {
	for text, want := range map[string]proto.Message{
		`{"revisions":["7","1152921504606846977"]}`: &pb.ForceReleaseLocksRequest{Revisions: []int64{7, 1<<60 + 1}},
		`{"box":"MESSAGE_BOX_ALL"}`:                 &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL},
	} {
		read := want.ProtoReflect().New().Interface()
		if err := jsonform.Decode([]byte(text), read); err != nil || !proto.Equal(read, want) {
			t.Errorf("%s is read as %v: %v", text, read, err)
		}
	}
	for _, text := range []string{`{"revisions":["x"]}`, `{"revisions":[""]}`} {
		if err := jsonform.Decode([]byte(text), &pb.ForceReleaseLocksRequest{}); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

func TestDecode_NamesWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		m           proto.Message
		text, field string
		want        string
	}{
		{&pb.SendMessagesRequest{}, `{"mesages":[]}`, "mesages",
			"is not a field of SendMessagesRequest; did you mean messages?"},
		{&pb.SendMessagesRequest{}, `{"messages":[{},{"target":{"agnet":"x"}}]}`, "messages[1].target.agnet",
			"the nearest names are agent, "},
		{&pb.SendMessagesRequest{}, `{"messages":{}}`, "messages", "must be a list"},
		{&pb.SendMessagesRequest{}, `{"messages":[null]}`, "messages[0]", "must be an object"},
		{&pb.Message{}, `{"priority":"5"}`, "priority", "must be a whole number of 32 bits"},
		{&pb.Message{}, `{"priority":5.5}`, "priority", "must be a whole number of 32 bits"},
		{&pb.Message{}, `{"revision":9223372036854775808}`, "revision", "must be a whole number of 64 bits"},
		{&pb.Message{}, `{"subject":5}`, "subject", "must be text"},
		{&pb.Message{}, `{"requires_response":"true"}`, "requires_response", "must be true or false"},
		{&pb.Message{}, `{"reach":"some"}`, "reach", "must be one of all, one"},
		{&pb.Message{}, `{"ttl":90}`, "ttl", "must be a duration such as 1m30s"},
		{&pb.Message{}, `{"ttl":"1 day"}`, "ttl", "must be a duration such as 1m30s"},
		{&pb.Message{}, `{"not_before":"tomorrow"}`, "not_before", "must be a time such as"},
		{&pb.Message{}, `{"labels":{"a":1}}`, "labels.a", "must be text"},
		{&pb.Message{}, `{"target":{"agent":"a","role":"b"}}`, "target.role", "excludes agent"},
		{&pb.RegisterAgentRequest{}, `{"role":"a","role":"b"}`, "", "duplicate"},
		{&pb.UploadArtifactRequest{}, `{"chunk":"?"}`, "chunk", "must be bytes in base64"},
		{&pb.Message{}, `[]`, "", "not one JSON object"},
		{&pb.Message{}, `{"subject":"x"} {}`, "", "more follows"},
		{&pb.Message{}, `{"subject":"x"`, "", "not one JSON object"},
		{&pb.Message{}, `{"payload":{"a":}}`, "", "not one JSON object"},
		{&pb.Message{}, `{"artifacts":["a"`, "", "not one JSON object"},
		{&pb.Message{}, "{\"subject\":\"\xff\"}", "", "not one JSON object"},
	} {
		err := jsonform.Decode([]byte(tt.text), tt.m)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || !strings.Contains(f.Message, tt.want) {
			t.Errorf("%s: %v, want %s", tt.text, err, tt.want)
			continue
		}
		if tt.field == "" != (len(f.Violations) == 0) || tt.field != "" && f.Violations[0].Field != tt.field {
			t.Errorf("%s: fields %v, want %s", tt.text, f.Violations, tt.field)
		}
	}
}

func TestDecodeNext_ReadsASequence(t *testing.T) {
	d := jsontext.NewDecoder(strings.NewReader("{\"subject\":\"a\"}\n{\"subject\":\"b\"}\n"))
	for _, want := range []string{"a", "b"} {
		var m pb.Message
		if err := jsonform.DecodeNext(d, &m); err != nil || m.GetSubject() != want {
			t.Errorf("%v, %v", &m, err)
		}
	}
	if err := jsonform.DecodeNext(d, &pb.Message{}); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestDecode_AnEmptyTextIsAnEmptyObject(t *testing.T) {
	for _, text := range []string{"", " \n"} {
		if err := jsonform.Decode([]byte(text), &pb.GetStatusRequest{}); err != nil {
			t.Error(err)
		}
	}
}

func TestSet_ReadsParameters(t *testing.T) {
	for _, tt := range []struct {
		m     proto.Message
		name  string
		texts []string
		want  proto.Message
	}{
		{&pb.ListEventsRequest{}, "types", []string{"a", "b"},
			&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"a", "b"}}}},
		{&pb.ListEventsRequest{}, "filter.task_id", []string{"t"},
			&pb.ListEventsRequest{Filter: &pb.EventFilter{TaskId: "t"}}},
		{&pb.ListEventsRequest{}, "newest_first", []string{"true"}, &pb.ListEventsRequest{NewestFirst: true}},
		{&pb.ListEventsRequest{}, "lowest_severity", []string{"Warning"},
			&pb.ListEventsRequest{Filter: &pb.EventFilter{LowestSeverity: pb.Severity_SEVERITY_WARNING}}},
		{&pb.ListTasksRequest{}, "labels.team.x", []string{"red"},
			&pb.ListTasksRequest{Labels: map[string]string{"team.x": "red"}}},
		{&pb.GetBlockerRequest{}, "wait", []string{"5s"}, &pb.GetBlockerRequest{Wait: durationpb.New(5 * time.Second)}},
		{&pb.ValidatePayloadRequest{}, "payload", []string{`{"a":1}`}, &pb.ValidatePayloadRequest{Payload: `{"a":1}`}},
		{&pb.ExplainRequest{}, "lock", []string{"src"}, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Lock{Lock: "src"}}},
	} {
		if err := jsonform.Set(tt.m, tt.name, tt.texts); err != nil || !proto.Equal(tt.m, tt.want) {
			t.Errorf("%s=%v: %v, %v; want %v", tt.name, tt.texts, tt.m, err, tt.want)
		}
	}
}

func TestSet_RefusesOtherParameters(t *testing.T) {
	for _, tt := range []struct {
		m     proto.Message
		name  string
		texts []string
		want  string
	}{
		{&pb.ListEventsRequest{}, "type", []string{"a"}, "type: is not a field of ListEventsRequest"},
		{&pb.ListEventsRequest{}, "filter.type", []string{"a"},
			"filter.type: is not a field of EventFilter; did you mean types?"},
		{&pb.ListEventsRequest{}, "newest_first", []string{"yes"}, "newest_first: must be true or false"},
		{&pb.ListEventsRequest{}, "page_size", []string{"1", "2"}, "page_size: is given 2 times"},
		{&pb.ListEventsRequest{PageSize: 1}, "page_size", []string{"2"}, "page_size: is given twice"},
		{&pb.ListEventsRequest{}, "filter", []string{"a"}, "filter: cannot be given as a parameter"},
		{&pb.ListTasksRequest{}, "labels", []string{"a"}, "labels: needs a key, such as labels.KEY"},
		{&pb.ListTasksRequest{}, "labels.a", []string{"a", "b"}, "labels.a: is given 2 times"},
		{&pb.ListTasksRequest{Labels: map[string]string{"a": "b"}}, "labels.a", []string{"c"}, "labels.a: is given twice"},
		{&pb.SendMessagesRequest{}, "messages", []string{"a"}, "messages: cannot be given as a parameter"},
		{&pb.ListTasksRequest{}, "role.x", []string{"a"}, "role.x: cannot be given as a parameter"},
		{&pb.ExplainRequest{Subject: &pb.ExplainRequest_Lock{Lock: "src"}}, "agent", []string{"a"}, "agent: excludes lock"},
	} {
		if err := jsonform.Set(tt.m, tt.name, tt.texts); fault.KindOf(err) != fault.Invalid ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s=%v: %v, want %s", tt.name, tt.texts, err, tt.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"messages":[{"target":{"agent":"a"},"payload":{"x":[1]},"ttl":"1s","labels":{"a":"b"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second pb.SendMessagesRequest
		if jsonform.Decode(data, &first) != nil {
			return
		}
		var b bytes.Buffer
		if err := jsonform.Append(&b, &first); err != nil {
			t.Fatal(err)
		}
		if err := jsonform.Decode(b.Bytes(), &second); err != nil {
			t.Errorf("%s is read, and %s is not: %v", data, &b, err)
		}
	})
}
