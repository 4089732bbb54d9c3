package messagesrpc

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
)

// GetInboxSummary implements the RPC.
func (s *Service) GetInboxSummary(
	ctx context.Context, _ *pb.GetInboxSummaryRequest,
) (*pb.GetInboxSummaryResponse, error) {
	sum, err := s.inbox.Summary(ctx, identity.FromContext(ctx))
	if err != nil {
		return nil, err
	}
	out := &pb.GetInboxSummaryResponse{
		Total: sum.Total, Unread: sum.Unread, Claimable: sum.Claimable, Claimed: sum.Claimed, OldestAt: stamp(sum.Oldest),
		Asked: openQuestions(sum.Asked), Owed: openQuestions(sum.Owed),
		Halted: sum.Halted, BreakerOpenUntil: stamp(sum.BreakerUntil), Revision: sum.Revision, Notices: sum.Notices,
	}
	for _, c := range sum.ByPriority {
		out.ByPriority = append(out.ByPriority, &pb.PriorityCount{Priority: int32(c.Of), Count: c.N})
	}
	for _, c := range sum.ByType {
		out.ByType = append(out.ByType, &pb.TypeCount{Type: c.Of, Count: c.N})
	}
	for i := range sum.Directives {
		out.Directives = append(out.Directives, wire(&sum.Directives[i]))
	}
	return out, nil
}
