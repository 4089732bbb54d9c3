package broker

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// From when on something is worth telling of without being asked.
const (
	slowMail    = 15 * time.Minute // that the first in a line waits, though somebody alive serves it
	longClaim   = 30 * time.Minute // that a claim is held
	lateClaim   = time.Minute      // that a claim is held by an agent that is late
	longBlocked = 10 * time.Minute // that a message waits behind another of its ordering key
	nearlyFull  = 9                // tenths of what a mailbox may hold
)

// How much one answer looks at.
const (
	mostDeliveries = 100  // of one message
	mostBoxes      = 1000 // the fullest
	mostOrderings  = 100  // ordering keys of a mailbox, in each of the mostKeyed fullest
	mostKeyed      = 100
	mostOfAKind    = 20     // findings of one kind
	mostBefore     = 10_000 // messages before another, or with its ordering key
	mostServers    = 10     // that one finding tells of
)

// A Crew knows the health of the agents of a session, and counts their messages.
type Crew interface {
	// Members returns the registered agents of a session, by name.
	Members(q store.Querier, session int64) ([]Member, error)
	// Registering returns the command that registers an agent again, as it described itself last.
	Registering(q store.Querier, session int64, agent string) (finding.Command, error)
	// Worked counts messages that an agent has sent, received and processed. The broker calls it in
	// the writer, after the commit.
	Worked(session, agent string, sent, received, processed int)
}

// worked counts messages of an agent. It runs after the commit.
func (b *Broker) worked(a actor, sent, received, processed int) {
	if b.crew != nil && !a.system() {
		b.crew.Worked(a.session.Name, a.Name, sent, received, processed)
	}
}

// Health is what is thought of an agent. The breaker is no part of it: that is known here.
type Health int

// The states of health.
const (
	Alive  Health = iota
	Late          // it was not heard of for too long
	Failed        // its lease is over
)

// A Member is a registered agent with how it is.
type Member struct {
	Agent
	Health   Health
	LastSeen time.Time
	FailedAt time.Time // zero unless it has failed
}

// UseCrew plugs in who knows how agents are; without it all are well. It must be called before the broker is used.
func (b *Broker) UseCrew(c Crew) { b.crew = c }

// Explain tells why messages are stuck, of the subject or of the whole session. It returns nothing about what it does not
// know. Errors: fault.NotFound for a message that does not exist, fault.Invalid for what is no id.
func (b *Broker) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	e := explaining{Broker: b, q: q, about: about, gates: map[string]gating{}}
	var err error
	switch about.Kind {
	case finding.Message:
		err = e.message()
	case finding.Agent:
		err = e.ofAgent()
	case finding.Role:
		err = e.ofRole()
	case finding.Everything:
		err = e.everything()
	}
	if err != nil {
		return nil, fmt.Errorf("explain messages: %w", err)
	}
	return e.found, nil
}

// explaining is the work of one answer.
type explaining struct {
	*Broker
	q     store.Querier
	about finding.Question
	found []finding.Finding

	heldUp int // ordering keys that were told of

	known   bool // what follows was read
	members []Member
	gates   map[string]gating // by agent
}

// gating is what stands in the way of an agent, and since when.
type gating struct {
	haltedAt time.Time // zero = it is not
	halt     int64     // the directive
	failures int
	until    time.Time // of its open breaker; zero = closed
	openedAt time.Time // the breaker
	probe    int64     // the message on trial
}

func (e *explaining) add(f finding.Finding) { e.found = append(e.found, f) }

// agents reads how the agents of the session are, once.
func (e *explaining) agents() error {
	if e.known {
		return nil
	}
	e.known = true
	var err error
	if e.crew != nil {
		if e.members, err = e.crew.Members(e.q, e.about.Session); err != nil {
			return err
		}
	}
	rows := e.q.Query(selectGatesOf, e.about.Session)
	for rows.Next() {
		var name string
		var g gating
		if err := rows.Scan(&name, &g.haltedAt, &g.halt, &g.failures, &g.until, &g.openedAt, &g.probe); err != nil {
			return err
		}
		e.gates[name] = g
	}
	return rows.Err()
}

// A server is an agent that may take from a mailbox.
type server struct {
	Member
	gating
}

// able reports whether anything is handed out to it: a directive passes its gate.
func (s *server) able(directive bool, now time.Time) bool {
	return s.Health != Failed && (directive || s.haltedAt.IsZero() && (s.until.IsZero() || s.probe == 0 && !s.until.After(now)))
}

