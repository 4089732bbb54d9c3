package histories_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"

	pb "brokerd/gen/brokerd/v1"
)

const (
	jobs      = 40 // tasks of a history
	jobWindow = 4  // tasks that a client tries to get at a time, so that clients meet
)

// A tasksClient claims, completes and releases tasks. It repeats each call until the broker answers:
// with a request id, or because the call has the same effect twice.
type tasksClient struct {
	*client
	stub    pb.TaskServiceClient
	created bool
	first   int           // tasks below it are DONE
	fences  map[int]int64 // of the client's last claim of each task
}

func newTasksClient(c *client) func() error {
	k := &tasksClient{client: c, stub: pb.NewTaskServiceClient(c.daemon.conn), fences: map[int]int64{}}
	return k.next
}

func jobName(n int) string { return fmt.Sprintf("job-%02d", n) }

// next makes one call, of any kind.
func (k *tasksClient) next() error {
	if !k.created {
		if err := k.create(); err != nil {
			return err
		}
		k.created = true
	}
	n := min(k.first+k.random.IntN(jobWindow), jobs-1)
	switch choice := k.random.IntN(100); {
	case choice < 35:
		return k.claim(n)
	case choice < 55:
		return k.claimAny()
	case choice < 70:
		return k.end(n, completeJob)
	case choice < 88:
		return k.end(n, releaseJob)
	default:
		return k.get(n)
	}
}

// create creates the tasks, unless another client has.
func (k *tasksClient) create() error {
	in := &pb.CreateTasksRequest{}
	for n := range jobs {
		in.Tasks = append(in.Tasks, &pb.NewTask{Id: jobName(n), Title: "a job"})
	}
	_, _, _, err := k.call(true, func(ctx context.Context) error {
		_, err := k.stub.CreateTasks(ctx, in)
		return err
	})
	if why, _ := reason(err); err != nil && why != "TASK_EXISTS" {
		return fmt.Errorf("create tasks: %w", err)
	}
	return nil
}

// claim claims one task. The holder gets the same claim again.
func (k *tasksClient) claim(n int) error {
	var out *pb.ClaimTaskResponse
	from, to, _, err := k.call(true, func(ctx context.Context) (err error) {
		out, err = k.stub.ClaimTask(ctx, &pb.ClaimTaskRequest{Id: jobName(n)})
		return err
	})
	a := jobAnswer{fence: out.GetTask().GetFence()}
	why, details := reason(err)
	switch {
	case why == "TASK_CLAIMED":
		a = jobAnswer{refused: why, holder: details["holder"]}
	case why == "TASK_FINISHED":
		a = jobAnswer{refused: why}
		k.finished(n)
	case err != nil:
		return fmt.Errorf("claim: %w", err)
	default:
		k.fences[n] = a.fence
	}
	k.add(from, to, jobCall{claimJob, n, k.agent, 0}, a)
	return nil
}

// claimAny claims the first READY task. An answer without a task concerns all tasks, and is not
// recorded.
func (k *tasksClient) claimAny() error {
	id := newID()
	var out *pb.ClaimTaskResponse
	from, to, _, err := k.call(true, func(ctx context.Context) (err error) {
		out, err = k.stub.ClaimTask(ctx, &pb.ClaimTaskRequest{RequestId: id})
		return err
	})
	if err != nil || out.GetTask() == nil {
		return err
	}
	var n int
	if _, err := fmt.Sscanf(out.GetTask().GetId(), "job-%d", &n); err != nil {
		return err
	}
	k.fences[n] = out.GetTask().GetFence()
	k.add(from, to, jobCall{takeJob, n, k.agent, 0}, jobAnswer{fence: k.fences[n]})
	return nil
}

