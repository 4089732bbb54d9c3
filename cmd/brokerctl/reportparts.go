package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func (r *report) writeAgents(c *cli, w io.Writer) {
	heading(w, "Agents", len(r.agents.items), "No agent is registered.")
	t := newMarkdownTable("Agent", "Role", "State", "Activity", "Task", "Progress", "Seen")
	for _, a := range r.agents.items {
		t.row(a.GetName(), a.GetRole(), agentState(a), cmp.Or(a.GetActivity(), a.GetStatusReason()), a.GetTaskId(),
			prompt.Either(a.GetProgress() > 0, prompt.Percent(a.GetProgress()), ""), c.when(a.GetLastSeen()))
	}
	t.write(w)
	more(w, r.agents.omitted, "agent")
}

func (r *report) writeTasks(c *cli, w io.Writer) {
	heading(w, "Tasks", len(r.tasks.items), "There are no tasks.")
	tree := newTaskTree(r.tasks.items)
	for _, t := range tree.order {
		facts := []string{prompt.Enum(t.GetState())}
		if who := prompt.TaskFor(t); who != "" {
			facts = append(facts, who)
		}
		done := t.GetState() == pb.TaskState_TASK_STATE_DONE
		if t.GetProgress() > 0 && !done {
			facts = append(facts, prompt.Percent(t.GetProgress()))
		}
		if detail := c.voice().TaskDetail(t); detail != "" {
			facts = append(facts, detail)
		}
		fmt.Fprintf(w, "%s- [%s] **%s** %s — %s\n", strings.Repeat("  ", tree.depth[t.GetId()]), prompt.Either(done, "x", " "),
			inMarkdown(t.GetId()), inMarkdown(t.GetTitle()), inMarkdown(strings.Join(facts, ", ")))
	}
	more(w, r.tasks.omitted, "task")
}

func (r *report) writeDecisions(c *cli, w io.Writer) {
	heading(w, "Open decisions", len(r.decisions.items), "No decision is open.")
	t := newMarkdownTable("Decision", "Kind", "State", "Title", "Scope", "Asked by", "Decides", "Round", "Task", "Opened", "Deadline")
	for _, d := range r.decisions.items {
		t.row(d.GetId(), prompt.Enum(d.GetKind()), prompt.Enum(d.GetState()), d.GetTitle(), d.GetScope(), d.GetOpener(), decider(d),
			fmt.Sprintf("%d of %d", d.GetRound(), d.GetMaxRounds()), d.GetTaskId(), c.when(d.GetOpenedAt()), c.when(d.GetDeadline()))
	}
	t.write(w)
	more(w, r.decisions.omitted, "decision")
}

// decider is the agent or the role that owes the next step of a decision.
func decider(d *pb.Decision) string {
	switch {
	case d.GetState() == pb.DecisionState_DECISION_STATE_REVISING:
		return d.GetOpener()
	case d.GetEscalatedTo() != "":
		return "role:" + d.GetEscalatedTo()
	case d.GetRole() != "":
		return "role:" + d.GetRole()
	}
	return d.GetAgent()
}

func (r *report) writeBlockers(c *cli, w io.Writer) {
	heading(w, "Blockers", len(r.blockers.items), "There are no blockers.")
	columns := c.blockerView().columns
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = column.Name[:1] + strings.ToLower(column.Name[1:])
	}
	names[0] = "Blocker"
	t := newMarkdownTable(names...)
	for _, b := range r.blockers.items {
		t.row(c.blockerView().row(b)...)
	}
	t.write(w)
	more(w, r.blockers.omitted, "blocker")
}

func (r *report) writeHandoffs(c *cli, w io.Writer) {
	heading(w, "Handoffs", len(r.handoffs.items), "There are no handoffs.")
	t := newMarkdownTable("Handoff", "State", "Title", "From", "To", "Task", "Checked", "Created", "Settled", "By", "Notes")
	for _, h := range r.handoffs.items {
		t.row(h.GetId(), prompt.Enum(h.GetState()), h.GetTitle(), h.GetFrom(), h.GetToAgent()+prompt.Either(h.GetToRole() != "", "role:"+h.GetToRole(), ""),
			h.GetTaskId(), prompt.Either(h.GetItems() > 0, fmt.Sprintf("%d of %d", h.GetChecked(), h.GetItems()), ""),
			c.when(h.GetCreatedAt()), c.when(h.GetSettledAt()), h.GetSettledBy(), prompt.Clip(h.GetNotes(), mostText))
	}
	t.write(w)
	more(w, r.handoffs.omitted, "handoff")
}

func (r *report) writeVotes(c *cli, w io.Writer) {
	heading(w, "Votes", len(r.votes.items), "There are no votes.")
	t := newMarkdownTable("Vote", "State", "Title", "Outcome", "Tally", "Voted", "Opener", "Task", "Deadline", "Closed")
	for _, v := range r.votes.items {
		t.row(v.GetId(), prompt.Enum(v.GetState()), v.GetTitle(), prompt.VoteOutcome(nil, v), tallyOf(v), fmt.Sprintf("%d of %d", v.GetBallots(), v.GetElectors()),
			v.GetOpener(), v.GetTaskId(), c.when(v.GetDeadline()), c.when(v.GetClosedAt()))
	}
	t.write(w)
	more(w, r.votes.omitted, "vote")
}

// writeDecided lists verdicts and announced decisions, the newest first.
func (r *report) writeDecided(c *cli, w io.Writer) {
	type line struct {
		at    *timestamppb.Timestamp
		cells [3]string
	}
	var lines []line
	for _, d := range r.decided.items {
		last := &pb.Verdict{}
		if n := len(d.GetRounds()); n > 0 {
			last = d.GetRounds()[n-1]
		}
		verdict := d.GetVerdict() + prompt.Either(last.GetReason() != "", ": "+prompt.Clip(last.GetReason(), mostText), "")
		lines = append(lines, line{d.GetChangedAt(), [3]string{d.GetId() + " " + d.GetTitle(), verdict, last.GetDecidedBy()}})
	}
	for _, m := range r.announcements {
		lines = append(lines, line{m.GetCreatedAt(), [3]string{prompt.Summary(m), "announced", m.GetSender()}})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return b.at.AsTime().Compare(a.at.AsTime()) })
	heading(w, "Recent decisions", len(lines), "No decision was made or announced.")
	t := newMarkdownTable("When", "Decision", "Verdict", "By")
	for _, l := range lines {
		t.row(c.when(l.at), l.cells[0], l.cells[1], l.cells[2])
	}
	t.write(w)
	more(w, r.decided.omitted, "decision")
}
