package top

import (
	"context"
	"sync"

	tea "charm.land/bubbletea/v2"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// A follower sends the frames of one session at a time to the program. Its methods may be called
// concurrently.
type follower struct {
	broker *client.Client
	send   func(tea.Msg)

	mu   sync.Mutex // guards stop
	stop func()     // ends the goroutine and waits for it; nil = there is none
}

// follow sends the frames of a session until ctx ends, or until another one is followed.
func (f *follower) follow(ctx context.Context, session string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stop != nil {
		f.stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	f.stop = func() { cancel(); <-ended }
	go func() { // until stop
		defer close(ended)
		for frame, err := range f.broker.In(session).FollowOverview(ctx, &pb.WatchOverviewRequest{}) {
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				f.send(endMsg{err})
				return
			}
			f.send(frameMsg{frame})
		}
	}()
}

// end ends the goroutine of the follower.
func (f *follower) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stop != nil {
		f.stop()
		f.stop = nil
	}
}
