package handoffs_test

import (
	"encoding/json"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(a *apptest.Actor, in *pb.CreateHandoffRequest) *pb.Handoff {
	a.Helper()
	if in.Title == "" {
		in.Title = "Login page"
	}
	return apptest.Must(a, a.CreateHandoff, in).Handoff
}

// upload uploads an artifact.
func upload(a *apptest.Actor, name, content string) {
	a.Helper()
	stream, err := a.UploadArtifact(a.Ctx)
	apptest.NoError(a, err)
	apptest.NoError(a, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{
		Header: &pb.ArtifactHeader{Name: name, Size: int64(len(content))},
	}}))
	apptest.NoError(a, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: []byte(content)}}))
	_, err = stream.CloseAndRecv()
	apptest.NoError(a, err)
}

func accept(a *apptest.Actor, id string) *pb.Handoff {
	a.Helper()
	return apptest.Must(a, a.AcceptHandoff, &pb.AcceptHandoffRequest{Id: id}).Handoff
}

func get(a *apptest.Actor, id string) *pb.Handoff {
	a.Helper()
	return apptest.Must(a, a.GetHandoff, &pb.GetHandoffRequest{Id: id}).Handoff
}

// lock acquires a lock and returns its fence.
func lock(a *apptest.Actor, path string) int64 {
	a.Helper()
	out := apptest.Must(a, a.AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{path}})
	if out.Fence == 0 {
		a.Fatalf("%s does not get %s: %v", a.Name, path, out)
	}
	return out.Fence
}

// token acquires a token and returns its fence.
func token(a *apptest.Actor, scope string) int64 {
	a.Helper()
	return apptest.Must(a, a.AcquireToken, &pb.AcquireTokenRequest{Type: "build", Scope: scope}).Fence
}

// writes reports whether the broker accepts a change under a fence.
func writes(a *apptest.Actor, fence int64) bool {
	a.Helper()
	ctx := metadata.AppendToOutgoingContext(a.Ctx, "brokerd-fence", strconv.FormatInt(fence, 10))
	_, err := a.PutState(ctx, &pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}})
	if err != nil && status.Code(err) != codes.FailedPrecondition {
		a.Fatal(err)
	}
	return err == nil
}

// notices returns the payloads of the unread notices of a type, with the subject as "notice".
func notices(a *apptest.Actor, kind string) []map[string]any {
	a.Helper()
	out := apptest.Must(a, a.Heartbeat, &pb.HeartbeatRequest{Notices: true})
	var list []map[string]any
	for _, n := range out.Notices {
		if n.Type != kind {
			continue
		}
		var o map[string]any
		apptest.NoError(a, json.Unmarshal([]byte(n.Payload), &o))
		o["notice"] = n.Subject
		list = append(list, o)
	}
	return list
}

// claimed claims what waits for the agent.
func claimed(a *apptest.Actor) []*pb.Message {
	a.Helper()
	out := apptest.Must(a, a.ClaimMessages, &pb.ClaimMessagesRequest{Max: 100})
	var list []*pb.Message
	for _, c := range out.Claims {
		list = append(list, c.Message)
	}
	return list
}
