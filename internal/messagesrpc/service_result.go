package messagesrpc

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
)

// asleep returns since when an agent is asleep, and nil if it is not.
func (s *Service) asleep(session, agent string) *pb.Asleep {
	since, asleep := s.crew.Asleep(session, agent)
	if !asleep {
		return nil
	}
	return &pb.Asleep{Agent: agent, Since: timestamppb.New(since)}
}

// result converts the outcome of a message.
func (s *Service) result(session string, o *broker.Outcome) *pb.SendResult {
	out := &pb.SendResult{
		Id: o.ID.String(), Revision: o.Revision, Duplicate: o.Duplicate,
		RecipientCount: int32(o.Count), RefusedCount: int32(o.Refused), Warnings: o.Warnings,
	}
	for _, r := range o.Recipients {
		outcome := pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED
		if r.Refused {
			outcome = pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED
		}
		out.Recipients = append(out.Recipients, &pb.Recipient{Mailbox: r.Mailbox, Outcome: outcome})
	}
	if o.Direct && len(o.Recipients) == 1 {
		out.Asleep = s.asleep(session, o.Recipients[0].Mailbox)
	}
	return out
}
