package broker

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/finding"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// The thresholds of a warning.
const (
	slowMail    = 15 * time.Minute // a message waits although an agent could take it
	longClaim   = 30 * time.Minute // an agent holds a claim
	lateClaim   = time.Minute      // an agent that is late holds a claim
	longBlocked = 10 * time.Minute // a message waits behind another of its ordering key
	nearlyFull  = 9                // tenths of the limit of a mailbox
)

// How much one answer looks at.
const (
	mostDeliveries = 100 // of one message
	mostBoxes      = 200 // the fullest; an overview of many mailboxes also waits for them
	mostOrderings  = 100 // ordering keys of a mailbox, in each of the mostKeyed fullest
	mostKeyed      = 100
	mostOfAKind    = 20     // findings of one kind
	mostBefore     = 10_000 // messages before another, or with its ordering key
	mostRead       = 1000   // messages of a mailbox that were read
	mostServers    = 10     // agents that one finding describes
	mostFreed      = 3      // agents for which one finding has commands
)

// A Crew knows the health of the agents of a session, and counts their messages. Worked and Asleep may
// be called concurrently and use no transaction.
type Crew interface {
	// Members returns the registered agents of a session, by name.
	Members(q store.Querier, session int64) ([]Member, error)
	// Registering returns the command that registers an agent again, as it described itself last.
	Registering(q store.Querier, session int64, agent string) (finding.Command, error)
	// Starting returns the command that starts the program of an agent again; nil if the broker
	// does not know it.
	Starting(q store.Querier, session int64, agent string) (finding.Command, error)
	// Worked counts messages that an agent has sent, received and processed. The broker calls it in
	// the writer, after the commit.
	Worked(session, agent string, sent, received, processed int)
	// Asleep reports whether a registered agent is asleep, and since when.
	Asleep(session, agent string) (since time.Time, asleep bool)
}

// worked counts messages of an agent. It runs after the commit.
func (b *Broker) worked(a Actor, sent, received, processed int) {
	if b.crew != nil && !a.System() {
		b.crew.Worked(a.Session.Name, a.Name, sent, received, processed)
	}
}

// Health is the broker's judgement of an agent by its calls. The circuit breaker is not part of it.
type Health int

// The states of health.
const (
	Alive   Health = iota
	Late           // a third of its lease has passed without a call
	Failed         // its lease has expired
	Stopped        // its program has ended well
)

// A Member is a registered agent with its health.
type Member struct {
	Agent
	Health    Health
	LastSeen  time.Time
	FailedAt  time.Time // zero unless it has failed
	StoppedAt time.Time // zero unless it has stopped
}

// UseCrew sets the source of the agents' health. Call it before the broker is used.
func (b *Broker) UseCrew(c Crew) { b.crew = c }

// Explain says why messages of the subject, or of the whole session, are stuck. It returns nothing
// about a subject that it does not know. Errors: fault.NotFound for a message or channel that does not
// exist, fault.Invalid for a text that is no id.
func (b *Broker) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	e := b.explaining(q, about)
	var err error
	switch about.Kind {
	case finding.Message:
		err = e.message()
	case finding.Agent:
		err = e.ofAgent()
	case finding.Role:
		err = e.ofRole()
	case finding.Channel:
		err = e.ofChannel()
	case finding.Everything:
		err = e.everything()
	}
	if err != nil {
		return nil, fmt.Errorf("explain messages: %w", err)
	}
	return e.found, nil
}

// An explaining gathers the findings of one answer.
type explaining struct {
	*Broker
	q     store.Querier
	about finding.Question
	found []finding.Finding

	heldUp int             // findings about ordering keys
	idle   int             // findings about agents that get no work
	more   int             // such agents beyond mostOfAKind
	blamed map[string]bool // such agents, with a finding that covers what waits for them
	slow   map[int64]bool  // mailboxes with a finding that covers their messages

	known   bool     // the next fields were read
	members []Member // by name
	named   map[string]int
	roles   map[string][]int  // places in members
	gates   map[string]gating // by agent
}

func (b *Broker) explaining(q store.Querier, about finding.Question) *explaining {
	return &explaining{Broker: b, q: q, about: about,
		gates: map[string]gating{}, blamed: map[string]bool{}, slow: map[int64]bool{}}
}

// gating is the reason why an agent gets no work, and its time.
type gating struct {
	haltedAt time.Time // zero = it is not
	halt     int64     // the directive
	failures int
	until    time.Time // of its open breaker; zero = closed
	openedAt time.Time // the breaker
	probe    int64     // the message on trial
}

func (e *explaining) add(f finding.Finding) { e.found = append(e.found, f) }

