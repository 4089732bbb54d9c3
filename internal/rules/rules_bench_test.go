package rules_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/rules"
)

// BenchmarkCheck measures the checks of small requests.
func BenchmarkCheck(b *testing.B) {
	for _, r := range []proto.Message{
		&pb.GetSessionRequest{Name: "default"},
		&pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, Activity: proto.String("builds"), TaskId: proto.String("t-1")},
		&pb.PutStateRequest{Key: "a", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "b"}}},
		&pb.AcquireLocksRequest{Paths: []string{"src/a.go"}, Wait: durationpb.New(time.Minute)},
	} {
		var set rules.Set
		m := set.Message(r.ProtoReflect().Descriptor())
		b.Run(string(r.ProtoReflect().Descriptor().Name()), func(b *testing.B) {
			for b.Loop() {
				if err := m.Check(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