// end completes or releases a task by the fence of the client's last claim, which it may have lost.
func (k *tasksClient) end(n int, verb jobVerb) error {
	fence := k.fences[n]
	if fence == 0 {
		return k.claim(n)
	}
	id := newID()
	from, to, _, err := k.call(true, func(ctx context.Context) (err error) {
		if verb == completeJob {
			_, err = k.stub.CompleteTask(ctx, &pb.CompleteTaskRequest{Id: jobName(n), Fence: fence})
		} else {
			_, err = k.stub.ReleaseTask(ctx, &pb.ReleaseTaskRequest{RequestId: id, Id: jobName(n), Fence: fence})
		}
		return err
	})
	why, _ := reason(err)
	if err != nil && why != "TASK_LOST" {
		return fmt.Errorf("end a claim: %w", err)
	}
	if err == nil && verb == completeJob {
		k.finished(n)
	}
	k.add(from, to, jobCall{verb, n, k.agent, fence}, jobAnswer{refused: why})
	return nil
}

// finished notes that a task is DONE.
func (k *tasksClient) finished(n int) {
	if n == k.first {
		k.first++
	}
}

func (k *tasksClient) get(n int) error {
	var out *pb.GetTaskResponse
	from, to, _, err := k.call(true, func(ctx context.Context) (err error) {
		out, err = k.stub.GetTask(ctx, &pb.GetTaskRequest{Id: jobName(n)})
		return err
	})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	a := jobAnswer{holder: out.GetTask().GetHolder(), fence: out.GetTask().GetFence(), done: out.GetTask().GetState() == pb.TaskState_TASK_STATE_DONE}
	if a.done {
		k.finished(n)
	}
	k.add(from, to, jobCall{getJob, n, k.agent, 0}, a)
	return nil
}

// A jobVerb is what is done with a task.
type jobVerb string

const (
	claimJob    jobVerb = "claim"
	takeJob     jobVerb = "take" // a claim of any task that returned this one
	completeJob jobVerb = "complete"
	releaseJob  jobVerb = "release"
	getJob      jobVerb = "get"
)

// A jobCall is a request.
type jobCall struct {
	verb  jobVerb
	job   int
	agent string
	fence int64 // complete, release
}

// A jobAnswer is the answer to it.
type jobAnswer struct {
	refused string // the reason
	holder  string
	fence   int64
	done    bool
}

// A job is the state of a task in the model.
type job struct {
	holder string // empty unless it is claimed; of a task that is DONE: who completed it
	fence  int64  // of the present or last claim
	done   bool
}

// tasksModel has a separate order for each task.
func tasksModel() model {
	return model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			parts := make([][]porcupine.Operation, jobs)
			for _, o := range all {
				n := o.Input.(jobCall).job
				parts[n] = append(parts[n], o)
			}
			return parts
		},
		Init: func() any { return job{} },
		Step: func(state, input, output any) (bool, any) {
			j := state.(job)
			ok := j.step(input.(jobCall), output.(jobAnswer))
			return ok, j
		},
		Equal: func(a, b any) bool { return a.(job) == b.(job) },
		DescribeOperation: func(input, output any) string {
			call := input.(jobCall)
			return fmt.Sprintf("%s %s by the fence %d: %s", call.verb, jobName(call.job), call.fence, strings.TrimSpace(fmt.Sprintf("%+v", output)))
		},
		DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
	}
}

// step makes a call, and reports whether the broker may answer it so.
func (j *job) step(call jobCall, a jobAnswer) bool {
	free, mine := j.holder == "" && !j.done, j.holder == call.agent
	switch call.verb {
	case claimJob, takeJob:
		switch {
		case a.refused == "TASK_FINISHED":
			return j.done
		case a.refused == "TASK_CLAIMED":
			return !j.done && !free && !mine && j.holder == a.holder
		case free:
			ok := a.fence > j.fence
			j.holder, j.fence = call.agent, a.fence
			return ok
		}
		return call.verb == claimJob && !j.done && mine && j.fence == a.fence
	case completeJob:
		held := mine && j.fence == call.fence
		j.done = j.done || held
		return held == (a.refused == "")
	case releaseJob:
		held := mine && j.fence == call.fence && !j.done
		if held {
			j.holder = ""
		}
		return held == (a.refused == "")
	default:
		if a.done || j.done {
			return a.done == j.done && a.holder == j.holder
		}
		return a.holder == j.holder && (a.holder == "" || a.fence == j.fence)
	}
}
