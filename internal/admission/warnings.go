package admission

import (
	"slices"

	"brokerd/internal/directory"
	"brokerd/internal/mail"
	"brokerd/internal/nearest"
	"brokerd/internal/router"
	"brokerd/internal/store"
)

// Warnings implements router.Advisor. It warns of a message that has no text, and of one that no agent gets yet. It
// reads nothing if the message is to an agent.
func (c *Control) Warnings(
	tx *store.Tx, from *mail.Actor, d *mail.Draft, out router.Outcome,
) (found []string, err error) {
	if d.Textless && !mail.IsDirective(d.Type) {
		found = append(found, "the message has no text: it has neither a subject nor a body nor a payload")
	}
	var absent string
	switch t := d.Target; {
	case t.Kind == mail.ToRole && d.One:
		absent, err = c.Vacancy(tx, from.Session.ID, mail.RoleRef(t.Name))
	case t.Kind == mail.ToChannel && (d.One || out.Count == 0):
		absent, err = c.Vacancy(tx, from.Session.ID, mail.ChannelRef(t.Name))
	}
	switch {
	case absent == "" && (out.Count > 0 || out.Awaited):
	case absent == "":
		found = append(found, "no other agent is meant by "+d.Target.String()+"; no agent gets the message")
	case d.One:
		found = append(found, absent+"; the message waits until one does")
	default:
		found = append(found, absent+"; no agent gets the message")
	}
	return found, err
}

// A boxKey names a mailbox in all sessions.
type boxKey struct {
	session int64
	ref     mail.MailboxRef
}

// AudienceChanged takes note that a subscription has changed. It is a hook of the change.
func (c *Control) AudienceChanged(tx *store.Tx) { c.vacancies.Clear(tx) }

// Vacancy implements router.Advisor. The control keeps the answer until an agent registers or deregisters or a
// subscription changes.
func (c *Control) Vacancy(tx *store.Tx, session int64, ref mail.MailboxRef) (string, error) {
	return c.vacancies.Get(tx, boxKey{session, ref}, func() (string, error) {
		if ref.Kind == mail.RoleMailbox {
			return c.vacantRole(tx, session, ref.Name)
		}
		id, err := c.broker.Mailboxes.Find(tx, session, ref)
		if err != nil {
			return "", err
		}
		subscribers, err := mail.SubscribersOf(tx, id)
		if err != nil || len(subscribers) > 0 {
			return "", err
		}
		others, err := mail.SubscribedChannels(tx, session)
		return "no agent subscribes to channel " + ref.Name + hint(ref.Name, others), err
	})
}

// vacantRole is Vacancy for a role.
func (c *Control) vacantRole(tx *store.Tx, session int64, role string) (string, error) {
	agents, err := c.dir.Matching(tx, session, directory.Selection{Role: role, Most: 1})
	if err != nil || len(agents) > 0 {
		return "", err
	}
	if agents, err = c.dir.Matching(tx, session, directory.Selection{}); err != nil {
		return "", err
	}
	var roles []string
	for _, a := range agents {
		if a.Role != "" && !slices.Contains(roles, a.Role) && len(roles) < nearest.Limit {
			roles = append(roles, a.Role)
		}
	}
	return "no agent has the role " + role + hint(role, roles), nil
}

// hint suggests what the sender may have meant.
func hint(wanted string, offered []string) string {
	if len(offered) == 0 {
		return ""
	}
	return " (" + nearest.Hint(wanted, offered) + ")"
}
