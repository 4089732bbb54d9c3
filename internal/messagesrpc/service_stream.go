package messagesrpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/broker"
	"brokerd/internal/content"
	"brokerd/internal/fault"
	"brokerd/internal/guard"
	"brokerd/internal/identity"
	"brokerd/internal/inbox"
	"brokerd/internal/mail"
	"brokerd/internal/msgid"
	"brokerd/internal/msgtype"
	"brokerd/internal/outbox"
	"brokerd/internal/router"
	"brokerd/internal/validate"
)

const (
	// maxPipelined is how many pieces of the batches of one Send stream may be under way at once.
	maxPipelined = 64
	// One function of the writer takes at most maxPiece messages or settlements of a stream, and about
	// maxPieceBytes bytes of messages.
	maxPiece      = 64
	maxPieceBytes = 256 << 10
	// maxPieceArtifacts is about how many names of artifacts one function takes. Each of them is a row.
	maxPieceArtifacts = 4000
	// maxFrame is about how many bytes of messages one frame of a Claim stream carries.
	maxFrame = 512 << 10
)

// A requested is a request that may have an idempotency key, its request_id.
type requested interface {
	proto.Message
	GetRequestId() string
}

// Send implements the RPC. Another goroutine reads the batches and submits them to the writer. This one answers.
func (s *Service) Send(stream pb.MessageService_SendServer) error {
	ctx := stream.Context()
	session, out := identity.FromContext(ctx).Session, outbox.New[[]router.Outcome](maxPipelined, s.broker.Stopping())
	guard.Go(s.log, func() error { return s.readBatches(stream, out) }, out.Close)
	for {
		pieces, err := out.Next()
		if len(pieces) == 0 {
			return err
		}
		// After the end of ctx, the store may have refused a batch before it decides earlier ones.
		for len(pieces) > 0 && ctx.Err() == nil {
			outcomes := pieces[0]
			for pieces = pieces[1:]; len(pieces) > 0 && len(outcomes) < mail.MaxBatch; pieces = pieces[1:] {
				outcomes = append(outcomes, pieces[0]...)
			}
			if err := s.confirm(stream, session, outcomes); err != nil {
				return err
			}
		}
	}
}

