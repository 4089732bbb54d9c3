package messagesrpc

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/messagetrace"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/router"
)

const aTraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func toAgent(name string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: name}} }

// text is a payload with a text of n bytes.
func text(n int) string { return `"` + strings.Repeat("x", n) + `"` }

// plainMessages are messages that are read as bytes, by what they show.
func plainMessages() map[string]*pb.Message {
	role := &pb.Target{To: &pb.Target_Role{Role: "builder"}}
	object := `{"name": "größe", "list": [1, true, null, {"a": "` + strings.Repeat("x", 1000) + `"}]}`
	return map[string]*pb.Message{
		"the least":           {Target: toAgent("a")},
		"a text":              {Target: role, Type: "bench", Reach: pb.Reach_REACH_ONE, Payload: text(1000)},
		"an object":           {Target: role, Type: "bench", Payload: object},
		"no ASCII":            {Target: toAgent("a"), Subject: "größe 大小", Body: "zwei\nZeilen 😀", Payload: `"naïve"`},
		"a channel":           {Target: &pb.Target{To: &pb.Target_Channel{Channel: "news"}}, Subject: "s"},
		"a pattern":           {Target: &pb.Target{To: &pb.Target_Pattern{Pattern: "builder-*"}}, Subject: "s"},
		"everyone":            {Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Subject: "s"},
		"another spelling":    {Target: toAgent("a"), Type: "TaskAssignment", Subject: "s", Payload: `{}`},
		"a directive":         {Target: role, Type: "halt", Subject: "s"},
		"a directive, raised": {Target: toAgent("a"), Type: "Halt", Priority: 3, Subject: "s"},
		"all defaults": {
			Target: toAgent("a"), Type: "message", Version: "1.0", Priority: 5, Reach: pb.Reach_REACH_ALL, Subject: "s",
		},
		"texts and ids": {
			Target: toAgent("a"), Type: "bench", Version: "1.7", Subject: "s", Body: "b", Payload: "7", Priority: 10,
			Channel: "news", ThreadId: "t", CorrelationId: "c", InReplyTo: "4711", TaskId: "k", OrderingKey: "o",
			TraceParent: aTraceParent,
		},
		"the rest": {
			Target: toAgent("a"), Subject: "s", Labels: map[string]string{"a": "1", "b": "größe", "c": ""},
			Files: []*pb.FileReference{{Path: "a.go", Line: 7}, {Path: "b.go"}}, Artifacts: []string{"x", "y"},
			Ttl: durationpb.New(90 * time.Second), NotBefore: timestamppb.New(time.Unix(1_900_000_000, 5)),
			MaxAttempts: 7, RequiresResponse: true, ResponseDeadline: timestamppb.New(time.Unix(1_900_000_000, 0)),
			ResendAfter: durationpb.New(time.Hour),
		},
	}
}

// otherMessages are messages that protobuf decodes, since they have a fault.
func otherMessages() map[string]*pb.Message {
	return map[string]*pb.Message{
		"no target":           {Subject: "s"},
		"the name everyone":   {Target: toAgent("everyone"), Subject: "s"}, // the broker changes the target
		"a long name":         {Target: toAgent(strings.Repeat("a", 129)), Type: strings.Repeat("b", 129), Subject: "s"},
		"no name":             {Target: toAgent("a b"), Subject: "s"},
		"no JSON":             {Target: toAgent("a"), Payload: `{"a":}`},
		"two lines":           {Target: toAgent("a"), Subject: "a\nb"},
		"a long subject":      {Target: toAgent("a"), Subject: strings.Repeat("x", 513)},
		"a long payload":      {Target: toAgent("a"), Payload: text(maxPayload)},
		"a priority":          {Target: toAgent("a"), Subject: "s", Priority: 11},
		"a negative priority": {Target: toAgent("a"), Subject: "s", Priority: -1},
		"a version":           {Target: toAgent("a"), Subject: "s", Version: "2.0"},
		"a stamp":             {Target: toAgent("a"), Subject: "s", Sender: "a"},
		"no label":            {Target: toAgent("a"), Subject: "s", Labels: map[string]string{"": "a"}},
		"no time":             {Target: toAgent("a"), Subject: "s", Ttl: &durationpb.Duration{Seconds: -1}},
		"a reply to nothing":  {Target: toAgent("a"), Subject: "s", InReplyTo: "x"},
	}
}

