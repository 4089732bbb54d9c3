package crashtest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// A subscriber follows the events and goes on after each restart where it stopped.
type subscriber struct {
	record *record
	at     int64
	events []receivedEvent
}

// A receivedEvent is what is kept of an event, to recognise it.
type receivedEvent struct {
	revision int64
	digest   [8]byte
}

func received(e *pb.Event) receivedEvent {
	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	sum := sha256.Sum256(wire)
	return receivedEvent{e.GetRevision(), [8]byte(sum[:8])}
}

func (s *subscriber) makeUp(context.Context, *daemon) error { return nil }

func (s *subscriber) load(ctx context.Context, d *daemon) error { return s.follow(ctx, d, 1<<62) }

// follow reads on, until everything up to the revision has been read.
func (s *subscriber) follow(ctx context.Context, d *daemon, until int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.events.SubscribeEvents(ctx, &pb.SubscribeEventsRequest{AfterRevision: &s.at})
	if err != nil {
		return err
	}
	for s.at < until {
		page, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, e := range page.GetEvents() {
			if e.GetRevision() <= s.at {
				s.record.wrong("the subscriber got event %d after %d", e.GetRevision(), s.at)
			}
			s.at = e.GetRevision()
			s.record.known(s.at)
			s.events = append(s.events, received(e))
		}
		if page.GetRevision() < s.at {
			s.record.wrong("the subscriber was told to resume after %d, and has got %d", page.GetRevision(), s.at)
		}
		s.at = page.GetRevision()
		s.record.known(s.at)
	}
	return nil
}

// A reader follows its own mailbox by arrival, goes on after each restart where it stopped, and acks most of what
// it has read.
type reader struct {
	record *record
	agent  string
	random *rand.Rand
	at     int64
	read   map[int64]bool // by message
	kept   []string       // read and not acked
	open   *pb.AckMessagesRequest
}

func newReader(r *record, random *rand.Rand) *reader {
	return &reader{record: r, agent: "reader", random: random, read: map[int64]bool{}}
}

func (r *reader) makeUp(ctx context.Context, d *daemon) error {
	if r.open == nil {
		return nil
	}
	return r.ack(ctx, d)
}

func (r *reader) load(ctx context.Context, d *daemon) error {
	return r.receive(ctx, d, &pb.ReceiveRequest{Follow: true}, 4)
}

// receive reads on and acks what it reads, all but one of so many; 0 is all.
func (r *reader) receive(ctx context.Context, d *daemon, request *pb.ReceiveRequest, but int) error {
	request.AfterRevision = r.at
	stream, err := d.messages.Receive(as(ctx, r.agent), request)
	if err != nil {
		return err
	}
	for {
		page, err := stream.Recv()
		if err != nil {
			return err
		}
		r.note(page)
		if but == 0 || len(r.kept) > but {
			if err := r.ackAll(ctx, d, but); err != nil {
				return err
			}
		}
	}
}

// note compares a page with what was read before.
func (r *reader) note(page *pb.ReceiveResponse) {
	for _, item := range page.GetItems() {
		m, arrival := item.GetMessage(), item.GetDelivery().GetArrival()
		if arrival <= r.at {
			r.record.wrong("the reader got an arrival %d after %d", arrival, r.at)
		}
		r.at = arrival
		if r.read[m.GetRevision()] {
			r.record.wrong("the reader got message %d twice", m.GetRevision())
		}
		r.read[m.GetRevision()] = true
		r.kept = append(r.kept, strconv.FormatInt(m.GetRevision(), 10))
	}
	if page.GetRevision() < r.at {
		r.record.wrong("the reader was told to resume after %d, and has got %d", page.GetRevision(), r.at)
	}
	r.at = page.GetRevision()
	r.record.known(r.at)
}

func (r *reader) ackAll(ctx context.Context, d *daemon, but int) error {
	now := r.kept[:0:0]
	later := r.kept[:0:0]
	for _, id := range r.kept {
		if but > 0 && r.random.IntN(but) == 0 || len(now) == 1000 {
			later = append(later, id)
		} else {
			now = append(now, id)
		}
	}
	if len(now) == 0 {
		return nil
	}
	r.kept = later
	r.open = &pb.AckMessagesRequest{RequestId: requestID(), Ids: now}
	r.record.ackMail(r.agent, now, unknown)
	return r.ack(ctx, d)
}

func (r *reader) ack(ctx context.Context, d *daemon) error {
	_, err := d.messages.AckMessages(as(ctx, r.agent), r.open)
	if cut(err) {
		return err
	}
	if err != nil {
		r.record.wrong("the reader's acks were refused: %v", err)
	} else {
		r.record.ackMail(r.agent, r.open.GetIds(), confirmed)
	}
	r.open = nil
	return nil
}

// finish reads and acks until nothing has come for a moment.
func (r *reader) finish(ctx context.Context, d *daemon) error {
	for before := -1; len(r.read) > before || len(r.kept) > 0; {
		before = len(r.read)
		if len(r.kept) > 0 {
			if err := r.ackAll(ctx, d, 0); err != nil {
				return err
			}
		}
		err := r.receive(ctx, d, &pb.ReceiveRequest{Wait: durationpb.New(300 * time.Millisecond)}, 0)
		if !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// A redriver is an operator who puts dead letters back, each at most once.
type redriver struct {
	record *record
	random *rand.Rand
	chosen map[delivery]bool
	open   *pb.RedriveDeadLettersRequest
}

func (r *redriver) makeUp(ctx context.Context, d *daemon) error {
	if r.open == nil {
		return nil
	}
	return r.redrive(ctx, d)
}

func (r *redriver) load(ctx context.Context, d *daemon) error {
	for {
		page, err := d.messages.ListDeadLetters(ctx, &pb.ListDeadLettersRequest{PageSize: 50})
		if err != nil {
			return err
		}
		if r.open = r.choose(page.GetItems()); r.open != nil {
			if err := r.redrive(ctx, d); err != nil {
				return err
			}
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// choose takes some dead letters of one mailbox.
func (r *redriver) choose(items []*pb.InboxItem) *pb.RedriveDeadLettersRequest {
	request := &pb.RedriveDeadLettersRequest{RequestId: requestID()}
	for _, item := range items {
		box := item.GetDelivery().GetMailbox()
		which := delivery{item.GetMessage().GetRevision(), box}
		if r.chosen[which] || request.Mailbox != "" && request.Mailbox != box || r.random.IntN(3) == 0 {
			continue
		}
		r.chosen[which] = true
		request.Mailbox = box
		request.Ids = append(request.Ids, strconv.FormatInt(which.message, 10))
	}
	if len(request.Ids) == 0 {
		return nil
	}
	return request
}

func (r *redriver) redrive(ctx context.Context, d *daemon) error {
	answer, err := d.messages.RedriveDeadLetters(ctx, r.open)
	switch {
	case cut(err):
		return err
	case err == nil:
		var revisions []int64
		for _, id := range r.open.GetIds() {
			n, _ := strconv.ParseInt(id, 10, 64)
			revisions = append(revisions, n)
		}
		if int(answer.GetRedriven()) != len(revisions) {
			r.record.wrong("%d of %d dead letters were redriven", answer.GetRedriven(), len(revisions))
		}
		r.record.redrove(revisions)
	case reason(err) != "NOT_DEAD": // a late ack may have come first
		r.record.wrong("the redrive of %v was refused: %v", r.open.GetIds(), err)
	}
	r.open = nil
	return nil
}
