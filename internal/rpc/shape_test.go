package rpc

import (
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
)

// decoded decodes the wire form of a request. It returns how many bytes were allocated, and the error.
func decoded(m proto.Message, wire []byte) (int, error) {
	var known shapes
	known.of(m.ProtoReflect().Descriptor())
	h := holding{total: &total{}, account: &account{most: &agentLimits}}
	defer h.release()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := frame{message: m}
	f.decode(wire, newCodec(), &known, &h)
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc), f.err
}

// repeated returns a wire form in which a field occurs n times with the same bytes.
func repeated(number protowire.Number, value []byte, n int) []byte {
	one := protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
	return []byte(strings.Repeat(string(one), n))
}

// number returns the number of a field.
func number(m proto.Message, field protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(field).Number()
}

// mostMemory is what a request may take, in bytes.
const mostMemory = 64 << 20

func TestDecode_ItemsAreCountedBeforeTheyAreBuilt(t *testing.T) {
	message := &pb.Message{}
	entry := []byte{0x0a, 0x01, 'k', 0x12, 0x00}
	for name, c := range map[string]struct {
		to     proto.Message
		wire   []byte
		reason string // of the error, with the field
	}{
		"2.6 million empty messages": {
			&pb.SendMessagesRequest{}, repeated(number(&pb.SendMessagesRequest{}, "messages"), nil, 2_600_000),
			"INVALID_ARGUMENT messages: has more than 1000 items: send fewer at a time",
		},
		"2.6 million empty tasks": {
			&pb.CreateTasksRequest{}, repeated(number(&pb.CreateTasksRequest{}, "tasks"), nil, 2_600_000),
			"INVALID_ARGUMENT tasks: has more than 1000 items: send fewer at a time",
		},
		"5 million packed numbers": {
			&pb.ExtendLocksRequest{}, repeated(number(&pb.ExtendLocksRequest{}, "fences"), make([]byte, 5_000_000), 1),
			"INVALID_ARGUMENT fences: has more than 1000 items: send fewer at a time",
		},
		"1,001 texts": {
			&pb.AckMessagesRequest{}, repeated(number(&pb.AckMessagesRequest{}, "ids"), nil, 1001),
			"INVALID_ARGUMENT ids: has more than 1000 items: send fewer at a time",
		},
		"700,000 labels of one message": {
			&pb.SendMessagesRequest{},
			repeated(number(&pb.SendMessagesRequest{}, "messages"), repeated(number(message, "labels"), entry, 700_000), 1),
			"TOO_MANY_ITEMS",
		},
		"100 files of each of 1,000 messages": {
			&pb.SendMessagesRequest{},
			repeated(number(&pb.SendMessagesRequest{}, "messages"), repeated(number(message, "files"), nil, 100), 1000),
			"TOO_MANY_ITEMS",
		},
		"a million targets of one message": {
			&pb.SendMessagesRequest{},
			repeated(number(&pb.SendMessagesRequest{}, "messages"), repeated(number(message, "target"), nil, 1_000_000), 1),
			"TOO_MANY_ITEMS",
		},
	} {
		size, err := decoded(c.to, c.wire)
		var got string
		if e, ok := err.(*fault.Error); ok { //nolint:errorlint // decode wraps none
			got = e.Reason
			for _, v := range e.Violations {
				got += " " + v.Field + ": " + v.Description
			}
		}
		if got != c.reason {
			t.Errorf("%s: %v, want %s", name, err, c.reason)
		}
		if size > 1<<20 {
			t.Errorf("%s: %d bytes were allocated", name, size)
		}
	}
}

func TestDecode_RequestWithinTheLimitsIsBoundedInMemory(t *testing.T) {
	text := strings.Repeat("x", 4<<20)
	message := &pb.Message{}
	parts := [][]byte{repeated(number(message, "body"), []byte(text[:4000]), 1)}
	const most = fault.MaxAllItems/fault.MaxItems - 2 // of each of the messages, which are items too
	for name, items := range map[string][]byte{
		"files":  repeated(number(message, "files"), nil, most),
		"labels": repeated(number(message, "labels"), []byte{0x0a, 0x01, 'k', 0x12, 0x00}, most),
		"texts":  repeated(number(message, "artifacts"), nil, most),
	} {
		wire := repeated(number(&pb.SendMessagesRequest{}, "messages"), append(items, parts[0]...), fault.MaxItems)
		size, err := decoded(&pb.SendMessagesRequest{}, wire)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %d bytes become %d", name, len(wire), size)
		if size > mostMemory {
			t.Errorf("%s: %d bytes become %d", name, len(wire), size)
		}
	}
}

// The memory of a request counts for its caller as long as the call lasts.
func TestDecode_ItemsCountForTheCaller(t *testing.T) {
	var known shapes
	h := holding{total: &total{}, account: &account{most: &agentLimits}}
	in := &pb.SendMessagesRequest{}
	wire := repeated(number(in, "messages"), nil, 1000)
	f := frame{message: in}
	f.decode(wire, newCodec(), &known, &h)
	if f.err != nil || h.bytes < 100_000 || h.account.bytes.Load() != int64(h.bytes) {
		t.Errorf("%d bytes count: %v", h.bytes, f.err)
	}
	h.release()
	if left := h.account.bytes.Load() + h.total.bytes.Load(); left != 0 {
		t.Errorf("%d bytes are left", left)
	}
}

// A message that could contain itself would make the count as deep as a client likes.
func TestShape_NoRequestContainsItself(t *testing.T) {
	var visit func(d protoreflect.MessageDescriptor, above map[protoreflect.FullName]bool)
	visit = func(d protoreflect.MessageDescriptor, above map[protoreflect.FullName]bool) {
		if above[d.FullName()] {
			t.Fatalf("%s contains itself: bound the depth of shape.count and badText", d.FullName())
		}
		above[d.FullName()] = true
		for i := range d.Fields().Len() {
			if inner := d.Fields().Get(i).Message(); inner != nil {
				visit(inner, above)
			}
		}
		delete(above, d.FullName())
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("brokerd.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				visit(f.Services().Get(i).Methods().Get(j).Input(), map[protoreflect.FullName]bool{})
			}
		}
		return true
	})
}

func BenchmarkShape_Check(b *testing.B) {
	var known shapes
	in := &pb.SendRequest{}
	for range 10 {
		in.Messages = append(in.Messages, &pb.Message{
			Type: "request", Subject: "Add login", Body: strings.Repeat("x", 200), Labels: map[string]string{"team": "red"},
			Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder-1"}},
		})
	}
	wire, err := proto.Marshal(in)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(wire)))
	for b.Loop() {
		if _, err := known.of(in.ProtoReflect().Descriptor()).check(wire); err != nil {
			b.Fatal(err)
		}
	}
}
