package client

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
)

// Limits of one frame of a Send stream.
const (
	maxFrameItems = 1000
	maxFrameBytes = 4<<20 - 64<<10 // what the broker takes, less some room for the frame itself
)

// run owns the Sender's streams: it opens one when there is something to send, reads its answers, and opens the next
// when it breaks, until ctx ends.
func (s *Sender) run(ctx context.Context) {
	defer close(s.done)
	defer s.fail(ErrSenderClosed)
	for {
		if !s.waitForWork(ctx) {
			return
		}
		err := s.exchange(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case !transient(err):
			s.fail(err)
		case s.idle():
			// Nothing was lost with the stream; the next one can wait until it is needed.
		case !s.retry.wait(ctx, err):
			return
		}
	}
}

// waitForWork waits until something is to be sent, and returns false if ctx ended.
func (s *Sender) waitForWork(ctx context.Context) bool {
	for s.idle() {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (s *Sender) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queued) == 0 && len(s.flight) == 0
}

// exchange opens a stream, sends again what is in flight, lets new messages through, and reads answers until the
// stream ends.
func (s *Sender) exchange(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.calls.Send(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	resent := make(chan struct{})
	go func() {
		defer close(resent)
		s.resend(stream)
	}()
	err = s.receive(stream)

	// Whoever is writing must be gone before the next stream sends the same messages in order.
	cancel()
	<-resent
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream, s.trouble = nil, err
	return err
}

// resend writes what the stream before left unanswered, in frames of consecutive numbers, then opens the stream
// to new messages. It runs beside receive, or both ends could block on flow control.
func (s *Sender) resend(stream pb.MessageService_SendClient) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	s.dropGivenUp()
	var frames []*pb.SendRequest
	for _, b := range s.flight {
		done := len(b.results)
		frames = append(frames, s.frames(b.messages[done:], b.first+int64(done))...)
	}
	s.mu.Unlock()
	named := false
	for _, f := range frames {
		if !named {
			f.Producer, named = s.producer, true
		}
		if stream.Send(f) != nil {
			return // receive learns why
		}
	}
	s.write(stream, named)
	s.mu.Lock()
	s.stream = stream
	s.mu.Unlock()
	// What was queued between the two locks found no stream and only nudged run, which is busy receiving.
	s.write(stream, true)
}

// flush writes what is queued to the present stream, if there is one. Everybody who queued something calls it; whoever
// comes first writes for all.
func (s *Sender) flush() {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	stream := s.stream
	s.mu.Unlock()
	if stream != nil {
		s.write(stream, true)
	}
}

// write numbers what is queued and writes it. named tells whether the stream knows the producer already. writing is held.
func (s *Sender) write(stream pb.MessageService_SendClient, named bool) {
	for {
		s.mu.Lock()
		frame := s.nextFrames(named)
		s.mu.Unlock()
		if len(frame) == 0 {
			return
		}
		named = true
		for _, f := range frame {
			if stream.Send(f) != nil {
				return // the messages are in flight: receive learns why, and the next stream sends them again
			}
		}
	}
}

// nextFrames moves at most one frame's number of messages from the queue to the flight, and returns them as
// frames: one, unless their bytes need more. mu is held.
func (s *Sender) nextFrames(named bool) []*pb.SendRequest {
	var messages []*pb.Message
	first := s.number + 1
	taken := 0
	for _, b := range s.queued {
		if taken > 0 && len(messages)+len(b.messages) > maxFrameItems {
			break
		}
		b.first = s.number + 1
		s.number += int64(len(b.messages))
		if taken == 0 {
			messages = b.messages[:len(b.messages):len(b.messages)]
		} else {
			messages = append(messages, b.messages...)
		}
		taken++
	}
	if taken == 0 {
		return nil
	}
	s.flight = append(s.flight, s.queued[:taken]...)
	rest := copy(s.queued, s.queued[taken:])
	clear(s.queued[rest:])
	s.queued = s.queued[:rest]
	frames := s.frames(messages, first)
	if !named {
		frames[0].Producer = s.producer
	}
	return frames
}

// frames cuts consecutive messages into frames that the broker takes. A single message of any size is a frame of its own.
func (s *Sender) frames(messages []*pb.Message, first int64) []*pb.SendRequest {
	if len(messages) == 1 {
		return []*pb.SendRequest{{Messages: messages, FirstNumber: first}}
	}
	var frames []*pb.SendRequest
	start, bytes := 0, 0
	for i, m := range messages {
		size := proto.Size(m)
		if i > start && (bytes+size > maxFrameBytes || i-start == maxFrameItems) {
			frames = append(frames, &pb.SendRequest{Messages: messages[start:i], FirstNumber: first + int64(start)})
			start, bytes = i, 0
		}
		bytes += size
	}
	return append(frames, &pb.SendRequest{Messages: messages[start:], FirstNumber: first + int64(start)})
}

// receive reads answers until the stream ends, and returns why it did.
func (s *Sender) receive(stream pb.MessageService_SendClient) error {
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		results, fault := answered(answer.GetResults())
		if len(results) > 0 {
			s.retry.worked()
			s.answer(results)
		}
		if fault != nil {
			return fault
		}
	}
}

// answered returns the results up to the first that says UNAVAILABLE, and that one's error: the broker stops or its disk
// is full, and what it did not take is sent again as if the stream had broken.
func answered(results []*pb.SendResult) ([]*pb.SendResult, error) {
	for i, r := range results {
		if e := r.GetError(); e != nil && codes.Code(e.GetCode()) == codes.Unavailable {
			return results[:i], itemError(0, e)
		}
	}
	return results, nil
}

// answer gives results to the messages in flight, in order.
func (s *Sender) answer(results []*pb.SendResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble = nil
	finished := 0
	for len(results) > 0 && finished < len(s.flight) {
		b := s.flight[finished]
		n := min(len(results), len(b.messages)-len(b.results))
		if b.results == nil && n == len(b.messages) {
			b.results = results[:n:n]
		} else {
			b.results = append(b.results, results[:n]...)
		}
		results = results[n:]
		s.outstanding -= n
		if len(b.results) == len(b.messages) {
			close(b.done)
			finished++
		}
	}
	if finished > 0 {
		rest := copy(s.flight, s.flight[finished:])
		clear(s.flight[rest:])
		s.flight = s.flight[:rest]
	}
	s.wakeWaiting()
}

// dropGivenUp forgets groups in flight that nobody waits for. mu is held.
func (s *Sender) dropGivenUp() {
	kept := s.flight[:0]
	for _, b := range s.flight {
		if b.given {
			s.finish(b, context.Canceled)
		} else {
			kept = append(kept, b)
		}
	}
	clear(s.flight[len(kept):])
	s.flight = kept
}

// fail ends everything that is queued or in flight with err.
func (s *Sender) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range append(s.flight, s.queued...) {
		s.finish(b, err)
	}
	s.flight, s.queued = nil, nil
}
