package bridge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// retryAfter is how long a worker waits after an error.
const retryAfter = time.Second

// A worker runs one part. Its goroutine is run; end stops it and waits.
type worker struct {
	b           *bridge
	agent       string
	incarnation int64 // 0 = the part receives no mail
	part        part
	ctx         context.Context
	cancel      context.CancelFunc
	changed     chan struct{}    // buffered: the folder may have changed
	mail        chan *pb.Message // from the broker
	ended       chan struct{}
}

func newWorker(ctx context.Context, b *bridge, agent string, incarnation int64, p part) *worker {
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
}

func (w *worker) run() {
	defer close(w.ended)
	defer w.cancel()
	for !w.do("resume", w.part.open(w.ctx)) {
		if !w.pause() {
			return
		}
	}
	received := make(chan struct{})
	defer func() { <-received }()
	defer w.cancel()
	if w.incarnation > 0 {
		go func() { defer close(received); w.receive() }()
	} else {
		close(received)
	}
	var undelivered []*pb.Message
	for {
		more, err := w.part.collect(w.ctx)
		ok := w.do("read the files", err)
		if len(undelivered) > 0 && w.do("write the mail", w.part.deliver(w.ctx, undelivered)) {
			undelivered = nil
		}
		switch {
		case !ok || len(undelivered) > 0:
			if !w.pause() {
				return
			}
		case more:
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

// do reports whether an action succeeded, and logs its error.
func (w *worker) do(action string, err error) bool {
	if err != nil && w.ctx.Err() == nil {
		w.b.Log(fmt.Sprintf("%s of %s: %v; trying again", action, w.name(), err))
	}
	return err == nil
}

func (w *worker) name() string {
	if w.agent == "" {
		return "the folder"
	}
	return w.agent
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
	as := w.b.broker.As(w.agent).AtIncarnation(w.incarnation)
	for {
		for item, err := range as.Follow(w.ctx, client.FollowOptions{}) {
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					w.b.Log(fmt.Sprintf("receive the mail of %s: %v", w.agent, err))
				}
				break
			}
			select {
			case w.mail <- item.GetMessage():
			case <-w.ctx.Done():
				return
			}
		}
		if !w.pause() { // after another registration, adjust ends the worker
			return
		}
	}
}
