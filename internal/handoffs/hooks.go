package handoffs

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores. A chore is about the pending handoffs up to its bound, and continues after the
// last one that it has read.
const (
	goneChore   = "gone"   // reject those to the agent Name
	closedChore = "closed" // cancel those of the session
)

// AgentGone rejects the pending handoffs to a deregistered agent. If there are many, the backlog
// rejects the rest. It is a hook of the deregistration.
func (s *Service) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: goneChore, Session: a.Session, Name: a.Name})
	return err
}

// SessionClosed cancels the pending handoffs of a session. If there are many, the backlog cancels the
// rest. It is a hook of the closing.
func (s *Service) SessionClosed(tx *store.Tx, session directory.Session) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: closedChore, Session: session.ID})
	return err
}

// chore does the next page of a chore, and reports whether there may be more.
func (s *Service) chore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	state, why := cancelled, "the session was closed"
	var f work.Filter[*pb.Handoff]
	if c.Kind == goneChore {
		state, why, f.Agent = rejected, c.Name+" has deregistered", c.Name
	}
	return s.EachOpen(tx, c, f, func(t *work.Tx, h *pb.Handoff) error { return s.end(t, h, state, why) })
}
