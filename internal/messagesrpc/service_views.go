package messagesrpc

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/conversations"
	"brokerd/internal/identity"
	"brokerd/internal/inbox"
	"brokerd/internal/page"
	"brokerd/internal/work"
)

// ListMailboxes implements the RPC.
func (s *Service) ListMailboxes(
	ctx context.Context, r *pb.ListMailboxesRequest,
) (*pb.ListMailboxesResponse, error) {
	order := inbox.ByAge
	if r.Order == pb.MailboxOrder_MAILBOX_ORDER_WAITING {
		order = inbox.ByWaiting
	}
	list := [...]string{inbox.ByAge: "mailboxes by age", inbox.ByWaiting: "mailboxes by number"}[order]
	var after inbox.BoxPlace
	if err := page.Parse(list, r.PageToken, &after); err != nil {
		return nil, err
	}
	p, err := s.inbox.Mailboxes(ctx, identity.FromContext(ctx), order, page.Size(r.PageSize), after)
	if err != nil {
		return nil, err
	}
	out := &pb.ListMailboxesResponse{Revision: p.Revision}
	for _, m := range p.Boxes {
		out.Mailboxes = append(out.Mailboxes, &pb.MailboxSummary{
			Mailbox: m.Mailbox, Waiting: m.Waiting, Claimed: m.Claimed, Dead: m.Dead, OldestAt: stamp(m.Oldest),
		})
	}
	if p.Next != (inbox.BoxPlace{}) {
		out.NextPageToken = page.Token(list, p.Next)
	}
	return out, nil
}

// ListThreads implements the RPC.
func (s *Service) ListThreads(ctx context.Context, r *pb.ListThreadsRequest) (*pb.ListThreadsResponse, error) {
	l := conversations.Listing{
		Open: r.Open, From: work.Time(r.FromTime), To: work.Time(r.ToTime), Size: page.Size(r.PageSize),
	}
	const list = "threads"
	if err := page.Parse(list, r.PageToken, &l.After); err != nil {
		return nil, err
	}
	p, err := s.conversations.Threads(ctx, identity.FromContext(ctx), l)
	if err != nil {
		return nil, err
	}
	out := &pb.ListThreadsResponse{Revision: p.Revision}
	for i := range p.Threads {
		out.Threads = append(out.Threads, threadSummary(&p.Threads[i]))
	}
	if p.Next != (conversations.Place{}) {
		out.NextPageToken = page.Token(list, p.Next)
	}
	return out, nil
}
