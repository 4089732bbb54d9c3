package prompt

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
)

// mostItems is how many pieces of work a text shows.
const mostItems = 5

// Owed returns the pieces of work that wait for the agent: for its answer, or for it to continue.
func Owed(items []*pb.WorkItem) []*pb.WorkItem {
	return slices.DeleteFunc(slices.Clone(items), func(i *pb.WorkItem) bool {
		return i.GetRelation() != pb.WorkRelation_WORK_RELATION_OWES &&
			(i.GetRelation() != pb.WorkRelation_WORK_RELATION_HOLDS || i.GetState() == "blocked")
	})
}

// ItemLine describes a piece of work, with the command that settles it. Without the title, it contains no
// text of others.
func (v Voice) ItemLine(i *pb.WorkItem, title bool) string {
	facts := i.GetState()
	if i.GetDue() != nil {
		facts += ", due " + v.When(i.GetDue())
	}
	what := fmt.Sprintf("%s %s (%s)", i.GetKind(), i.GetId(), facts)
	switch i.GetRelation() {
	case pb.WorkRelation_WORK_RELATION_HOLDS:
		what = "holds " + what
	case pb.WorkRelation_WORK_RELATION_OWES:
		owes, of := "owes an answer to ", " of "
		switch {
		case i.GetKind() == "task":
			owes = "is assigned "
		case i.GetState() == "revising":
			owes, of = "owes the next round of ", " to "
		}
		what = owes + what + Either(i.GetOther() != "", of+i.GetOther(), "")
	case pb.WorkRelation_WORK_RELATION_OPENED:
		what = "has opened " + what + Either(i.GetOther() != "", ", waits for "+i.GetOther(), "")
	}
	if title && i.GetTitle() != "" {
		what += ": " + Clip(i.GetTitle(), 60)
	}
	if len(i.GetCalls()) > 0 {
		what += " → " + v.Proposed(i.GetCalls()[0])
	}
	return OneLine(what)
}

// Items lists pieces of work, those that wait for the agent first.
func (v Voice) Items(w io.Writer, items []*pb.WorkItem) {
	first := Owed(items)
	rest := slices.DeleteFunc(slices.Clone(items), func(i *pb.WorkItem) bool { return slices.Contains(first, i) })
	items = slices.Concat(first, rest)
	shown := items[:min(len(items), mostItems)]
	if ForModel(w) {
		var titles strings.Builder
		for _, i := range shown {
			if i.GetTitle() != "" {
				fmt.Fprintf(&titles, "%s: %s\n", i.GetId(), Clip(i.GetTitle(), 60))
			}
		}
		if titles.Len() > 0 {
			Framed(w, "titles of open work", titles.String())
		}
	}
	for _, i := range shown {
		Say(w, "Open: %s", v.ItemLine(i, !ForModel(w)))
	}
	if more := len(items) - mostItems; more > 0 {
		Say(w, "Open: %d more: %s", more, v.do(&pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL}))
	}
}

// ItemOf returns the piece of work on which a message asks the calling agent to act; nil if there is
// none, or if it no longer waits for the agent. The payload of such a message carries the id.
func (v Voice) ItemOf(m *pb.Message) *pb.WorkItem {
	payload := map[string]any{}
	if v.Work == nil || !strings.Contains(m.GetPayload(), `_id"`) {
		return nil
	}
	if err := json.Unmarshal([]byte(m.GetPayload()), &payload); err != nil { // it is no object
		return nil
	}
	for _, again := range []bool{false, true} {
		for _, i := range v.Work(again) {
			if id := payload[i.GetKind()+"_id"]; id == i.GetId() && i.GetRelation() == pb.WorkRelation_WORK_RELATION_OWES {
				return i
			}
		}
	}
	return nil
}

// AfterItem lists the calls that answer a piece of work.
func (v Voice) AfterItem(i *pb.WorkItem) string {
	var commands []string
	for _, call := range i.GetCalls() {
		if c, err := calls.Read(call); err != nil || !c.Shows() {
			commands = append(commands, v.Proposed(call))
		}
	}
	if v.Shorten != nil {
		commands = v.Shorten(commands)
	}
	return strings.Join(commands, " or ")
}

// KindsOf counts pieces of work by kind: "2 tasks, 1 vote".
func KindsOf(items []*pb.WorkItem) string {
	var kinds []string
	n := map[string]int64{}
	for _, i := range items {
		if n[i.GetKind()]++; n[i.GetKind()] == 1 {
			kinds = append(kinds, i.GetKind())
		}
	}
	for i, kind := range kinds {
		kinds[i] = Count(n[kind], kind)
	}
	return strings.Join(kinds, ", ")
}

