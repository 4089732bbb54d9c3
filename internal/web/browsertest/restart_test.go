package browsertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

func TestRestart_PageSaysSoResumesAndMissesNothing(t *testing.T) {
	t.Parallel()
	m := newTeam(t)
	r := newRelay(t, m.TCP())
	m.publish("before the restart")
	p := openAt(m, r.base(), operator, "timeline")
	p.await(`has(row(a), a)`, "before the restart")

	r.to("")
	m.Restart(func() {
		p.await(`shown(one('[data-banner="broken"]'))`)
		p.await(`has(row(a), a)`, "before the restart") // the last frame
	})
	const missed = 100 // more than a frame has
	for i := range missed {
		m.publish(fmt.Sprintf("missed %03d.", i))
	}
	r.to(m.TCP())
	p.await(`one('[data-connection="live"]') && !one('[data-banner]')`)
	for _, i := range []int{missed - 1, missed / 2, 0} {
		text := fmt.Sprintf("missed %03d.", i)
		p.await(`reach(a)`, text)
	}
	p.await(`reach(a)`, "before the restart")
}

// A relay forwards connections from one address to another, which may change. It keeps its address
// while the broker is down.
type relay struct {
	t        testing.TB
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	target string     // "" = the relay closes every connection
	open   map[net.Conn]bool
}

func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, listener: listener, target: target, open: map[net.Conn]bool{}}
	r.running.Go(r.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		r.to("")
		r.running.Wait()
	})
	return r
}

// base returns the URL of the relay.
func (r *relay) base() string { return "http://" + r.listener.Addr().String() }

// to changes the target. Existing connections end.
func (r *relay) to(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
	for c := range r.open {
		_ = c.Close()
	}
	clear(r.open)
}

func (r *relay) serve() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() { r.forward(from) })
	}
}

// forward copies both directions of a connection until one of them ends.
func (r *relay) forward(from net.Conn) {
	defer from.Close() //nolint:errcheck // its end is the only signal to the client
	r.mu.Lock()
	target := r.target
	if target == "" {
		r.mu.Unlock()
		return
	}
	r.open[from] = true
	r.mu.Unlock()
	onward, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(onward, from)
		_ = onward.Close()
	})
	_, _ = io.Copy(from, onward)
	_ = from.Close()
	both.Wait()
	r.mu.Lock()
	delete(r.open, from)
	r.mu.Unlock()
}
