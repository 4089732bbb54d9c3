package blockers

import (
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Report raises or resolves a blocker in the transaction of an event that the caller publishes about it.
func (s *Service) Report(tx *store.Tx, c identity.Caller, o events.Obstacle) (id string, err error) {
	t, err := s.Begin(tx, c)
	if err != nil {
		return "", err
	}
	t.Quiet = true // the event goes to the channels
	if o.Over {
		return s.resolveReported(t, o)
	}
	return s.raiseReported(t, o)
}

// raiseReported raises a blocker. The awaited agent counts only if it is registered. Errors: as for raise.
func (s *Service) raiseReported(t *work.Tx, r events.Obstacle) (id string, err error) {
	in := &pb.RaiseBlockerRequest{
		Reason: r.Reason, TaskId: r.Task,
		Severity: pb.BlockerSeverity(pb.BlockerSeverity_value["BLOCKER_SEVERITY_"+strings.ToUpper(r.Severity)]),
	}
	if r.Awaited != "" {
		_, found, err := s.Directory.Find(t, t.Session.ID, r.Awaited)
		if err != nil {
			return "", err
		}
		if found {
			in.Awaited = &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: r.Awaited}}
		}
	}
	b, err := s.raise(t, in)
	return b.GetId(), err
}

// resolveReported resolves the blocker with an id or, without an id of this broker, the unresolved blocker
// of the caller with a task or, without a task, its only one. Errors: fault.NotFound if there is none;
// fault.Precondition (AMBIGUOUS_BLOCKER) if there are several; fault.Precondition (BLOCKER_RESOLVED).
func (s *Service) resolveReported(t *work.Tx, o events.Obstacle) (id string, err error) {
	if _, err := work.ParseID(s.Noun, s.Letter, o.ID); err != nil {
		if o.ID, err = s.ownBlocker(t, o.Task); err != nil {
			return "", err
		}
	}
	b, err := s.Get(t, t.Session.ID, o.ID)
	if err == nil && b.State == resolved {
		err = errResolved(b)
	}
	if err != nil {
		return "", err
	}
	return b.Id, s.resolve(t, b, o.Resolution)
}

// mostNamed is how many blockers an error names.
const mostNamed = 5

// ownBlocker returns the id of the unresolved blocker of the actor with a task; without a task, of its
// only one.
func (s *Service) ownBlocker(t *work.Tx, task string) (string, error) {
	found, err := s.Open(t, t.Session.ID, work.Filter[*pb.Blocker]{Opener: t.Actor.Name, Task: task}, mostUnresolved)
	if err != nil {
		return "", err
	}
	of := ""
	if task != "" {
		of = " of the task " + task
	}
	switch len(found) {
	case 0:
		return "", fault.Missing(s.Noun, task, "%s has no unresolved blocker%s", t.Actor.Name, of)
	case 1:
		return found[0].Id, nil
	}
	var ids []string // the newest first
	for i := len(found) - 1; i >= 0 && len(ids) < mostNamed; i-- {
		ids = append(ids, found[i].Id)
	}
	return "", fault.New(fault.Precondition, "AMBIGUOUS_BLOCKER",
		"%s has more than one unresolved blocker%s: %s; name one as blocker_id in the details",
		t.Actor.Name, of, strings.Join(ids, ", "))
}
