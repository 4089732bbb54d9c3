package admission

import (
	"context"
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"
	"golang.org/x/time/rate"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
)

const (
	// longestWait is how long a call without a deadline waits until it may send.
	longestWait = 30 * time.Second
	// endless is how long a stream waits: it waits until it ends.
	endless = time.Duration(math.MaxInt64)
	// idleAgents is how many agents of a session may have a limiter before idle ones are looked for.
	idleAgents = 64
)

// sendRates let the agents that send faster than their session allows wait. How much an agent may send at once is kept
// in memory: after a restart each agent may send a burst.
type sendRates struct {
	clock    clockwork.Clock
	stopping <-chan struct{} // is closed when those who wait have to stop
	load     func(ctx context.Context, session string) (directory.Session, error)

	mu       sync.RWMutex // guards the fields below
	sessions map[string]*sendRate
	changes  int // counts the calls of change and forget
}

// A sendRate is the rate of one session, with the agents that have sent lately.
type sendRate struct {
	limited atomic.Bool // rate is not 0; it is read first, without the mutex

	mu      sync.Mutex // guards the fields below
	rate    float64    // 0 = no limit
	burst   int
	agents  map[string]*rate.Limiter
	busy    int           // how many agents were left when idle ones were last forgotten
	changed chan struct{} // is closed when rate or burst change
}

func newSendRates(
	clock clockwork.Clock, stopping <-chan struct{}, load func(context.Context, string) (directory.Session, error),
) *sendRates {
	return &sendRates{clock: clock, stopping: stopping, load: load, sessions: map[string]*sendRate{}}
}

// wait returns when the caller may send n messages, at most after the given time. If that is too short, it returns
// fault.Exhausted at once. The calls of an agent are served in their order. An operator without an agent's name need
// not wait.
func (r *sendRates) wait(ctx context.Context, c identity.Caller, n int, most time.Duration) error {
	if c.Agent == "" || n == 0 {
		return nil
	}
	for {
		s, err := r.session(ctx, c.Session)
		if fault.KindOf(err) == fault.NotFound {
			return nil // the send itself is refused for it
		}
		if err != nil {
			return err
		}
		if !s.limited.Load() {
			return nil
		}
		t := s.reserve(c.Agent, n, r.clock.Now(), most)
		if t.wait <= 0 {
			return nil
		}
		if t.wait > most {
			return t.fault(c.Agent, n)
		}
		again, err := r.sleep(ctx, &t)
		if err != nil || again {
			t.cancel(r.clock.Now())
		}
		if !again {
			return err
		}
	}
}

// sleep waits until a reservation begins. It reports whether another must be made because the rate has changed.
func (r *sendRates) sleep(ctx context.Context, t *reservation) (again bool, err error) {
	timer := r.clock.NewTimer(t.wait)
	defer timer.Stop()
	select {
	case <-timer.Chan():
		return false, nil
	case <-t.changed:
		return true, nil
	case <-r.stopping:
		return false, fault.Stopping()
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// session returns the rate of a session.
func (r *sendRates) session(ctx context.Context, name string) (*sendRate, error) {
	r.mu.RLock()
	s, changes := r.sessions[name], r.changes
	r.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	session, err := r.load(ctx, name)
	if err != nil {
		return nil, err
	}
	if session.Closed() {
		return &sendRate{}, nil // the send itself is refused for it
	}
	fresh := &sendRate{
		rate: session.Settings.GetSendRate(), burst: int(session.Settings.GetSendBurst()),
		agents: map[string]*rate.Limiter{}, changed: make(chan struct{}),
	}
	fresh.limited.Store(fresh.rate > 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	if s = r.sessions[name]; s != nil {
		return s, nil
	}
	if r.changes == changes { // otherwise the loaded settings may be older than the change
		r.sessions[name] = fresh
	}
	return fresh, nil
}

// change takes note of a session's settings. Those who wait reserve again.
func (r *sendRates) change(session directory.Session) {
	r.mu.Lock()
	r.changes++
	s := r.sessions[session.Name]
	r.mu.Unlock()
	if s != nil {
		s.change(session.Settings.GetSendRate(), int(session.Settings.GetSendBurst()), r.clock.Now())
	}
}

// forget takes note that a session is closed. Those who wait continue at once, and their sends are refused. A closed
// session is not kept, because another session may have its name after it is deleted.
func (r *sendRates) forget(session string) {
	r.mu.Lock()
	r.changes++
	s := r.sessions[session]
	delete(r.sessions, session)
	r.mu.Unlock()
	if s != nil {
		s.change(0, 0, r.clock.Now())
	}
}

func (s *sendRate) change(to float64, burst int, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rate == to && s.burst == burst {
		return
	}
	s.rate, s.burst = to, burst
	s.limited.Store(to > 0)
	if to == 0 {
		clear(s.agents)
	}
	for _, l := range s.agents {
		l.SetLimitAt(now, rate.Limit(to))
		l.SetBurstAt(now, burst)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// A reservation is a time from which one agent may send.
type reservation struct {
	wait    time.Duration
	changed <-chan struct{}
	rate    float64
	burst   int
	parts   []*rate.Reservation
}

// reserve makes the next reservation for n messages. If the wait would be longer than most, it makes none: a refused
// send must not delay the sends after it, and the limiter restores a canceled reservation only in part.
func (s *sendRate) reserve(agent string, n int, now time.Time, most time.Duration) reservation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rate == 0 {
		return reservation{}
	}
	l := s.agents[agent]
	if l == nil {
		s.forgetIdle(now)
		l = rate.NewLimiter(rate.Limit(s.rate), s.burst)
		s.agents[agent] = l
	}
	if n <= s.burst && l.AllowN(now, n) {
		return reservation{}
	}
	t := reservation{changed: s.changed, rate: s.rate, burst: s.burst}
	t.wait = time.Duration((float64(n) - l.TokensAt(now)) / s.rate * float64(time.Second))
	if t.wait > most {
		return t
	}
	for n > 0 { // a limiter gives no more than a burst at a time
		part := l.ReserveN(now, min(n, s.burst))
		t.parts = append(t.parts, part)
		t.wait = part.DelayFrom(now)
		n -= s.burst
	}
	return t
}

// forgetIdle forgets the agents that may send a whole burst, as a new agent may, because they have not sent for long.
func (s *sendRate) forgetIdle(now time.Time) {
	if len(s.agents) < 2*s.busy+idleAgents {
		return
	}
	for name, l := range s.agents {
		if l.TokensAt(now) >= float64(s.burst) {
			delete(s.agents, name)
		}
	}
	s.busy = len(s.agents)
}

// cancel ends the reservation. It begins with the last part, because the limiter restores a part wholly only if nothing
// was reserved after it.
func (t *reservation) cancel(now time.Time) {
	for i := len(t.parts) - 1; i >= 0; i-- {
		t.parts[i].CancelAt(now)
	}
}

func (t *reservation) fault(agent string, n int) error {
	wait := t.wait.Round(time.Millisecond)
	e := fault.New(fault.Exhausted, "SEND_RATE",
		"%s may send %v messages a second, and %d at once after a pause (session settings send_rate and send_burst); "+
			"for %d the wait would be %v: send later, or fewer, or allow the call more time", agent, t.rate, t.burst, n, wait)
	e.RetryAfter = t.wait
	return e.With("limit", "send_rate").With("send_rate", strconv.FormatFloat(t.rate, 'g', -1, 64)).
		With("send_burst", strconv.Itoa(t.burst))
}
