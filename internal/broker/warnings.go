package broker

import (
	"slices"
	"strings"

	"brokerd/internal/events"
	"brokerd/internal/msgtype"
	"brokerd/internal/nearest"
	"brokerd/internal/store"
)

// warnings returns what the sender of an accepted message should know: the message has no text, or
// no agent gets it yet. A message to an agent needs no query.
func (s *sending) warnings(d *Draft, out *Outcome) (found []string, err error) {
	if d.Textless && !IsDirective(d.Type) {
		found = append(found, "the message has no text: it has neither a subject nor a body nor a payload")
	}
	var absent string
	switch t := d.Target; {
	case t.Kind == ToRole && d.One:
		absent, err = s.vacancy(MailboxRef{RoleMailbox, t.Name})
	case t.Kind == ToChannel && (d.One || out.Count == 0):
		absent, err = s.vacancy(MailboxRef{ChannelMailbox, t.Name})
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

// KnownEvent reports whether the broker sends events of a canonical type to channels, or a catalog has it.
func KnownEvent(set *msgtype.Set, eventType string) bool {
	_, known := set.Lookup(eventType)
	return known != nil || slices.ContainsFunc(events.AnnouncedTypes(), func(t string) bool {
		return msgtype.Canonical(t) == eventType
	})
}

// MeantEvent asks whether the channel of a known type of events is meant; it is empty if the type is
// known, or if no known one is like it.
func MeantEvent(set *msgtype.Set, eventType string) string {
	if eventType == "*" || KnownEvent(set, eventType) {
		return ""
	}
	names := set.Names()
	for _, t := range events.AnnouncedTypes() {
		names = append(names, msgtype.Canonical(t))
	}
	near := nearest.Names(eventType, names[:min(len(names), nearest.Limit)])
	if len(near) == 0 || !nearest.Like(eventType, near[0]) {
		return ""
	}
	meant, _ := set.Lookup(near[0])
	return "did you mean " + EventChannel + meant + "?"
}

// vacancy returns the warning for a role or channel that no agent has; it is empty if one has it.
// The broker keeps the answer until an agent registers or deregisters or a subscription changes.
func (s *sending) vacancy(ref MailboxRef) (string, error) {
	session := s.actor.Session.ID
	return s.vacancies.Get(s.tx, boxKey{session, ref}, func() (string, error) {
		if ref.Kind == RoleMailbox {
			return s.vacantRole(session, ref.Name)
		}
		id, err := s.Mailboxes.Find(s.tx, session, ref)
		if err != nil {
			return "", err
		}
		subscribers, err := SubscribersOf(s.tx, id)
		if err != nil || len(subscribers) > 0 {
			return "", err
		}
		others, err := SubscribedChannels(s.tx, session)
		return "no agent subscribes to channel " + ref.Name + hint(ref.Name, others), err
	})
}

func (s *sending) vacantRole(session int64, role string) (string, error) {
	agents, err := s.dir.Matching(s.tx, session, Selection{Role: role, Most: 1})
	if err != nil || len(agents) > 0 {
		return "", err
	}
	if agents, err = s.dir.Matching(s.tx, session, Selection{}); err != nil {
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

// SubscribedChannels returns names of channels that agents subscribe to.
func SubscribedChannels(q store.Querier, session int64) (names []string, err error) {
	rows := q.Query(selectSubscribedChannels, session, nearest.Limit)
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(name, EventChannel) {
			names = append(names, name)
		}
	}
	return names, rows.Err()
}

// hint names what the sender may have meant.
func hint(wanted string, offered []string) string {
	if len(offered) == 0 {
		return ""
	}
	return " (" + nearest.Hint(wanted, offered) + ")"
}
