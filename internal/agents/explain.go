package agents

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// Members returns the registered agents of a session, by name, without ID, capabilities and attention.
func (r *Registry) Members(q store.Querier, session int64) ([]directory.Member, error) {
	s, err := r.dir.ByID(q, session)
	if err != nil {
		return nil, err
	}
	now := r.clock.Now()
	return store.Collect(q.Query(selectCrew, session), func(rows *store.Rows) (m directory.Member, err error) {
		a := Agent{Session: session}
		if err := rows.Scan(&a.Name, &a.Role, &a.LastSeen, &a.FailedAt, &a.StoppedAt); err != nil {
			return m, err
		}
		r.Presence.look(s.Name, &a, false, now)
		m = directory.Member{Agent: a.Entry(), LastSeen: a.LastSeen}
		switch {
		case a.Health == Failed:
			m.Health = directory.Failed
		case a.Stopped():
			m.Health = directory.Stopped
		case a.Health == Late:
			m.Health = directory.Late
		}
		return m, nil
	})
}

// LabelCommand is the label in which `brokerctl agent run` keeps the words of its command, as a
// JSON array.
const LabelCommand = "command"

// Registering returns the call that registers an agent again, as it described itself last.
func (r *Registry) Registering(q store.Querier, session int64, name string) (calls.Call, error) {
	a, _, err := ever(q, session, name)
	return a.registering().As(name), err
}

// Starting returns the call that registers an agent again, with the program that makes it; false if the agent was not
// started by `brokerctl agent run`.
func (r *Registry) Starting(q store.Querier, session int64, name string) (calls.Call, bool, error) {
	a, found, err := ever(q, session, name)
	var words []string
	if err != nil || !found || json.Unmarshal([]byte(a.Labels[LabelCommand]), &words) != nil || len(words) == 0 {
		return calls.Call{}, false, err
	}
	delete(a.Labels, LabelCommand)
	call := a.registering().As(name)
	call.Program = words
	return call, true, nil
}

// ever returns an agent that is or was registered.
func ever(q store.Querier, session int64, name string) (Agent, bool, error) {
	rows := q.Query(selectEverAgent, session, name)
	defer rows.Close()
	if !rows.Next() {
		return Agent{}, false, rows.Err()
	}
	a, err := scan(rows, session)
	return a, err == nil, err
}

// registering is the call that describes the agent as it is.
func (a *Agent) registering() calls.Call {
	r := &pb.RegisterAgentRequest{
		Role: a.Role, Capabilities: a.Capabilities, Instance: a.Instance, Worktree: a.Worktree, Labels: a.Labels,
		DisplayName: a.DisplayName, Description: a.Purpose,
	}
	if a.Lease > 0 {
		r.Lease = durationpb.New(a.Lease)
	}
	return calls.Do(r)
}

// Explain describes an agent, or the agents of a role, or for the whole session those that report trouble. Errors:
// fault.NotFound for an agent that is not registered.
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
	case finding.Everything:
		return explainTrouble(q, about)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain agents: %w", err)
	}
	return []finding.Finding{f}, nil
}

// mostTroubled is how many agents that report trouble Explain lists one by one.
const mostTroubled = 20

// explainTrouble lists the agents that report the status degraded or failed. Those that have failed by their leases are
// the broker's findings.
func explainTrouble(q store.Querier, about finding.Question) (found []finding.Finding, err error) {
	rows := q.Query(selectTroubled, about.Session, maxAgents)
	defer rows.Close()
	more := 0
	for rows.Next() {
		var a Agent
		var status int
		if err := rows.Scan(&a.Name, &status, &a.Reason, &a.ChangedAt); err != nil {
			return nil, fmt.Errorf("explain agents: %w", err)
		}
		if len(found) == mostTroubled {
			more++
			continue
		}
		show := calls.Do(&pb.GetAgentRequest{Name: a.Name})
		f := finding.Finding{Subject: "agent " + a.Name, Calls: []calls.Call{show}}
		a.Status = Status(status)
		a.troubled(&f)
		found = append(found, f)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("explain agents: %w", err)
	}
	if more > 0 {
		found = append(found, finding.Finding{Severity: finding.Warning, Subject: "agents", Since: about.Now,
			Summary: finding.Count(more, "more agent") + " reporting that they are degraded or have failed",
			Calls:   []calls.Call{calls.Do(&pb.ListAgentsRequest{})}})
	}
	return found, nil
}

// troubled completes the finding about an agent if it reports trouble.
func (a *Agent) troubled(f *finding.Finding) {
	switch a.Status {
	case StatusFailed:
		f.Severity, f.Summary = finding.Error, "it reports that it has failed"+because(a.Reason)
	case StatusDegraded:
		f.Severity, f.Summary = finding.Warning, "it reports that it is degraded"+because(a.Reason)
	default:
		return
	}
	f.Since = a.ChangedAt
}

func (r *Registry) explainAgent(q store.Querier, about finding.Question) (finding.Finding, error) {
	a, found, err := find(q, about.Session, about.Name)
	if err != nil {
		return finding.Finding{}, err
	}
	if !found {
		return finding.Finding{}, missing(r.dir, q, about.Session, about.Name)
	}
	_, claimants, err := r.gates(q, a.Session, a.Name)
	if err != nil {
		return finding.Finding{}, err
	}
	reported := a.Status != Unreported
	r.Presence.look(about.SessionName, &a, claimants[a.Name], r.clock.Now())
	f := finding.Finding{
		Severity: finding.Info, Subject: "agent " + a.Name, Since: a.RegisteredAt,
		Summary: "it is registered" + as(a.Role) + "; its last call was at " + about.When(a.LastSeen),
		Reasons: []string{
			fmt.Sprintf("its lease lasts %s; it registered at %s", finding.Exact(a.Lease), about.When(a.RegisteredAt)),
			fmt.Sprintf("its incarnation is %d: the number of its registrations and of its failures", a.Incarnation),
		},
		Calls: []calls.Call{calls.Do(&pb.GetAgentRequest{Name: a.Name})},
	}
	switch {
	case a.Health == Late:
		f.Severity, f.Since = finding.Warning, a.LastSeen
		f.Summary = "it is late: its last call was at " + about.When(a.LastSeen) + finding.After(a.Lease/3)
	case a.Stopped() && a.Status != StatusFailed:
		f.Since = a.StoppedAt
		f.Summary = "it stopped at " + about.When(a.StoppedAt) + because(a.Reason) + ": its program has ended well"
		f.Reasons = append(f.Reasons, "its next call brings it back; if there is none for 7 days, the broker deregisters it")
	default:
		a.troubled(&f)
	}
	if !a.Stopped() && !a.AsleepSince.IsZero() {
		f.Reasons = append(f.Reasons, "it is asleep since "+about.When(a.AsleepSince)+
			": it has no open call, so it reads new messages when it runs again")
	}
	if h := a.Presence(); h.State != 0 {
		f.Reasons = append(f.Reasons, h.explained(about.When(h.Since)))
	}
	if a.Attention != directory.AttentionOpen {
		f.Reasons = append(f.Reasons, "its attention is "+a.Attention.String()+
			": other mail waits until it asks for it")
	}
	says := "it reports the status " + a.Status.String() + because(a.Reason)
	if !reported {
		says = "it reports no status"
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
	all, err := r.Members(q, about.Session)
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
		Summary: finding.Count(len(names), "agent") + " with this role: " + finding.Names(names),
		Calls:   []calls.Call{calls.Do(&pb.ListAgentsRequest{Role: about.Name})},
	}, nil
}
