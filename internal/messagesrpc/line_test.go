package messagesrpc

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/archive"
	"brokerd/internal/mail"
)

// What is archived is what reflection over the API's types says, a field that is new tomorrow included.
func TestLine_IsWhatReflectionWrites(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		got := recordAtRandom(t, r)
		line, err := AppendRecord([]byte("x"), got)
		if err != nil {
			t.Fatal(err)
		}
		line = line[1:]
		if want := reflected(t, got); !bytes.Equal(line, want) {
			t.Fatalf("seed %d:\n got %s\nwant %s", seed, line, want)
		}
		if !json.Valid(line) || bytes.IndexByte(line, '\n') >= 0 {
			t.Fatalf("seed %d: not one line of JSON: %s", seed, line)
		}
	}
}

// recordAtRandom returns a record. In half of the cases, its content has no fields of message types except target.
func recordAtRandom(t *testing.T, r *rand.Rand) *archive.Record {
	t.Helper()
	nanos := func() int64 { return r.Int64N(2) * (1_700_000_000_000_000_000 + r.Int64N(1e17)) }
	m := &pb.Message{}
	fillAtRandom(r, m.ProtoReflect())
	m.Id, m.Revision, m.Sender, m.SenderRole, m.CreatedAt, m.ExpiresAt = "", 0, "", "", nil, nil
	if r.IntN(2) == 0 {
		m.Labels, m.Files, m.Artifacts, m.Ttl, m.NotBefore, m.ResponseDeadline, m.ResendAfter = nil, nil, nil, nil, nil, nil, nil
	}
	content, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if r.IntN(4) == 0 { // a reply has what was filled in behind
		more, err := proto.Marshal(&pb.Message{ThreadId: anyText(r), Priority: 7, Target: &pb.Target{To: &pb.Target_Agent{Agent: anyText(r)}}})
		if err != nil {
			t.Fatal(err)
		}
		content = append(content, more...)
	}
	got := &archive.Record{
		Revision: r.Int64N(1 << 50), CreatedAt: 1 + nanos(), ExpiresAt: nanos(), Sender: anyText(r), SenderRole: anyText(r),
		Thread: anyText(r), Content: content, Deliveries: make([]archive.RecordedDelivery, r.IntN(4)),
	}
	for i := range got.ID {
		got.ID[i] = byte(r.IntN(256))
	}
	for i := range got.Deliveries {
		got.Deliveries[i] = archive.RecordedDelivery{
			Mailbox: anyText(r), Holder: anyText(r), Consumer: anyText(r), State: r.Int64N(10), Arrival: r.Int64N(1 << 50), Claims: r.Int64N(3),
			Attempts: r.Int64N(3), MaxAttempts: r.Int64N(5), ClaimedAt: nanos(), DeliveredAt: nanos(), ReadAt: nanos(), FinishedAt: nanos(), DueAt: nanos(),
		}
		for range r.IntN(3) {
			got.Deliveries[i].History = append(got.Deliveries[i].History, mail.Attempt{
				Number: r.IntN(5), Agent: anyText(r), Consumer: anyText(r), ClaimedAt: moment(nanos()), EndedAt: moment(nanos()), Error: anyText(r),
			})
		}
		for range r.IntN(3) {
			got.Deliveries[i].Offers = append(got.Deliveries[i].Offers, mail.Offer{
				Number: r.IntN(5), Way: mail.Way(r.IntN(11)), Harness: anyText(r), Mark: anyText(r), OfferedAt: moment(nanos()),
				AcceptedAt: moment(nanos()), ReturnedAt: moment(nanos()), Why: anyText(r),
			})
		}
	}
	return got
}

// reflected writes the answer of GetMessage.
func reflected(t *testing.T, r *archive.Record) []byte {
	t.Helper()
	answer := &pb.GetMessageResponse{Message: wire(&mail.Message{
		Revision: r.Revision, ID: r.ID, Sender: r.Sender, SenderRole: r.SenderRole, CreatedAt: moment(r.CreatedAt),
		ExpiresAt: moment(r.ExpiresAt), Thread: r.Thread,
	})}
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(r.Content, answer.Message); err != nil {
		t.Fatal(err)
	}
	for i := range r.Deliveries {
		d := &r.Deliveries[i]
		answer.Deliveries = append(answer.Deliveries, delivery(r.Revision, &mail.Delivery{
			Mailbox: d.Mailbox, Holder: d.Holder, Consumer: d.Consumer, State: mail.State(d.State),
			Arrival: d.Arrival, Claims: int(d.Claims),
			Attempts: int(d.Attempts), MaxAttempts: int(d.MaxAttempts), ClaimedAt: moment(d.ClaimedAt), DeliveredAt: moment(d.DeliveredAt),
			ReadAt: moment(d.ReadAt), FinishedAt: moment(d.FinishedAt), DueAt: moment(d.DueAt), History: d.History,
			Offers: d.Offers,
		}))
	}
	line, err := recordOf(answer)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func moment(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func FuzzLine_IsWhatReflectionWrites(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(recordAtRandom(&testing.T{}, rand.New(rand.NewPCG(seed, 2))).Content)
	}
	f.Add([]byte(""))
	f.Add([]byte("\x62"))
	f.Add([]byte("\x62\x05ab"))
	f.Add([]byte("\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80"))
	f.Fuzz(func(t *testing.T, content []byte) {
		var m pb.Message
		if proto.Unmarshal(content, &m) != nil {
			if line, err := AppendRecord(nil, &archive.Record{Revision: 7, CreatedAt: 1, Content: content}); err == nil {
				t.Fatalf("content that is not a message is written as %s", line)
			}
			return
		}
		if !(m.Payload == "" || json.Valid([]byte(m.Payload))) || m.Id+m.Sender+m.SenderRole != "" || m.Revision != 0 || m.CreatedAt != nil || m.ExpiresAt != nil {
			t.Skip() // is refused, or not part of it
		}
		r := &archive.Record{Revision: 7, CreatedAt: 1, Content: content}
		line, err := AppendRecord(nil, r)
		if err != nil {
			t.Fatal(err)
		}
		if want := reflected(t, r); !bytes.Equal(line, want) {
			t.Fatalf("\n got %s\nwant %s", line, want)
		}
	})
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
