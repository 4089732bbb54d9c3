package tasks

import (
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// holderRequest is what the requests of a holder have in common.
type holderRequest interface {
	proto.Message
	GetRequestId() string
	GetTaskId() string
	GetFence() int64
}

// names wants names.
func names(c *validate.Check, field string, all []string) {
	for i, s := range all {
		c.Name(field+"["+strconv.Itoa(i)+"]", s)
	}
}

// artifacts wants names of artifacts.
func artifacts(c *validate.Check, field string, all []string) {
	c.Count(field, len(all), mostArtifacts)
	for i, s := range all {
		if s == "" {
			c.Fail(field+"["+strconv.Itoa(i)+"]", "is empty")
		}
		c.Line(field+"["+strconv.Itoa(i)+"]", s, validate.MaxPath)
	}
}

// titleOf wants a title.
func titleOf(c *validate.Check, field, title string) {
	if strings.TrimSpace(title) == "" {
		c.Fail(field, "is empty; a task needs a title")
	}
	c.Line(field, title, maxTitle)
}

// changeOf reads a change.
func changeOf(c *validate.Check, in *pb.UpdateTaskRequest) Change {
	ch := Change{Fence: in.GetFence(), Progress: in.Progress, Note: in.Note, Unblock: in.GetUnblock(), Title: in.Title,
		Description: in.Description, SetLabels: in.GetSetLabels(), RemoveLabels: in.GetRemoveLabels()}
	if p := in.Progress; p != nil && !(*p >= 0 && *p <= 1) || p != nil && math.IsNaN(*p) {
		c.Fail("progress", "is %v; 0 to 1 is allowed", *p)
	}
	c.Text("note", in.GetNote(), maxNote)
	if block, ok := in.GetBlockChange().(*pb.UpdateTaskRequest_Block); ok {
		if strings.TrimSpace(block.Block) == "" {
			c.Fail("block", "is empty; a reason is required")
		}
		c.Text("block", block.Block, maxNote)
		ch.Block = &block.Block
	}
	if in.Title != nil {
		titleOf(c, "title", in.GetTitle())
	}
	c.Text("description", in.GetDescription(), maxText)
	if in.Priority != nil {
		c.Between("priority", int64(in.GetPriority()), 1, 10)
		priority := int(in.GetPriority())
		ch.Priority = &priority
	}
	c.Labels("set_labels", ch.SetLabels)
	c.Count("remove_labels", len(ch.RemoveLabels), validate.MaxLabels)
	for i, k := range ch.RemoveLabels {
		c.Line("remove_labels["+strconv.Itoa(i)+"]", k, validate.MaxLabel)
	}
	return ch
}

// selectionOf reads the filters of a list.
func selectionOf(c *validate.Check, in *pb.ListTasksRequest) Selection {
	sel := Selection{Holder: in.GetHolder(), Assignee: in.GetAssignee(), Role: in.GetRole(), Labels: in.GetLabels(),
		Parent: in.GetParent(), Creator: in.GetCreator(), Newest: in.GetNewestFirst(), Limit: c.PageSize("page_size", in.GetPageSize())}
	c.OptionalName("holder", sel.Holder)
	c.OptionalName("assignee", sel.Assignee)
	c.OptionalName("role", sel.Role)
	c.Labels("labels", sel.Labels)
	c.OptionalName("parent", sel.Parent)
	c.OptionalName("creator", sel.Creator)
	seen := map[pb.TaskState]bool{}
	for i, s := range in.GetStates() {
		c.Between("states["+strconv.Itoa(i)+"]", int64(s), int64(Waiting), int64(Cancelled))
		if !seen[s] {
			seen[s] = true
			sel.States = append(sel.States, State(s))
		}
	}
	if in.GetClaimable() && (len(sel.States) > 0 || sel.Holder+sel.Assignee+sel.Role+sel.Parent+sel.Creator+in.GetPageToken() != "" || sel.Newest) {
		c.Fail("claimable", "can be used with labels and page_size only")
	}
	return sel
}

func taskProto(t *Task) *pb.Task {
	out := &pb.Task{
		Id: t.ID, CreatedRevision: t.Created, Revision: t.Revision, Title: t.Title, Description: t.Description, Labels: t.Labels,
		Priority: int32(t.Priority), Role: t.Role, Assignee: t.Assignee, Capabilities: t.Capabilities, DependsOn: t.DependsOn,
		Parent: t.ParentID, MaxAttempts: int32(t.MaxAttempts), Artifacts: t.Artifacts, State: pb.TaskState(t.State), Creator: t.Creator,
		Attempts: int32(t.Attempts), Progress: t.Progress, Note: t.Note, Error: t.Error, BlockReason: t.Reason, Result: t.Result,
		ResultArtifacts: t.ResultArtifacts, CreatedAt: stamp(t.CreatedAt), ReadyAt: stamp(t.ReadyAt), ClaimedAt: stamp(t.ClaimedAt),
		UpdatedAt: stamp(t.UpdatedAt), BlockedAt: stamp(t.BlockedAt), FinishedAt: stamp(t.FinishedAt),
	}
	if t.StaleAfter > 0 {
		out.StaleAfter = durationpb.New(t.StaleAfter)
	}
	switch t.State {
	case Claimed:
		out.Holder, out.Fence, out.StaleAt = t.Holder, t.Fence, stamp(t.DueAt)
	case Blocked:
		out.Holder, out.Fence = t.Holder, t.Fence
	case Done:
		out.Holder = t.Holder
	case Ready:
		out.DueAt = stamp(t.DueAt)
	default:
	}
	if t.WaitsFor != nil {
		out.WaitsFor = briefProto(*t.WaitsFor)
	}
	return out
}

func briefProto(b Brief) *pb.TaskBrief {
	return &pb.TaskBrief{Id: b.ID, Title: b.Title, State: pb.TaskState(b.State), Holder: b.Holder, Revision: b.Revision}
}

func briefsProto(all []Brief) []*pb.TaskBrief {
	out := make([]*pb.TaskBrief, len(all))
	for i, b := range all {
		out[i] = briefProto(b)
	}
	return out
}

func attemptsProto(all []Attempt) []*pb.TaskAttempt {
	out := make([]*pb.TaskAttempt, len(all))
	for i, a := range all {
		out[i] = &pb.TaskAttempt{Number: int32(a.Number), Agent: a.Agent, ClaimedAt: stamp(a.ClaimedAt), EndedAt: stamp(a.EndedAt), Error: a.Error}
	}
	return out
}

func stamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}
