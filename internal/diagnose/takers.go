package diagnose

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"brokerd/internal/broker"
	"brokerd/internal/finding"
	"brokerd/internal/nearest"
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

// agents reads the state of the session's agents, once.
func (e *explanation) agents() error {
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
		var g gate
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
	gate
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
func (e *explanation) serving(box broker.MailboxRef, mailbox int64, but string) ([]server, error) {
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
	case broker.AgentMailbox:
		add(box.Name)
		but = ""
	case broker.RoleMailbox:
		places = e.roles[box.Name]
	case broker.ChannelMailbox:
		names, err := broker.SubscribersOf(e.q, mailbox)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			add(name)
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
func (e *explanation) standing(box broker.MailboxRef, mailbox int64, sender string, directive bool) (standing, error) {
	if box == broker.OperatorMailbox {
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
		case best == stopped && box.Kind == broker.AgentMailbox:
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
func (e *explanation) unserved(box broker.MailboxRef, mailbox int64, sender string) (standing, error) {
	st := standing{severity: finding.Error}
	var others []string
	says := map[string]string{}
	switch box.Kind {
	case broker.RoleMailbox:
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
	case broker.ChannelMailbox:
		st.says = "no other agent subscribes to " + box.Name
		names, err := broker.SubscribedChannels(e.q, e.about.Session)
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
	noun := [...]string{broker.AgentMailbox: "agent", broker.RoleMailbox: "role", broker.ChannelMailbox: "channel"}[box.Kind]
	st.reasons = append(st.reasons, "the nearest "+noun+" names are "+finding.Names(named))
	if len(near) == 1 {
		st.reasons[len(st.reasons)-1] = "the nearest " + noun + " name is " + named[0]
	}
	if nearest.Like(box.Name, near[0]) {
		st.commands = append(st.commands, finding.Command{"admin", "move", box.String(),
			broker.MailboxRef{Kind: box.Kind, Name: near[0]}.String()})
	}
	return st, nil
}

// freeing adds the commands that make an agent take work again, or give its mail to others.
func (e *explanation) freeing(to []finding.Command, s *server) ([]finding.Command, error) {
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
		_, waiting, err := e.waitingIn(mailboxOf(s.Name))
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
func (e *explanation) describe(s *server, mailbox int64) (string, error) {
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
	id, err := e.broker.FindMailbox(e.q, e.about.Session, mailboxOf(s.Name))
	if err != nil {
		return "", err
	}
	var claims int64
	if err := e.q.QueryRow(countHoldersClaims, id).Scan(&claims); err != nil {
		return "", err
	}
	asks, full := e.broker.Asking(id, mailbox)
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
func (e *explanation) breaker(s *server) string {
	says := "the circuit breaker of " + s.Name + " is open after " + finding.Count(s.failures, "failure") + " in a row"
	switch {
	case s.probe != 0:
		return says + "; message " + strconv.FormatInt(s.probe, 10) + " is its probe: an acknowledgement closes the breaker"
	case s.until.After(e.about.Now):
		return says + "; at " + e.about.When(s.until) + " the broker delivers one message to it as a probe"
	}
	return says + "; the next message that it asks for is a probe"
}
