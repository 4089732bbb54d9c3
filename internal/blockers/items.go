package blockers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Items returns the unresolved blockers that concern an agent, at most limit, oldest first: those
// that it works on, those of which it or its role was notified, and those that it has raised.
func (b *Board) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	list, err := read(q.Query(selectUnresolved, session))
	if err != nil {
		return nil, fmt.Errorf("list blockers of %s: %w", a.Name, err)
	}
	var items []work.Item
	for i := range list {
		x := &list[i]
		item := work.Item{
			Kind: noun, ID: x.Name(), Revision: x.Revision, Title: x.headline(), State: x.State.String(), Other: x.Agent, Due: x.EscalatesAt,
		}
		resolve := finding.Command{"blocker", "resolve", x.Name()}
		switch {
		case x.acknowledgedBy(a.Name):
			item.Relation, item.Commands = work.Holds, []finding.Command{resolve}
		case x.Agent == a.Name:
			item.Relation, item.Other = work.Opened, x.waitsFor()
			item.Commands = []finding.Command{{"blocker", "get", x.Name(), "--wait", "10m"}, resolve}
		case x.State == Open && x.asks(a):
			item.Relation, item.Commands = work.Owes, []finding.Command{{"blocker", "ack", x.Name()}, resolve}
		default:
			continue
		}
		if items = append(items, item); len(items) == limit {
			break
		}
	}
	return items, nil
}

// OfTask returns the blockers that name a task, the newest first, at most limit.
func (b *Board) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	found, err := read(q.Query(selectOfTask, session, task, limit))
	items := make([]work.Item, len(found))
	for i := range found {
		x := &found[i]
		items[i] = work.Item{Kind: noun, ID: x.Name(), Revision: x.Revision, Title: x.headline(), State: x.State.String()}
	}
	return items, err
}

// waitsFor returns the agent or role from which the solution is to come: the agents that work on the
// blocker, or else the last recipient.
func (b *Blocker) waitsFor() string {
	var by []string
	for _, a := range b.Acknowledgements() {
		by = append(by, a.Agent)
	}
	for i := len(b.Timeline) - 1; i >= 0 && by == nil; i-- {
		if r := b.Timeline[i].Recipient; b.Timeline[i].Message != 0 {
			by = []string{cmp.Or(r.Agent, r.Role)}
		}
	}
	return strings.Join(by, ", ")
}

// Counts counts the unresolved blockers of a session by state.
func (b *Board) Counts(q store.Querier, session int64) ([]work.Count, error) {
	var counts []work.Count
	for _, state := range []State{Open, Acknowledged} {
		n := work.Count{Kind: noun, State: state.String()}
		if err := q.QueryRow(countUnresolved, session, int(state)).Scan(&n.N); err != nil {
			return nil, err
		}
		if n.N > 0 {
			counts = append(counts, n)
		}
	}
	return counts, nil
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
func (b *Board) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	if about.Kind == finding.Blocker {
		x, err := find(q, about.Session, about.Name)
		if err != nil {
			return nil, err
		}
		f, err := b.finding(q, &about, &x)
		return []finding.Finding{f}, err
	}
	if about.Kind != finding.Everything && about.Kind != finding.Agent && about.Kind != finding.Role {
		return nil, nil
	}
	list, err := read(q.Query(selectUnresolved, about.Session))
	if err != nil {
		return nil, fmt.Errorf("explain blockers: %w", err)
	}
	var found []finding.Finding
	for i := range list {
		x := &list[i]
		switch {
		case about.Kind == finding.Everything:
		case about.Kind == finding.Agent && (x.Agent == about.Name || x.acknowledgedBy(about.Name) || x.Awaited == Awaited{Agent, about.Name}):
		case x.State == Open && x.asks(subject(&about)):
		default:
			continue
		}
		f, err := b.finding(q, &about, x)
		if err != nil {
			return nil, err
		}
		if f.Severity == finding.Info && about.Kind == finding.Everything {
			continue
		}
		if found = append(found, f); len(found) == mostExplained {
			break
		}
	}
	return found, nil
}

