package messagesrpc

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/deadletters"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/page"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// deadList names the list of dead letters in page tokens.
const deadList = "deadletters"

// ListDeadLetters implements the RPC.
func (s *Service) ListDeadLetters(
	ctx context.Context, r *pb.ListDeadLettersRequest,
) (*pb.ListDeadLettersResponse, error) {
	types, err := s.types(ctx)
	if err != nil {
		return nil, err
	}
	var c validate.Check
	mailboxField(&c, r.Mailbox)
	ch := deadletters.Choice{Mailbox: r.Mailbox, Filter: deadFilter(types, r.Filter)}
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := page.Parse(deadList, r.PageToken, &ch.After); err != nil {
		return nil, err
	}
	p, err := s.dead.List(ctx, identity.FromContext(ctx), ch, page.Size(r.PageSize))
	if err != nil {
		return nil, err
	}
	out := &pb.ListDeadLettersResponse{Items: inboxItems(p.Items), Revision: p.Revision, NextPageToken: deadToken(p.Next)}
	if r.Count {
		n, more, err := s.dead.Count(ctx, identity.FromContext(ctx), ch)
		if err != nil {
			return nil, err
		}
		out.Count, out.CountAtLeast = int64(n), more
	}
	return out, nil
}

// RedriveDeadLetters implements the RPC.
func (s *Service) RedriveDeadLetters(
	ctx context.Context, r *pb.RedriveDeadLettersRequest,
) (*pb.RedriveDeadLettersResponse, error) {
	ch, req, err := s.chosen(ctx, "RedriveDeadLetters", r)
	if err != nil {
		return nil, err
	}
	done, err := s.dead.Redrive(ctx, identity.FromContext(ctx), req, ch, r.DryRun)
	if err != nil {
		return nil, err
	}
	return &pb.RedriveDeadLettersResponse{
		Revision: done.Revision, Redriven: int32(done.Count), NextPageToken: deadToken(done.Next), AtLeast: done.More,
		ToTime: stamp(done.Until),
	}, nil
}

// PurgeDeadLetters implements the RPC.
func (s *Service) PurgeDeadLetters(
	ctx context.Context, r *pb.PurgeDeadLettersRequest,
) (*pb.PurgeDeadLettersResponse, error) {
	ch, req, err := s.chosen(ctx, "PurgeDeadLetters", r)
	if err != nil {
		return nil, err
	}
	done, err := s.dead.Purge(ctx, identity.FromContext(ctx), req, ch, r.DryRun)
	if err != nil {
		return nil, err
	}
	return &pb.PurgeDeadLettersResponse{
		Revision: done.Revision, Purged: int32(done.Count), NextPageToken: deadToken(done.Next), AtLeast: done.More,
		ToTime: stamp(done.Until),
	}, nil
}

// A deadRequest is a request that chooses dead letters.
type deadRequest interface {
	requested
	GetIds() []string
	GetMailbox() string
	GetFilter() *pb.DeadLetterFilter
	GetAll() bool
	GetPageToken() string
}

// chosen reads the fields that choose dead letters.
func (s *Service) chosen(
	ctx context.Context, rpc string, r deadRequest,
) (ch deadletters.Choice, req idempotency.Request, err error) {
	types, err := s.types(ctx)
	if err != nil {
		return ch, req, err
	}
	var c validate.Check
	ch = deadletters.Choice{
		IDs: msgid.CheckRefs(&c, "ids", r.GetIds(), mail.MaxBatch, false), Mailbox: r.GetMailbox(),
		Filter: deadFilter(types, r.GetFilter()),
	}
	mailboxField(&c, ch.Mailbox)
	named := len(r.GetIds()) > 0
	switch {
	case named && (!ch.Filter.Empty() || r.GetAll() || r.GetPageToken() != ""):
		c.Fail("ids", "names the messages: leave filter, all and page_token empty")
	case !named && ch.Mailbox == "" && ch.Filter.Empty() && !r.GetAll():
		c.Fail("ids", "is empty, and so are mailbox, filter and all: say which dead letters you mean")
	}
	if err := c.Err(); err != nil {
		return ch, req, err
	}
	if err := page.Parse(deadList, r.GetPageToken(), &ch.After); err != nil {
		return ch, req, err
	}
	req, err = idempotency.Of(ctx, rpc, r.GetRequestId(), r)
	return ch, req, err
}

func deadFilter(types *msgtype.Set, f *pb.DeadLetterFilter) deadletters.Filter {
	return deadletters.Filter{
		Types: types.Spellings(f.GetTypes()), Senders: f.GetSenders(), Holders: f.GetHolders(), Error: f.GetError(),
		From: work.Time(f.GetFromTime()), To: work.Time(f.GetToTime()),
	}
}

func deadToken(next deadletters.Place) string {
	if next == (deadletters.Place{}) {
		return ""
	}
	return page.Token(deadList, next)
}

// MoveService is the part of the AdminService of the API that moves messages between mailboxes.
type MoveService struct{ queue *deadletters.Queue }

// NewMoveService returns the service.
func NewMoveService(q *deadletters.Queue) *MoveService { return &MoveService{q} }

// MoveMessages implements pb.AdminServiceServer.
func (s *MoveService) MoveMessages(ctx context.Context, in *pb.MoveMessagesRequest) (*pb.MoveMessagesResponse, error) {
	req, err := idempotency.Of(ctx, "MoveMessages", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	done, err := s.queue.Move(ctx, identity.FromContext(ctx), req,
		deadletters.Move{From: in.GetFrom(), To: in.GetTo(), IDs: in.GetIds(), Reason: in.GetReason()})
	if err != nil {
		return nil, err
	}
	return &pb.MoveMessagesResponse{Revision: done.Revision, Moved: int32(done.Moved), Left: done.Left}, nil
}