func encode(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func newSendFrame() *sendFrame {
	return &sendFrame{types: func() (*msgtype.Set, error) { return builtin, nil }}
}

// A message that is sent as usual costs as little as wire.go promises only if protobuf does not decode it.
func TestWire_PlainFramesAreReadAsBytes(t *testing.T) {
	t.Parallel()
	all := &pb.SendRequest{Producer: "p", FirstNumber: 3}
	for name, m := range plainMessages() {
		all.Messages = append(all.Messages, m)
		if !readsAsProtobuf(t, encode(&pb.SendRequest{Messages: []*pb.Message{m}})) {
			t.Errorf("%s: protobuf decodes the frame", name)
		}
	}
	if !readsAsProtobuf(t, encode(all)) {
		t.Error("protobuf decodes a frame with all of these messages")
	}
	for name, r := range map[string]*pb.ClaimRequest{
		"a keepalive": {}, "an ack": {Acks: []string{"4711.2"}}, "acks": {Acks: claimIDsUpTo(1000)},
	} {
		if !settlesAsProtobuf(t, encode(r)) {
			t.Errorf("%s: protobuf decodes the frame", name)
		}
	}
}

func TestWire_ProtobufDecodesOtherFrames(t *testing.T) {
	t.Parallel()
	for name, m := range otherMessages() {
		if readsAsProtobuf(t, encode(&pb.SendRequest{Messages: []*pb.Message{{Target: toAgent("a"), Subject: "s"}, m}})) {
			t.Errorf("%s: the frame is read as bytes", name)
		}
	}
	m := encode(&pb.Message{Target: toAgent("a"), Subject: "s"})
	frame := func(message ...byte) []byte { return protowire.AppendBytes([]byte{0x0a}, message) }
	label := []byte{0xba, 0x01, 6, 0x0a, 1, 'a', 0x12, 1, 'b'}
	many := &pb.Message{Target: toAgent("a"), Subject: "s", Artifacts: slices.Repeat([]string{"x"}, maxFields/2+1)}
	for name, b := range map[string][]byte{
		"nothing":             nil,
		"an empty message":    {0x0a, 0},
		"1,001 messages":      bytes.Repeat(frame(m...), 1001),
		"half a message":      frame(m...)[:9],
		"a subject twice":     frame(append(m, 0x72, 1, 'b')...),
		"an empty text":       frame(append(m, 0x7a, 0)...),
		"a label twice":       frame(slices.Concat(m, label, label)...),
		"a long number":       frame(append(m, 0x88, 0x01, 0x85, 0x00)...),
		"a number as a text":  frame(append(m, 0x8a, 0x01, 1, 5)...),
		"no UTF-8":            frame(append(m, 0x7a, 1, 0xff)...),
		"a producer in bytes": append(frame(m...), 0x12, 1, 0xff),
		"an unknown field":    append(frame(m...), 0x78, 1),
		"many fields":         encode(&pb.SendRequest{Messages: []*pb.Message{many, many}}),
	} {
		if readsAsProtobuf(t, b) {
			t.Errorf("%s: the frame is read as bytes", name)
		}
	}
	for name, r := range map[string]*pb.ClaimRequest{
		"a nack":     {Acks: []string{"7.1"}, Nacks: []*pb.Nack{{ClaimId: "7.2"}}},
		"a revision": {Acks: []string{"7"}},
		"no id":      {Acks: []string{"x"}},
		"a release":  {Releases: []string{"7.1"}},
		"1,001 acks": {Acks: claimIDsUpTo(1001)},
		"open":       {Open: &pb.ClaimOpen{}},
	} {
		if settlesAsProtobuf(t, encode(r)) {
			t.Errorf("%s: the frame is read as bytes", name)
		}
	}
}

func claimIDsUpTo(n int) (ids []string) {
	for i := range n {
		ids = append(ids, msgid.ClaimID(int64(i+1), 1))
	}
	return ids
}

func FuzzWireSend(f *testing.F) {
	for _, messages := range []map[string]*pb.Message{plainMessages(), otherMessages()} {
		for _, m := range messages {
			f.Add(encode(&pb.SendRequest{Messages: []*pb.Message{m}}))
			f.Add(encode(&pb.SendRequest{Messages: []*pb.Message{m, m}, Producer: "p", FirstNumber: 7}))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) { readsAsProtobuf(t, data) })
}

// FuzzWireMessage makes messages that are plain more often than bytes at random are.
func FuzzWireMessage(f *testing.F) {
	f.Add("a", "message", "", "s", "b", `{"a":[1,"größe"]}`, "t", "7", "x", int32(0), int32(0), int64(0), uint8(0))
	f.Add("news", "TaskAssignment", "1.3", "", "", `""`, "", "", "", int32(7), int32(2), int64(60), uint8(2))
	f.Add("builder-*", "halt", "", "s", "", "", "", "", "", int32(3), int32(0), int64(0), uint8(3))
	f.Add("", "nudge", "1.0", "s", "", "", "", "", "", int32(10), int32(1), int64(1), uint8(4))
	f.Add("all", "bench", "1.0", "s", "", "", "c", "", "y", int32(10), int32(1), int64(1), uint8(5))
	f.Fuzz(func(
		t *testing.T, name, kind, version, subject, body, payload, id, reply, label string, priority, reach int32,
		ttl int64, to uint8,
	) {
		m := &pb.Message{
			Target: anyTarget(to, name), Type: kind, Version: version, Subject: subject, Body: body, Payload: payload,
			ThreadId: id, Priority: priority, Reach: pb.Reach(reach), InReplyTo: reply, Channel: label, OrderingKey: label,
		}
		if to&8 != 0 {
			m.Labels, m.Artifacts, m.MaxAttempts = map[string]string{label: id}, []string{label, id}, reach
			m.CorrelationId, m.TaskId, m.Channel, m.OrderingKey = id, label, "", ""
		}
		if ttl != 0 {
			m.Ttl, m.ResendAfter = &durationpb.Duration{Seconds: ttl}, &durationpb.Duration{Seconds: ttl, Nanos: reach}
		}
		data, err := proto.Marshal(&pb.SendRequest{Messages: []*pb.Message{m}})
		if err != nil {
			t.Skip() // no UTF-8
		}
		readsAsProtobuf(t, data)
	})
}

func anyTarget(to uint8, name string) *pb.Target {
	switch to % 8 {
	case 0:
		return toAgent(name)
	case 1:
		return &pb.Target{To: &pb.Target_Role{Role: name}}
	case 2:
		return &pb.Target{To: &pb.Target_Channel{Channel: name}}
	case 3:
		return &pb.Target{To: &pb.Target_Pattern{Pattern: name}}
	case 4:
		return &pb.Target{To: &pb.Target_Everyone{Everyone: name == ""}}
	}
	return nil
}

// readsAsProtobuf reports whether a frame is read as bytes. If so, the drafts are those that protobuf and the checks
// give. If not, protobuf finds the frame as if it had not been read.
func readsAsProtobuf(t *testing.T, data []byte) bool {
	t.Helper()
	var r pb.SendRequest
	failed := proto.Unmarshal(data, &r)
	f := newSendFrame()
	read := bytes.Clone(data)
	items, ok := f.ReadWire(read)
	for i := range read { // the buffer belongs to package rpc
		read[i] = 0xff
	}
	if len(f.kind) > 128 || len(f.name) > 128 {
		t.Fatalf("the stream keeps the type %q and the name %q", f.kind, f.name)
	}
	if !ok {
		err := proto.Unmarshal(data, f)
		if f.drafts != nil || (err == nil) != (failed == nil) || err == nil && !proto.Equal(&f.SendRequest, &r) {
			t.Fatalf("protobuf decodes another request: %v, %v", err, f)
		}
		return false
	}
	if failed != nil || items < len(r.Messages) {
		t.Fatalf("%d items were read, and protobuf has %v", items, failed)
	}
	producer := ""
	b, err := f.read(true, &producer)
	if fault := checkBatch(&r, len(r.Messages), true, &producer); fmt.Sprint(err) != fmt.Sprint(fault) {
		t.Fatalf("the batch has the fault %v, with protobuf %v", err, fault)
	}
	if err == nil && (b.Producer != r.Producer || b.First != r.FirstNumber) {
		t.Fatalf("the batch %q %d, with protobuf %q %d", b.Producer, b.First, r.Producer, r.FirstNumber)
	}
	if f.drafts != nil || f.rest != nil || !proto.Equal(&f.message, &pb.Message{}) || len(f.Messages) > 0 {
		t.Fatalf("the frame keeps what it has read: %v", f)
	}
	want := streamDrafts(builtin, r.Messages)
	if len(b.Drafts) != len(want) {
		t.Fatalf("%d drafts, with protobuf %d", len(b.Drafts), len(want))
	}
	for i := range want {
		wantSameDraft(t, b.Drafts[i], want[i])
	}
	return true
}

func wantSameDraft(t *testing.T, got, want mail.Draft) {
	t.Helper()
	if want.Fault != nil {
		t.Fatalf("a message was read that is refused: %v", want.Fault)
	}
	var stored, other pb.Message
	if err := proto.Unmarshal(got.Content, &stored); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(want.Content, &other); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&stored, &other) || len(got.Content) != len(want.Content) {
		t.Fatalf("content of %d bytes, with protobuf %d:\n%v\n%v", len(got.Content), len(want.Content), &stored, &other)
	}
	got.Content, want.Content = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("draft:\n%+v\nwith protobuf:\n%+v", got, want)
	}
}