// agents reads the state of the session's agents, once.
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
	e.named, e.roles = make(map[string]int, len(e.members)), map[string][]int{}
	for i := range e.members {
		m := &e.members[i]
		e.named[m.Name], e.roles[m.Role] = i, append(e.roles[m.Role], i)
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

// An ability says whether the broker delivers work to a server.
type ability int

// The abilities, best first.
const (
	able ability = iota
	tripped
	halted
	stopped
	failed
)

// ability returns why the server gets no work, if it gets none. A directive passes every gate.
func (s *server) ability(directive bool, now time.Time) ability {
	switch {
	case s.Health == Failed:
		return failed
	case s.Health == Stopped:
		return stopped
	case directive:
		return able
	case !s.haltedAt.IsZero():
		return halted
	case !s.until.IsZero() && (s.probe != 0 || s.until.After(now)):
		return tripped
	}
	return able
}

// serving returns the agents that may take from a mailbox, except one.
func (e *explaining) serving(box MailboxRef, mailbox int64, but string) ([]server, error) {
	if err := e.agents(); err != nil {
		return nil, err
	}
	var places []int
	add := func(name string) {
		if i, registered := e.named[name]; registered {
			places = append(places, i)
		}
	}
	switch box.Kind {
	case AgentMailbox:
		add(box.Name)
		but = ""
	case RoleMailbox:
		places = e.roles[box.Name]
	case ChannelMailbox:
		rows := e.q.Query(selectSubscribers, mailbox)
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return nil, err
			}
			add(name)
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	var found []server
	for _, i := range places {
		if m := &e.members[i]; m.Name != but {
			found = append(found, server{*m, e.gates[m.Name]})
		}
	}
	return found, nil
}

// A standing describes the agents that may take from a mailbox.
type standing struct {
	severity finding.Severity // Info: an agent can take from it
	says     string           // why no agent can, such as: no agent has that role
	reasons  []string
	commands []finding.Command
	servers  []server
}

// standing examines the agents that may take from a mailbox.
func (e *explaining) standing(box MailboxRef, mailbox int64, sender string, directive bool) (standing, error) {
	if box == OperatorMailbox {
		return standing{severity: finding.Info, reasons: []string{"operators read this mailbox"},
			commands: []finding.Command{{"inbox", "--operator"}}}, nil
	}
	servers, err := e.serving(box, mailbox, sender)
	if err != nil {
		return standing{}, err
	}
	if len(servers) == 0 {
		return e.unserved(box, mailbox, sender)
	}
	st := standing{severity: finding.Info, servers: servers}
	rank := func(s *server) ability { return s.ability(directive, e.about.Now) }
	slices.SortStableFunc(servers, func(a, b server) int { return int(rank(&a)) - int(rank(&b)) })
	best, worst := rank(&servers[0]), rank(&servers[len(servers)-1])
	if best != able {
		st.severity = finding.Error
		switch {
		case best == stopped && box.Kind == AgentMailbox:
			st.severity = finding.Info // the agent reads its mail when its program runs again
		case best == tripped, best == stopped: // the breaker closes without an operator
			st.severity = finding.Warning
		default:
		}
		st.says = whyNot(servers, best, worst)
		for i := range servers[:min(len(servers), mostFreed)] {
			if st.commands, err = e.freeing(st.commands, &servers[i]); err != nil {
				return st, err
			}
		}
	}
	for i := range servers[:min(len(servers), mostServers)] {
		says, err := e.describe(&servers[i], mailbox)
		if err != nil {
			return st, err
		}
		st.reasons = append(st.reasons, says)
	}
	if more := len(servers) - mostServers; more > 0 {
		st.reasons = append(st.reasons, finding.Count(more, "more agent")+" may take from it")
	}
	return st, nil
}

// whyNot says why none of the servers gets work.
func whyNot(servers []server, best, worst ability) string {
	one := [...]string{tripped: "the circuit breaker of %s is open", halted: "%s is halted", stopped: "%s has stopped",
		failed: "%s has failed"}
	all := [...]string{tripped: "have an open circuit breaker", halted: "are halted", stopped: "have stopped", failed: "have failed"}
	switch {
	case len(servers) == 1:
		return fmt.Sprintf(one[best], servers[0].Name)
	case best == worst:
		return fmt.Sprintf("all %d agents that may take it %s", len(servers), all[best])
	}
	return fmt.Sprintf("none of the %d agents that may take it gets work", len(servers))
}

// unserved describes a mailbox that no agent takes from. The commands redirect its mail to the
// nearest name, if one is near.
func (e *explaining) unserved(box MailboxRef, mailbox int64, sender string) (standing, error) {
	st := standing{severity: finding.Error}
	var others []string
	says := map[string]string{}
	switch box.Kind {
	case RoleMailbox:
		st.says = "no agent has the role " + box.Name
		agents := map[string]int{}
		for _, m := range e.members {
			if m.Name == sender && m.Role == box.Name {
				st.says = "no other agent has the role " + box.Name
				st.reasons = append(st.reasons, sender+" sent it; the broker does not deliver a message to its sender")
			} else if m.Role != "" && m.Role != box.Name {
				agents[m.Role]++
			}
		}
		for role, n := range agents {
			others, says[role] = append(others, role), fmt.Sprintf("%s (%s)", role, finding.Count(n, "agent"))
		}
	case ChannelMailbox:
		st.says = "no other agent subscribes to " + box.Name
		names, err := SubscribedChannels(e.q, e.about.Session)
		if err != nil {
			return st, err
		}
		for _, name := range names {
			if name != box.Name {
				others, says[name] = append(others, name), name
			}
		}
	default:
		st.says = "no agent " + box.Name + " is registered"
		for _, m := range e.members {
			others, says[m.Name] = append(others, m.Name), m.Name
		}
	}
	slices.Sort(others)
	near := nearest.Names(box.Name, others[:min(len(others), nearest.Limit)])
	if len(near) == 0 {
		return st, nil
	}
	named := make([]string, len(near))
	for i, name := range near {
		named[i] = says[name]
	}
	noun := [...]string{AgentMailbox: "agent", RoleMailbox: "role", ChannelMailbox: "channel"}[box.Kind]
	st.reasons = append(st.reasons, "the nearest "+noun+" names are "+finding.Names(named))
	if len(near) == 1 {
		st.reasons[len(st.reasons)-1] = "the nearest " + noun + " name is " + named[0]
	}
	if nearest.Like(box.Name, near[0]) {
		st.commands = append(st.commands, finding.Command{"admin", "move", box.String(),
			MailboxRef{box.Kind, near[0]}.String()})
	}
	return st, nil
}

// freeing adds the commands that make an agent take work again, or give its mail to others.
func (e *explaining) freeing(to []finding.Command, s *server) ([]finding.Command, error) {
	switch s.ability(false, e.about.Now) {
	case halted:
		return append(to, finding.Command{"agent", "resume", s.Name}), nil
	case failed, stopped:
		start, err := e.crew.Starting(e.q, e.about.Session, s.Name)
		if err != nil {
			return to, err
		}
		if start != nil {
			to = append(to, start)
		}
		_, waiting, err := e.waitingIn(MailboxRef{AgentMailbox, s.Name})
		if err != nil {
			return to, err
		}
		if waiting > 0 && s.Role != "" && slices.ContainsFunc(e.members, func(m Member) bool {
			other := server{m, e.gates[m.Name]}
			return m.Role == s.Role && other.ability(false, e.about.Now) == able
		}) {
			to = append(to, finding.Command{"admin", "move", s.Name, "role:" + s.Role})
		}
		if s.Health == Stopped {
			return to, nil
		}
		return append(to, finding.Command{"agent", "deregister", s.Name}), nil
	default:
		return to, nil
	}
}

// describe says of one agent why it does not take the messages of a mailbox.
func (e *explaining) describe(s *server, mailbox int64) (string, error) {
	switch {
	case s.Health == Failed:
		return s.Name + " has failed: its lease ended at " + e.about.When(s.FailedAt), nil
	case s.Health == Stopped:
		return s.Name + " has stopped: its program ended at " + e.about.When(s.StoppedAt) + "; its mail waits for its next start", nil
	case !s.haltedAt.IsZero():
		return s.Name + " is halted since " + e.about.When(s.haltedAt) + ", by directive " + strconv.FormatInt(s.halt,
			10), nil
	case !s.until.IsZero():
		return e.breaker(s), nil
	}
	id, err := e.FindMailbox(e.q, e.about.Session, MailboxRef{AgentMailbox, s.Name})
	if err != nil {
		return "", err
	}
	var claims int64
	if err := e.q.QueryRow(countHoldersClaims, id).Scan(&claims); err != nil {
		return "", err
	}
	asks, full := e.Asking(id, mailbox)
	says := s.Name + " does not ask for work"
	switch works := s.Name + " works on " + finding.Count(claims, "message"); {
	case full && claims > 0:
		says = works + ", which is its limit"
	case asks && claims > 0:
		says = works + " and asks for more, but not for this type or priority"
	case asks:
		says = s.Name + " asks for work, but not for this type or priority"
	case claims > 0:
		says = works + " and does not ask for more"
	}
	if s.Health == Late {
		says += "; it is late"
	}
	return says + "; its last call was at " + e.about.When(s.LastSeen), nil
}

// breaker says in which state an open circuit breaker is.
func (e *explaining) breaker(s *server) string {
	says := "the circuit breaker of " + s.Name + " is open after " + finding.Count(s.failures, "failure") + " in a row"
	switch {
	case s.probe != 0:
		return says + "; message " + strconv.FormatInt(s.probe, 10) + " is its probe: an acknowledgement closes the breaker"
	case s.until.After(e.about.Now):
		return says + "; at " + e.about.When(s.until) + " the broker delivers one message to it as a probe"
	}
	return says + "; the next message that it asks for is a probe"
}

// Condition describes an agent in a sentence, and reports whether it is well: neither failed, stopped nor
// late, and not kept from work.
func (b *Broker) Condition(q store.Querier, about finding.Question, agent string) (says string, well bool, err error) {
	e := b.explaining(q, about)
	m, registered, err := e.member(agent)
	switch {
	case err != nil || !registered:
		return "", true, err
	case m.Health == Failed, m.Health == Stopped, !e.gates[agent].haltedAt.IsZero(), !e.gates[agent].until.IsZero():
		says, err = e.describe(&server{m, e.gates[agent]}, 0)
		return says, false, err
	case m.Health == Late:
		return agent + " is late: its last call was at " + about.When(m.LastSeen), false, nil
	}
	return "the last call of " + agent + " was at " + about.When(m.LastSeen), true, nil
}
