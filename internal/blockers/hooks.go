package blockers

import (
	"slices"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// escalate notifies the next role of a blocker that no agent has acknowledged, once that is due.
func (s *Service) escalate(t *work.Tx, b *pb.Blocker) (err error) {
	b.EscalatesAt = nil
	wait := t.Session.Settings.GetBlockerEscalation().AsDuration()
	if t.Session.Closed() || wait <= 0 {
		return s.Put(t, b)
	}
	role, err := s.nextRole(t, b)
	if err != nil {
		return err
	}
	b.Escalations++
	e := &pb.BlockerTimelineEntry{Step: pb.BlockerStep_BLOCKER_STEP_ESCALATED, Agent: t.Actor.Name}
	summary := "no role of escalate_to has an agent for the blocker of "
	if role != "" {
		e.Recipient, summary = toRole(role), "the role "+role+" is notified of the blocker of "
	}
	b.Revision, err = s.Append(t, b, work.Event{
		Type: "blocker.escalated", Severity: events.Warning, Summary: summary + b.Agent + ": " + headline(b),
		Details: details(b, map[string]any{"role": role, "escalations": b.Escalations}),
	})
	if err != nil {
		return err
	}
	if role != "" {
		if e.Message, err = s.notify(t, b, e.Recipient); err != nil {
			return err
		}
	}
	if b.Escalations < mostEscalations {
		b.EscalatesAt = work.Stamp(t.Now().Add(wait))
	}
	s.Count(t, "escalated")
	return s.put(t, b, e)
}

// The kinds of chores. A chore is about the unresolved blockers up to its bound, and continues after the
// last one that it has read.
const (
	reachedChore = "reached" // resolve those that await an object: Text is its scope
	goneChore    = "gone"    // resolve those that the agent Name has raised
	failedChore  = "failed"  // reopen those on which the agent Name works
	closedChore  = "closed"  // resolve those of the session
	freedChore   = "freed"   // the task Name is not BLOCKED for them any more
)

// AgentCompleted resolves the blockers that await an agent and resolve themselves. It is a hook of
// the report of the status completed.
func (s *Service) AgentCompleted(tx *store.Tx, a directory.Agent) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: reachedChore, Session: a.Session, Text: "agent:" + a.Name})
	return err
}

// TaskDone resolves the blockers that await a task and resolve themselves. It is a hook of the
// task's completion.
func (s *Service) TaskDone(tx *store.Tx, session int64, task string) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: reachedChore, Session: session, Text: "task:" + task})
	return err
}

// AgentGone resolves the blockers that a deregistered agent has raised: they stop no agent any more.
// If there are many, the backlog resolves the rest. It is a hook of the deregistration.
func (s *Service) AgentGone(tx *store.Tx, a directory.Agent, _ string) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: goneChore, Session: a.Session, Name: a.Name})
	if err != nil {
		return err
	}
	_, err = s.AgentEnded(tx, a)
	return err
}

// AgentEnded reopens the blockers that an agent has acknowledged and no other agent that is alive
// has: they escalate again. If there are many, the backlog reopens the rest. It is a hook of the
// end of an agent, which has failed or stopped.
func (s *Service) AgentEnded(tx *store.Tx, a directory.Agent) ([]directory.Loss, error) {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: failedChore, Session: a.Session, Name: a.Name})
	return nil, err
}

// SessionClosed resolves the unresolved blockers of a session. If there are many, the backlog resolves
// the rest. It is a hook of the closing.
func (s *Service) SessionClosed(tx *store.Tx, session directory.Session) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: closedChore, Session: session.ID})
	return err
}

