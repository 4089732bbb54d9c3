package finding

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
)

// Proto returns a finding in the form of the API.
func (f *Finding) Proto() *pb.Finding {
	out := &pb.Finding{Severity: pb.FindingSeverity(f.Severity), Subject: f.Subject, Summary: f.Summary,
		Reasons: f.Reasons}
	if !f.Since.IsZero() {
		out.Since = timestamppb.New(f.Since)
	}
	out.Calls = calls.Protos(f.Calls)
	return out
}
