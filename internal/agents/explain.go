package agents

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// A Member is a registered agent as those need to know it who wait for it.
type Member struct {
	Name, Role string
	Health     Health // never Degraded
	LastSeen   time.Time
	FailedAt   time.Time // zero unless it has failed
}

// Crew returns the registered agents of a session, by name.
func (r *Registry) Crew(q store.Querier, session int64, sessionName string) ([]Member, error) {
	var found []Member
	now := r.clock.Now()
	rows := q.Query(selectCrew, session)
	for rows.Next() {
		var a Agent
		if err := rows.Scan(&a.Name, &a.Role, &a.LastSeen, &a.FailedAt); err != nil {
			return nil, err
		}
		r.presence.look(sessionName, &a, false, now)
		found = append(found, Member{Name: a.Name, Role: a.Role, Health: a.Health, LastSeen: a.LastSeen, FailedAt: a.FailedAt})
	}
	return found, rows.Err()
}

// Registering returns the command that registers an agent again as it described itself last.
func (r *Registry) Registering(q store.Querier, session int64, name string) (finding.Command, error) {
	command := finding.Command{"agent", "register", name}
	rows := q.Query(selectEverAgent, session, name)
	defer rows.Close()
	if !rows.Next() {
		return command, rows.Err()
	}
	a, err := scan(rows, session)
	if err != nil {
		return nil, err
	}
	add := func(option, value string) {
		if value != "" {
			command = append(command, "--"+option, value)
		}
	}
	add("display-name", a.DisplayName)
	add("description", a.Purpose)
	add("role", a.Role)
	for _, c := range a.Capabilities {
		add("capability", c)
	}
	add("instance", a.Instance)
	add("worktree", a.Worktree)
	for _, key := range slices.Sorted(maps.Keys(a.Labels)) {
		add("label", key+"="+a.Labels[key])
	}
	add("lease", a.Lease.String())
	return command, nil
}

// Explain tells how an agent is, or the agents of a role. Errors: fault.NotFound for an agent that is not registered.
func (r *Registry) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	var f finding.Finding
	var err error
	switch about.Kind {
	case finding.Agent:
		f, err = r.explainAgent(q, about)
	case finding.Role:
		if f, err = r.explainRole(q, about); errors.Is(err, store.ErrNoRows) {
			return nil, nil
		}
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain agents: %w", err)
	}
	return []finding.Finding{f}, nil
}

func (r *Registry) explainAgent(q store.Querier, about finding.Question) (finding.Finding, error) {
	a, found, err := r.Find(q, about.Session, about.Name)
	if err != nil {
		return finding.Finding{}, err
	}
	if !found {
		return finding.Finding{}, r.missing(q, about.Session, about.Name)
	}
	_, claimants, err := r.gate(q, a)
	if err != nil {
		return finding.Finding{}, err
	}
	reported := a.Status != Unreported
	r.presence.look(about.SessionName, &a, claimants[a.Name], r.clock.Now())
	seen := a.LastSeen
	f := finding.Finding{
		Severity: finding.Info, Subject: "agent " + a.Name, Since: a.RegisteredAt,
		Summary:  "it is registered" + as(a.Role) + " and was last heard of at " + about.When(seen),
		Reasons:  []string{fmt.Sprintf("its lease is %v; it registered at %s, incarnation %d", a.Lease, about.When(a.RegisteredAt), a.Incarnation)},
		Commands: []finding.Command{{"agent", "get", a.Name}},
	}
	switch {
	case a.Health == Late:
		f.Severity, f.Since = finding.Warning, seen
		f.Summary = "nothing was heard of it since " + about.When(seen)
	case !a.FailedAt.IsZero():
		f.Severity, f.Since = finding.Error, a.FailedAt
		f.Summary = "it has failed: its lease was over at " + about.When(a.FailedAt)
		f.Reasons = append(f.Reasons, "nothing was heard of it since "+about.When(seen)+"; any call in its name brings it back")
		command, err := r.Registering(q, about.Session, a.Name)
		if err != nil {
			return f, err
		}
		f.Commands = append([]finding.Command{command}, f.Commands...)
	case a.Status == StatusFailed:
		f.Severity, f.Since = finding.Error, a.ChangedAt
		f.Summary = "it reports that it has failed" + because(a.Reason)
	case a.Status == StatusDegraded:
		f.Severity, f.Since = finding.Warning, a.ChangedAt
		f.Summary = "it reports that it is degraded" + because(a.Reason)
	default:
	}
	says := "it says that it is " + a.Status.String() + because(a.Reason)
	if !reported {
		says = "it reports no status; from its work it is " + a.Status.String()
	}
	if a.Activity != "" {
		says += ": " + finding.Clip(a.Activity)
	}
	f.Reasons = append(f.Reasons, says)
	return f, nil
}

// because is the reason of a status.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + finding.Clip(reason) + ")"
}

// as says a role.
func as(role string) string {
	if role == "" {
		return ""
	}
	return " as " + role
}

// explainRole counts the agents of a role; store.ErrNoRows if there is none.
func (r *Registry) explainRole(q store.Querier, about finding.Question) (finding.Finding, error) {
	all, err := r.Crew(q, about.Session, about.SessionName)
	if err != nil {
		return finding.Finding{}, err
	}
	var names []string
	for _, m := range all {
		if m.Role == about.Name {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 {
		return finding.Finding{}, store.ErrNoRows
	}
	return finding.Finding{
		Severity: finding.Info, Subject: "role " + about.Name,
		Summary:  finding.Count(len(names), "agent") + " of it: " + finding.Names(names),
		Commands: []finding.Command{{"agent", "list", "--role", about.Name}},
	}, nil
}
