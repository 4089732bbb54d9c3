package tasks

import (
	"context"
	"fmt"
	"slices"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/work"
)

// CreateTasks implements pb.TaskServiceServer.
func (s *Service) CreateTasks(ctx context.Context, in *pb.CreateTasksRequest) (*pb.CreateTasksResponse, error) {
	if err := checkNew(in.GetTasks()); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(in.GetTasks(), func(n *pb.NewTask) bool { return n.Assignee != "" }) {
		if err := s.Admit(ctx); err != nil {
			return nil, err
		}
	}
	out := &pb.CreateTasksResponse{}
	_, err := s.Once(ctx, s.Store.Write, in, out, func(tx *work.Tx) error {
		return newPlan(s.within(tx), in.GetTasks()).create(out)
	})
	if err != nil {
		err = fmt.Errorf("create tasks: %w", err)
	}
	return work.Answer(err, out)
}

// ClaimTask implements pb.TaskServiceServer.
func (s *Service) ClaimTask(ctx context.Context, in *pb.ClaimTaskRequest) (*pb.ClaimTaskResponse, error) {
	if in.GetId() != "" && len(in.GetLabels()) > 0 {
		return nil, fault.Field("labels", "cannot be used together with id")
	}
	req, err := work.RequestOf(ctx, in)
	if err != nil {
		return nil, err
	}
	call := claimCall{Service: s, who: identity.FromContext(ctx), req: req, in: in}
	return call.claim(ctx)
}

// UpdateTask implements pb.TaskServiceServer.
func (s *Service) UpdateTask(ctx context.Context, in *pb.UpdateTaskRequest) (*pb.UpdateTaskResponse, error) {
	out := &pb.UpdateTaskResponse{}
	err := s.change(ctx, in, out, func(u *taskTx, t *task) error { return u.update(t, in, out) })
	return work.Answer(err, out)
}

// CompleteTask implements pb.TaskServiceServer.
func (s *Service) CompleteTask(ctx context.Context, in *pb.CompleteTaskRequest) (*pb.CompleteTaskResponse, error) {
	out := &pb.CompleteTaskResponse{}
	err := s.change(ctx, in, out, func(u *taskTx, t *task) error { return u.complete(t, in, out) })
	return work.Answer(err, out)
}

// FailTask implements pb.TaskServiceServer.
func (s *Service) FailTask(ctx context.Context, in *pb.FailTaskRequest) (*pb.FailTaskResponse, error) {
	out := &pb.FailTaskResponse{}
	err := s.change(ctx, in, out, func(u *taskTx, t *task) error { return u.fail(t, in, out) })
	return work.Answer(err, out)
}

// ReleaseTask implements pb.TaskServiceServer.
func (s *Service) ReleaseTask(ctx context.Context, in *pb.ReleaseTaskRequest) (*pb.ReleaseTaskResponse, error) {
	if in.GetDecline() && in.GetReason() == "" {
		return nil, fault.Field("reason", "is empty; the creator needs to know why the task is declined")
	}
	brief := &pb.TaskBrief{}
	err := s.change(ctx, in, brief, func(u *taskTx, t *task) error {
		err := u.releaseBy(t, in)
		t.toBrief(brief)
		return err
	})
	return work.Answer(err, &pb.ReleaseTaskResponse{Task: brief})
}

// CancelTask implements pb.TaskServiceServer.
func (s *Service) CancelTask(ctx context.Context, in *pb.CancelTaskRequest) (*pb.CancelTaskResponse, error) {
	out := &pb.CancelTaskResponse{}
	err := s.change(ctx, in, out, func(u *taskTx, t *task) error { return u.cancelBy(t, in, out) })
	return work.Answer(err, out)
}

// RetryTask implements pb.TaskServiceServer.
func (s *Service) RetryTask(ctx context.Context, in *pb.RetryTaskRequest) (*pb.RetryTaskResponse, error) {
	brief := &pb.TaskBrief{}
	err := s.change(ctx, in, brief, func(u *taskTx, t *task) error {
		err := u.retry(t)
		t.toBrief(brief)
		return err
	})
	return work.Answer(err, &pb.RetryTaskResponse{Task: brief})
}

// A changeRequest asks for a change of a task.
type changeRequest interface {
	work.Request
	GetId() string
}

// change makes a change of a task that exists, and keeps its answer.
func (s *Service) change(ctx context.Context, in changeRequest, answer any, fn func(u *taskTx, t *task) error) error {
	_, err := s.Once(ctx, s.Store.Drain, in, answer, func(tx *work.Tx) error {
		t, err := find(tx, tx.Session.ID, in.GetId())
		if err != nil {
			return err
		}
		return fn(s.within(tx), t)
	})
	if err != nil {
		return fmt.Errorf("change task: %w", err)
	}
	return nil
}

// GetTask implements pb.TaskServiceServer.
func (s *Service) GetTask(ctx context.Context, in *pb.GetTaskRequest) (*pb.GetTaskResponse, error) {
	out, err := s.get(ctx, in)
	return work.Answer(err, out)
}

// ListTasks implements pb.TaskServiceServer.
func (s *Service) ListTasks(ctx context.Context, in *pb.ListTasksRequest) (*pb.ListTasksResponse, error) {
	others := in.GetHolder() + in.GetAssignee() + in.GetRole() + in.GetParent() + in.GetCreator() + in.GetPageToken()
	if in.GetClaimable() && (len(in.GetStates()) > 0 || others != "" || in.GetOldestFirst()) {
		return nil, fault.Field("claimable", "can be used with labels and page_size only")
	}
	l := listing{Service: s, in: in, who: identity.FromContext(ctx)}
	if in.GetClaimable() {
		return l.page(ctx, l.claimable)
	}
	if err := l.begin(); err != nil {
		return nil, err
	}
	return l.page(ctx, l.all)
}

// WaitTasks implements pb.TaskServiceServer.
func (s *Service) WaitTasks(ctx context.Context, in *pb.WaitTasksRequest) (*pb.WaitTasksResponse, error) {
	switch n := len(in.GetTaskIds()) + len(in.GetAgents()); {
	case n == 0:
		return nil, fault.Field("task_ids", "is empty; name at least one task or agent")
	case n > mostAwaited:
		return nil, fault.Field("task_ids", "has %d tasks and agents; at most %d are allowed", n, mostAwaited)
	}
	w := waitCall{Service: s, in: in}
	if err := w.wait(ctx); err != nil {
		return nil, fmt.Errorf("wait for tasks: %w", err)
	}
	return w.out, nil
}
