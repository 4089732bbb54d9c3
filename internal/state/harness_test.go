package state_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Histories(30, 60)
	goleak.VerifyTestMain(m)
}

func text(s string) *pb.StateValue {
	return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: s}}
}

// set writes a key and returns its revision.
func set(a *apptest.Actor, key, value string) int64 {
	a.Helper()
	return write(a, &pb.PutStateRequest{Key: key, Value: text(value)}).Revision
}

// write makes a put that is accepted.
func write(a *apptest.Actor, in *pb.PutStateRequest) *pb.StateEntry {
	a.Helper()
	return apptest.Must(a, a.PutState, in).Entry
}

// get returns a key that is there.
func get(a *apptest.Actor, key string) *pb.StateEntry {
	a.Helper()
	return apptest.Must(a, a.GetState, &pb.GetStateRequest{Key: key}).Entry
}

// value returns the text of a key, or nothing if it is not there.
func value(a *apptest.Actor, key string) string {
	a.Helper()
	out, err := a.GetState(a.Ctx, &pb.GetStateRequest{Key: key})
	if status.Code(err) == codes.NotFound {
		return ""
	}
	apptest.NoError(a, err)
	return out.Entry.GetValue().GetStringValue()
}

// addEntry adds an entry to a document.
func addEntry(a *apptest.Actor, key, text string) *pb.AppendStateResponse {
	a.Helper()
	return apptest.Must(a, a.AppendState, &pb.AppendStateRequest{Key: key, Text: text})
}

// remove deletes a key and returns the revision of that.
func remove(a *apptest.Actor, key string) int64 {
	a.Helper()
	return apptest.Must(a, a.DeleteState, &pb.DeleteStateRequest{Key: key}).Revision
}

// versionsOf returns all versions of a key that are kept, newest first.
func versionsOf(a *apptest.Actor, key string) []*pb.StateEntry {
	a.Helper()
	var list []*pb.StateEntry
	in := &pb.ListStateHistoryRequest{Key: key}
	for {
		out := apptest.Must(a, a.ListStateHistory, in)
		list = append(list, out.Versions...)
		if in.PageToken = out.NextPageToken; in.PageToken == "" {
			return list
		}
	}
}