// chore does the next page of a chore, and reports whether there may be more.
func (s *Service) chore(tx *store.Tx, c *work.Chore) (more bool, err error) {
	f, why := work.Filter[*pb.Blocker]{Whole: true}, ""
	switch c.Kind {
	case freedChore:
		f = work.Filter[*pb.Blocker]{Task: c.Name, Match: (*pb.Blocker).GetTaskBlocked}
	case closedChore:
		why = "the session was closed"
	case reachedChore:
		f.Scope = c.Text
		kind, name, _ := strings.Cut(c.Text, ":")
		why = reachedText(kind, name)
	case goneChore:
		f.Opener, why = c.Name, c.Name+" has deregistered"
	case failedChore:
		f.States = append(f.States, acknowledged.Number())
		f.Match = func(b *pb.Blocker) bool { return slices.Contains(b.AcknowledgedBy, c.Name) }
	}
	return s.EachOpen(tx, c, f, func(t *work.Tx, b *pb.Blocker) error {
		switch {
		case c.Kind == freedChore:
			b.TaskBlocked = false
			return s.Put(t, b)
		case c.Kind != closedChore && t.Session.Closed():
			return nil // the chore of the closing resolves it
		case c.Kind == failedChore && lastAcknowledgement(b, c.Name) > c.Newest():
			return nil // the agent has come back
		case c.Kind == failedChore:
			return s.reopen(t, b, c.Name)
		}
		return s.resolve(t, b, why)
	})
}

// lastAcknowledgement returns the revision of the newest acknowledgement by an agent.
func lastAcknowledgement(b *pb.Blocker, agent string) (revision int64) {
	for _, e := range b.Timeline {
		if e.Step == pb.BlockerStep_BLOCKER_STEP_ACKNOWLEDGED && e.Agent == agent {
			revision = e.Revision
		}
	}
	return revision
}

// reopen opens a blocker again if no agent works on it any more that is alive.
func (s *Service) reopen(t *work.Tx, b *pb.Blocker, lost string) error {
	for _, name := range b.AcknowledgedBy {
		if name == lost {
			continue
		}
		a, found, err := s.Directory.Find(t, t.Session.ID, name)
		if err != nil || name == work.Broker.Name || found && !a.Ended() {
			return err
		}
	}
	var err error
	b.Revision, err = s.Append(t, b, work.Event{
		Type: "blocker.reopened", Severity: events.Warning,
		Summary: lost + " has ended or deregistered, and no agent works on the blocker of " + b.Agent,
		Details: details(b, map[string]any{"lost": lost}),
	})
	if err != nil {
		return err
	}
	b.State, b.AcknowledgedBy, b.AcknowledgedAt = open, nil, nil
	if wait := t.Session.Settings.GetBlockerEscalation().AsDuration(); wait > 0 && b.Escalations < mostEscalations {
		b.EscalatesAt = work.Stamp(t.Now().Add(wait))
	}
	s.Count(t, "reopened")
	return s.put(t, b, &pb.BlockerTimelineEntry{Step: pb.BlockerStep_BLOCKER_STEP_REOPENED, Agent: lost})
}

// Stopping returns the ids of the unresolved blockers for which a task is BLOCKED, oldest first, at
// most limit.
func (s *Service) Stopping(q store.Querier, session int64, task string, limit int) (ids []string, err error) {
	list, err := s.blocking(q, session, task, limit)
	for _, b := range list {
		ids = append(ids, b.Id)
	}
	return ids, err
}

// blocking returns the unresolved blockers for which a task is BLOCKED, oldest first, at most limit.
func (s *Service) blocking(q store.Querier, session int64, task string, limit int) ([]*pb.Blocker, error) {
	if task == "" {
		return nil, nil
	}
	return s.Open(q, session, work.Filter[*pb.Blocker]{Task: task, Match: (*pb.Blocker).GetTaskBlocked}, limit)
}

// Freed records that a task is no longer BLOCKED for any blocker, because its claim has ended. The
// blockers stay unresolved. If there are many, the backlog does the rest. It is a hook of the end of a claim.
func (s *Service) Freed(tx *store.Tx, session int64, task string) error {
	_, err := s.Backlog.Do(tx, work.Chore{Kind: freedChore, Session: session, Name: task})
	return err
}
