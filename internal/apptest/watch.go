package apptest

import (
	"context"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
)

// watchEvery is how often watch examines the broker. That takes microseconds as long as no consumer waits.
const watchEvery = 10 * time.Millisecond

// Unwatch ends the search for sleeping mailboxes until the next start. It is for tests that keep dispatch from its work, and
// for those that count what the broker does.
func (b *Broker) Unwatch() { b.unwatch() }

// watch examines the running broker for sleeping mailboxes, again and again: the consumers that wait end with the test,
// before a check at its end. If it finds one, the test fails, and the broker is cut off, so that the test does not wait
// for what does not come.
func (b *Broker) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	running := b.app
	var done sync.WaitGroup
	b.unwatch = func() {
		cancel()
		done.Wait()
	}
	done.Go(func() {
		ticker := clockwork.NewRealClock().NewTicker(watchEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.Chan():
			}
			problems, _ := running.SleepingMailboxes(ctx) // a broker that cannot read fails the calls of the test
			if len(problems) == 0 {
				continue
			}
			for _, problem := range problems {
				b.Errorf("sleeping mailbox: %s", problem)
			}
			b.sleeps = true
			b.mu.Lock()
			for _, conn := range b.conns {
				_ = conn.Close()
			}
			b.mu.Unlock()
			cancel()
			_ = running.Stop(ctx) // end reports what it returns
			return
		}
	})
}
