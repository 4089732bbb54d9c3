package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// queueHold is how long an agent of the folder may have a message to its role before the broker
// delivers it to another agent.
const queueHold = 2 * time.Hour

// retryAfter is how long a worker waits after an error.
const retryAfter = time.Second

// A worker runs one part. Its goroutine is run; end stops it and waits.
type worker struct {
	b           *Bridge
	agent       string
	incarnation int64 // 0 = the part receives no mail
	part        Part
	ctx         context.Context
	cancel      context.CancelFunc
	changed     chan struct{}    // buffered: the folder may have changed
	mail        chan *pb.Message // from the broker
	ended       chan struct{}
}

func newWorker(ctx context.Context, b *Bridge, agent string, incarnation int64, p Part) *worker {
	w := &worker{b: b, agent: agent, incarnation: incarnation, part: p,
		changed: make(chan struct{}, 1), mail: make(chan *pb.Message, 64), ended: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(ctx)
	return w
}

// look makes the worker read its files.
func (w *worker) look() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// end stops the worker and returns when it has ended.
func (w *worker) end() {
	w.cancel()
	<-w.ended
	w.b.Health.forget(w.agent)
}

func (w *worker) run() {
	defer close(w.ended)
	defer w.cancel()
	for !w.do("resume", w.part.Open(w.ctx)) {
		if !w.pause() {
			return
		}
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	defer w.cancel()
	if w.incarnation > 0 {
		readers.Go(w.receive)
	}
	if w.incarnation > 0 && w.b.kind.Queue {
		readers.Go(w.claim)
	}
	var undelivered []*pb.Message
	for {
		more, err := w.part.Collect(w.ctx)
		ok := w.do("read the files", err)
		if len(undelivered) > 0 && w.do("write the mail", w.part.Deliver(w.ctx, undelivered)) {
			undelivered = nil
		}
		switch {
		case !ok || len(undelivered) > 0:
			if !w.pause() {
				return
			}
			fallthrough // mail does not wait for a file that cannot be sent
		case more:
			if len(undelivered) > 0 {
				continue
			}
			select {
			case m := <-w.mail:
				undelivered = w.gather(m)
			default:
			}
		default:
			select {
			case <-w.ctx.Done():
				return
			case <-w.changed:
			case m := <-w.mail:
				undelivered = w.gather(m)
			}
		}
	}
}

// gather returns a message with those that wait behind it.
func (w *worker) gather(m *pb.Message) []*pb.Message {
	all := []*pb.Message{m}
	for len(all) < cap(w.mail) {
		select {
		case m := <-w.mail:
			all = append(all, m)
		default:
			return all
		}
	}
	return all
}

// do reports whether an action succeeded. It logs an error when it first occurs. An error that no
// repetition heals ends the bridge.
func (w *worker) do(action string, err error) bool {
	if err == nil {
		w.b.Health.Note(w.agent, action, nil)
		return true
	}
	if w.ctx.Err() != nil {
		return false
	}
	if final(err) {
		select {
		case w.b.failed <- err:
		default: // another worker has reported it
		}
	}
	if w.b.Health.Note(w.agent, action, err) {
		w.b.Log(fmt.Sprintf("%s of %s: %s; trying again", action, w.name(), Plain(err)))
	}
	return false
}

func (w *worker) name() string {
	return cmp.Or(w.agent, "the folder")
}

// pause waits before the next attempt, and returns false if the worker shall end.
func (w *worker) pause() bool {
	t := time.NewTimer(retryAfter)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// receive reads the agent's mailbox until the worker ends. The open stream keeps the agent alive.
func (w *worker) receive() {
	as := w.b.Broker.As(w.agent).AtIncarnation(w.incarnation)
	for {
		for item, err := range as.Follow(w.ctx, client.FollowOptions{KeepNotices: true}) {
			if !w.do("receive the mail", err) {
				break
			}
			if !w.hand(item.GetMessage()) {
				return
			}
		}
		if !w.pause() { // after another registration, adjust ends the worker
			return
		}
	}
}

// claim takes messages to one agent of the role until the worker ends: one at a time, the next when
// the agent has finished it. After a restart the broker returns the one that the agent still has.
func (w *worker) claim() {
	as := w.b.Broker.As(w.agent).AtIncarnation(w.incarnation)
	for {
		w.do("claim messages for the role", w.claimStream(as))
		if !w.pause() {
			return
		}
	}
}

// claimStream reads one stream to its end.
func (w *worker) claimStream(as *client.Client) error {
	stream, err := as.Messages().Claim(w.ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	err = stream.Send(&pb.ClaimRequest{Open: &pb.ClaimOpen{Consumer: viaBridge,
		Mailboxes: []string{"role:" + w.b.Roster.role(w.agent)}, MaxInFlight: 1,
		ClaimFor: durationpb.New(queueHold), MaxTotal: durationpb.New(queueHold)}})
	for err == nil {
		var frame *pb.ClaimResponse
		if frame, err = stream.Recv(); err != nil {
			break
		}
		for _, c := range append(frame.GetOpened().GetResumed(), frame.GetDeliver().GetClaims()...) {
			if !w.hand(c.GetMessage()) {
				return w.ctx.Err()
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// hand passes a message to the goroutine of the part, and returns false if the worker ends.
func (w *worker) hand(m *pb.Message) bool {
	select {
	case w.mail <- m:
		return true
	case <-w.ctx.Done():
		return false
	}
}
