package rules_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
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
	"brokerd/internal/fault"
	"brokerd/internal/rules"
	"brokerd/internal/testkit"
)

// patience bounds a call, on a busy machine too.
const patience = 5 * time.Minute

// elsewhere has fields whose services want more than the rule, so that they may refuse a value at its bound, with
// another text.
var elsewhere = map[string]bool{
	"Message.created_at": true, "Message.expires_at": true, // only the broker sets them
	"Message.reach": true, "Message.response_deadline": true, // not in every message
	"ExplainRequest.message": true, "ExplainRequest.token": true, // an id or TYPE/SCOPE
	"NoticeOffer.way": true, "ArtifactHeader.size": true, // checked by hand
}

// tooMany is what package rpc says about a long list of the request itself, before the rules.
const tooMany = "send fewer at a time"

// filled has the fields of a reply's message that the broker fills in. It refuses a message that has them.
var filled = regexp.MustCompile(`^message\.(target|reach|thread_id)\b`)

// byHand has the methods that receive a stream of requests and check each by hand. The other such methods have a test
// in their packages.
var byHand = []protoreflect.Name{"UploadArtifact", "Send", "Claim"}

// Each rule of each field of each request is tried: the daemon takes a value at the bound, and names the field of a value
// beyond it, in the words of the rule.
func TestRules_TheDaemonRefusesValuesBeyondTheBoundsAndNoOthers(t *testing.T) {
	t.Parallel()
	broker := apptest.Start(t)
	operator, agent := broker.Operator(), broker.Conn("a")
	apptest.Must(t, broker.Agent("a", "").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "system"}}}, // the operator waits for none
	}})
	set := rules.Set{All: true}
	for _, m := range methods() {
		conn, checks := operator, set.Message(m.Input())
		if m.Name() == "Claim" { // from which operators are excluded
			conn = agent
		}
		t.Run(string(m.Parent().Name())+"/"+string(m.Name()), func(t *testing.T) {
			for _, c := range cases(m.Input()) {
				if m.Name() == "Reply" && filled.MatchString(c.path) {
					continue
				}
				err, other := call(t, conn, m, c.request), elsewhere[strings.TrimPrefix(string(c.field), "brokerd.v1.")]
				switch refused := names(err, c.path); {
				case c.ok && refused && !other:
					t.Errorf("%s: %s is refused: %v", c.path, c.what, err)
				case !c.ok && (!refused || status.Code(err) != codes.InvalidArgument):
					t.Errorf("%s: %s gets %v, which names %v", c.path, c.what, err, testkit.Fields(err))
				case !c.ok && !other && !strings.Contains(err.Error(), tooMany):
					if says := violation(checks.Check(c.request), c.path); says == "" || !strings.Contains(err.Error(), says) {
						t.Errorf("%s: %s gets %v; the rule says %q", c.path, c.what, err, says)
					}
				}
			}
		})
	}
}

// methods returns the methods that have one request, and those of byHand.
func methods() (all []protoreflect.MethodDescriptor) {
	api := pb.File_brokerd_v1_rules_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(api, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			service := f.Services().Get(i)
			for j := range service.Methods().Len() {
				if m := service.Methods().Get(j); !m.IsStreamingClient() || slices.Contains(byHand, m.Name()) {
					all = append(all, m)
				}
			}
		}
		return true
	})
	return all
}

// names reports whether an error names a field. That of an item has all fields in its text.
func names(err error, path string) bool {
	fields := testkit.Fields(err)
	return slices.Contains(fields, path) || fields == nil && err != nil && strings.Contains(err.Error(), path+": ")
}

// violation returns what an error says about a field; empty if it does not name it.
func violation(err error, path string) string {
	var e *fault.Error
	if errors.As(err, &e) {
		for _, v := range e.Violations {
			if v.Field == path {
				return v.Description
			}
		}
	}
	return ""
}

// call makes a call and returns its error after the first answer, or that of the first item which a stream refuses.
func call(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, request proto.Message) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := conn.NewStream(ctx, both, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()))
	if err != nil {
		return err
	}
	if r, ok := request.(*pb.ClaimRequest); ok && r.Open == nil {
		if err := stream.SendMsg(&pb.ClaimRequest{Open: &pb.ClaimOpen{}}); err != nil {
			return err
		}
		if err := stream.RecvMsg(&pb.ClaimResponse{}); err != nil {
			return err
		}
	}
	if err := stream.SendMsg(request); err != nil && err != io.EOF { //nolint:errorlint // gRPC returns it unwrapped
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	answer := newMessage(t, m.Output())
	err = stream.RecvMsg(answer)
	if ctx.Err() != nil {
		t.Fatalf("%v: no answer", m.FullName())
	}
	var item *pb.ItemError
	switch r := answer.(type) {
	case *pb.SendResponse:
		item = append(r.Results, nil)[0].GetError()
	case *pb.ClaimResponse:
		item = append(r.GetResults().GetResults(), nil)[0].GetError()
	}
	if item == nil {
		return err
	}
	return status.Error(codes.Code(item.Code), item.Message)
}

func newMessage(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}
