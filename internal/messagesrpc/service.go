package messagesrpc

import (
	"context"
	"time"

	"go.uber.org/zap"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/admission"
	"brokerd/internal/broker"
	"brokerd/internal/conversations"
	"brokerd/internal/deadletters"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/inbox"
	"brokerd/internal/mail"
	"brokerd/internal/messagetrace"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/offers"
	"brokerd/internal/page"
	"brokerd/internal/router"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// A Crew knows which agents are asleep.
type Crew interface {
	// Asleep reports whether a registered agent is asleep, and since when. It must be quick.
	Asleep(session, agent string) (since time.Time, asleep bool)
}

// A Service is the MessageService of the API. It checks and converts, and decides nothing.
type Service struct {
	pb.UnimplementedMessageServiceServer
	broker        *broker.Broker
	router        *router.Router
	admission     *admission.Control
	inbox         *inbox.Reader
	conversations *conversations.Registry
	dead          *deadletters.Queue
	offers        *offers.Offers
	catalog       msgtype.Catalog
	crew          Crew
	traces        *messagetrace.Recorder // nil = nothing is traced
	itemError     ItemError
	log           *zap.Logger
}

// An ItemError converts the error of a refused item of the stream with the context.
type ItemError func(context.Context, error) *pb.ItemError

// NewService returns the MessageService of a broker. traces is nil if nothing is traced.
func NewService(
	core *broker.Broker, sends *router.Router, control *admission.Control, reader *inbox.Reader,
	exchanges *conversations.Registry,
	dead *deadletters.Queue, offered *offers.Offers, catalog msgtype.Catalog, crew Crew,
	traces *messagetrace.Recorder, item ItemError, log *zap.Logger,
) *Service {
	return &Service{
		broker: core, router: sends, admission: control, inbox: reader, conversations: exchanges, dead: dead,
		offers: offered, catalog: catalog, crew: crew, traces: traces, itemError: item, log: log,
	}
}

// SendMessages implements the RPC.
func (s *Service) SendMessages(ctx context.Context, r *pb.SendMessagesRequest) (*pb.SendMessagesResponse, error) {
	req, err := idempotency.Of(ctx, "SendMessages", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	types, err := s.types(ctx)
	if err != nil {
		return nil, err
	}
	all, err := drafts(types, r.Messages)
	if err != nil {
		return nil, err
	}
	outcomes, err := s.router.Send(ctx, identity.FromContext(ctx), req, all)
	if err != nil {
		return nil, err
	}
	out := &pb.SendMessagesResponse{}
	for i := range outcomes {
		out.Results = append(out.Results, s.result(identity.FromContext(ctx).Session, &outcomes[i]))
	}
	return out, nil
}

// ClaimMessages implements the RPC.
func (s *Service) ClaimMessages(ctx context.Context, r *pb.ClaimMessagesRequest) (*pb.ClaimMessagesResponse, error) {
	types, err := s.types(ctx)
	if err != nil {
		return nil, err
	}
	var c validate.Check
	w := wish(&c, types, "", r.Consumer, r.Mailboxes, r.Types, r.LowestPriority)
	w.Max = max(1, int(r.Max))
	c.Between("max", int64(r.Max), 0, maxInFlight)
	w.Wait = c.Duration("wait", r.Wait, 0, maxWait, 0)
	w.ClaimFor = c.Duration("claim_for", r.ClaimFor, time.Second, maxClaim, claimFor)
	w.Notices = r.Notices
	if o := r.Offer; o != nil {
		w.Offer = noticeOffer(&c, o)
	}
	w.Topic = topic(&c, r)
	w.IDs = msgid.CheckRefs(&c, "ids", r.Ids, mail.MaxBatch, false)
	if len(w.IDs) > 0 && (len(r.Types) > 0 || r.LowestPriority != 0 || r.Max != 0 || w.Wait != 0 || !w.Topic.Empty()) {
		c.Fail("ids", "names the messages: leave types, lowest_priority, max, wait, thread_id, task_id, "+
			"correlation_id and senders empty")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	got, err := s.broker.Claim(ctx, identity.FromContext(ctx), w)
	if err != nil {
		return nil, err
	}
	return &pb.ClaimMessagesResponse{
		Claims: s.claimedAll(got.Claims), EmptyReason: pb.EmptyReason(got.Empty), NextDue: stamp(got.NextDue),
		Notices: noticeProtos(got.Notices),
	}, nil
}

// AckMessages implements the RPC.
func (s *Service) AckMessages(ctx context.Context, r *pb.AckMessagesRequest) (*pb.AckMessagesResponse, error) {
	done, revision, err := s.settleIDs(ctx, "AckMessages", r, r.Ids, broker.Ack)
	if err != nil {
		return nil, err
	}
	return &pb.AckMessagesResponse{Revision: revision, Acked: claimIDs(done)}, nil
}

// ReleaseClaims implements the RPC.
func (s *Service) ReleaseClaims(ctx context.Context, r *pb.ReleaseClaimsRequest) (*pb.ReleaseClaimsResponse, error) {
	done, revision, err := s.settleIDs(ctx, "ReleaseClaims", r, r.Ids, broker.Release)
	if err != nil {
		return nil, err
	}
	return &pb.ReleaseClaimsResponse{Revision: revision, Released: claimIDs(done)}, nil
}

// NackMessages implements the RPC.
func (s *Service) NackMessages(ctx context.Context, r *pb.NackMessagesRequest) (*pb.NackMessagesResponse, error) {
	items, err := settlements("nacks", r.Nacks, nackSettlement)
	if err != nil {
		return nil, err
	}
	done, revision, err := s.settle(ctx, "NackMessages", r, items)
	if err != nil {
		return nil, err
	}
	out := &pb.NackMessagesResponse{Revision: revision}
	for _, d := range done {
		out.Outcomes = append(out.Outcomes, &pb.NackOutcome{
			ClaimId: d.ClaimID, State: pb.DeliveryState(d.State), DueAt: stamp(d.DueAt),
		})
	}
	return out, nil
}

// ExtendClaims implements the RPC.
func (s *Service) ExtendClaims(ctx context.Context, r *pb.ExtendClaimsRequest) (*pb.ExtendClaimsResponse, error) {
	items, err := settlements("extensions", r.Extensions, extendSettlement)
	if err != nil {
		return nil, err
	}
	done, _, err := s.settle(ctx, "ExtendClaims", r, items)
	if err != nil {
		return nil, err
	}
	return &pb.ExtendClaimsResponse{ClaimIds: claimIDs(done)}, nil
}

// GetMessage implements the RPC.
func (s *Service) GetMessage(ctx context.Context, r *pb.GetMessageRequest) (*pb.GetMessageResponse, error) {
	var c validate.Check
	ref := msgid.CheckRef(&c, "id", r.Id, true)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m, deliveries, err := s.inbox.Get(ctx, identity.FromContext(ctx), ref)
	if err != nil {
		return nil, err
	}
	out := &pb.GetMessageResponse{Message: wire(&m)}
	for i := range deliveries {
		out.Deliveries = append(out.Deliveries, delivery(m.Revision, &deliveries[i]))
	}
	return out, nil
}

// ListMessages implements the RPC.
func (s *Service) ListMessages(ctx context.Context, r *pb.ListMessagesRequest) (*pb.ListMessagesResponse, error) {
	types, err := s.types(ctx)
	if err != nil {
		return nil, err
	}
	var c validate.Check
	l := inbox.ListOptions{
		Box: inbox.Box(r.Box), Choice: choice(&c, types, r.Filter), Size: page.Size(r.PageSize),
		Newest: r.NewestFirst, MarkRead: r.MarkRead,
	}
	l.Choice.From, l.Choice.To = work.Time(r.FromTime), work.Time(r.ToTime)
	checkListingLook(&c, r, &l)
	if err := c.Err(); err != nil {
		return nil, err
	}
	list, position := "messages", any(&l.After)
	if l.Look.Asked() {
		list, position = "look", &l.Look.Behind
	}
	if err := page.Parse(list, r.PageToken, position); err != nil {
		return nil, err
	}
	var thread *conversations.Thread
	if name := l.Choice.Thread; name != "" {
		l.Also = func(q store.Querier, session int64) (err error) {
			thread, err = s.conversations.Thread(q, session, name)
			return err
		}
	}
	p, err := s.inbox.List(ctx, identity.FromContext(ctx), l)
	if err != nil {
		return nil, err
	}
	out := &pb.ListMessagesResponse{Items: inboxItems(p.Items), Revision: p.Revision, Thread: threadSummary(thread)}
	switch {
	case p.Behind != inbox.Place{}:
		out.NextPageToken = page.Token(list, p.Behind)
	case p.Next != 0:
		out.NextPageToken = page.Token(list, p.Next)
	}
	return out, nil
}

// CancelMessage implements the RPC.
func (s *Service) CancelMessage(ctx context.Context, r *pb.CancelMessageRequest) (*pb.CancelMessageResponse, error) {
	var c validate.Check
	ref := msgid.CheckRef(&c, "id", r.Id, false)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CancelMessage", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	done, err := s.conversations.Cancel(ctx, identity.FromContext(ctx), req, ref, r.Reason)
	if err != nil {
		return nil, err
	}
	return &pb.CancelMessageResponse{
		Revision: done.Revision, Cancelled: int32(done.Cancelled), Kept: int32(done.Kept),
	}, nil
}

// types returns the types that the caller's session knows.
func (s *Service) types(ctx context.Context) (*msgtype.Set, error) {
	return s.catalog.Types(ctx, identity.FromContext(ctx).Session)
}

// settleIDs settles claims by their ids. An empty list means the only open claim of the caller.
func (s *Service) settleIDs(
	ctx context.Context, rpc string, r requested, ids []string, verb broker.Verb,
) ([]broker.Settled, int64, error) {
	var c validate.Check
	items := []broker.Settlement{{Verb: verb}}
	if len(ids) > 0 {
		items = nil
		for _, ref := range msgid.CheckRefs(&c, "ids", ids, mail.MaxBatch, true) {
			items = append(items, broker.Settlement{Verb: verb, Ref: ref})
		}
	}
	if err := c.Err(); err != nil {
		return nil, 0, err
	}
	return s.settle(ctx, rpc, r, items)
}

func (s *Service) settle(
	ctx context.Context, rpc string, r requested, items []broker.Settlement,
) ([]broker.Settled, int64, error) {
	req, err := idempotency.Of(ctx, rpc, r.GetRequestId(), r)
	if err != nil {
		return nil, 0, err
	}
	return s.broker.Settle(ctx, identity.FromContext(ctx), req, items)
}

// settlements checks the items of a unary request. The claim id of an item may be empty if it is the only item.
func settlements[T any](
	field string, list []T, convert func(*validate.Check, T, refCheck) broker.Settlement,
) ([]broker.Settlement, error) {
	var c validate.Check
	ref := onlyOpen
	if len(list) > 1 {
		ref = claimOrMessage
	}
	if len(list) == 0 {
		c.Fail(field, "is empty; at least one item is required")
	}
	c.Count(field, len(list), mail.MaxBatch)
	var items []broker.Settlement
	for i, item := range list[:min(len(list), mail.MaxBatch)] {
		c.InItem(field, i)
		items = append(items, convert(&c, item, ref))
	}
	return items, c.Err()
}

func mailboxField(c *validate.Check, mailbox string) {
	if mailbox != "" {
		c.Name("mailbox", mail.ParseMailbox(mailbox).Name)
	}
}

func claimIDs(done []broker.Settled) []string {
	ids := make([]string, len(done))
	for i := range done {
		ids[i] = done[i].ClaimID
	}
	return ids
}
