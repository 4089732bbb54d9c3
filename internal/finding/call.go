package finding

import (
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
)

// Explain is the call that explains something else.
func Explain(kind Kind, name string) calls.Call {
	r := &pb.ExplainRequest{}
	field := r.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(kind.String()))
	r.ProtoReflect().Set(field, protoreflect.ValueOfString(name))
	return calls.Do(r)
}

// Direct is the call that sends a directive of the broker's types, such as nudge. Every directive has the highest
// priority.
func Direct(kind string, to *pb.Target, subject string) calls.Call {
	const highest = 10
	return calls.Do(&pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: to, Type: kind, Priority: highest, Subject: subject},
	}})
}

// Patience is how long a call that waits for an outcome waits.
func Patience() *durationpb.Duration { return durationpb.New(10 * time.Minute) }