// serving returns who may take from a mailbox, but for one.
func (e *explaining) serving(box mailboxRef, mailbox int64, but string) ([]server, error) {
	if err := e.agents(); err != nil {
		return nil, err
	}
	var subscribed map[string]bool
	if box.kind == channelBox {
		subscribed = map[string]bool{}
		rows := e.q.Query(selectSubscribers, mailbox)
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return nil, err
			}
			subscribed[name] = true
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	var found []server
	for _, m := range e.members {
		serves := m.Name == box.name
		switch box.kind {
		case roleBox:
			serves = m.Role == box.name && m.Name != but
		case channelBox:
			serves = subscribed[m.Name] && m.Name != but
		}
		if serves {
			found = append(found, server{m, e.gates[m.Name]})
		}
	}
	return found, nil
}

// A standing says how those are who could take what waits in a mailbox.
type standing struct {
	severity finding.Severity // Info: somebody can take it
	says     string           // after "and": nobody has that role
	reasons  []string
	commands []finding.Command
}

// standing looks at all who may take from a mailbox.
func (e *explaining) standing(box mailboxRef, mailbox int64, sender string, directive bool) (standing, error) {
	servers, err := e.serving(box, mailbox, sender)
	if err != nil {
		return standing{}, err
	}
	if len(servers) == 0 {
		return e.unserved(box, sender)
	}
	st := standing{severity: finding.Info}
	var able, failed, halted []string
	open := false
	for i := range servers {
		s := &servers[i]
		switch {
		case s.able(directive, e.about.Now):
			able = append(able, s.Name)
		case s.Health == Failed:
			failed = append(failed, s.Name)
		case !s.haltedAt.IsZero():
			halted = append(halted, s.Name)
		default:
			open = true
		}
	}
	if len(able) == 0 {
		if st.commands, err = e.freeing(box, failed, halted); err != nil {
			return st, err
		}
		st.severity = finding.Error
		switch {
		case open:
			st.severity = finding.Warning // that ends by itself
			st.says = "nobody who serves it gets work"
			if len(servers) == 1 {
				st.says = "the circuit breaker of " + servers[0].Name + " is open"
			}
		case len(halted) == 0:
			st.says = those(servers, "has failed", "have failed")
		case len(failed) == 0:
			st.says = those(servers, "is halted", "are halted")
		default:
			st.says = "everybody who serves it has failed or is halted"
		}
	}
	// Those first who could take it: they are why it is not stuck, or they are none.
	slices.SortStableFunc(servers, func(a, b server) int {
		return rankOf(a.able(directive, e.about.Now)) - rankOf(b.able(directive, e.about.Now))
	})
	for i := range servers[:min(len(servers), mostServers)] {
		says, err := e.describe(&servers[i], mailbox)
		if err != nil {
			return st, err
		}
		st.reasons = append(st.reasons, says)
	}
	if more := len(servers) - mostServers; more > 0 {
		st.reasons = append(st.reasons, finding.Count(more, "more agent")+" could take it")
	}
	return st, nil
}

func rankOf(able bool) int {
	if able {
		return 0
	}
	return 1
}

// those says something of one agent or of all.
func those(servers []server, one, all string) string {
	if len(servers) == 1 {
		return servers[0].Name + " " + one
	}
	return "all who serve it " + all
}

// unserved is what there is to say of a mailbox that nobody takes from.
func (e *explaining) unserved(box mailboxRef, sender string) (standing, error) {
	st := standing{severity: finding.Error}
	switch box.kind {
	case roleBox:
		st.says = "nobody has that role"
		st.commands = e.recruit(box.name)
		if i := slices.IndexFunc(e.members, func(m Member) bool { return m.Name == sender && m.Role == box.name }); i >= 0 {
			st.says = "nobody else has that role"
			st.reasons = append(st.reasons, sender+" sent it, and is not given its own messages back")
		}
	case channelBox:
		st.says = "nobody has subscribed to it"
		if i := slices.IndexFunc(e.members, func(m Member) bool { return m.Name != sender && m.Health != Failed }); i >= 0 {
			st.commands = append(st.commands, finding.Command{"--agent", e.members[i].Name, "channel", "subscribe", box.name})
		}
	default:
		st.says = "no such agent is registered"
		var err error
		st.commands, err = e.registering(box.name)
		return st, err
	}
	return st, nil
}

// recruit returns the command that registers a new agent of a role, none if no name is to be found for it.
func (e *explaining) recruit(role string) []finding.Command {
	const longest = 120 // bytes, so that a number fits behind it
	base := role
	if parseMailbox(role).kind != agentBox || len(role) > longest {
		base = "agent"
	}
	for n := 1; n <= len(e.members)+1; n++ {
		name := base + "-" + strconv.Itoa(n)
		if !slices.ContainsFunc(e.members, func(m Member) bool { return m.Name == name }) {
			return []finding.Command{{"agent", "register", name, "--role", role}}
		}
	}
	return nil
}

