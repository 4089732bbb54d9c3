package blockers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// unresolved returns the unresolved blockers of a session with their timelines, oldest first. It leaves out
// damaged ones.
func (s *Service) unresolved(q store.Querier, session int64) ([]*pb.Blocker, error) {
	return s.Open(q, session, work.Filter[*pb.Blocker]{Complete: s.addTimeline}, mostUnresolved)
}

// addTimeline adds the timeline to a blocker that lacks its PartFields.
func (s *Service) addTimeline(q store.Querier, b *pb.Blocker) error {
	parts, err := s.Parts(q, s.Key(b), "timeline", "", work.MostRead)
	for _, p := range parts {
		if err == nil {
			err = s.Merge(b, p)
		}
	}
	return err
}

// Items returns the unresolved blockers that concern an agent, at most limit, oldest first: those
// that it works on, those of which it or its role was notified, and those that it has raised.
func (s *Service) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	list, err := s.unresolved(q, session)
	if err != nil {
		return nil, fmt.Errorf("list blockers of %s: %w", a.Name, err)
	}
	var items []work.Item
	for _, b := range list {
		item := s.Item(b, 0)
		item.Other = b.Agent
		resolve := calls.Do(&pb.ResolveBlockerRequest{Id: b.Id})
		switch {
		case slices.Contains(b.AcknowledgedBy, a.Name):
			item.Relation, item.Calls = work.Holds, []calls.Call{resolve}
		case b.Agent == a.Name:
			item.Relation, item.Other = work.Opened, waitsFor(b)
			item.Calls = []calls.Call{calls.Do(&pb.GetBlockerRequest{Id: b.Id, Wait: finding.Patience()}), resolve}
		case b.State == open && asks(b, a):
			item.Relation = work.Owes
			item.Calls = []calls.Call{calls.Do(&pb.AcknowledgeBlockerRequest{Id: b.Id}), resolve}
		default:
			continue
		}
		if items = append(items, item); len(items) == limit {
			break
		}
	}
	return items, nil
}

// waitsFor returns the agent or role from which the solution is to come: the agents that work on the
// blocker, or else the last recipient.
func waitsFor(b *pb.Blocker) string {
	if len(b.AcknowledgedBy) > 0 {
		return strings.Join(b.AcknowledgedBy, ", ")
	}
	for _, e := range slices.Backward(b.Timeline) {
		if e.Message != 0 {
			return cmp.Or(e.Recipient.GetAgent(), e.Recipient.GetRole())
		}
	}
	return ""
}

const (
	// longOpen is the time after which a blocker that no agent has acknowledged is a warning.
	longOpen = 15 * time.Minute
	// longWorked is the time after which a blocker that an agent works on is a warning.
	longWorked = time.Hour
	// mostExplained limits the blockers of one answer.
	mostExplained = 20
)

// Explain describes a blocker, or the blockers that stop an agent or wait for an answer from it or
// from its role; without a subject, it finds the blockers that have lasted for too long. Errors:
// fault.NotFound for a blocker that does not exist.
func (s *Service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	list := make([]*pb.Blocker, 1)
	var err error
	switch about.Kind {
	case finding.Blocker:
		list[0], err = s.Get(q, about.Session, about.Name)
	case finding.Everything, finding.Agent, finding.Role:
		list, err = s.unresolved(q, about.Session)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain blockers: %w", err)
	}
	return work.Findings(&about, list, mostExplained, func(b *pb.Blocker) bool {
		isAsked := b.State == open && asks(b, subject(&about))
		switch about.Kind {
		case finding.Agent:
			return isAsked || b.Agent == about.Name || slices.Contains(b.AcknowledgedBy, about.Name) ||
				b.GetAwaited().GetAgent() == about.Name
		case finding.Role:
			return isAsked
		default:
			return true
		}
	}, explainer{s, q, &about}.finding)
}

// subject is the agent or role of a question as a recipient.
func subject(about *finding.Question) directory.Agent {
	if about.Kind == finding.Role {
		return directory.Agent{Role: about.Name}
	}
	return directory.Agent{Name: about.Name}
}

// An explainer makes the findings of one answer.
type explainer struct {
	*Service
	q     store.Querier
	about *finding.Question
}

