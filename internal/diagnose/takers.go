package diagnose

import (
	"fmt"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/mail"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// gate is the reason why an agent gets no work, and its time.
type gate struct {
	haltedAt time.Time // zero = it is not halted
	halt     int64     // the directive
	failures int
	until    time.Time // of its open breaker; zero = closed
	openedAt time.Time // the breaker
	probe    int64     // the message on trial
}

// A taker is an agent that may take from a mailbox.
type taker struct {
	directory.Member
	gate
}

// An ability says whether the broker delivers work to a taker.
type ability int

// The abilities, best first.
const (
	able ability = iota
	tripped
	halted
	stopped
	failed
)

// unable says of one taker, and of several, why it gets no work. A breaker closes without an operator, and a
// program is started again.
var unable = [...]struct {
	one, all string
	severity finding.Severity
}{
	tripped: {"the circuit breaker of %s is open", "have an open circuit breaker", finding.Warning},
	halted:  {"%s is halted", "are halted", finding.Error},
	stopped: {"%s has stopped", "have stopped", finding.Warning},
	failed:  {"%s has failed", "have failed", finding.Error},
}

// ability returns why the taker gets no work, if it gets none. A directive passes every gate.
func (t *taker) ability(directive bool, now time.Time) ability {
	switch {
	case t.Health == directory.Failed:
		return failed
	case t.Health == directory.Stopped:
		return stopped
	case directive:
		return able
	case !t.haltedAt.IsZero():
		return halted
	case !t.until.IsZero() && (t.probe != 0 || t.until.After(now)):
		return tripped
	}
	return able
}

// A roster is the registered agents of the session, with the reasons why they get no work.
type roster struct {
	rowReader
	known  bool     // the next fields were read
	agents []*taker // by name
	named  map[string]*taker
	roles  map[string][]*taker // by name
	gates  map[string]gate     // by agent
}

func (x *Examiner) roster(q store.Querier, about finding.Question) roster {
	return roster{rowReader: rowReader{Examiner: x, q: q, about: about}, named: map[string]*taker{},
		roles: map[string][]*taker{}, gates: map[string]gate{}}
}

// loadAgents reads the state of the session's agents, once.
func (r *roster) loadAgents() {
	if r.known || r.err != nil {
		return
	}
	r.known = true
	members, err := r.crew.Members(r.q, r.about.Session)
	r.fail(err)
	type gated struct {
		agent string
		gate
	}
	for _, g := range collect(&r.rowReader, func(g *gated) row {
		return row{&g.agent, &g.haltedAt, &g.halt, &g.failures, &g.until, &g.openedAt, &g.probe}
	}, selectGatesOf, r.about.Session) {
		r.gates[g.agent] = g.gate
	}
	for _, m := range members {
		t := &taker{m, r.gates[m.Name]}
		r.agents, r.named[m.Name], r.roles[m.Role] = append(r.agents, t), t, append(r.roles[m.Role], t)
	}
}

// taker returns the registered agent of a name.
func (r *roster) taker(name string) (t *taker, registered bool) {
	r.loadAgents()
	if t, registered = r.named[name]; !registered {
		t = &taker{}
	}
	return t, registered
}

// takers returns the agents that may take from a mailbox, except one.
func (r *roster) takers(box mail.MailboxRef, mailbox int64, but string) (found []*taker) {
	r.loadAgents()
	names := []string{box.Name}
	switch box.Kind {
	case mail.AgentMailbox:
		but = ""
	case mail.RoleMailbox:
		names = nil
		found = slices.Clone(r.roles[box.Name])
	case mail.ChannelMailbox:
		var err error
		names, err = mail.SubscribersOf(r.q, mailbox)
		r.fail(err)
	}
	for _, name := range names {
		if t, registered := r.named[name]; registered {
			found = append(found, t)
		}
	}
	return slices.DeleteFunc(found, func(t *taker) bool { return t.Name == but })
}

// anyGetsWork reports whether one of the agents gets work, at the latest when its breaker closes.
func (r *roster) anyGetsWork(takers []*taker) bool {
	return slices.ContainsFunc(takers, func(t *taker) bool { return t.ability(false, r.about.Now) < halted })
}

// A prospect says whether an agent will take from a mailbox.
type prospect struct {
	severity finding.Severity // Info: an agent can take from it
	says     string           // why no agent can, such as: no agent has that role
	reasons  []string
	calls    []calls.Call
	takers   []*taker
}

// prospect examines the agents that may take from a mailbox.
func (r *roster) prospect(box mail.MailboxRef, mailbox int64, sender string, directive bool) prospect {
	if box == mail.OperatorMailbox {
		return prospect{severity: finding.Info, reasons: []string{"operators read this mailbox"},
			calls: []calls.Call{inbox()}}
	}
	takers := r.takers(box, mailbox, sender)
	if len(takers) == 0 {
		return r.unserved(box, sender)
	}
	p := prospect{severity: finding.Info, takers: takers}
	rank := func(t *taker) ability { return t.ability(directive, r.about.Now) }
	slices.SortStableFunc(takers, func(a, b *taker) int { return int(rank(a)) - int(rank(b)) })
	best, worst := rank(takers[0]), rank(takers[len(takers)-1])
	if best != able {
		p.severity = unable[best].severity
		if best == stopped && box.Kind == mail.AgentMailbox {
			p.severity = finding.Info // the agent reads its mail when its program runs again
		}
		switch {
		case len(takers) == 1:
			p.says = fmt.Sprintf(unable[best].one, takers[0].Name)
		case best == worst:
			p.says = fmt.Sprintf("all %d agents that may take it %s", len(takers), unable[best].all)
		default:
			p.says = fmt.Sprintf("none of the %d agents that may take it gets work", len(takers))
		}
		for _, t := range takers[:min(len(takers), mostFreed)] {
			p.calls = append(p.calls, r.freeing(t)...)
		}
	}
	for _, t := range takers[:min(len(takers), mostDescribed)] {
		p.reasons = append(p.reasons, r.describe(t, mailbox))
	}
	if more := len(takers) - mostDescribed; more > 0 {
		p.reasons = append(p.reasons, finding.Count(more, "more agent")+" may take from it")
	}
	return p
}

// unserved describes a mailbox that no agent takes from. The calls redirect its mail to the
// nearest name, if one is near.
func (r *roster) unserved(box mail.MailboxRef, sender string) prospect {
	p := prospect{severity: finding.Error}
	noun, others, says := "agent", []string{}, map[string]string{}
	switch box.Kind {
	case mail.RoleMailbox:
		noun, p.says = "role", "no agent has the role "+box.Name
		for role, agents := range r.roles {
			switch {
			case role == box.Name:
				p.says = "no other agent has the role " + box.Name
				p.reasons = append(p.reasons, sender+" sent it; the broker does not deliver a message to its sender")
			case role != "":
				others = append(others, role)
				says[role] = fmt.Sprintf("%s (%s)", role, finding.Count(len(agents), "agent"))
			}
		}
	case mail.ChannelMailbox:
		noun, p.says = "channel", "no other agent subscribes to "+box.Name
		names, err := mail.SubscribedChannels(r.q, r.about.Session)
		r.fail(err)
		for _, name := range names {
			if name != box.Name {
				others, says[name] = append(others, name), name
			}
		}
	default:
		p.says = "no agent " + box.Name + " is registered"
		for _, t := range r.agents {
			others, says[t.Name] = append(others, t.Name), t.Name
		}
	}
	slices.Sort(others)
	near := nearest.Names(box.Name, others[:min(len(others), nearest.Limit)])
	if len(near) == 0 {
		return p
	}
	named := make([]string, len(near))
	for i, name := range near {
		named[i] = says[name]
	}
	if len(near) == 1 {
		p.reasons = append(p.reasons, "the nearest "+noun+" name is "+named[0])
	} else {
		p.reasons = append(p.reasons, "the nearest "+noun+" names are "+finding.Names(named))
	}
	if nearest.Like(box.Name, near[0]) {
		to := mail.MailboxRef{Kind: box.Kind, Name: near[0]}
		p.calls = []calls.Call{calls.Do(&pb.MoveMessagesRequest{From: box.String(), To: to.String()})}
	}
	return p
}

// freeing returns the calls that make an agent take work again, or give its mail to others.
func (r *roster) freeing(t *taker) (free []calls.Call) {
	switch t.ability(false, r.about.Now) {
	case halted:
		return []calls.Call{finding.Direct("resume", agent(t.Name), "")}
	case failed, stopped:
	default:
		return nil
	}
	start, known, err := r.crew.Starting(r.q, r.about.Session, t.Name)
	r.fail(err)
	if known {
		free = append(free, start)
	}
	_, waiting := r.waitingIn(mailboxOf(t.Name))
	if waiting > 0 && t.Role != "" && slices.ContainsFunc(r.roles[t.Role], func(other *taker) bool {
		return other.ability(false, r.about.Now) == able
	}) {
		free = append(free, calls.Do(&pb.MoveMessagesRequest{From: t.Name, To: "role:" + t.Role}))
	}
	if t.Health == directory.Failed {
		free = append(free, calls.Do(&pb.DeregisterAgentRequest{}).As(t.Name))
	}
	return free
}

// describe says of one agent why it does not take the messages of a mailbox.
func (r *roster) describe(t *taker, mailbox int64) string {
	switch {
	case t.Health == directory.Failed:
		return t.Name + " has failed: its lease ended at " + r.about.When(t.FailedAt)
	case t.Health == directory.Stopped:
		return t.Name + " has stopped: its program ended at " + r.about.When(t.StoppedAt) +
			"; its mail waits for its next start"
	case !t.haltedAt.IsZero():
		return t.Name + " is halted since " + r.about.When(t.haltedAt) + ", by directive " + revision(t.halt)
	case !t.until.IsZero():
		return r.breaker(t)
	}
	id := r.mailboxID(mailboxOf(t.Name))
	var claims int64
	r.read(row{&claims}, countHoldersClaims, id)
	asks, full := r.broker.Waiters.Asking(id, mailbox)
	says := t.Name + " does not ask for work"
	switch works := t.Name + " works on " + finding.Count(claims, "message"); {
	case full && claims > 0:
		says = works + ", which is its limit"
	case asks && claims > 0:
		says = works + " and asks for more, but not for this type or priority"
	case asks:
		says = t.Name + " asks for work, but not for this type or priority"
	case claims > 0:
		says = works + " and does not ask for more"
	}
	if t.Health == directory.Late {
		says += "; it is late"
	}
	return says + "; its last call was at " + r.about.When(t.LastSeen)
}

// breaker says in which state an open circuit breaker is.
func (r *roster) breaker(t *taker) string {
	says := "the circuit breaker of " + t.Name + " is open after " + finding.Count(t.failures, "failure") + " in a row"
	switch {
	case t.probe != 0:
		return says + "; message " + revision(t.probe) + " is its probe: an acknowledgement closes the breaker"
	case t.until.After(r.about.Now):
		return says + "; at " + r.about.When(t.until) + " the broker delivers one message to it as a probe"
	}
	return says + "; the next message that it asks for is a probe"
}
