package decisions

import (
	"cmp"
	"fmt"

	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/identity"
	"brokerd/internal/store"
)

// Explain says what one decision waits for. Without a subject, it finds decisions that an agent or an
// operator should act on: escalated ones, and those that an agent owes that cannot work.
func (t *Table) Explain(q store.Querier, about finding.Question) (found []finding.Finding, err error) {
	var list []Decision
	switch about.Kind {
	case finding.Decision:
		d, err := find(q, about.Session, about.Name)
		if fault.KindOf(err) == fault.NotFound {
			return nil, nil // the caller says so
		}
		if err != nil {
			return nil, fmt.Errorf("explain decision: %w", err)
		}
		list = []Decision{d}
	case finding.Everything:
		if list, err = readAll(q.Query(selectUnfinished, about.Session)); err != nil {
			return nil, fmt.Errorf("explain decisions: %w", err)
		}
	default:
		return nil, nil
	}
	for i := range list {
		f, err := t.explain(q, about, &list[i])
		if err != nil {
			return nil, fmt.Errorf("explain decision: %w", err)
		}
		if about.Kind == finding.Decision || f.Severity > finding.Info {
			found = append(found, f)
		}
	}
	return found, nil
}

func (t *Table) explain(q store.Querier, about finding.Question, d *Decision) (finding.Finding, error) {
	f := finding.Finding{Severity: finding.Info, Subject: "decision " + d.Name(), Since: d.ChangedAt}
	what := fmt.Sprintf("%s by %s, round %d of %d", d.subject(), d.OpenedBy, d.Round, d.MaxRounds)
	if d.Round > 1 {
		what = fmt.Sprintf("%s by %s", d.subject(), d.OpenedBy)
	}
	session, err := t.Directory.ByID(q, about.Session)
	if err != nil {
		return f, err
	}
	f.Commands = d.explainCommands(about, session)
	switch d.State {
	case Open:
		f.Summary = what + ", waits for the verdict of " + d.addressee()
		if d.Agent != "" {
			err = t.explainAgent(q, about, &f, d.Agent)
		}
	case Revising:
		f.Summary = what + ", waits until " + d.OpenedBy + " resubmits it"
		err = t.explainAgent(q, about, &f, d.OpenedBy)
	case Escalated:
		f.Severity, f.Summary = finding.Warning, what+", has escalated: "+d.Note
		f.Reasons = []string{"an agent of the role " + d.EscalatedTo + " decides, or an operator"}
		if d.EscalatedTo == "" {
			f.Severity = finding.Error
			f.Reasons = []string{"no agent has a role that the session escalates to (setting escalate-to); an operator decides"}
		}
	default:
		f.Summary = what + ", is " + d.State.String()
		if d.Verdict != "" {
			f.Summary = what + ", has the verdict " + d.Verdict
		}
	}
	if d.State == Open && !d.Deadline.IsZero() {
		f.Reasons = append(f.Reasons, "it escalates at "+about.When(d.Deadline))
	}
	return f, err
}

// explainCommands returns the commands that the caller may run: those that settle the decision first.
func (d *Decision) explainCommands(about finding.Question, s directory.Session) (list []finding.Command) {
	asker := directory.Agent{Name: cmp.Or(about.Asker, identity.System), Role: about.AskerRole}
	switch {
	case d.mayDecide(asker, s):
		return d.verdictCommands()
	case d.State == Revising && d.OpenedBy == about.Asker:
		list = append(list, d.resubmitCommand())
	case d.State == Revising:
		list = append(list, finding.Command{"explain", "agent", d.OpenedBy})
	case d.State == Open && d.Agent != "":
		list = append(list, finding.Command{"explain", "agent", d.Agent})
	}
	list = append(list, d.command("get"))
	if (d.State.waits() || d.State == Revising) && about.Mine(d.OpenedBy) {
		list = append(list, finding.Command{"decision", "cancel", d.Name()})
	}
	return list
}

// explainAgent adds the condition of an agent that something waits for.
func (t *Table) explainAgent(q store.Querier, about finding.Question, f *finding.Finding, agent string) error {
	says, well, err := t.Crew.Condition(q, about, agent)
	if err != nil {
		return err
	}
	f.Reasons = append(f.Reasons, says)
	if !well {
		f.Severity = finding.Warning
	}
	return nil
}