func FuzzWireClaim(f *testing.F) {
	for _, r := range []*pb.ClaimRequest{
		{},
		{Acks: []string{"7.1"}},
		{Acks: []string{"7.1", "9223372036854775807.2147483647"}},
		{Acks: []string{"7.1"}, Releases: []string{"7.2"}},
		{Acks: []string{"7"}},
		{Acks: []string{"00000000-0001-7000-8000-000000000007"}},
		{Nacks: []*pb.Nack{{ClaimId: "7.1"}}},
		{Acks: []string{""}},
	} {
		f.Add(encode(r))
	}
	f.Fuzz(func(t *testing.T, data []byte) { settlesAsProtobuf(t, data) })
}

// settlesAsProtobuf reports whether a frame is read as bytes. If so, the settlements are those that protobuf and the
// checks give.
func settlesAsProtobuf(t *testing.T, data []byte) bool {
	t.Helper()
	var r pb.ClaimRequest
	failed := proto.Unmarshal(data, &r)
	var f claimFrame
	read := bytes.Clone(data)
	items, ok := f.ReadWire(read)
	for i := range read {
		read[i] = 0xff
	}
	if !ok {
		if f.plain || f.acks != nil || !proto.Equal(&f.ClaimRequest, &pb.ClaimRequest{}) {
			t.Fatalf("the frame keeps what was not read: %v", &f)
		}
		return false
	}
	got, err := f.read()
	want, fails := frameSettlements(&r)
	if failed != nil || err != nil || fails != nil || items < len(got) || f.plain || f.acks != nil {
		t.Fatalf("%d items were read with %v, and protobuf has %v, %v", items, err, failed, fails)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("settlements:\n%+v\nwith protobuf:\n%+v", got, want)
	}
	return true
}

