package votes

import (
	"encoding/json"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// The kinds of chores.
const (
	// Of the closed vote Item: withdraw its letters, then notify its opener and its electors. After is 1
	// once the opener is notified. Text is the last elector that has its notice.
	announceChore = "announce"
	// Remove the agent Name from the electorates of the open votes up to the bound.
	leaveChore = "leave"
	// Close the open votes of the session.
	closeChore = "close"
)

// mostNotified is how many electors one page notifies: a notice is about five rows.
const mostNotified = work.PageRows / 5

// AgentGone removes a deregistered agent from the electorates of open votes. A vote closes if every
// remaining elector has voted. The agent can no longer vote in any of them when AgentGone returns; if
// there are many votes, the backlog counts it out of the rest. It is a hook of the deregistration.
func (s *Service) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: leaveChore, Session: a.Session, Name: a.Name})
	return err
}

// SessionClosed closes the open votes of a session. If there are many, the backlog closes the rest. It
// is a hook of the closing.
func (s *Service) SessionClosed(tx *store.Tx, session directory.Session) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: closeChore, Session: session.ID})
	return err
}

// leaves reports whether the backlog is about to count an agent out of the electorate of a vote.
func (s *Service) leaves(q store.Querier, session int64, agent string, vote int64) (bool, error) {
	bound, pending, err := s.Backlog.Pending(q, leaveChore, session, agent)
	return pending && vote <= bound, err
}

// chore does the next page of a chore, and reports whether there may be more.
func (s *Service) chore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	switch c.Kind {
	case announceChore:
		return s.announce(tx, c)
	case leaveChore:
		return s.EachOpen(tx, c, work.Filter[*pb.Vote]{Part: ballotPart(c.Name)}, func(t *work.Tx, v *pb.Vote) error {
			return s.leave(t, v, c.Name)
		})
	default:
		return s.EachOpen(tx, c, work.Filter[*pb.Vote]{}, func(t *work.Tx, v *pb.Vote) error {
			return s.close(t, v, pb.VoteEnd_VOTE_END_SESSION_CLOSED, "", "")
		})
	}
}

// leave removes an agent from the electorate of a vote.
func (s *Service) leave(t *work.Tx, v *pb.Vote, agent string) error {
	b, found, err := s.ballot(t, v, agent)
	if err != nil || !found || b.Left {
		return err
	}
	voted := b.CastAt != nil
	if !voted {
		v.Electors-- // the broker withdraws the letter with the mailbox
	}
	u := *t
	u.Actor = directory.Agent{Name: agent}
	v.Revision, err = s.Append(&u, v, work.Event{
		Type: "vote.elector_left", Summary: summary(agent, "left the electorate of", v),
		Details: map[string]any{"voted": voted},
	})
	if err != nil {
		return err
	}
	b.Left = true
	if err := s.putBallot(t, v, b); err != nil {
		return err
	}
	return s.settle(t, v)
}

// announce withdraws some letters of a closed vote, or notifies its opener and some electors.
func (s *Service) announce(tx *store.Tx, c *work.Chore) (more bool, err error) {
	v, session, found, err := s.ByKey(tx, c.Item)
	if err != nil || !found {
		return false, err
	}
	payload, err := json.Marshal(announcement(v))
	if err != nil {
		return false, err
	}
	n := work.Notice{
		Agent: v.Opener, Type: announcementType, Subject: v.Title + ": " + result(v), Payload: string(payload),
		Task: v.TaskId, About: c.Item,
	}
	if c.After == 0 {
		more, err := s.Post.WithdrawSome(tx, session, work.Moot{About: c.Item, Type: initiateType}, mostNotified)
		if err != nil || more {
			return more, err
		}
		if n.Agent != work.Broker.Name {
			if err := s.Post.Notify(tx, session, n); err != nil {
				return false, err
			}
		}
		c.After = 1
	}
	some, err := s.ballots(tx, v, c.Text, mostNotified)
	if err != nil {
		return false, err
	}
	for _, b := range some {
		c.Text = b.Agent
		if b.Left || b.Agent == v.Opener { // which has its notice
			continue
		}
		n.Agent = b.Agent
		if err := s.Post.Notify(tx, session, n); err != nil {
			return false, err
		}
	}
	return len(some) == mostNotified, nil
}
