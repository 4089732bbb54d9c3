package crashtest_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	pb "brokerd/gen/brokerd/v1"
)

// A unarySender sends a few messages a call, most calls with a request id.
type unarySender struct {
	record *record
	writer *writer
	open   *pb.SendMessagesRequest // what came of it is unknown; nil = nothing is
	sent   []*message              // in open
}

func newUnarySender(r *record, name string, random *rand.Rand) *unarySender {
	return &unarySender{record: r, writer: &writer{sender: name, random: random}}
}

func (s *unarySender) makeUp(ctx context.Context, d *daemon) error {
	if s.open == nil {
		return nil
	}
	return s.send(ctx, d, true)
}

func (s *unarySender) load(ctx context.Context, d *daemon) error {
	for {
		s.sent = s.writer.batch(4)
		s.open = &pb.SendMessagesRequest{Messages: wires(s.sent)}
		if s.writer.random.IntN(4) > 0 {
			s.open.RequestId = uuid.Must(uuid.NewV7()).String()
		}
		s.record.sending(s.sent)
		if err := s.send(ctx, d, false); err != nil {
			return err
		}
		breathe(ctx, s.writer.random)
	}
}

func (s *unarySender) send(ctx context.Context, d *daemon, again bool) error {
	answer, err := d.messages.SendMessages(as(ctx, s.writer.sender), s.open)
	if err == nil {
		s.record.sent(s.sent, answer.GetResults(), again)
	}
	if err == nil || s.open.RequestId == "" {
		s.open, s.sent = nil, nil // without an id it stays unknown for ever
	}
	return err
}

// breathe pauses often enough that the load does not grow into the hundred thousands.
func breathe(ctx context.Context, random *rand.Rand) {
	if random.IntN(3) > 0 {
		pause(ctx, time.Duration(random.IntN(20))*time.Millisecond)
	}
}

// A streamSender sends batches on a Send stream under a producer's name.
type streamSender struct {
	record *record
	writer *writer
	last   []*message // the newest that are confirmed, oldest first
	open   []*message // not confirmed, oldest first
	first  int64      // the number of the first in open
}

func newStreamSender(r *record, name string, random *rand.Rand) *streamSender {
	return &streamSender{record: r, writer: &writer{sender: name, random: random}, first: 1}
}

// makeUp sends what is unconfirmed again, and with it some of what is confirmed.
func (s *streamSender) makeUp(ctx context.Context, d *daemon) error {
	stream, err := d.messages.Send(as(ctx, s.writer.sender))
	if err != nil {
		return err
	}
	again := slices.Concat(s.last, s.open)
	first := s.first - int64(len(s.last))
	for rest := again; len(rest) > 0; {
		n := min(len(rest), 1+s.writer.random.IntN(40))
		if err := stream.Send(s.request(rest[:n], first, len(rest) == len(again))); err != nil {
			return err
		}
		rest, first = rest[n:], first+int64(n)
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for at := 0; ; {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if at < len(again) {
				s.record.wrong("%d of %d messages sent again were not answered", len(again)-at, len(again))
			}
			return nil
		}
		if err != nil {
			return err
		}
		results, fault := taken(answer.GetResults())
		part := again[at : at+len(results)]
		s.record.sent(part, results, true)
		for range part {
			if at++; at > len(again)-len(s.open) {
				s.confirm(1)
			}
		}
		if fault != nil {
			return fault
		}
	}
}

// load keeps a few batches under way.
func (s *streamSender) load(ctx context.Context, d *daemon) error {
	stream, err := d.messages.Send(as(ctx, s.writer.sender))
	if err != nil {
		return err
	}
	for fresh := true; ; fresh = false {
		batch := s.writer.batch(24)
		s.record.sending(batch)
		request := s.request(batch, s.first+int64(len(s.open)), fresh)
		s.open = append(s.open, batch...)
		if err := stream.Send(request); err != nil {
			return err
		}
		for most := s.writer.random.IntN(80); len(s.open) > most; {
			answer, err := stream.Recv()
			if err != nil {
				return err
			}
			results, fault := taken(answer.GetResults())
			s.record.sent(s.open[:len(results)], results, false)
			s.confirm(len(results))
			if fault != nil {
				return fault
			}
		}
		breathe(ctx, s.writer.random)
	}
}

// taken returns the results before the first one that says UNAVAILABLE, and that one's error.
func taken(results []*pb.SendResult) ([]*pb.SendResult, error) {
	for i, r := range results {
		if err := unavailable(r.GetError()); err != nil {
			return results[:i], err
		}
	}
	return results, nil
}

func (s *streamSender) request(batch []*message, first int64, opens bool) *pb.SendRequest {
	r := &pb.SendRequest{Messages: wires(batch), FirstNumber: first}
	if opens {
		r.Producer = "crash"
	}
	return r
}

// confirm takes the first n off what is unconfirmed.
func (s *streamSender) confirm(n int) {
	const keep = 5
	s.last = append(s.last, s.open[:n]...)
	s.last = append([]*message(nil), s.last[max(0, len(s.last)-keep):]...)
	s.open = s.open[n:]
	s.first += int64(n)
}