// A sleepy crew has agents that are asleep if their names say so.
type sleepy struct{}

func (sleepy) Asleep(_, agent string) (time.Time, bool) {
	return time.Unix(7, 0), strings.HasPrefix(agent, "asleep")
}

func FuzzWireAnswers(f *testing.F) {
	long, longer := strings.Repeat("x", 200), strings.Repeat("x", 16300)
	f.Add("a", "lead", "", "s", "role:b", int64(7), int32(1), int32(3), int64(17e8), int64(30e9), uint8(1), uint16(1))
	f.Add("größe", "", "t", "", "", int64(-7), int32(-1), int32(0), int64(-1), int64(-1), uint8(0xff), uint16(3))
	f.Add("a", "", "", long, "asleep", int64(1<<62), int32(1), int32(1), int64(0), int64(0), uint8(4), uint16(200))
	f.Add("a", "", "", longer, "b", int64(1), int32(1), int32(1), int64(9), int64(5e8), uint8(9), uint16(2))
	f.Add("a", "", "", "", "asleep", int64(1), int32(1), int32(1), int64(9), int64(5e8), uint8(0x16), uint16(1))
	f.Fuzz(func(
		t *testing.T, sender, role, thread, subject, mailbox string, revision int64, number, most int32,
		seconds, lasts int64, bits uint8, n uint16,
	) {
		m, s := &pb.Message{Subject: subject, Type: role}, &Service{crew: sleepy{}}
		if bits&8 != 0 {
			m.TraceParent, s.traces = aTraceParent, messagetrace.New(nil, nil, nil)
		}
		stored, err := proto.Marshal(m)
		if err != nil {
			t.Skip() // no UTF-8
		}
		c := broker.Claim{
			Message: mail.Message{
				Revision: revision, ID: anID, Sender: sender, SenderRole: role, CreatedAt: time.Unix(seconds, lasts),
				Thread: thread, Content: stored,
			},
			Mailbox: mailbox, Number: int(number), Attempt: int(number), MaxAttempts: int(most),
			ExpiresIn: time.Duration(lasts), Resumed: bits&1 != 0,
		}
		if bits&2 != 0 {
			c.ExpiresAt = time.Unix(lasts, seconds)
		}
		wantWire(t, &deliverAnswer{s, slices.Repeat([]broker.Claim{c}, int(n%300))}, &pb.ClaimResponse{}, &pb.ClaimResponse{})

		two := []broker.Settled{{ClaimID: thread}, {ClaimID: msgid.ClaimID(revision, int(number))}}
		results := slices.Repeat(two, int(n%300))
		wantWire(t, &settledAnswer{results}, &pb.ClaimResponse{}, &pb.ClaimResponse{})
		results = append(results, broker.Settled{Fault: fault.Field("a", "b")})
		if plainResults(results) || !plainResults(results[:len(results)-1]) {
			t.Fatal("a result with a fault is not plain")
		}

		o := router.Outcome{
			ID: anID, Revision: revision, Count: int(number), Refused: int(most), Duplicate: bits&1 != 0, Direct: bits&4 != 0,
		}
		for i := range bits >> 4 {
			o.Recipients = append(o.Recipients, router.Recipient{Mailbox: mailbox + strconv.Itoa(int(i)), Refused: i%2 == 1})
		}
		outcomes := slices.Repeat([]router.Outcome{o}, int(n%300))
		a := &sendAnswer{s, "s", outcomes}
		asleep := o.Direct && len(o.Recipients) == 1 && strings.HasPrefix(mailbox, "asleep")
		if plain := s.plainOutcomes("s", outcomes); plain == (asleep && len(outcomes) > 0) {
			t.Fatalf("%+v is plain: %v", o, plain)
		} else if plain {
			wantWire(t, a, &pb.SendResponse{}, &pb.SendResponse{})
		}
		for _, o := range []router.Outcome{{Fault: fault.Field("a", "b")}, {Warnings: []string{"w"}}} {
			if s.plainOutcomes("s", []router.Outcome{o}) {
				t.Fatalf("%+v is plain", o)
			}
		}
	})
}

