package tasks

import (
	"context"
	"slices"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// taskList is the name of the list that page tokens belong to.
const taskList = "ListTasks"

// Service is the TaskService of the API: it checks and converts, and decides nothing.
type Service struct {
	pb.UnimplementedTaskServiceServer
	tasks *Tasks
}

// NewService returns the service of the tasks.
func NewService(t *Tasks) *Service { return &Service{tasks: t} }

// CreateTasks implements pb.TaskServiceServer.
func (s *Service) CreateTasks(ctx context.Context, in *pb.CreateTasksRequest) (*pb.CreateTasksResponse, error) {
	var c validate.Check
	all := draftsOf(&c, in.GetTasks())
	if err := c.Err(); err != nil {
		return nil, err
	}
	out, err := s.tasks.Create(ctx, in, all)
	if err != nil {
		return nil, err
	}
	return &pb.CreateTasksResponse{Tasks: briefsProto(out.Tasks), Revision: out.Revision, Warnings: out.Warnings}, nil
}

// ClaimTask implements pb.TaskServiceServer.
func (s *Service) ClaimTask(ctx context.Context, in *pb.ClaimTaskRequest) (*pb.ClaimTaskResponse, error) {
	var c validate.Check
	w := Wish{ID: in.GetTaskId(), Labels: in.GetLabels(), Wait: c.Duration("wait", in.GetWait(), 0, longestWait, 0), Resume: in.GetResume()}
	c.OptionalName("task_id", w.ID)
	c.Labels("labels", w.Labels)
	if w.ID != "" && len(w.Labels) > 0 {
		c.Fail("labels", "cannot be used together with task_id")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := work.RequestOf(ctx, in)
	if err != nil {
		return nil, err
	}
	claim, err := s.tasks.Claim(ctx, identity.FromContext(ctx), req, w)
	if err != nil {
		return nil, err
	}
	out := &pb.ClaimTaskResponse{Attempt: int32(claim.Attempt), Resumed: claim.Resumed, EmptyReason: pb.TaskEmptyReason(claim.Empty),
		NextDue: stamp(claim.NextDue), History: attemptsProto(claim.History)}
	if claim.Task != nil {
		out.Task = taskProto(claim.Task)
	}
	return out, nil
}

// UpdateTask implements pb.TaskServiceServer.
func (s *Service) UpdateTask(ctx context.Context, in *pb.UpdateTaskRequest) (*pb.UpdateTaskResponse, error) {
	var c validate.Check
	c.Name("task_id", in.GetTaskId())
	c.Between("fence", in.GetFence(), 0, 1<<62)
	ch := changeOf(&c, in)
	if err := c.Err(); err != nil {
		return nil, err
	}
	out, err := s.tasks.Update(ctx, in, in.GetTaskId(), ch)
	if err != nil {
		return nil, err
	}
	return &pb.UpdateTaskResponse{Task: briefProto(out.Task), StaleAt: stamp(out.StaleAt)}, nil
}

// CompleteTask implements pb.TaskServiceServer.
func (s *Service) CompleteTask(ctx context.Context, in *pb.CompleteTaskRequest) (*pb.CompleteTaskResponse, error) {
	var c validate.Check
	c.Text("result", in.GetResult(), maxText)
	artifacts(&c, "artifacts", in.GetArtifacts())
	if err := held(&c, in); err != nil {
		return nil, err
	}
	out, err := s.tasks.Complete(ctx, in, in.GetTaskId(), in.GetFence(), in.GetResult(), in.GetArtifacts())
	if err != nil {
		return nil, err
	}
	return &pb.CompleteTaskResponse{Task: briefProto(out.Task), Ready: briefsProto(out.Ready), Unchanged: out.Unchanged}, nil
}

// FailTask implements pb.TaskServiceServer.
func (s *Service) FailTask(ctx context.Context, in *pb.FailTaskRequest) (*pb.FailTaskResponse, error) {
	var c validate.Check
	c.Text("error", in.GetError(), maxNote)
	if err := held(&c, in); err != nil {
		return nil, err
	}
	out, err := s.tasks.Fail(ctx, in, in.GetTaskId(), in.GetFence(), in.GetError(), in.GetFatal())
	if err != nil {
		return nil, err
	}
	return &pb.FailTaskResponse{Task: briefProto(out.Task), Attempts: int32(out.Attempts), DueAt: stamp(out.DueAt)}, nil
}

// ReleaseTask implements pb.TaskServiceServer.
func (s *Service) ReleaseTask(ctx context.Context, in *pb.ReleaseTaskRequest) (*pb.ReleaseTaskResponse, error) {
	var c validate.Check
	c.Text("reason", in.GetReason(), maxNote)
	if in.GetDecline() && in.GetReason() == "" {
		c.Fail("reason", "is empty; the creator needs to know why the task is declined")
	}
	if err := held(&c, in); err != nil {
		return nil, err
	}
	out, err := s.tasks.Release(ctx, in, in.GetTaskId(), in.GetFence(), in.GetDecline(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.ReleaseTaskResponse{Task: briefProto(out)}, nil
}

// held checks what the requests of a holder have in common.
func held(c *validate.Check, in holderRequest) error {
	c.Name("task_id", in.GetTaskId())
	c.Between("fence", in.GetFence(), 0, 1<<62)
	return c.Err()
}

// CancelTask implements pb.TaskServiceServer.
func (s *Service) CancelTask(ctx context.Context, in *pb.CancelTaskRequest) (*pb.CancelTaskResponse, error) {
	var c validate.Check
	c.Name("task_id", in.GetTaskId())
	c.Text("reason", in.GetReason(), maxNote)
	if err := c.Err(); err != nil {
		return nil, err
	}
	out, err := s.tasks.Cancel(ctx, in, in.GetTaskId(), in.GetCascade(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.CancelTaskResponse{Tasks: briefsProto(out.Tasks), Cancelled: int32(out.Cancelled), Revision: out.Revision,
		MoreFollow: out.More}, nil
}

// RetryTask implements pb.TaskServiceServer.
func (s *Service) RetryTask(ctx context.Context, in *pb.RetryTaskRequest) (*pb.RetryTaskResponse, error) {
	var c validate.Check
	c.Name("task_id", in.GetTaskId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	out, err := s.tasks.Retry(ctx, in, in.GetTaskId())
	if err != nil {
		return nil, err
	}
	return &pb.RetryTaskResponse{Task: briefProto(out)}, nil
}

// GetTask implements pb.TaskServiceServer.
func (s *Service) GetTask(ctx context.Context, in *pb.GetTaskRequest) (*pb.GetTaskResponse, error) {
	var c validate.Check
	if in.GetTaskId() == "" {
		c.Fail("task_id", "is empty")
	}
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	full := in.GetView() == pb.TaskView_TASK_VIEW_FULL
	c.Between("view", int64(in.GetView()), 0, int64(pb.TaskView_TASK_VIEW_FULL))
	if err := c.Err(); err != nil {
		return nil, err
	}
	f, err := s.tasks.Get(ctx, identity.FromContext(ctx), in.GetTaskId(), full)
	if err != nil {
		return nil, err
	}
	out := &pb.GetTaskResponse{History: attemptsProto(f.History), Dependencies: briefsProto(f.Dependencies),
		Dependents: briefsProto(f.Dependents), Subtasks: briefsProto(f.Parts), Revision: f.Revision}
	if f.Task != nil {
		out.Task = taskProto(f.Task)
	}
	for _, r := range f.References {
		out.References = append(out.References, &pb.TaskReference{Kind: r.Kind, Id: r.ID, Title: r.Title, Revision: r.Revision})
	}
	return out, nil
}

// ListTasks implements pb.TaskServiceServer.
func (s *Service) ListTasks(ctx context.Context, in *pb.ListTasksRequest) (*pb.ListTasksResponse, error) {
	var c validate.Check
	sel := selectionOf(&c, in)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := page.Parse(taskList, in.GetPageToken(), &sel.From); err != nil {
		return nil, err
	}
	var p Page
	var err error
	if in.GetClaimable() {
		p, err = s.tasks.Claimable(ctx, identity.FromContext(ctx), sel.Labels, sel.Limit)
	} else {
		p, err = s.tasks.List(ctx, identity.FromContext(ctx), sel)
	}
	if err != nil {
		return nil, err
	}
	out := &pb.ListTasksResponse{Revision: p.Revision}
	for _, task := range p.Tasks {
		out.Tasks = append(out.Tasks, taskProto(task))
	}
	if p.Next != 0 {
		out.NextPageToken = page.Token(taskList, p.Next)
	}
	return out, nil
}

// WaitTasks implements pb.TaskServiceServer.
func (s *Service) WaitTasks(ctx context.Context, in *pb.WaitTasksRequest) (*pb.WaitTasksResponse, error) {
	var c validate.Check
	a := Awaited{Tasks: in.GetTaskIds(), Agents: in.GetAgents(), Any: in.GetMode() == pb.WaitMode_WAIT_MODE_ANY,
		Wait: c.Duration("wait", in.GetWait(), 0, longestWait, 0), After: in.GetAfterRevision()}
	c.Between("mode", int64(in.GetMode()), 0, int64(pb.WaitMode_WAIT_MODE_ANY))
	c.Between("after_revision", a.After, 0, 1<<62)
	switch n := len(a.Tasks) + len(a.Agents); {
	case n == 0:
		c.Fail("task_ids", "is empty; name at least one task or agent")
	case n > mostAwaited:
		c.Fail("task_ids", "has %d tasks and agents; at most %d are allowed", n, mostAwaited)
	default:
		names(&c, "task_ids", a.Tasks)
		names(&c, "agents", a.Agents)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	r, err := s.tasks.Wait(ctx, identity.FromContext(ctx), a)
	if err != nil {
		return nil, err
	}
	return &pb.WaitTasksResponse{Outcome: pb.WaitOutcome(r.Outcome), Tasks: briefsProto(r.Tasks), CompletedAgents: r.Completed,
		Attention: r.Attention, Revision: r.Revision}, nil
}

// draftsOf reads the tasks to create.
func draftsOf(c *validate.Check, in []*pb.NewTask) []Draft {
	if len(in) == 0 {
		c.Fail("tasks", "is empty; create at least one task")
	}
	c.Count("tasks", len(in), MostCreated)
	if len(in) > MostCreated {
		return nil
	}
	edges, rows := 0, 0
	all := make([]Draft, len(in))
	for i, n := range in {
		edges += len(n.GetDependsOn())
		all[i] = draftOf(c, i, n)
		rows += all[i].rows()
	}
	if edges > mostEdges {
		c.Fail("tasks", "have %d dependencies; at most %d are allowed in one call", edges, mostEdges)
	}
	if rows > mostRows {
		c.Fail("tasks", "have too many dependencies, labels and assignees together: the broker would store %d rows, "+
			"and at most %d are allowed in one call; create the tasks in several calls", rows, mostRows)
	}
	return all
}

// rows is about how many rows the creation of a task stores: the task, its event and texts, its parent,
// its dependencies and labels, and a letter to its assignee.
func (d *Draft) rows() int {
	n := 4 + len(d.DependsOn) + len(d.Labels)
	if d.Assignee != "" {
		n += letterRows
	}
	return n
}

func draftOf(c *validate.Check, i int, n *pb.NewTask) Draft {
	at := func(name string) string { return field(i, name) }
	d := Draft{
		ID: n.GetId(), Title: n.GetTitle(), Description: n.GetDescription(), Labels: n.GetLabels(), Priority: int(n.GetPriority()),
		Role: n.GetRole(), Assignee: n.GetAssignee(), Capabilities: slices.Compact(slices.Sorted(slices.Values(n.GetCapabilities()))),
		Parent: n.GetParent(), MaxAttempts: int(n.GetMaxAttempts()), Artifacts: n.GetArtifacts(),
	}
	if d.ID != "" {
		c.NewName(at("id"), d.ID)
	}
	titleOf(c, at("title"), d.Title)
	c.Text(at("description"), d.Description, maxText)
	c.Labels(at("labels"), d.Labels)
	if d.Priority == 0 {
		d.Priority = defaultPriority
	}
	c.Between(at("priority"), int64(d.Priority), 1, 10)
	c.OptionalName(at("role"), d.Role)
	c.OptionalName(at("assignee"), d.Assignee)
	if d.Role != "" && d.Assignee != "" {
		c.Fail(at("role"), "cannot be used together with assignee")
	}
	c.Count(at("capabilities"), len(d.Capabilities), mostCapabilities)
	names(c, at("capabilities"), d.Capabilities)
	c.Count(at("depends_on"), len(n.GetDependsOn()), mostDependencies)
	names(c, at("depends_on"), n.GetDependsOn())
	for _, id := range n.GetDependsOn()[:min(len(n.GetDependsOn()), mostDependencies)] {
		if !slices.Contains(d.DependsOn, id) {
			d.DependsOn = append(d.DependsOn, id)
		}
	}
	c.OptionalName(at("parent"), d.Parent)
	if d.MaxAttempts == 0 {
		d.MaxAttempts = defaultAttempts
	}
	c.Between(at("max_attempts"), int64(d.MaxAttempts), 1, 100)
	if n.GetStaleAfter() != nil {
		stale := staleOf(c, at("stale_after"), n)
		d.StaleAfter = &stale
	}
	artifacts(c, at("artifacts"), d.Artifacts)
	return d
}

func staleOf(c *validate.Check, field string, n *pb.NewTask) time.Duration {
	if n.GetStaleAfter().AsDuration() == 0 {
		return 0
	}
	return c.Duration(field, n.GetStaleAfter(), shortestStale, longestStale, 0)
}
