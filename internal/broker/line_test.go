package broker

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// What is archived is what reflection over the API's types says, a field that is new tomorrow included.
func TestLine_IsWhatReflectionWrites(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		answer := &pb.GetMessageResponse{Message: &pb.Message{}, Deliveries: make([]*pb.Delivery, r.IntN(4))}
		fillAtRandom(r, answer.Message.ProtoReflect())
		got, err := appendMessage([]byte(`{"message":`), answer.Message)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, `,"deliveries":[`...)
		for i := range answer.Deliveries {
			answer.Deliveries[i] = &pb.Delivery{}
			fillAtRandom(r, answer.Deliveries[i].ProtoReflect())
			if i > 0 {
				got = append(got, ',')
			}
			got = appendDelivery(got, answer.Deliveries[i])
		}
		got = append(got, ']', '}')
		want, err := recordOf(answer)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, got, want)
		}
		if !json.Valid(got) || bytes.IndexByte(got, '\n') >= 0 {
			t.Fatalf("seed %d: not one line of JSON: %s", seed, got)
		}
	}
}

// fillAtRandom sets fields at random, most of them.
func fillAtRandom(r *rand.Rand, m protoreflect.Message) {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		v.Seconds, v.Nanos = time.Date(2026, 1, 1, 0, 0, r.IntN(1e8), 0, time.UTC).Unix(), int32(r.IntN(3)*r.IntN(1e9))
		return
	case *durationpb.Duration:
		v.Seconds, v.Nanos = r.Int64N(1e6), int32(r.IntN(2)*r.IntN(1e9))
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case r.IntN(4) == 0:
		case f.FullName() == "brokerd.v1.Message.payload":
			payloads := []string{"", `null`, `"a b"`, "{ \"n\" : [1, 2.50,\t9007199254740993],\n\"s\":\"\\u2028 <&> \u2029\" }", `{"n":[1]}`}
			m.Set(f, protoreflect.ValueOfString(payloads[r.IntN(len(payloads))]))
		case f.IsMap():
			for range r.IntN(4) {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(anyText(r)).MapKey(), protoreflect.ValueOfString(anyText(r)))
			}
		case f.IsList():
			list := m.Mutable(f).List()
			for range r.IntN(4) {
				if f.Kind() != protoreflect.MessageKind {
					list.Append(scalar(r, f))
					continue
				}
				one := list.NewElement()
				fillAtRandom(r, one.Message())
				list.Append(one)
			}
		case f.Kind() == protoreflect.MessageKind:
			fillAtRandom(r, m.Mutable(f).Message())
		default:
			m.Set(f, scalar(r, f))
		}
	}
}

func scalar(r *rand.Rand, f protoreflect.FieldDescriptor) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(anyText(r))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(r.IntN(1000)))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(f.Enum().Values().Len() + 1)))
	default:
		return protoreflect.ValueOfInt64(r.Int64N(1 << 60))
	}
}

func anyText(r *rand.Rand) string {
	texts := []string{"", "plain", "a \"b\" \\ <c> & d", "\x00\x1f\b\f\n\r\t\x7f", "äöü 漢字 🙂", "\u2027\u2028\u2029", "builder-1"}
	return texts[r.IntN(len(texts))] + texts[r.IntN(len(texts))]
}