// wantWire checks that an answer appends what protobuf writes, and no more than it promises. got and want are empty.
func wantWire(t *testing.T, a interface {
	WireSize() int
	AppendWire([]byte) []byte
	Message() proto.Message
}, got, want proto.Message,
) {
	t.Helper()
	data, err := proto.Marshal(a.Message())
	if err != nil {
		t.Skip() // no UTF-8
	}
	wire := a.AppendWire([]byte("x"))[1:]
	if len(wire) != len(data) || len(wire) > a.WireSize() {
		t.Fatalf("%d bytes, protobuf writes %d, and %d were promised", len(wire), len(data), a.WireSize())
	}
	if err := proto.Unmarshal(wire, got); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(data, want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("answer:\n%v\nwith protobuf:\n%v", got, want)
	}
}

// What a draft keeps beside its content is a copy, and the content has no memory to spare, because the queue of the writer
// counts the bytes of contents alone.
func TestWire_ADraftKeepsNoMoreThanItsContent(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"task", "TaskAssignment"} {
		f := newSendFrame()
		data := encode(&pb.SendRequest{Messages: []*pb.Message{{
			Target: toAgent("a"), Type: kind, Subject: "subject", Body: strings.Repeat("x", 200_000), Payload: "{}",
		}}})
		if _, ok := f.ReadWire(data); !ok {
			t.Fatal("not plain")
		}
		d := &f.drafts[0]
		if spare := cap(d.Content) - len(d.Content); spare > changed {
			t.Errorf("type %s: %d bytes of the content's memory are spare", kind, spare)
		}
		clear(d.Content)
		if d.Subject != "subject" {
			t.Errorf("type %s: the subject is a part of the content", kind)
		}
	}
}

// A frame of acks with other settlements is left to protobuf before it is copied.
func TestWire_NoOtherSettlementIsCopied(t *testing.T) {
	data := encode(&pb.ClaimRequest{Acks: []string{"7.1"}, Nacks: []*pb.Nack{{ClaimId: "7.2", Error: strings.Repeat("x", 1<<20)}}})
	var f claimFrame
	if got := testing.AllocsPerRun(10, func() { f.ReadWire(data) }); got > 0 {
		t.Errorf("%v allocations for a frame that is not plain", got)
	}
}