func (e explainer) finding(x *pb.Blocker) (finding.Finding, error) {
	f := finding.Finding{
		Severity: finding.Info, Subject: "blocker " + x.Id, Since: x.RaisedAt.AsTime(),
		Calls: []calls.Call{calls.Do(&pb.ResolveBlockerRequest{Id: x.Id}), calls.Do(&pb.GetBlockerRequest{Id: x.Id})},
	}
	lasted := timeBlocked(x, e.about.Now)
	switch x.State {
	case open:
		f.Summary = x.Agent + " is blocked, and no agent has acknowledged it: " + headline(x)
		if lasted >= longOpen || x.Severity == pb.BlockerSeverity_BLOCKER_SEVERITY_CRITICAL || x.Escalations > 0 {
			f.Severity = finding.Warning
		}
		if !e.about.Mine(x.Agent) || e.about.Asker == "" {
			f.Calls = append([]calls.Call{calls.Do(&pb.AcknowledgeBlockerRequest{Id: x.Id})}, f.Calls...)
		}
	case acknowledged:
		f.Summary = waitsFor(x) + " works on the blocker of " + x.Agent + ": " + headline(x)
		if lasted >= longWorked {
			f.Severity = finding.Warning
		}
	case resolved:
		f.Summary = x.ResolvedBy + " has resolved " + ofWhom(x, x.ResolvedBy) + " after " + finding.Rough(lasted)
		if x.Resolution != "" {
			f.Reasons = []string{work.Clip(x.Resolution, 200)}
		}
		f.Calls = f.Calls[1:]
		return f, nil
	}
	reason, stuck, err := e.awaiting(x)
	if err != nil {
		return f, err
	}
	if reason != "" {
		f.Reasons = append(f.Reasons, reason)
	}
	if stuck {
		f.Severity = finding.Error
	}
	if x.TaskBlocked {
		f.Reasons = append(f.Reasons, "the task "+x.TaskId+" is blocked until it is resolved")
	}
	if x.State == open {
		err = e.notifications(x, &f)
	}
	return f, err
}

// notifications says which agents know of an open blocker, and how the escalation continues.
func (e explainer) notifications(x *pb.Blocker, f *finding.Finding) error {
	if to := waitsFor(x); to == "" {
		f.Severity = finding.Error
		f.Reasons = append(f.Reasons, "no agent was notified: no other agent has a role of the session's escalate_to")
	} else {
		f.Reasons = append(f.Reasons, "the last notification went to "+to)
		reached, err := e.reaches(x)
		if err != nil {
			return err
		}
		if !reached {
			f.Severity = max(f.Severity, finding.Warning)
			f.Reasons = append(f.Reasons, "no recipient of a notification is an agent that is alive, or a role with another such agent")
		}
	}
	switch {
	case x.Escalations >= mostEscalations:
		f.Reasons = append(f.Reasons, fmt.Sprintf(
			"the escalation is exhausted: the broker has escalated it %d times, which is the limit", x.Escalations))
	case x.Escalations > 0:
		f.Reasons = append(f.Reasons, fmt.Sprintf("escalations so far: %d", x.Escalations))
	}
	if x.EscalatesAt != nil {
		f.Reasons = append(f.Reasons, "the broker notifies the next role at "+e.about.When(x.EscalatesAt.AsTime()))
	}
	return nil
}

// reaches reports whether an agent that is alive, other than the one that raised a blocker, can read
// one of its notifications.
func (e explainer) reaches(x *pb.Blocker) (bool, error) {
	for _, entry := range x.Timeline {
		var members []directory.Agent
		var err error
		switch {
		case entry.Message == 0:
		case entry.Recipient.GetAgent() != "":
			var a directory.Agent
			var found bool
			if a, found, err = e.Directory.Find(e.q, e.about.Session, entry.Recipient.GetAgent()); found {
				members = []directory.Agent{a}
			}
		default:
			members, err = e.Directory.Matching(e.q, e.about.Session, directory.Selection{Role: entry.Recipient.GetRole()})
		}
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(members, func(a directory.Agent) bool { return a.Name != x.Agent && !a.Ended() }) {
			return true, nil
		}
	}
	return false, nil
}

// awaiting says what a blocker waits for, and whether that cannot happen as it is now.
func (e explainer) awaiting(x *pb.Blocker) (reason string, stuck bool, err error) {
	kind, name := awaitedOf(x.Awaited)
	if kind == "" {
		return "", false, nil
	}
	reason = "it waits for the " + kind + " " + name
	switch kind {
	case "text":
		reason = "it waits for: " + name
	case "agent":
		a, found, err := e.Directory.Find(e.q, e.about.Session, name)
		switch {
		case err != nil:
			return "", false, err
		case !found:
			return reason + ", which is not registered", true, nil
		case a.Ended():
			return reason + ", which has failed or stopped", true, nil
		}
	default:
	}
	if x.AutoResolve {
		reason += ", and resolves itself then"
	}
	return reason, false, nil
}