// subject is the agent or role of a question as a recipient.
func subject(about *finding.Question) directory.Agent {
	if about.Kind == finding.Role {
		return directory.Agent{Role: about.Name}
	}
	return directory.Agent{Name: about.Name}
}

func (b *Board) finding(q store.Querier, about *finding.Question, x *Blocker) (finding.Finding, error) {
	f := finding.Finding{
		Severity: finding.Info, Subject: "blocker " + x.Name(), Since: x.RaisedAt,
		Commands: []finding.Command{{"blocker", "resolve", x.Name()}, {"blocker", "get", x.Name()}},
	}
	lasted := x.TimeBlocked(about.Now)
	switch x.State {
	case Open:
		f.Summary = x.Agent + " is blocked, and no agent has acknowledged it: " + x.headline()
		if lasted >= longOpen || x.Severity == Critical || x.Escalations > 0 {
			f.Severity = finding.Warning
		}
		if !about.Mine(x.Agent) || about.Asker == "" {
			f.Commands = append([]finding.Command{{"blocker", "ack", x.Name()}}, f.Commands...)
		}
	case Acknowledged:
		f.Summary = x.waitsFor() + " works on the blocker of " + x.Agent + ": " + x.headline()
		if lasted >= longWorked {
			f.Severity = finding.Warning
		}
	case Resolved:
		r := x.Resolution()
		f.Summary = r.Agent + " has resolved " + x.ofWhom(r.Agent) + " after " + finding.Rough(lasted)
		if r.Note != "" {
			f.Reasons = []string{clip(r.Note, 200)}
		}
		f.Commands = f.Commands[1:]
		return f, nil
	}
	reason, stuck, err := b.awaiting(q, x)
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
		f.Reasons = append(f.Reasons, "the task "+x.Task+" is blocked until it is resolved")
	}
	if x.State == Open {
		err = b.explainNotifications(q, about, x, &f)
	}
	return f, err
}

// explainNotifications says which agents know of an open blocker, and how the escalation continues.
func (b *Board) explainNotifications(q store.Querier, about *finding.Question, x *Blocker, f *finding.Finding) error {
	if to := x.waitsFor(); to == "" {
		f.Severity = finding.Error
		f.Reasons = append(f.Reasons, "no agent was notified: no other agent has a role of the session's escalate_to")
	} else {
		f.Reasons = append(f.Reasons, "the last notification went to "+to)
		reached, err := b.reaches(q, x)
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
		f.Reasons = append(f.Reasons, fmt.Sprintf("the escalation is exhausted: the broker has escalated it %d times, which is the limit", x.Escalations))
	case x.Escalations > 0:
		f.Reasons = append(f.Reasons, fmt.Sprintf("escalations so far: %d", x.Escalations))
	}
	if !x.EscalatesAt.IsZero() {
		f.Reasons = append(f.Reasons, "the broker notifies the next role at "+about.When(x.EscalatesAt))
	}
	return nil
}

// reaches reports whether an agent that is alive, other than the one that raised a blocker, can read
// one of its notifications.
func (b *Board) reaches(q store.Querier, x *Blocker) (bool, error) {
	for _, e := range x.Timeline {
		var members []directory.Agent
		var err error
		switch {
		case e.Message == 0:
		case e.Recipient.Agent != "":
			var a directory.Agent
			var found bool
			if a, found, err = b.dir.Find(q, x.Session, e.Recipient.Agent); found {
				members = []directory.Agent{a}
			}
		default:
			members, err = b.dir.Matching(q, x.Session, directory.Selection{Role: e.Recipient.Role})
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
func (b *Board) awaiting(q store.Querier, x *Blocker) (reason string, stuck bool, err error) {
	if x.Awaited.Kind == 0 {
		return "", false, nil
	}
	reason = "it waits for the " + x.Awaited.Kind.String() + " " + x.Awaited.Name
	switch x.Awaited.Kind {
	case Text:
		reason = "it waits for: " + x.Awaited.Name
	case Agent:
		a, found, err := b.dir.Find(q, x.Session, x.Awaited.Name)
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
