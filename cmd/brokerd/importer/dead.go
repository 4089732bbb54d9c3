package importer

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
)

// localDead decides on a dead letter without the broker.
func localDead(r row) outcome {
	original, err := r.original()
	if err != nil {
		return skip("%v", err)
	}
	if original["to_agent"] == nil {
		return outcome{kept, "the dead letter names no recipient"}
	}
	return content(original)
}

// sendDead makes a dead letter of the broker: it sends the message, claims it as the recipient, and gives the claim
// up with the original error. A recipient that has connected itself could work on the message between these calls.
// The dead letter of such an agent is kept in the history.
func (m *run) sendDead(ctx context.Context, r row, k key, a attempt) (outcome, error) {
	original, err := r.original()
	if err != nil {
		return skip("%v", err), nil
	}
	var there *pb.GetMessageResponse
	if a.again {
		if there, err = m.find(ctx, k); err != nil {
			return outcome{}, err
		}
		if done := localDead(r); there == nil && done.as != undecided {
			return done, nil
		}
	}
	to := original.text("to_agent")
	if _, err := m.roster.ensure(ctx, to, nil); err != nil {
		return refused(outcome{}, err)
	}
	incarnation, err := m.roster.hold(ctx, to)
	if err != nil {
		return refused(outcome{}, err)
	}
	if there == nil {
		if incarnation == 0 {
			return outcome{kept, to + " is registered by another client, which would receive the message as work"}, nil
		}
		done, err := m.send(ctx, original, messageOf(original, k), k, a)
		if err != nil || done.as == skipped {
			return done, err
		}
		if there, err = m.find(ctx, k); err != nil {
			return outcome{}, err
		}
	}
	switch delivery := there.GetDeliveries()[0]; {
	case delivery.GetState() == pb.DeliveryState_DELIVERY_STATE_CANCELLED:
		return outcome{kept, to + " had connected, and an earlier import has withdrawn the message"}, nil
	case delivery.GetFinishedAt() != nil:
		return outcome{as: alreadyThere}, nil
	}
	return m.bury(ctx, there.GetMessage().GetId(), to, incarnation, r.text("error"))
}

// bury makes a dead letter of a message in the mailbox of an agent.
func (m *run) bury(ctx context.Context, id, agent string, incarnation int64, reason string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if incarnation != 0 {
		as := m.broker.As(agent).AtIncarnation(incarnation).Messages()
		_, err := as.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Ids: []string{id}})
		if err == nil {
			nack := &pb.Nack{ClaimId: id, Fatal: true, Error: clip(reason, 4096)}
			_, err = as.NackMessages(ctx, &pb.NackMessagesRequest{RequestId: uuid.NewString(), Nacks: []*pb.Nack{nack}})
		}
		if err == nil {
			return outcome{as: imported}, nil
		}
		if status.Code(err) != codes.FailedPrecondition {
			return outcome{}, err
		}
	}
	// The agent has registered itself since the message was sent.
	_, err := m.broker.Messages().CancelMessage(ctx,
		&pb.CancelMessageRequest{RequestId: uuid.NewString(), Id: id, Reason: "it was a dead letter before the import"})
	return outcome{kept, agent + " has connected during the import; the message has been withdrawn unless the agent " +
		"works on it"}, err
}
