package messagesrpc

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/router"
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
func (s *Service) result(session string, o *router.Outcome) *pb.SendResult {
	out := &pb.SendResult{
		Id: o.ID.String(), Revision: o.Revision, Duplicate: o.Duplicate,
		RecipientCount: int32(o.Count), RefusedCount: int32(o.Refused), Warnings: o.Warnings,
	}
	for _, r := range o.Recipients {
		out.Recipients = append(out.Recipients, &pb.Recipient{Mailbox: r.Mailbox, Outcome: recipientOutcome(&r)})
	}
	out.Asleep = s.sleeper(session, o)
	return out
}

// sleeper returns the recipient that the target names, if it is asleep.
func (s *Service) sleeper(session string, o *router.Outcome) *pb.Asleep {
	if !o.Direct || len(o.Recipients) != 1 {
		return nil
	}
	return s.asleep(session, o.Recipients[0].Mailbox)
}

func recipientOutcome(r *router.Recipient) pb.RecipientOutcome {
	if r.Refused {
		return pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED
	}
	return pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED
}
