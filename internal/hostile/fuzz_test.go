package hostile_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "brokerd/gen/brokerd/v1"
)

const (
	fuzzers    = 4
	fuzzedCall = 200 * time.Millisecond // after which the client cancels it
	mostFrames = 20                     // of a client stream
	mostDepth  = 4                      // of random messages
)

func TestFuzz_NoRequestBreaksTheDaemon(t *testing.T) {
	t.Parallel()
	s := launch(t, nil, "--metrics", "127.0.0.1:0", "--log-level", "info", "--sync", "normal")
	b := s.bystander()
	for _, agent := range []string{"alice", "bob"} {
		s.agent("default", agent)
	}
	before := s.use()
	stop := b.work(t)
	seed := time.Now().UnixNano()
	t.Logf("the seed is %d", seed)
	end := time.Now().Add(fromEnvironment(t, "HOSTILE_TIME", 5*time.Second))
	var calls atomic.Int64
	var fuzzing sync.WaitGroup
	for i := range fuzzers {
		fuzzing.Go(func() {
			f := fuzzer{Rand: rand.New(rand.NewPCG(uint64(seed), uint64(i)))}
			// Half of the fuzzers act as operators. Each has a connection, which it may break.
			conn := s.dial(s.Address(), party{session: "default", agent: []string{"", "alice"}[i%2]})
			defer conn.Close()
			for round := 0; round == 0 || time.Now().Before(end); round++ {
				for _, method := range methods() {
					if err := f.call(conn, method); broken(err) {
						t.Errorf("%s: %v", method.FullName(), err)
					}
					calls.Add(1)
				}
			}
		})
	}
	fuzzing.Wait()
	stop()
	s.settled(before)
	t.Logf("%d calls of %d methods; the bystander made %d rounds", calls.Load(), len(methods()), len(b.took))
}

// broken reports whether an error says that the broker has a defect.
func broken(err error) bool {
	code := status.Code(err)
	return code == codes.Internal || code == codes.Unknown || code == codes.DataLoss || code == codes.Unimplemented
}

// methods returns the methods of the API, except those that end the work of all agents on purpose.
func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	api := pb.File_brokerd_v1_message_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				if m := service.Methods().Get(j); !strings.HasPrefix(string(m.Name()), "Drain") {
					all = append(all, m)
				}
			}
		}
		return true
	})
	return all
}

// A fuzzer makes calls with random requests.
type fuzzer struct{ *rand.Rand }

// call makes a call and returns its error. It leaves out the answers.
func (f fuzzer) call(conn *grpc.ClientConn, m protoreflect.MethodDescriptor) error {
	ctx, cancel := context.WithTimeout(context.Background(), fuzzedCall)
	defer cancel()
	name := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	desc := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, desc, name, grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	frames := 1
	if m.IsStreamingClient() {
		frames += f.IntN(mostFrames)
	}
	for range frames {
		if stream.SendMsg(f.request(m.Input())) != nil {
			break // RecvMsg says why
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := stream.RecvMsg(&[]byte{}); err != nil {
			if err == io.EOF { //nolint:errorlint // gRPC returns it unwrapped
				return nil
			}
			return err
		}
	}
}

// request returns the bytes of a random message. Many of them are mutated, so that they may be no
// message.
func (f fuzzer) request(d protoreflect.MessageDescriptor) []byte {
	if f.IntN(20) == 0 {
		return f.bytes(f.IntN(200))
	}
	wire, err := proto.MarshalOptions{AllowPartial: true}.Marshal(f.message(d, 0))
	if err != nil {
		return f.bytes(20) // a text of it is not UTF-8
	}
	return f.mutate(wire)
}

// mutate changes every third text, some of them repeatedly.
func (f fuzzer) mutate(b []byte) []byte {
	for f.IntN(3) == 0 && len(b) > 0 {
		switch at := f.IntN(len(b)); f.IntN(4) {
		case 0:
			b[at] ^= 1 << f.IntN(8)
		case 1:
			b = b[:at]
		case 2:
			b = append(b[:at:at], append(f.bytes(f.IntN(8)), b[at:]...)...)
		case 3:
			b = append(b, b[at:]...)
		}
	}
	return b
}

// message returns a random message.
func (f fuzzer) message(d protoreflect.MessageDescriptor, depth int) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		if f.IntN(3) == 0 || depth == mostDepth && field.Message() != nil {
			continue
		}
		switch {
		case field.IsMap():
			entries := m.Mutable(field).Map()
			for range f.IntN(3) {
				value := f.value(field.MapValue(), depth)
				entries.Set(f.value(field.MapKey(), depth).MapKey(), value)
			}
		case field.IsList():
			items := m.Mutable(field).List()
			for range f.IntN(4) {
				items.Append(f.value(field, depth))
			}
		default:
			m.Set(field, f.value(field, depth))
		}
	}
	return m
}

// value returns a random value of one item of a field.
func (f fuzzer) value(field protoreflect.FieldDescriptor, depth int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(f.IntN(2) == 0)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(f.text())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(f.bytes(f.IntN(50)))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.IntN(8) - 1))
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return protoreflect.ValueOfMessage(f.message(field.Message(), depth+1))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(pick(f, 0, 1, -1, 0.5, math.NaN(), math.Inf(1), math.MaxFloat64))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(f.NormFloat64()))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(f.number()))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(f.number()))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(f.number()))
	default:
		return protoreflect.ValueOfInt64(f.number())
	}
}

func (f fuzzer) number() int64 {
	return pick(f, 0, 1, 2, 5, 100, 1000, 1001, -1, math.MaxInt32, math.MinInt64, math.MaxInt64, f.Int64N(2000),
		int64(f.Uint64()))
}

// text returns a text that the broker may know, or a strange one.
func (f fuzzer) text() string {
	return pick(f, "", "alice", "bob", "default", "global", "message", "a", "src/a.go", "src/", "**/*.go", "1", "12",
		"12.1", "m-12", `{"a":1}`, "[]", "null", "task", "review", "general", "\x00", "a\nb",
		"../..", "@@", "%", "\u200b", "\xff\xfe",
		"2026-01-02T03:04:05Z", strings.Repeat("x", f.IntN(2000)), strings.Repeat("{\"a\":", 200), fmt.Sprint(f.IntN(500)))
}

func (f fuzzer) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(f.Uint32())
	}
	return b
}

func pick[V any](f fuzzer, values ...V) V { return values[f.IntN(len(values))] }
