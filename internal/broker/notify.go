package broker

import (
	"errors"
	"fmt"

	"brokerd/internal/caller"
	"brokerd/internal/store"
	"brokerd/internal/valid"
)

// noticePriority is that of notices which do not say: they tell of what holds up work.
const noticePriority = 7

// A Notice is what the broker has to tell an agent, or all agents of a role, about something that is no message.
type Notice struct {
	Agent    string // or
	Role     string
	Type     string
	Subject  string // is clipped to one that fits
	Body     string
	Payload  string // JSON
	Priority int    // 1 to 10; 0 = 7
}

// Notify sends a notice as a message from the system, in the transaction of what it tells of. Full mailboxes take it too: nobody waits for an
// answer that could say that it was refused, and what it tells is worth more than the limit. It goes nowhere, without an error, if the agent is not
// registered any more, nobody has the role, or the session is closed or gone: that must not undo what it tells of.
func (b *Broker) Notify(tx *store.Tx, session int64, n Notice) error {
	scope, err := b.dir.ByID(tx, session)
	if errors.Is(err, store.ErrNoRows) || err == nil && scope.Closed {
		return nil
	}
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	names, err := b.audienceOf(tx, session, n)
	if err != nil || len(names) == 0 {
		return err
	}
	d, err := noticeDraft(n)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	s := &sending{
		Broker: b, tx: tx, actor: actor{Agent: Agent{Name: caller.System}, session: scope}, rooms: map[mailboxRef]*room{}, audience: names, beyond: true,
	}
	if _, err := s.send(d, 0, 0); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return s.finish()
}

// audienceOf returns who gets a notice.
func (b *Broker) audienceOf(tx *store.Tx, session int64, n Notice) ([]string, error) {
	if n.Agent != "" {
		_, found, err := b.dir.Find(tx, session, n.Agent)
		if err != nil || !found {
			return nil, err
		}
		return []string{n.Agent}, nil
	}
	if n.Role == "" {
		return nil, nil
	}
	agents, err := b.dir.Matching(tx, session, n.Role, "")
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return names, err
}

// draft is the notice without its content.
func (n *Notice) draft() *Draft {
	d := &Draft{Target: Target{ToAgent, n.Agent}, Type: n.Type, Subject: clip(n.Subject, valid.MaxLine), Priority: n.Priority}
	if n.Agent == "" {
		d.Target = Target{ToRole, n.Role}
	}
	if d.Priority == 0 {
		d.Priority = noticePriority
	}
	return d
}
