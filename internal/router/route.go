package router

import (
	"cmp"
	"fmt"
	"strings"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/mail"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// route finds the mailboxes of a draft's recipients.
func (s *Tx) route(d *mail.Draft) ([]*recipient, error) {
	t := d.Target
	switch {
	case s.audience != nil:
		return s.toAgents(s.audience)
	case t.Kind == mail.ToAgent:
		return s.toAgent(t.Name)
	case d.One && t.Kind == mail.ToRole:
		return s.singleMailbox(mail.RoleRef(t.Name))
	case d.One:
		if _, err := s.core.Mailboxes.OpenChannel(s.tx, s.actor, t.Name); err != nil {
			return nil, err
		}
		return s.singleMailbox(mail.ChannelRef(t.Name))
	case t.Kind == mail.ToChannel:
		return s.toSubscribers(t.Name)
	}
	var role, pattern string
	switch t.Kind {
	case mail.ToRole:
		role = t.Name
	case mail.ToPattern:
		pattern = t.Name
	}
	agents, err := s.dir.Matching(s.tx, s.actor.Session.ID, directory.Selection{Role: role, Pattern: pattern})
	if err != nil {
		return nil, err
	}
	switch {
	case len(agents) > 0:
	case t.Kind == mail.ToRole:
		vacant, err := s.Vacancy(mail.RoleRef(t.Name))
		if err != nil {
			return nil, err
		}
		return nil, fault.Missing("role", t.Name, "%s", vacant)
	case t.Kind == mail.ToPattern:
		return nil, s.unmatched(t.Name)
	}
	return s.toOthers(agents)
}

// unmatched returns the error for a pattern that matches no agent. It names a pattern that matches a part of a name,
// if there are such names.
func (s *Tx) unmatched(pattern string) error {
	wider := "*" + strings.Trim(pattern, "*") + "*"
	agents, err := s.dir.Matching(s.tx, s.actor.Session.ID, directory.Selection{Pattern: wider, Most: 1})
	if err != nil {
		return err
	}
	hint := "no name contains it either"
	if len(agents) > 0 {
		hint = fmt.Sprintf("use %q, which matches %s", wider, agents[0].Name)
	}
	return fault.Missing("agent", pattern,
		"no agent has a name that matches %q; patterns match whole names: %s", pattern, hint)
}

// toOthers returns the mailboxes of agents, except the sender's.
func (s *Tx) toOthers(agents []directory.Agent) ([]*recipient, error) {
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return s.toAgents(names)
}

func (s *Tx) toAgent(name string) ([]*recipient, error) {
	ref := mail.AgentRef(name)
	if r := s.known[ref]; r != nil {
		return []*recipient{r}, nil
	}
	if ref == mail.OperatorMailbox {
		return s.singleMailbox(ref)
	}
	_, found, err := s.dir.Find(s.tx, s.actor.Session.ID, name)
	if err != nil {
		return nil, err
	}
	if !found && name == mail.OperatorName {
		return s.singleMailbox(mail.OperatorMailbox)
	}
	if !found {
		if team, err := s.toTeam(name); err != nil || team != nil {
			return team, err
		}
		near, err := s.dir.Nearest(s.tx, s.actor.Session.ID, name)
		if err != nil {
			return nil, err
		}
		hint := cmp.Or(nearest.Hint(name, near), "the session has no agents")
		return nil, fault.Missing("agent", name, "no agent %q is registered in session %q; %s", name, s.actor.Session.Name, hint)
	}
	return s.singleMailbox(ref)
}

// Served returns a mailbox from which at least one agent takes. It is created if it does not exist yet. Errors:
// fault.NotFound with the nearest names.
func (r *Router) Served(tx *store.Tx, a mail.Actor, ref mail.MailboxRef) (mail.Mailbox, error) {
	s := r.NewTx(tx, a, nil)
	if ref.Kind != mail.AgentMailbox {
		absent, err := s.Vacancy(ref)
		if err != nil {
			return mail.Mailbox{}, err
		}
		if absent != "" {
			return mail.Mailbox{}, fault.Missing("mailbox", ref.String(), "%s", absent)
		}
		id, err := r.core.Mailboxes.Open(tx, a.Session.ID, ref)
		return mail.Mailbox{ID: id, Ref: ref}, err
	}
	found, err := s.toAgent(ref.Name)
	if err != nil {
		return mail.Mailbox{}, err
	}
	if len(found) != 1 || found[0].Ref != ref {
		return mail.Mailbox{}, fault.Missing("agent", ref.Name,
			"no agent %q is registered in session %q", ref.Name, a.Session.Name)
	}
	return found[0].Mailbox, nil
}

// TeamPrefix begins the names that mean all agents of a role.
const TeamPrefix = "all_"

// toTeam returns the mailboxes of the agents that all_ROLE or all_ROLEs means; nil if it means
// none.
func (s *Tx) toTeam(name string) ([]*recipient, error) {
	role, ok := strings.CutPrefix(name, TeamPrefix)
	if !ok {
		return nil, nil
	}
	for _, role := range []string{role, strings.TrimSuffix(role, "s")} {
		if role == "" {
			continue
		}
		agents, err := s.dir.Matching(s.tx, s.actor.Session.ID, directory.Selection{Role: role})
		if err != nil {
			return nil, err
		}
		if len(agents) > 0 {
			return s.toOthers(agents)
		}
	}
	return nil, nil
}

func (s *Tx) toSubscribers(channel string) ([]*recipient, error) {
	id, err := s.core.Mailboxes.OpenChannel(s.tx, s.actor, channel)
	if err != nil {
		return nil, err
	}
	subscribers, err := mail.SubscribersOf(s.tx, id)
	if err != nil {
		return nil, err
	}
	return s.toAgents(subscribers)
}

// toAgents returns the mailboxes of agents, except the sender's.
func (s *Tx) toAgents(names []string) ([]*recipient, error) {
	if err := s.reach(names); err != nil {
		return nil, err
	}
	found := make([]*recipient, 0, len(names))
	for _, name := range names {
		if name == s.actor.Name {
			continue
		}
		r, err := s.recipient(mail.AgentRef(name))
		if err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, nil
}

// singleMailbox returns one mailbox as a list.
func (s *Tx) singleMailbox(ref mail.MailboxRef) ([]*recipient, error) {
	r, err := s.recipient(ref)
	return []*recipient{r}, err
}

// recipient returns a mailbox to send to. It is created if it does not exist yet.
func (s *Tx) recipient(ref mail.MailboxRef) (*recipient, error) {
	if r := s.known[ref]; r != nil {
		return r, nil
	}
	r := &recipient{Mailbox: mail.Mailbox{Ref: ref}, name: ref.String()}
	var err error
	if r.ID, err = s.core.Mailboxes.Open(s.tx, s.actor.Session.ID, ref); err != nil {
		return nil, err
	}
	if s.actor.Session.Settings.GetMailboxLimit() > 0 {
		if r.waiting, err = mail.WaitingIn(s.tx, r.ID); err != nil {
			return nil, err
		}
	}
	s.known[ref] = r
	return r, nil
}
