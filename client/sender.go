package client

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"

	pb "brokerd/gen/brokerd/v1"
)

// DefaultWindow is how many messages a Sender has unconfirmed at most, unless told otherwise.
const DefaultWindow = 1024

// ErrSenderClosed is what a Sender answers after Close.
var ErrSenderClosed = errors.New("the sender is closed")

// A Sender sends messages over one stream without waiting for one answer before the next message. What is not
// confirmed when the stream breaks is sent again on the next one; a producer name and ascending numbers make the broker recognise
// what it has already. Messages sent from one goroutine keep their order.
//
// A Sender is safe for concurrent use, and concurrent sends share the stream's frames. It needs Close.
type Sender struct {
	calls    pb.MessageServiceClient
	producer string
	window   int
	retry    retry
	stop     context.CancelFunc
	done     chan struct{} // closed when run has returned
	wake     chan struct{} // buffered: something was queued

	writing sync.Mutex // held while writing to the stream, so that numbers ascend on it; taken before mu

	mu          sync.Mutex
	stream      pb.MessageService_SendClient // nil while there is none to write to
	queued      []*group                     // not yet written to the present stream; all their numbers are above those in flight
	flight      []*group                     // written and not fully answered, in order
	number      int64                        // of the last message numbered
	outstanding int                          // messages queued or in flight
	freed       chan struct{}                // closed and replaced when outstanding shrinks; nil if no call waits
	trouble     error                        // why the last stream ended; nil once the next one answers
	closed      bool
}

// SenderOptions tune a Sender; the zero value is fine.
type SenderOptions struct {
	// Window is how many messages may be unconfirmed at the same time; further sends wait. 0 = DefaultWindow.
	Window int
	// Producer names the source of the messages; one stream at a time may use it. Empty = a random name, which
	// is right unless the caller numbers its messages itself.
	Producer string
	// NextNumber is the number of the first message, 0 = 1. With a Producer of its own a program that
	// remembers its numbers goes on after a crash without sending anything twice.
	NextNumber int64
}

// group is messages that are confirmed together.
type group struct {
	messages []*pb.Message
	first    int64 // number of messages[0]; 0 until the first write
	results  []*pb.SendResult
	err      error         // why there are fewer results than messages
	done     chan struct{} // closed when everything is answered, or err set
	given    bool          // nobody waits any more: not to be sent again
}

// A Confirmation is the outcome of SendAsync, now or later. It is safe for concurrent use.
type Confirmation struct {
	s *Sender
	b *group
}

// NewSender returns a Sender for the client's agent. Its stream is opened when there is something to send.
func (c *Client) NewSender(o SenderOptions) *Sender {
	ctx, stop := context.WithCancel(context.Background())
	s := &Sender{
		calls:    c.Messages(),
		producer: o.Producer,
		window:   o.Window,
		retry:    retry{link: c.link},
		stop:     stop,
		done:     make(chan struct{}),
		wake:     make(chan struct{}, 1),
	}
	if s.producer == "" {
		s.producer = uuid.NewString()
	}
	if s.window <= 0 {
		s.window = DefaultWindow
	}
	if o.NextNumber > 0 {
		s.number = o.NextNumber - 1
	}
	go s.run(ctx)
	return s
}

// Send sends a message and returns once it is confirmed: it is on disk. A message that the broker refuses is
// an *ItemError. While the broker is away Send waits, as long as ctx lets it; if ctx ends before the confirmation
// the message may have been sent or not. The message must not be changed before Send returns.
func (s *Sender) Send(ctx context.Context, m *pb.Message) (*pb.SendResult, error) {
	confirmation, err := s.SendAsync(ctx, m)
	if err != nil {
		return nil, err
	}
	return confirmation.Wait(ctx)
}

// SendAsync hands a message over and returns without waiting for its confirmation. It waits only for capacity in
// the window. The message must not be changed before it is confirmed.
func (s *Sender) SendAsync(ctx context.Context, m *pb.Message) (*Confirmation, error) {
	b, err := s.enqueue(ctx, []*pb.Message{m})
	if err != nil {
		return nil, err
	}
	return &Confirmation{s: s, b: b}, nil
}

