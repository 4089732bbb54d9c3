package work

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func (r *Report) writeAgents(c *command.Caller, w io.Writer) {
	heading(w, "Agents", len(r.Agents.Items), "No agent is registered.")
	t := NewMarkdownTable("Agent", "Role", "State", "Activity", "Task", "Progress", "Seen")
	for _, a := range r.Agents.Items {
		t.Row(a.GetName(), a.GetRole(), prompt.AgentState(a), cmp.Or(a.GetActivity(), a.GetStatusReason()), a.GetTaskId(),
			prompt.Either(a.GetProgress() > 0, prompt.Percent(a.GetProgress()), ""), c.When(a.GetLastSeen()))
	}
	t.Write(w)
	more(w, r.Agents.Omitted, "agent")
}

func (r *Report) writeTasks(c *command.Caller, w io.Writer) {
	heading(w, "Tasks", len(r.Tasks.Items), "There are no tasks.")
	tree := NewTaskTree(r.Tasks.Items)
	for _, t := range tree.Order {
		facts := []string{prompt.Enum(t.GetState())}
		if who := prompt.TaskFor(t); who != "" {
			facts = append(facts, who)
		}
		done := t.GetState() == pb.TaskState_TASK_STATE_DONE
		if t.GetProgress() > 0 && !done {
			facts = append(facts, prompt.Percent(t.GetProgress()))
		}
		if detail := c.Voice().TaskDetail(t); detail != "" {
			facts = append(facts, detail)
		}
		fmt.Fprintf(w, "%s- [%s] **%s** %s — %s\n", strings.Repeat("  ", tree.Depth[t.GetId()]), prompt.Either(done, "x", " "),
			inMarkdown(t.GetId()), inMarkdown(t.GetTitle()), inMarkdown(strings.Join(facts, ", ")))
	}
	more(w, r.Tasks.Omitted, "task")
}

func (r *Report) writeDecisions(c *command.Caller, w io.Writer) {
	heading(w, "Open decisions", len(r.Decisions.Items), "No decision is open.")
	t := NewMarkdownTable("Decision", "Kind", "State", "Title", "Scope", "Asked by", "Decides", "Round", "Task", "Opened", "Deadline")
	for _, d := range r.Decisions.Items {
		t.Row(d.GetId(), prompt.Enum(d.GetKind()), prompt.Enum(d.GetState()), d.GetTitle(), d.GetScope(), d.GetOpener(), decider(d),
			fmt.Sprintf("%d of %d", d.GetRound(), d.GetMaxRounds()), d.GetTaskId(), c.When(d.GetOpenedAt()), c.When(d.GetDeadline()))
	}
	t.Write(w)
	more(w, r.Decisions.Omitted, "decision")
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

func (r *Report) writeBlockers(c *command.Caller, w io.Writer) {
	heading(w, "Blockers", len(r.Blockers.Items), "There are no blockers.")
	columns := blockerView(c).Columns
	names := each.Of(columns, func(column table.Column) string {
		return column.Name[:1] + strings.ToLower(column.Name[1:])
	})
	names[0] = "Blocker"
	t := NewMarkdownTable(names...)
	for _, b := range r.Blockers.Items {
		t.Row(blockerView(c).Row(b)...)
	}
	t.Write(w)
	more(w, r.Blockers.Omitted, "blocker")
}

func (r *Report) writeHandoffs(c *command.Caller, w io.Writer) {
	heading(w, "Handoffs", len(r.Handoffs.Items), "There are no handoffs.")
	t := NewMarkdownTable("Handoff", "State", "Title", "From", "To", "Task", "Checked", "Created", "Settled", "By", "Notes")
	for _, h := range r.Handoffs.Items {
		t.Row(h.GetId(), prompt.Enum(h.GetState()), h.GetTitle(), h.GetFrom(), h.GetToAgent()+prompt.Either(h.GetToRole() != "", "role:"+h.GetToRole(), ""),
			h.GetTaskId(), prompt.Either(h.GetItems() > 0, fmt.Sprintf("%d of %d", h.GetChecked(), h.GetItems()), ""),
			c.When(h.GetCreatedAt()), c.When(h.GetSettledAt()), h.GetSettledBy(), prompt.Clip(h.GetNotes(), output.MostText))
	}
	t.Write(w)
	more(w, r.Handoffs.Omitted, "handoff")
}

func (r *Report) writeVotes(c *command.Caller, w io.Writer) {
	heading(w, "Votes", len(r.Votes.Items), "There are no votes.")
	t := NewMarkdownTable("Vote", "State", "Title", "Outcome", "Tally", "Voted", "Opener", "Task", "Deadline", "Closed")
	for _, v := range r.Votes.Items {
		t.Row(v.GetId(), prompt.Enum(v.GetState()), v.GetTitle(), prompt.VoteOutcome(nil, v), prompt.Tally(v), fmt.Sprintf("%d of %d", v.GetBallots(), v.GetElectors()),
			v.GetOpener(), v.GetTaskId(), c.When(v.GetDeadline()), c.When(v.GetClosedAt()))
	}
	t.Write(w)
	more(w, r.Votes.Omitted, "vote")
}

// writeDecided lists verdicts and announced decisions, the newest first.
func (r *Report) writeDecided(c *command.Caller, w io.Writer) {
	type line struct {
		at    *timestamppb.Timestamp
		cells [3]string
	}
	var lines []line
	for _, d := range r.Decided.Items {
		last := &pb.Verdict{}
		if n := len(d.GetRounds()); n > 0 {
			last = d.GetRounds()[n-1]
		}
		verdict := d.GetVerdict() + prompt.Either(last.GetReason() != "", ": "+prompt.Clip(last.GetReason(), output.MostText), "")
		lines = append(lines, line{d.GetChangedAt(), [3]string{d.GetId() + " " + d.GetTitle(), verdict, last.GetDecidedBy()}})
	}
	for _, m := range r.Announcements {
		lines = append(lines, line{m.GetCreatedAt(), [3]string{prompt.Summary(m), "announced", m.GetSender()}})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return b.at.AsTime().Compare(a.at.AsTime()) })
	heading(w, "Recent decisions", len(lines), "No decision was made or announced.")
	t := NewMarkdownTable("When", "Decision", "Verdict", "By")
	for _, l := range lines {
		t.Row(c.When(l.at), l.cells[0], l.cells[1], l.cells[2])
	}
	t.Write(w)
	more(w, r.Decided.Omitted, "decision")
}
