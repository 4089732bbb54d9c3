package broker_test

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// A model says what the broker must do, in the plainest way: a list of deliveries, gone through
// from the front for every question.
type model struct {
	now     time.Time
	ageing  time.Duration
	limit   int // of a mailbox, 0 = none
	agents  map[string]*member
	parcels []*parcel // in the order of sending

	breaker  int // failures in a row that open one, 0 = none
	barriers map[string]*barrier
}

// breakerTime is how long a breaker stays open.
const breakerTime = 20 * time.Second

// A member is an agent that has registered at least once.
type member struct {
	role       string
	registered bool
	channels   map[string]bool
}

// atRest is the state of a parcel that is neither claimed nor finished: PENDING, DELAYED or BLOCKED.
const atRest = pb.DeliveryState_DELIVERY_STATE_UNSPECIFIED

// A parcel is one delivery.
type parcel struct {
	message  int64
	id       string
	box      string
	sender   string
	kind     string
	priority int
	key      string
	sent     time.Time
	expires  time.Time // zero = never
	most     int       // attempts

	state    pb.DeliveryState
	turn     bool // no other delivery of its ordering key is before it
	visible  bool // has ever been ready, or could have been but for its ordering key
	gone     bool // was in the mailbox of an agent that deregistered
	attempts int
	claims   int
	history  int
	holder   string // of the last claim
	consumer string
	acker    string
	lasts    time.Duration // of the last claim
	until    time.Time     // the claim runs out
	due      time.Time
	spread   time.Duration // > 0: due is about that long before or after what is said
}

// GoString is how a failing history names it.
func (p *parcel) GoString() string { return strconv.FormatInt(p.message, 10) + " in " + p.box }

func (m *model) state(p *parcel) pb.DeliveryState {
	switch {
	case p.state != atRest:
		return p.state
	case !p.turn:
		return blocked
	case p.due.After(m.now):
		return delayed
	}
	return pending
}

func (p *parcel) unfinished() bool {
	return p.state == atRest || p.state == claimed
}

func (p *parcel) claimed() bool { return p.state == claimed }

func (p *parcel) queue() bool { return strings.Contains(p.box, ":") }

func (p *parcel) claimID() string {
	if p.claims == 0 {
		return ""
	}
	return strconv.FormatInt(p.message, 10) + "." + strconv.Itoa(p.claims)
}

// rank is where it stands in its mailbox: smaller is sooner.
func (m *model) rank(p *parcel) int64 {
	if p.directive() {
		return p.directRank()
	}
	if m.ageing == 0 {
		return int64(-p.priority)
	}
	return p.sent.UnixNano() - int64(p.priority)*int64(m.ageing)
}

func (m *model) registered(name string) bool {
	return m.agents[name] != nil && m.agents[name].registered
}

