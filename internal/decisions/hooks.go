package decisions

import (
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores. A chore is about the unfinished decisions up to its bound, and continues after
// the last one that it has read.
const (
	goneChore   = "gone"   // end those that the agent Name has opened, and escalate those that it owes
	closedChore = "closed" // cancel those of the session
)

// due escalates a decision whose deadline has passed.
func (s *Service) due(t *work.Tx, d *pb.Decision) error {
	return s.escalate(t, d, nil, "no verdict came by the deadline")
}

// AgentGone cancels the unfinished decisions that a deregistered agent opened, and escalates those
// that it owes. If there are many, the backlog does the rest. It is a hook of the deregistration.
func (s *Service) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: goneChore, Session: a.Session, Name: a.Name})
	return err
}

// SessionClosed cancels all unfinished decisions. If there are many, the backlog cancels the rest. It
// is a hook of the closing.
func (s *Service) SessionClosed(tx *store.Tx, session directory.Session) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: closedChore, Session: session.ID})
	return err
}

// chore does the next page of a chore, and reports whether there may be more.
func (s *Service) chore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	f := work.Filter[*pb.Decision]{Complete: s.complete}
	if c.Kind == goneChore {
		f.Match = func(d *pb.Decision) bool { return d.Opener == c.Name || d.Agent == c.Name && d.State == open }
	}
	return s.EachOpen(tx, c, f, func(t *work.Tx, d *pb.Decision) error {
		why := c.Name + " has deregistered"
		switch {
		case c.Kind == closedChore:
			return s.endWithSession(t, d)
		case t.Session.Closed():
			return nil // the other chore ends it
		case d.Opener == c.Name:
			return s.cancel(t, d, why, "")
		}
		return s.escalate(t, d, nil, why)
	})
}

// endWithSession cancels a decision of a closed session, which has cancelled its messages and released its
// tokens already.
func (s *Service) endWithSession(t *work.Tx, d *pb.Decision) error {
	d.State, d.Note = cancelled, "the session was closed"
	if err := s.append(t, d, "cancelled", nil, "the session ends "+about(d)); err != nil {
		return err
	}
	return s.Put(t, d)
}