// Task writes a claimed task for a language model, with the commands that settle it.
func (v Voice) Task(w io.Writer, answer *pb.ClaimTaskResponse) {
	t := answer.GetTask()
	head := []string{
		fmt.Sprintf("attempt %d of %d", answer.GetAttempt(), t.GetMaxAttempts()),
		"priority " + strconv.Itoa(int(t.GetPriority())),
		"created by " + Brief(t.GetCreator()),
	}
	if answer.GetResumed() {
		head = append(head, "held before")
	}
	var text strings.Builder
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s: %s\n", label, OneLine(value))
		}
	}
	line("Title", t.GetTitle())
	line("Labels", Labels(t.GetLabels()))
	line("Part of", t.GetParent())
	line("After", strings.Join(t.GetDependsOn(), ", "))
	line("Artifacts", strings.Join(t.GetArtifacts(), ", "))
	line("Progress", Either(t.GetProgress() > 0, Percent(t.GetProgress()), ""))
	line("Note", t.GetNote())
	for _, a := range answer.GetHistory() {
		line("Failed", fmt.Sprintf("attempt %d by %s: %s", a.GetNumber(), Brief(a.GetAgent()), Clip(a.GetError(), 200)))
	}
	if t.GetDescription() != "" {
		fmt.Fprintln(&text, strings.TrimRight(Clean(t.GetDescription()), "\n"))
	}
	Framed(w, fmt.Sprintf("task %s: %s", t.GetId(), strings.Join(head, ", ")), text.String())
	Say(w, "Next: %s", v.AfterTask(t))
}

// AfterTask lists the calls for a claimed task.
func (v Voice) AfterTask(t *pb.Task) string {
	id := t.GetId()
	s := fmt.Sprintf("%s when done; %s if it failed; %s while you cannot continue; %s to return it",
		v.do(&pb.CompleteTaskRequest{Id: id}, "result"), v.also(&pb.FailTaskRequest{Id: id}, "error"),
		v.also(&pb.UpdateTaskRequest{Id: id}, "block"), v.also(&pb.ReleaseTaskRequest{Id: id}))
	if stale := t.GetStaleAfter(); stale != nil {
		s += fmt.Sprintf("; %s at least every %s", v.also(&pb.UpdateTaskRequest{Id: id}, "note"), Duration(stale.AsDuration()))
	}
	return s
}

// Percent writes a share of 1.
func Percent(f float64) string { return fmt.Sprintf("%.0f%%", f*100) }

// TaskLine is a task in one line: its state, for whom it is, and why.
func (v Voice) TaskLine(t *pb.Task) string {
	who, detail := TaskFor(t), v.TaskDetail(t)
	return fmt.Sprintf("%s %s%s: %s%s", OneLine(t.GetId()), Enum(t.GetState()),
		Either(who != "", ", "+OneLine(who), ""), OneLine(t.GetTitle()), Either(detail != "", " ("+OneLine(detail)+")", ""))
}

// TaskBrief is a task in one line.
func TaskBrief(b *pb.TaskBrief) string {
	holder := Either(b.GetHolder() != "", " by "+b.GetHolder(), "")
	return fmt.Sprintf("%s (%s%s): %s", b.GetId(), Enum(b.GetState()), holder, Clip(b.GetTitle(), 100))
}

// TaskFor is the agent that holds a task or, before that, the agent or role that may claim it.
func TaskFor(t *pb.Task) string {
	switch {
	case t.GetHolder() != "":
		return t.GetHolder()
	case t.GetRole() != "":
		return "role:" + t.GetRole()
	}
	return t.GetAssignee()
}

// TaskDetail says, in one line, why a task is in its state, or how far it is.
func (v Voice) TaskDetail(t *pb.Task) string {
	switch t.GetState() {
	case pb.TaskState_TASK_STATE_WAITING:
		b := t.GetWaitsFor()
		return Either(b != nil, "waits for "+b.GetId()+", which is "+Enum(b.GetState()), "")
	case pb.TaskState_TASK_STATE_READY:
		if t.GetDueAt() != nil {
			return "again " + v.When(t.GetDueAt()) + ": " + t.GetError()
		}
	case pb.TaskState_TASK_STATE_CLAIMED:
		return t.GetNote()
	case pb.TaskState_TASK_STATE_BLOCKED:
		return t.GetBlockReason()
	case pb.TaskState_TASK_STATE_FAILED, pb.TaskState_TASK_STATE_CANCELLED:
		return t.GetError()
	}
	return ""
}

// Attention names the tasks that ended a wait early, with their states.
func Attention(answer *pb.WaitTasksResponse) string {
	var parts []string
	for _, b := range answer.GetTasks() {
		if slices.Contains(answer.GetAttention(), b.GetId()) {
			parts = append(parts, b.GetId()+" is "+Enum(b.GetState()))
		}
	}
	return Names(parts, len(parts))
}