// matching returns the registered agents that a question holds for, by name.
func (m *model) matching(takes func(name string, a *member) bool) []string {
	var names []string
	for name, a := range m.agents {
		if a.registered && takes(name, a) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// route returns the mailboxes that a message goes to; false if there must be somebody and is not.
func (m *model) route(sender string, msg *pb.Message) (boxes []string, ok bool) {
	one := msg.Reach == pb.Reach_REACH_ONE
	var names []string
	needed := true
	switch to := msg.Target.To.(type) {
	case *pb.Target_Agent:
		return []string{to.Agent}, m.registered(to.Agent)
	case *pb.Target_Role:
		if one || msg.Reach == pb.Reach_REACH_UNSPECIFIED {
			return []string{"role:" + to.Role}, true
		}
		names = m.matching(func(_ string, a *member) bool { return a.role == to.Role })
	case *pb.Target_Channel:
		if one {
			return []string{"channel:" + to.Channel}, true
		}
		names, needed = m.matching(func(_ string, a *member) bool { return a.channels[to.Channel] }), false
	case *pb.Target_Pattern:
		names = m.matching(func(name string, _ *member) bool {
			fits, _ := path.Match(to.Pattern, name)
			return fits
		})
	case *pb.Target_Everyone:
		names, needed = m.matching(func(string, *member) bool { return true }), false
	}
	ok = len(names) > 0 || !needed
	return slices.DeleteFunc(names, func(name string) bool { return name == sender }), ok
}

// full reports whether a mailbox takes nothing more.
func (m *model) full(box string) bool {
	n := 0
	for _, p := range m.parcels {
		if p.box == box && p.state == atRest {
			n++
		}
	}
	return m.limit > 0 && n >= m.limit
}

// put adds a delivery, and waits behind the others of its ordering key.
func (m *model) put(p *parcel) {
	p.visible = p.due.IsZero()
	p.turn = m.alone(p)
	m.parcels = append(m.parcels, p)
}

// alone reports whether nothing else with its ordering key is unfinished.
func (m *model) alone(p *parcel) bool {
	return p.key == "" || !slices.ContainsFunc(m.parcels, func(o *parcel) bool {
		return o != p && o.box == p.box && o.key == p.key && o.unfinished()
	})
}

// finish ends a delivery; the first of its ordering key that is left has the next turn.
func (m *model) finish(p *parcel, state pb.DeliveryState) {
	had := p.turn
	p.state, p.turn = state, false
	if p.key == "" || !had {
		return
	}
	for _, o := range m.parcels {
		if o.box == p.box && o.key == p.key && o.unfinished() {
			o.turn = true
			m.look()
			return
		}
	}
}

// restore puts a claimed delivery back, or expires it.
func (m *model) restore(p *parcel, due time.Time, spread time.Duration) {
	p.state, p.due, p.spread = atRest, due, spread
	if !p.expires.IsZero() && !p.expires.After(m.now) {
		m.finish(p, expired)
	}
}

// fail counts an attempt. Without a delay it waits 1 s × 2ⁿ⁻¹, a quarter more or less.
func (m *model) fail(p *parcel, fatal bool, delay *time.Duration) {
	p.attempts++
	p.history++
	if fatal || p.attempts >= p.most {
		m.finish(p, dead)
		return
	}
	if delay != nil {
		m.restore(p, m.now.Add(*delay), 0)
		return
	}
	wait := min(time.Second<<(p.attempts-1), 5*time.Minute)
	m.restore(p, m.now.Add(wait), wait/4+1)
}

// reachable returns the mailboxes that an agent takes from.
func (m *model) reachable(agent string) []string {
	a := m.agents[agent]
	boxes := []string{agent}
	if a.role != "" {
		boxes = append(boxes, "role:"+a.role)
	}
	for channel := range a.channels {
		boxes = append(boxes, "channel:"+channel)
	}
	return boxes
}

// A wish is what an agent claims.
type wish struct {
	agent, consumer string
	boxes           []string
	kinds           []string
	lowest          int
	most            int
	lasts           time.Duration
}

// claim returns what the agent holds and gets, in order, and how many of these it held before.
func (m *model) claim(w wish) (claims []*parcel, resumed int) {
	for _, p := range m.parcels {
		if p.claimed() && p.holder == w.agent && p.consumer == w.consumer && len(claims) < w.most {
			claims = append(claims, p)
		}
	}
	resumed = len(claims)
	var ready []*parcel
	for _, p := range m.parcels {
		if m.state(p) == pending && slices.Contains(w.boxes, p.box) &&
			!(p.queue() && p.sender == w.agent) && p.priority >= w.lowest &&
			(len(w.kinds) == 0 || slices.Contains(w.kinds, p.kind)) {
			ready = append(ready, p)
		}
	}
	slices.SortStableFunc(ready, func(a, b *parcel) int { return cmp.Compare(m.rank(a), m.rank(b)) })
	ready, probe := m.passing(w.agent, ready)
	for _, p := range ready[:min(len(ready), w.most-resumed)] {
		if p == probe {
			m.barrier(w.agent).probe = p
		}
		p.state, p.holder, p.consumer = claimed, w.agent, w.consumer
		p.claims++
		p.lasts, p.until, p.due = w.lasts, m.now.Add(w.lasts), time.Time{}
		claims = append(claims, p)
	}
	return claims, resumed
}

// A naming is how a caller names a delivery: by claim, by message, or not at all.
type naming struct {
	text    string
	message int64 // 0 = the caller's only claim
	claim   int   // 0 = not by claim
}

const claimLost = "CLAIM_LOST"

// find returns the delivery that an agent means, or why there is none.
func (m *model) find(agent string, n naming) (*parcel, string) {
	if n.message == 0 {
		var open []*parcel
		for _, p := range m.parcels {
			if p.claimed() && p.holder == agent {
				open = append(open, p)
			}
		}
		switch len(open) {
		case 0:
			return nil, "NO_OPEN_CLAIM"
		case 1:
			return open[0], ""
		}
		return nil, "SEVERAL_OPEN_CLAIMS"
	}
	for _, p := range m.parcels {
		// A message has one target, so at most one delivery of it is the agent's.
		if p.message == n.message && (p.box == agent || p.holder == agent) {
			if n.claim != 0 && (p.holder != agent || p.claims != n.claim) {
				return nil, claimLost
			}
			return p, ""
		}
	}
	return nil, claimLost
}

// ack finishes a delivery: a claimed one, one that was claimed and nobody since, or own mail.
func (m *model) ack(agent string, n naming) (*parcel, string) {
	p, refused := m.find(agent, n)
	switch {
	case refused != "":
		return nil, refused
	case p.state == cancelled:
		return nil, claimLost
	case p.state != acked:
		if p.claims > 0 && p.holder == agent {
			m.succeeded(p)
		}
		if p.claims > 0 {
			p.holder = agent
		}
		p.acker = agent
		m.finish(p, acked)
	}
	return p, ""
}

// held returns a delivery that the agent has claimed and not lost.
func (m *model) held(agent string, n naming) (*parcel, string) {
	p, refused := m.find(agent, n)
	if refused == "" && !(p.claimed() && p.holder == agent) {
		return nil, claimLost
	}
	return p, refused
}

// all does several things, or none of them if one is refused.
func (m *model) all(do ...func() string) string {
	before := make([]parcel, len(m.parcels))
	for i, p := range m.parcels {
		before[i] = *p
	}
	barriers := map[string]barrier{}
	for agent, b := range m.barriers {
		barriers[agent] = *b
	}
	for _, f := range do {
		if refused := f(); refused != "" {
			for i, p := range m.parcels {
				*p = before[i]
			}
			for agent, b := range barriers {
				*m.barrier(agent) = b
			}
			return refused
		}
	}
	return ""
}

// cancel withdraws what waits of a message, and returns how many deliveries that are, and are not.
func (m *model) cancel(message int64) (withdrawn, kept int) {
	for _, p := range m.parcels {
		switch {
		case p.message != message:
		case p.state == atRest:
			m.finish(p, cancelled)
			withdrawn++
		default:
			kept++
		}
	}
	return withdrawn, kept
}

// where returns the deliveries that a question holds for.
func (m *model) where(takes func(*parcel) bool) []*parcel {
	var found []*parcel
	for _, p := range m.parcels {
		if takes(p) {
			found = append(found, p)
		}
	}
	return found
}

// redrive puts a dead letter back.
func (m *model) redrive(p *parcel) {
	p.state, p.attempts, p.due, p.spread, p.visible = atRest, 0, time.Time{}, 0, true
	p.turn = m.alone(p)
	if !p.expires.After(m.now) {
		p.expires = time.Time{}
	}
}

// deregister ends a registration.
func (m *model) deregister(agent string) {
	a := m.agents[agent]
	a.registered, a.channels = false, map[string]bool{}
	delete(m.barriers, agent)
	for _, p := range m.parcels {
		if p.claimed() && p.holder == agent {
			m.restore(p, time.Time{}, 0)
		}
	}
	for _, p := range m.parcels {
		if p.box == agent && p.state == atRest {
			p.state, p.turn = dead, false
			if !p.gone {
				p.history++
			}
			p.gone = true
		}
	}
}

// restart gives running claims their time again, and a grace.
func (m *model) restart() {
	for _, p := range m.parcels {
		if p.claimed() {
			p.until = m.now.Add(p.lasts + 30*time.Second)
		}
	}
}

// next returns the earliest time, before a given one, at which something happens by itself.
func (m *model) next(before time.Time) time.Time {
	consider := func(at time.Time) {
		if at.After(m.now) && at.Before(before) {
			before = at
		}
	}
	for _, p := range m.parcels {
		if p.claimed() {
			consider(p.until)
		}
		if p.state == atRest {
			consider(p.due)
			consider(p.expires)
		}
	}
	return before
}

// advance lets the clock be at a time that is no later than next.
func (m *model) advance(to time.Time) {
	m.now = to
	for _, p := range m.parcels {
		if p.claimed() && !p.until.After(to) {
			m.fail(p, false, nil)
			m.strike(p)
		}
	}
	for _, p := range m.parcels {
		if p.state == atRest && !p.expires.IsZero() && !p.expires.After(to) {
			m.finish(p, expired)
		}
	}
}

// look notes what has become visible. It is called after every step.
func (m *model) look() {
	for _, p := range m.parcels {
		p.visible = p.visible || m.state(p) == pending
	}
}
