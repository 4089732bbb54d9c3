package decisions

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// OfTask returns the newest decisions that name a task, at most limit.
func (t *Table) OfTask(q store.Querier, session int64, task string, limit int) ([]work.Item, error) {
	list, err := readAll(q.Query(selectOfTask, session, task, limit))
	items := make([]work.Item, len(list))
	for i := range list {
		d := &list[i]
		items[i] = work.Item{Kind: "decision", ID: d.Name(), Revision: d.Revision, Title: d.subject(), State: d.State.String()}
	}
	return items, err
}

// Items returns the unfinished decisions that concern an agent: those it owes, then those it opened,
// each with the oldest first.
func (t *Table) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	s, err := t.Directory.ByID(q, session)
	if err != nil {
		return nil, err
	}
	list, err := readAll(q.Query(selectConcerning, session, a.Name, a.Name, a.Role))
	if err != nil {
		return nil, err
	}
	var items []work.Item
	for i := range list {
		d := &list[i]
		item := work.Item{Kind: "decision", ID: d.Name(), Revision: d.Revision, Title: d.subject(), State: d.State.String(), Due: d.Deadline}
		switch {
		case d.mayDecide(a, s):
			item.Relation, item.Other, item.Commands = work.Owes, d.OpenedBy, d.verdictCommands()
		case d.owedBy(a, s):
			item.Relation, item.Other, item.Due = work.Owes, d.addressee(), time.Time{}
			item.Commands = []finding.Command{d.nextRoundCommand(), d.command("get"), {"decision", "cancel", d.Name()}}
		case d.OpenedBy == a.Name:
			item.Relation, item.Other = work.Opened, d.decider()
			item.Commands = []finding.Command{append(d.command("get"), "--wait", "90s"), {"decision", "cancel", d.Name()}}
		default:
			continue
		}
		items = append(items, item)
	}
	slices.SortStableFunc(items, func(a, b work.Item) int { return cmp.Compare(a.Relation, b.Relation) })
	return items[:min(limit, len(items))], nil
}

// subject is the title with the kind and the round.
func (d *Decision) subject() string {
	says := d.Kind.String() + ": " + d.Title
	if d.Round > 1 {
		says += fmt.Sprintf(" (round %d of %d)", d.Round, d.MaxRounds)
	}
	return says
}

// decider names the agent or role that owes the verdict.
func (d *Decision) decider() string {
	if d.State == Escalated && d.EscalatedTo != "" {
		return "role:" + d.EscalatedTo
	}
	return d.addressee()
}

// command returns a command about the decision: reviews and plans have their own groups.
func (d *Decision) command(verb string) finding.Command {
	group := "decision"
	if d.Kind == Review || d.Kind == Plan {
		group = d.Kind.String()
	}
	return finding.Command{group, verb, d.Name()}
}

// resubmitCommand opens the next round. The opener adds the revised content.
func (d *Decision) resubmitCommand() finding.Command {
	return finding.Command{"decision", "resubmit", d.Name(), "--body", "-"}
}

// nextRoundCommand is resubmitCommand for the opener, with the scope of a review or plan that has one.
func (d *Decision) nextRoundCommand() finding.Command {
	if d.Scope != "" && (d.Kind == Review || d.Kind == Plan) {
		return finding.Command{d.Kind.String(), "submit", d.Scope, "--body", "-"}
	}
	return d.resubmitCommand()
}

// verdictCommands returns the commands that answer the decision.
func (d *Decision) verdictCommands() (list []finding.Command) {
	for _, verdict := range d.Verdicts {
		command := d.command(verdict)
		if d.Kind == Custom {
			command = finding.Command{"decision", "decide", d.Name(), verdict}
		}
		if verdict == Defer {
			if d.Kind == Custom {
				command = append(command, "--for")
			}
			command = append(command, "30m")
		}
		list = append(list, command)
	}
	return append(list, d.command("get"))
}

// Counts counts the unfinished decisions of a session.
func (t *Table) Counts(q store.Querier, session int64) (counts []work.Count, err error) {
	rows := q.Query(countStates, session)
	defer rows.Close()
	for rows.Next() {
		var state int
		var n int64
		if err := rows.Scan(&state, &n); err != nil {
			return nil, err
		}
		counts = append(counts, work.Count{Kind: "decision", State: State(state).String(), N: n})
	}
	return counts, rows.Err()
}
