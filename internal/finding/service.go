package finding

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// Proto returns a finding about a question in the form of the API.
func (f *Finding) Proto(about *Question) *pb.Finding {
	out := &pb.Finding{Severity: pb.FindingSeverity(f.Severity), Subject: f.Subject, Summary: f.Summary,
		Reasons: f.Reasons}
	if !f.Since.IsZero() {
		out.Since = timestamppb.New(f.Since)
	}
	for i, command := range f.Commands {
		out.Commands = append(out.Commands, command.Line(about.SessionName))
		if a, found := command.Action(about.Now); found {
			out.Actions = append(out.Actions,
				&pb.FindingAction{Command: int32(i), Method: a.Method, Request: a.Request, Agent: a.Agent})
		}
	}
	return out
}