// registering returns the command that registers an agent again, if anybody knows.
func (e *explaining) registering(agent string) ([]finding.Command, error) {
	if e.crew == nil {
		return nil, nil
	}
	command, err := e.crew.Registering(e.q, e.about.Session, agent)
	return []finding.Command{command}, err
}

// freeing returns the commands that bring agents back who do not get work.
func (e *explaining) freeing(box mailboxRef, failed, halted []string) ([]finding.Command, error) {
	const most = 3
	var commands []finding.Command
	if len(halted) > most && box.kind == roleBox {
		commands, halted = append(commands, finding.Command{"agent", "resume", box.String()}), nil
	}
	for _, name := range halted[:min(len(halted), most)] {
		commands = append(commands, finding.Command{"agent", "resume", name})
	}
	for _, name := range failed[:min(len(failed), most)] {
		command, err := e.registering(name)
		if err != nil {
			return nil, err
		}
		commands = append(commands, command...)
	}
	return commands, nil
}

// describe says of one agent why it does not take what waits.
func (e *explaining) describe(s *server, mailbox int64) (string, error) {
	switch {
	case s.Health == Failed:
		return s.Name + " has failed: its lease was over at " + e.about.When(s.FailedAt), nil
	case !s.haltedAt.IsZero():
		return s.Name + " is halted, by directive " + strconv.FormatInt(s.halt, 10) + " at " + e.about.When(s.haltedAt), nil
	case !s.until.IsZero():
		return e.breaker(s), nil
	}
	id, err := e.findMailbox(e.q, e.about.Session, mailboxRef{agentBox, s.Name})
	if err != nil {
		return "", err
	}
	var claims int64
	if err := e.q.QueryRow(countHoldersClaims, id).Scan(&claims); err != nil {
		return "", err
	}
	asks, full := e.asking(id, mailbox)
	says := s.Name
	switch {
	case full && claims > 0:
		says += " works on " + finding.Count(claims, "message") + ", as many as it takes at a time"
	case asks && claims > 0:
		says += " works on " + finding.Count(claims, "message") + " and asks for more, of other types or priorities than what waits"
	case asks:
		says += " asks for work, of other types or priorities than what waits"
	case claims > 0:
		says += " works on " + finding.Count(claims, "message") + " and does not ask for more"
	default:
		says += " does not ask for work"
	}
	if s.Health == Late {
		return says + "; it is late: last heard of at " + e.about.When(s.LastSeen), nil
	}
	return says + "; last heard of at " + e.about.When(s.LastSeen), nil
}

// breaker says how an open circuit breaker stands.
func (e *explaining) breaker(s *server) string {
	says := "the circuit breaker of " + s.Name + " is open after " + finding.Count(s.failures, "failure") + " in a row"
	switch {
	case s.probe != 0:
		return says + "; message " + strconv.FormatInt(s.probe, 10) + " is on trial with it, and closes the breaker when it is acknowledged"
	case s.until.After(e.about.Now):
		return says + "; at " + e.about.When(s.until) + " it gets one message on trial"
	}
	return says + "; the next message that it asks for is on trial"
}

// asking reports whether consumers of an agent wait for work from a mailbox, and whether all of them have as much as they take.
func (b *Broker) asking(agent, mailbox int64) (asks, full bool) {
	h := b.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	consumers := 0
	for _, c := range h.consumers[mailbox] {
		if c.actor.mailbox != agent {
			continue
		}
		consumers++
		asks = asks || c.room() > 0
	}
	return asks, consumers > 0 && !asks
}

// member returns the member of a name.
func (e *explaining) member(name string) (Member, bool, error) {
	err := e.agents()
	for _, m := range e.members {
		if m.Name == name {
			return m, true, err
		}
	}
	return Member{}, false, err
}

// Condition says in a sentence how an agent is, and whether it is well: alive, heard of in time, and nothing keeps work from it.
func (b *Broker) Condition(q store.Querier, about finding.Question, agent string) (says string, well bool, err error) {
	e := explaining{Broker: b, q: q, about: about, gates: map[string]gating{}}
	m, registered, err := e.member(agent)
	switch {
	case err != nil || !registered:
		return "", true, err
	case m.Health == Failed, !e.gates[agent].haltedAt.IsZero(), !e.gates[agent].until.IsZero():
		says, err = e.describe(&server{m, e.gates[agent]}, 0)
		return says, false, err
	case m.Health == Late:
		return agent + " is late: last heard of at " + about.When(m.LastSeen), false, nil
	}
	return agent + " was last heard of at " + about.When(m.LastSeen), true, nil
}