// readBatches submits the batches of a stream, in pieces, until the stream ends. The writer decides the pieces in this
// order. readBatches waits while maxPipelined pieces are under way, while the agent has too much queued for the writer,
// and while it sends faster than its session allows.
func (s *Service) readBatches(stream pb.MessageService_SendServer, out *outbox.Outbox[[]router.Outcome]) error {
	who := identity.FromContext(stream.Context())
	r := sendFrame{types: func() (*msgtype.Set, error) { return s.types(stream.Context()) }}
	producer, pieces := "", 0
	var sequence *router.Sequence // nil without a producer
	for first := true; ; first = false {
		err := stream.RecvMsg(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		all, err := r.read(first, &producer)
		if err != nil {
			return err
		}
		if first && producer != "" {
			sequence = &router.Sequence{}
		}
		if err := s.admission.AdmitBatch(stream.Context(), who, all.Drafts); err != nil {
			return err
		}
		for len(all.Drafts) > 0 {
			if err := out.Reserve(stream.Context()); err != nil {
				return err
			}
			n, piece := pieceOf(all.Drafts), all
			piece.Drafts, piece.Sequence, piece.Place = all.Drafts[:n], sequence, pieces
			pieces++
			s.router.Submit(stream.Context(), who, piece, out.Put)
			all.Drafts, all.First, all.At = all.Drafts[n:], all.First+int64(n), all.At+n
		}
	}
}

// pieceOf returns how many of the drafts, from the first one, go into one function of the writer. The writer
// serves other callers between two pieces. A message with a copy for each recipient is a piece by itself, and so
// are a few messages with many artifacts, so that the rows of a piece stay within the core's limit of one
// function.
func pieceOf(drafts []mail.Draft) int {
	n, bytes, artifacts := 0, 0, 0
	for n < len(drafts) && n < maxPiece && bytes < maxPieceBytes && artifacts < maxPieceArtifacts {
		d := &drafts[n]
		if d.Target.Kind != mail.ToAgent && !d.One || strings.HasPrefix(d.Target.Name, router.TeamPrefix) {
			return max(n, 1)
		}
		bytes += len(d.Content)
		artifacts += len(d.Artifacts)
		n++
	}
	return n
}

// checkBatch checks the fields of a batch of n messages, apart from these. A fault ends the stream.
func checkBatch(r *pb.SendRequest, n int, first bool, producer *string) error {
	var c validate.Check
	if n == 0 {
		c.Fail("messages", "is empty; at least one message is required")
	}
	c.Count("messages", n, mail.MaxBatch)
	switch {
	case first:
		c.OptionalName("producer", r.Producer)
		*producer = r.Producer
	case r.Producer != "" && r.Producer != *producer:
		c.Fail("producer", "may be given in the first batch only")
	}
	if *producer != "" {
		c.Between("first_number", r.FirstNumber, 1, 1<<62)
	} else if r.FirstNumber != 0 {
		c.Fail("first_number", "means nothing without a producer")
	}
	return c.Err()
}

// streamDrafts returns the drafts of a batch. A draft that is refused has its fault.
func streamDrafts(types *msgtype.Set, messages []*pb.Message) []mail.Draft {
	all := make([]mail.Draft, len(messages))
	for i, m := range messages {
		var c validate.Check
		c.InItem("messages", i)
		all[i] = draft(&c, types, m)
		if err := c.Err(); err != nil {
			all[i] = mail.Draft{Fault: err}
			continue
		}
		all[i].Content, all[i].Fault = content.Marshal(m)
	}
	return all
}

// confirm sends the outcomes of messages.
func (s *Service) confirm(stream pb.MessageService_SendServer, session string, outcomes []router.Outcome) error {
	if s.plainOutcomes(session, outcomes) {
		return stream.SendMsg(&sendAnswer{s, session, outcomes})
	}
	return stream.Send(s.sendResponse(stream.Context(), session, outcomes))
}

func (s *Service) sendResponse(ctx context.Context, session string, outcomes []router.Outcome) *pb.SendResponse {
	out := &pb.SendResponse{Results: make([]*pb.SendResult, len(outcomes))}
	for i := range outcomes {
		o := &outcomes[i]
		if o.Fault != nil {
			out.Results[i] = &pb.SendResult{Error: s.itemError(ctx, o.Fault)}
			continue
		}
		out.Results[i] = s.result(session, o)
	}
	return out
}

// Receive implements the RPC.
func (s *Service) Receive(r *pb.ReceiveRequest, stream pb.MessageService_ReceiveServer) error {
	types, err := s.types(stream.Context())
	if err != nil {
		return err
	}
	var c validate.Check
	options := inbox.ReceiveOptions{
		After: r.AfterRevision, Cursor: r.Cursor, Follow: r.Follow, Choice: choice(&c, types, r.Filter), Limit: int(r.Limit),
		AutoAck: r.AutoAck, KeepNotices: r.KeepNotices, Wait: r.Wait.AsDuration(),
	}
	if r.Cursor != "" && r.AfterRevision != 0 {
		c.Fail("after_revision", "does not go together with cursor: leave one of them empty")
	}
	if r.KeepNotices && r.AutoAck {
		c.Fail("keep_notices", "does not go together with auto_ack, which finishes all messages")
	}
	checkReadingLook(&c, r, &options)
	if err := c.Err(); err != nil {
		return err
	}
	who := identity.FromContext(stream.Context())
	return s.inbox.Receive(stream.Context(), who, options, func(items []mail.Item, upTo int64) error {
		return stream.Send(&pb.ReceiveResponse{Items: inboxItems(items), Revision: upTo})
	})
}

// Claim implements the RPC. Another goroutine reads the settlements and submits them to the writer. This one writes.
func (s *Service) Claim(stream pb.MessageService_ClaimServer) error {
	first, err := stream.Recv()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return fault.Field("open", "is missing: the first frame must say what to take")
		}
		return err
	}
	types, err := s.types(stream.Context())
	if err != nil {
		return err
	}
	w, err := openWish(types, first)
	if err != nil {
		return err
	}
	claims, resumed, err := s.broker.Streams.Open(stream.Context(), identity.FromContext(stream.Context()), w)
	if err != nil {
		return err
	}
	defer claims.Close(stream.Context())
	opened := &pb.ClaimOpened{Resumed: s.claimedAll(resumed), Mailboxes: claims.Mailboxes()}
	if err := stream.Send(&pb.ClaimResponse{Frame: &pb.ClaimResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	guard.Go(s.log, func() error { return readSettlements(ctx, stream, claims) }, cancel)
	for {
		f, done, err := claims.Next(ctx)
		if err != nil {
			if cause := context.Cause(ctx); !errors.Is(cause, io.EOF) {
				return cause
			}
			return s.sendRest(stream, claims)
		}
		if err := s.sendFrame(stream, claims, &f); err != nil {
			claims.Unsaid(f.Deliver)
			return err
		}
		if err := claims.Ended(); done && err != nil {
			return err
		}
		if done {
			return fault.Stopping()
		}
	}
}

// sendRest answers the settlements that the client has sent before it closed its side of the stream.
func (s *Service) sendRest(stream pb.MessageService_ClaimServer, claims *broker.ClaimStream) error {
	claims.Leave()
	for claims.Unanswered() {
		f, _, err := claims.Next(stream.Context())
		if err != nil {
			return err
		}
		if err := s.sendFrame(stream, claims, &f); err != nil {
			return err
		}
	}
	return nil
}

// openWish checks the first frame of a Claim stream.
func openWish(types *msgtype.Set, r *pb.ClaimRequest) (broker.Wish, error) {
	var c validate.Check
	o := r.Open
	if o == nil {
		c.Fail("open", "is missing: the first frame must say what to take")
		return broker.Wish{}, c.Err()
	}
	w := wish(&c, types, "open.", o.Consumer, o.Mailboxes, o.Types, o.LowestPriority)
	w.Max = max(1, int(o.MaxInFlight))
	c.Between("open.max_in_flight", int64(o.MaxInFlight), 0, maxInFlight)
	w.MaxBytes = int(o.MaxBytes)
	if w.MaxBytes == 0 {
		w.MaxBytes = 4 << 20
	}
	c.Between("open.max_bytes", int64(o.MaxBytes), 0, 64<<20)
	w.ClaimFor = c.Duration("open.claim_for", o.ClaimFor, time.Second, maxClaim, claimFor)
	w.MaxTotal = c.Duration("open.max_total", o.MaxTotal, time.Second, maxClaim, maxTotal)
	if len(r.Acks)+len(r.Nacks)+len(r.Extensions)+len(r.Releases) > 0 {
		c.Fail("open", "stands alone: settle in the frames after it")
	}
	return w, c.Err()
}

// readSettlements submits the settlements of a stream until it ends, and returns why it has ended.
func readSettlements(ctx context.Context, stream pb.MessageService_ClaimServer, claims *broker.ClaimStream) error {
	var r claimFrame
	for {
		if err := stream.RecvMsg(&r); err != nil {
			return err
		}
		items, err := r.read()
		if err != nil {
			return err
		}
		for piece := range slices.Chunk(items, maxPiece) {
			if err := claims.Settle(ctx, piece); err != nil {
				return err
			}
		}
	}
}

// frameSettlements returns the settlements of a frame. A settlement that is refused has its fault. A fault of the frame
// itself ends the stream.
func frameSettlements(r *pb.ClaimRequest) ([]broker.Settlement, error) {
	var c validate.Check
	if r.Open != nil {
		c.Fail("open", "may stand in the first frame only")
	}
	n := len(r.Acks) + len(r.Nacks) + len(r.Extensions) + len(r.Releases)
	c.Count("settlements", n, mail.MaxBatch)
	if err := c.Err(); err != nil {
		return nil, err
	}
	items := make([]broker.Settlement, 0, n)
	for i, id := range r.Acks {
		c.InItem("acks", i)
		items = append(items, broker.Settlement{Verb: broker.Ack, Ref: claimRef(&c, "", id)})
		refuse(&c, &items[len(items)-1], id)
	}
	for i, n := range r.Nacks {
		c.InItem("nacks", i)
		items = append(items, nackSettlement(&c, n, claimRef))
		refuse(&c, &items[len(items)-1], n.GetClaimId())
	}
	for i, e := range r.Extensions {
		c.InItem("extensions", i)
		items = append(items, extendSettlement(&c, e, claimRef))
		refuse(&c, &items[len(items)-1], e.GetClaimId())
	}
	for i, id := range r.Releases {
		c.InItem("releases", i)
		items = append(items, broker.Settlement{Verb: broker.Release, Ref: claimRef(&c, "", id)})
		refuse(&c, &items[len(items)-1], id)
	}
	return items, nil
}

// refuse replaces an item by its fault, if the check has one, and clears the check for the next item.
func refuse(c *validate.Check, item *broker.Settlement, id string) {
	if err := c.Err(); err != nil {
		*item = broker.Settlement{Ref: msgid.Ref{Text: id}, Fault: err}
		*c = validate.Check{}
	}
}

// sendFrame sends the parts of a frame in order. After an error, Deliver has the claims that it has not sent.
func (s *Service) sendFrame(stream pb.MessageService_ClaimServer, claims *broker.ClaimStream, f *broker.Frame) error {
	if len(f.Results) > 0 && plainResults(f.Results) {
		if err := stream.SendMsg(&settledAnswer{f.Results}); err != nil {
			return err
		}
	} else if len(f.Results) > 0 {
		results := make([]*pb.SettleResult, len(f.Results))
		for i, r := range f.Results {
			results[i] = &pb.SettleResult{ClaimId: r.ClaimID}
			if r.Fault != nil {
				results[i].Error = s.itemError(stream.Context(), r.Fault)
			}
		}
		frame := &pb.ClaimResponse_Results{Results: &pb.SettleResults{Results: results}}
		if err := stream.Send(&pb.ClaimResponse{Frame: frame}); err != nil {
			return err
		}
	}
	for why, ids := range f.Revoked {
		frame := &pb.ClaimResponse_Revoke{Revoke: &pb.ClaimRevoked{ClaimIds: ids, Reason: pb.RevokeReason(why)}}
		if err := stream.Send(&pb.ClaimResponse{Frame: frame}); err != nil {
			return err
		}
	}
	for len(f.Deliver) > 0 {
		n, bytes := 0, 0
		for n < len(f.Deliver) && (n == 0 || bytes+len(f.Deliver[n].Content) <= maxFrame) {
			bytes += len(f.Deliver[n].Content)
			n++
		}
		if err := stream.SendMsg(&deliverAnswer{s, f.Deliver[:n]}); err != nil {
			return err
		}
		claims.Sent(f.Deliver[:n])
		f.Deliver = f.Deliver[n:]
	}
	if f.GoAway > 0 {
		frame := &pb.ClaimResponse_GoAway{GoAway: &pb.ClaimGoAway{Grace: durationpb.New(f.GoAway)}}
		return stream.Send(&pb.ClaimResponse{Frame: frame})
	}
	return nil
}
