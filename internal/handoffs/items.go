package handoffs

import (
	"fmt"
	"strings"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Items returns the pending handoffs that an agent can accept or has created, at most limit, oldest
// first.
func (d *Desk) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	list, err := read(q.Query(selectPending, session))
	if err != nil {
		return nil, fmt.Errorf("list handoffs of %s: %w", a.Name, err)
	}
	var items []work.Item
	for i := range list {
		h := &list[i]
		item := work.Item{Kind: noun, ID: h.Name(), Revision: h.Revision, Title: h.Title, State: h.State.String()}
		get := finding.Command{"handoff", "get", h.Name()}
		switch {
		case h.isFor(a):
			item.Relation, item.Other = work.Owes, h.From
			item.Commands = []finding.Command{{"handoff", "accept", h.Name()}, {"handoff", "reject", h.Name(), "REASON"}, get}
		case h.From == a.Name:
			item.Relation, item.Other = work.Opened, h.To()
			item.Commands = []finding.Command{append(get, "--wait", "10m"), {"handoff", "cancel", h.Name()}}
		default:
			continue
		}
		if items = append(items, item); len(items) == limit {
			break
		}
	}
	return items, nil
}

// OfTask returns the handoffs that name a task, the newest first, at most limit.
func (d *Desk) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	found, err := read(q.Query(selectOfTask, session, task, limit))
	items := make([]work.Item, len(found))
	for i := range found {
		h := &found[i]
		items[i] = work.Item{Kind: noun, ID: h.Name(), Revision: h.Revision, Title: h.Title, State: h.State.String()}
	}
	return items, err
}

// Counts counts the pending handoffs of a session.
func (d *Desk) Counts(q store.Querier, session int64) ([]work.Count, error) {
	n := work.Count{Kind: noun, State: Pending.String()}
	if err := q.QueryRow(countPending, session).Scan(&n.N); err != nil || n.N == 0 {
		return nil, err
	}
	return []work.Count{n}, nil
}

const (
	// longPending is the time after which a pending handoff is a warning.
	longPending = time.Hour
	// mostExplained limits the handoffs of one answer.
	mostExplained = 20
)

// Explain describes a handoff, or the pending handoffs of an agent or to a role; without a subject, it
// finds those that have been pending for too long or cannot be accepted as they are. Errors:
// fault.NotFound for a handoff that does not exist.
func (d *Desk) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	switch about.Kind {
	case finding.Handoff:
		h, err := find(q, about.Session, about.Name)
		if err != nil {
			return nil, err
		}
		f, err := d.finding(q, &about, &h)
		return []finding.Finding{f}, err
	case finding.Everything, finding.Agent, finding.Role:
	default:
		return nil, nil
	}
	list, err := read(q.Query(selectPending, about.Session))
	if err != nil {
		return nil, fmt.Errorf("explain handoffs: %w", err)
	}
	var found []finding.Finding
	for i := range list {
		h := &list[i]
		switch {
		case about.Kind == finding.Everything:
		case about.Kind == finding.Agent && (h.From == about.Name || h.ToAgent == about.Name):
		case about.Kind == finding.Role && h.ToRole == about.Name:
		default:
			continue
		}
		f, err := d.finding(q, &about, h)
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

func (d *Desk) finding(q store.Querier, about *finding.Question, h *Handoff) (finding.Finding, error) {
	f := finding.Finding{
		Severity: finding.Info, Subject: "handoff " + h.Name(), Since: h.CreatedAt,
		Commands: []finding.Command{{"handoff", "get", h.Name()}},
	}
	if h.State != Pending {
		f.Summary = h.SettledBy + " has " + h.State.String() + " the handoff from " + h.From + ": " + h.Title
		if h.Notes != "" {
			f.Reasons = []string{headline(h.Notes)}
		}
		return f, nil
	}
	f.Summary = h.To() + " has not answered the handoff from " + h.From + ": " + h.Title
	if about.Now.Sub(h.CreatedAt) >= longPending {
		f.Severity = finding.Warning
	}
	lost, err := d.findLost(q, h)
	if err != nil {
		return f, err
	}
	if len(lost) > 0 {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, h.From+" has lost "+strings.Join(lost, " and ")+": it can only be accepted with --partial")
	}
	ready, err := d.recipientReady(q, h)
	if err != nil {
		return f, err
	}
	if !ready {
		f.Severity = finding.Error
		f.Reasons = append(f.Reasons, "no agent that could accept it is alive")
	}
	if about.Mine(h.From) {
		f.Commands = append(f.Commands, finding.Command{"handoff", "cancel", h.Name()})
	}
	return f, nil
}

// recipientReady reports whether an agent that may accept a handoff is alive.
func (d *Desk) recipientReady(q store.Querier, h *Handoff) (bool, error) {
	if h.ToAgent != "" {
		a, found, err := d.dir.Find(q, h.Session, h.ToAgent)
		return found && !a.Ended(), err
	}
	members, err := d.dir.Matching(q, h.Session, directory.Selection{Role: h.ToRole})
	for _, m := range members {
		if m.Name != h.From && !m.Ended() {
			return true, nil
		}
	}
	return false, err
}