// SendBatch sends messages and returns once all are answered, with one result each in order. Refused ones have
// their error in the result, and the returned error is then a *BatchError that lists them. If ctx or
// the stream ends it early, the results so far are returned with that error; the rest may have been sent or not.
func (s *Sender) SendBatch(ctx context.Context, messages []*pb.Message) ([]*pb.SendResult, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	var batches []*group
	var failed error
	for rest := messages; len(rest) > 0 && failed == nil; {
		n := min(len(rest), s.window, maxFrameItems)
		var b *group
		if b, failed = s.enqueue(ctx, rest[:n]); failed == nil {
			batches = append(batches, b)
			rest = rest[n:]
		}
	}
	results := make([]*pb.SendResult, 0, len(messages))
	for _, b := range batches {
		got, err := s.await(ctx, b)
		results = append(results, got...)
		if err != nil {
			s.giveUp(batches)
			return results, err
		}
	}
	if failed != nil {
		return results, failed
	}
	var refused []*ItemError
	for i, r := range results {
		if e := itemError(i, r.GetError()); e != nil {
			refused = append(refused, e)
		}
	}
	if len(refused) > 0 {
		return results, &BatchError{Items: refused, Of: len(messages)}
	}
	return results, nil
}

// Close ends the Sender; messages not yet confirmed fail with ErrSenderClosed, and may have been sent or not. To lose none, wait for the
// confirmations first. Closing twice is fine.
func (s *Sender) Close() {
	s.mu.Lock()
	s.closed = true
	s.wakeWaiting()
	s.mu.Unlock()
	s.stop()
	<-s.done
}

// Producer returns the name under which the broker recognises this Sender's messages.
func (s *Sender) Producer() string { return s.producer }

// Done is closed once the outcome is known; Wait then returns at once.
func (c *Confirmation) Done() <-chan struct{} { return c.b.done }

// Wait waits for the outcome, which is as Send returns it. If ctx ends first, the message is not sent again should the
// stream break, and may have been sent or not.
func (c *Confirmation) Wait(ctx context.Context) (*pb.SendResult, error) {
	results, err := c.s.await(ctx, c.b)
	if err != nil {
		c.s.giveUp([]*group{c.b})
		return nil, err
	}
	if e := itemError(0, results[0].GetError()); e != nil {
		return nil, e
	}
	return results[0], nil
}

// Number returns the message's number under the Sender's Producer; 0 while it was not yet written.
func (c *Confirmation) Number() int64 {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.b.first
}

// enqueue waits for capacity, queues the messages, and writes them out if there is a stream.
func (s *Sender) enqueue(ctx context.Context, messages []*pb.Message) (*group, error) {
	b := &group{messages: s.retry.link.traced(ctx, messages), done: make(chan struct{})}
	s.mu.Lock()
	for {
		if s.closed {
			s.mu.Unlock()
			return nil, ErrSenderClosed
		}
		if s.outstanding == 0 || s.outstanding+len(messages) <= s.window {
			break
		}
		if s.freed == nil {
			s.freed = make(chan struct{})
		}
		freed := s.freed
		s.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		s.mu.Lock()
	}
	s.outstanding += len(messages)
	s.queued = append(s.queued, b)
	connected := s.stream != nil
	s.mu.Unlock()
	if connected {
		s.flush()
	} else {
		s.nudge()
	}
	return b, nil
}

// await returns the results of a group, or those there are and why not all.
func (s *Sender) await(ctx context.Context, b *group) ([]*pb.SendResult, error) {
	select {
	case <-b.done:
		return b.results, b.err
	default:
	}
	select {
	case <-b.done:
		return b.results, b.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		err := ctx.Err()
		if s.trouble != nil {
			err = fmt.Errorf("%w while the broker could not be reached: %v", err, s.trouble) //nolint:errorlint // only ctx's error is the caller's to match
		}
		return append([]*pb.SendResult(nil), b.results...), err
	}
}

// giveUp notes that nobody waits for these groups: what was never written leaves the queue, and the rest is not sent again.
func (s *Sender) giveUp(batches []*group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range batches {
		b.given = true
	}
	kept := s.queued[:0]
	for _, b := range s.queued {
		if b.given {
			s.finish(b, context.Canceled)
		} else {
			kept = append(kept, b)
		}
	}
	clear(s.queued[len(kept):])
	s.queued = kept
}

// finish closes a group that is in neither list any more. mu is held.
func (s *Sender) finish(b *group, err error) {
	b.err = err
	s.outstanding -= len(b.messages) - len(b.results)
	close(b.done)
	s.wakeWaiting()
}

// wakeWaiting wakes the callers that wait for capacity. mu is held.
func (s *Sender) wakeWaiting() {
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
}

// nudge tells run that there is something to send.
func (s *Sender) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
