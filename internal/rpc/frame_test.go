package rpc_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/testkit"
)

// A numbered request reads a frame itself that has the producer "own".
type numbered struct {
	pb.SendRequest
	own   bool
	items int // in bytes, as it reports them
}

// ReadWire implements rpc's interface for such requests.
func (r *numbered) ReadWire(data []byte) (items int, ok bool) {
	if proto.Unmarshal(data, &r.SendRequest) != nil || r.Producer != "own" {
		return 0, false
	}
	r.own = true
	return r.items, true
}

// A warning is an answer that writes itself.
type warning string

func (w warning) WireSize() int { return len(w) + 32 }

func (w warning) AppendWire(b []byte) []byte {
	b, _ = proto.MarshalOptions{}.MarshalAppend(b, w.Message())
	return b
}

func (w warning) Message() proto.Message {
	return &pb.SendResponse{Results: []*pb.SendResult{{Warnings: []string{string(w)}}}}
}

// answering has Send receive frames into requests, and answer each of them.
func answering(w *world, items int, answer func(*numbered) any) {
	w.features.stream = func(stream grpc.ServerStream) error {
		for {
			r := &numbered{items: items}
			if err := stream.RecvMsg(r); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := stream.SendMsg(answer(r)); err != nil {
				return err
			}
		}
	}
}

func TestFrame_ReadsItsUsualFormItself(t *testing.T) {
	t.Parallel()
	w := serve(t)
	answering(w, 0, func(r *numbered) any {
		return &pb.SendResponse{Results: []*pb.SendResult{{Revision: r.FirstNumber, Duplicate: r.own}}}
	})
	stream, err := pb.NewMessageServiceClient(dial(t, w.socket)).Send(calling(t), grpc.ForceCodec(lenient{}))
	testkit.NoError(t, err)
	for number, producer := range []string{"own", "other", "own", ""} {
		testkit.NoError(t, stream.Send(&pb.SendRequest{Producer: producer, FirstNumber: int64(number)}))
		got, err := stream.Recv()
		testkit.NoError(t, err)
		if r := got.GetResults()[0]; r.GetRevision() != int64(number) || r.GetDuplicate() != (producer == "own") {
			t.Errorf("frame %d of producer %q: %v", number, producer, r)
		}
	}
	if err := stream.Send(&pb.SendRequest{Producer: "a\x01"}); err != nil { // lenient sends it as no UTF-8
		t.Fatal(err)
	}
	_, err = stream.Recv()
	expect(t, err, codes.InvalidArgument, "INVALID_ARGUMENT", "producer")
}

func TestFrame_ItemsOfAFrameThatReadsItselfCount(t *testing.T) {
	t.Parallel()
	w := serve(t)
	answering(w, 65<<20, func(*numbered) any { return &pb.SendResponse{} })
	ctx := calling(t, "authorization", "Bearer "+w.secret)
	stream, err := pb.NewMessageServiceClient(dial(t, w.tcp)).Send(ctx)
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(&pb.SendRequest{Producer: "own"}))
	_, err = stream.Recv()
	expect(t, err, codes.ResourceExhausted, "TOO_MUCH_UNDER_WAY", "")
}

// The sizes are those of each kind of buffer.
func TestFrame_WritesItself(t *testing.T) {
	t.Parallel()
	w := serve(t)
	answering(w, 0, func(r *numbered) any { return warning(strings.Repeat("x", int(r.FirstNumber))) })
	stream, err := pb.NewMessageServiceClient(dial(t, w.socket)).Send(calling(t))
	testkit.NoError(t, err)
	for _, size := range []int{0, 900, 1000, 5000, 32<<10 - 40, 32 << 10, 300_000, 1 << 20, 2 << 20, 10} {
		testkit.NoError(t, stream.Send(&pb.SendRequest{FirstNumber: int64(size)}))
		got, err := stream.Recv()
		testkit.NoError(t, err)
		if want := warning(strings.Repeat("x", size)).Message(); !proto.Equal(got, want) {
			t.Errorf("an answer of %d bytes has %d, and is another", proto.Size(want), proto.Size(got))
		}
	}
}
