package rules_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// patience bounds a call.
const patience = time.Minute

// elsewhere has fields whose services want more than the rule, so that they may refuse a value at its bound.
var elsewhere = map[string]bool{
	"Message.created_at": true, "Message.expires_at": true, // only the broker sets them
	"Message.reach": true, "Message.response_deadline": true, // not in every message
	"ExplainRequest.message": true, "ExplainRequest.token": true, // an id or TYPE/SCOPE
}

// Each rule of each field of each request is tried: the daemon takes a value at the bound, and names the field of a value
// beyond it.
func TestRules_TheDaemonRefusesValuesBeyondTheBoundsAndNoOthers(t *testing.T) {
	t.Parallel()
	conn := apptest.Start(t).Operator()
	for _, m := range methods() {
		t.Run(string(m.Parent().Name())+"/"+string(m.Name()), func(t *testing.T) {
			for _, c := range cases(m.Input()) {
				err := call(t, conn, m, c.request)
				switch refused := slices.Contains(testkit.Fields(err), c.path); {
				case c.ok && refused && !elsewhere[strings.TrimPrefix(string(c.field), "brokerd.v1.")]:
					t.Errorf("%s: %s is refused: %v", c.path, c.what, err)
				case !c.ok && (!refused || status.Code(err) != codes.InvalidArgument):
					t.Errorf("%s: %s gets %v, which names %v", c.path, c.what, err, testkit.Fields(err))
				}
			}
		})
	}
}

// methods returns the methods that have one request, and that of uploads: their service checks the header by hand.
func methods() (all []protoreflect.MethodDescriptor) {
	api := pb.File_brokerd_v1_rules_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				if m := service.Methods().Get(j); !m.IsStreamingClient() || m.Name() == "UploadArtifact" {
					all = append(all, m)
				}
			}
		}
		return true
	})
	return all
}

// call makes a call and returns its error after the first answer.
func call(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, request proto.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(request); err != nil && err != io.EOF { //nolint:errorlint // gRPC returns it unwrapped
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	err = stream.RecvMsg(newMessage(t, m.Output()))
	if ctx.Err() != nil {
		t.Fatalf("%v: no answer", m.FullName())
	}
	return err
}

func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}
