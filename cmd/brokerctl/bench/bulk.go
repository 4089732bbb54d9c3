package bench

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// The sizes of the loads of workload bulk, if Options.Bulk is as large as BulkTasks.
const (
	// BulkTasks are ready tasks, none with the label that a claim asks for.
	BulkTasks      = 100_000
	bulkDependents = 30_000 // of one task
	bulkAssigned   = 10_000 // tasks of an agent that deregisters
	bulkQueues     = 20_000 // cancelled tasks, each with its own capability
	bulkQueueParts = 4      // in which they are created: a session may have 10,000 such tasks at a time
	bulkVotes      = 100    // with one deadline
	bulkElectors   = 1000
	bulkGlobs      = 63 // held by one agent
	bulkPaths      = 1000

	// Between two calls of the bystander. A call takes 2 to 3 ms on a quiet broker.
	bulkPace = 10 * time.Millisecond
	bulkLead = time.Second // before a load starts
)

// bulk returns the share of a size that Options.Bulk asks for, at least 1.
func (b *bench) bulk(size int) int { return max(1, size*cmp.Or(b.o.Bulk, BulkTasks)/BulkTasks) }

// A load is work of agents that is expensive for the broker.
type load struct {
	name string
	// prepare creates what the load needs and returns a function that runs it until its context ends, or shorter.
	prepare func(ctx context.Context, b *bench, prefix string) (run func(context.Context) error, err error)
}

// bulk: an agent puts a key every 10 ms while others make calls that are expensive for the broker. A call
// that waits delays the calls after it, and their times count from when they were due.
func bulk(ctx context.Context, b *bench, prefix string) (Result, error) {
	c, err := b.join(ctx, prefix+"-bystander", "bystander")
	if err != nil {
		return Result{}, err
	}
	defer c.Close()
	usage, err := b.meter(ctx)
	if err != nil {
		return Result{}, err
	}
	defer usage.stop()
	var r Result
	started := time.Now()
	for _, l := range []load{
		{"quiet", quiet}, {"labels", absentLabels}, {"votes", dueVotes}, {"dependents", manyDependents},
		{"leaver", assignedLeaver}, {"queues", staleQueues}, {"globs", manyGlobs},
	} {
		b.progress("bulk: %s", l.name)
		// Together, the loads would have more tasks than a session may.
		own := &bench{connect: b.connect, o: b.o, session: b.session + "-" + prefix + "-" + l.name}
		if err := own.openSession(ctx); err != nil {
			return r, err
		}
		do, err := l.prepare(ctx, own, prefix+"-"+l.name)
		if err != nil {
			return r, fmt.Errorf("prepare %s: %w", l.name, err)
		}
		part, err := b.pace(ctx, c, do)
		if err != nil {
			return r, fmt.Errorf("%s: %w", l.name, err)
		}
		part.Workload = l.name
		r.Parts = append(r.Parts, part)
		r.Count += part.Count
	}
	r.Took = time.Since(started)
	r.PerSecond = float64(r.Count) / r.Took.Seconds()
	return r, usage.into(ctx, &r)
}

// pace makes the bystander's calls for as long as a workload lasts, and longer if the load does.
func (b *bench) pace(ctx context.Context, c *client.Client, load func(context.Context) error) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	started := time.Now()
	end := started.Add(bulkLead + b.o.Duration)
	lasting, stop := context.WithDeadline(ctx, end)
	defer stop()
	done := make(chan error, 1)
	go func() {
		select {
		case <-time.After(bulkLead):
			done <- load(lasting)
		case <-ctx.Done():
			done <- ctx.Err()
		}
	}()
	var took []time.Duration
	var outcome error
	running := true
	for due := started; running || due.Before(end); due = due.Add(bulkPace) {
		time.Sleep(time.Until(due)) //nolint:forbidigo // the pace of the load
		_, err := c.State().PutState(ctx, &pb.PutStateRequest{
			Key: c.Identity().Agent, Value: &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: int64(len(took))}},
		})
		if err != nil {
			return Result{}, fmt.Errorf("bystander: %w", err)
		}
		took = append(took, time.Since(due))
		select {
		case outcome = <-done:
			running = false
		default:
		}
	}
	return resultOf(len(took), time.Since(started), took), outcome
}

// until repeats a call until the context ends, which ends the last call. The broker may notice that before the caller.
func until(ctx context.Context, call func() error) error {
	for ctx.Err() == nil {
		if err := call(); err != nil && ctx.Err() == nil && status.Code(err) != codes.DeadlineExceeded {
			return err
		}
	}
	return nil
}

func quiet(context.Context, *bench, string) (func(context.Context) error, error) {
	return func(context.Context) error { return nil }, nil
}

// absentLabels: a worker claims, again and again, a task with a label that none of the ready tasks has.
func absentLabels(ctx context.Context, b *bench, prefix string) (func(context.Context) error, error) {
	worker, err := b.join(ctx, prefix, prefix)
	if err != nil {
		return nil, err
	}
	err = b.bulkTasks(ctx, worker, b.bulk(BulkTasks), func(int) *pb.NewTask {
		return &pb.NewTask{Role: prefix, Labels: map[string]string{"area": "api"}}
	})
	return func(ctx context.Context) error {
		defer worker.Close()
		return until(ctx, func() error {
			_, err := worker.Tasks().ClaimTask(ctx, &pb.ClaimTaskRequest{Labels: map[string]string{"area": "none"}})
			return err
		})
	}, err
}

// dueVotes: votes of many electors have the same deadline.
func dueVotes(ctx context.Context, b *bench, prefix string) (func(context.Context) error, error) {
	operator, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	for i := range b.bulk(bulkElectors) {
		agent := operator.In(b.session).As(name(prefix, i))
		if _, err := agent.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: prefix}); err != nil {
			return nil, err
		}
	}
	opener := operator.In(b.session).As(name(prefix, 0))
	deadline := time.Now().Add(bulkLead + time.Duration(b.bulk(bulkVotes))*200*time.Millisecond)
	for range b.bulk(bulkVotes) {
		_, err := opener.Votes().OpenVote(ctx, &pb.OpenVoteRequest{
			Title: "bench", Options: []string{"a", "b"}, Electorate: &pb.OpenVoteRequest_Role{Role: prefix},
			Deadline: timestamppb.New(deadline),
		})
		if err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Until(deadline.Add(-bulkLead))) //nolint:forbidigo // the load is due at a time of the clock
	return func(context.Context) error { operator.Close(); return nil }, nil
}

// manyDependents: a task is completed on which many others wait.
func manyDependents(ctx context.Context, b *bench, prefix string) (func(context.Context) error, error) {
	worker, err := b.join(ctx, prefix, prefix)
	if err != nil {
		return nil, err
	}
	first, err := worker.Tasks().CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: prefix, Role: prefix}}})
	if err != nil {
		return nil, err
	}
	id := first.GetTasks()[0].GetId()
	err = b.bulkTasks(ctx, worker, b.bulk(bulkDependents), func(int) *pb.NewTask {
		return &pb.NewTask{Role: prefix, DependsOn: []string{id}}
	})
	if err != nil {
		return nil, err
	}
	_, err = worker.Tasks().ClaimTask(ctx, &pb.ClaimTaskRequest{Id: id})
	return func(ctx context.Context) error {
		defer worker.Close()
		_, err := worker.Tasks().CompleteTask(ctx, &pb.CompleteTaskRequest{Id: id})
		return err
	}, err
}

// assignedLeaver: an agent deregisters to which many tasks are assigned.
func assignedLeaver(ctx context.Context, b *bench, prefix string) (func(context.Context) error, error) {
	leaver, err := b.join(ctx, prefix, prefix)
	if err != nil {
		return nil, err
	}
	err = b.bulkTasks(ctx, leaver, b.bulk(bulkAssigned), func(int) *pb.NewTask { return &pb.NewTask{Assignee: prefix} })
	return func(ctx context.Context) error {
		defer leaver.Close()
		_, err := leaver.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{})
		return err
	}, err
}

// staleQueues: tasks of many queues were cancelled, and an agent creates and claims tasks with further capabilities.
func staleQueues(ctx context.Context, b *bench, prefix string) (func(context.Context) error, error) {
	creator, err := b.join(ctx, prefix, prefix)
	if err != nil {
		return nil, err
	}
	made := 0
	fresh := func(int) *pb.NewTask {
		made++
		return &pb.NewTask{Id: name(prefix, made), Capabilities: []string{name("capability", made)}}
	}
	clients := make([]*client.Client, 16)
	for i := range clients {
		clients[i] = creator
	}
	for gone := 0; gone < b.bulk(bulkQueues); gone = made {
		if err := b.bulkTasks(ctx, creator, b.bulk(bulkQueues/bulkQueueParts), fresh); err != nil {
			return nil, err
		}
		err := atOnce(clients, func(i int, c *client.Client) error {
			for n := gone + i + 1; n <= made; n += len(clients) {
				if _, err := c.Tasks().CancelTask(ctx, &pb.CancelTaskRequest{Id: name(prefix, n)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		defer creator.Close()
		return until(ctx, func() error {
			t := fresh(0)
			if err := b.bulkTasks(ctx, creator, 1, func(int) *pb.NewTask { return t }); err != nil {
				return err
			}
			_, err := creator.Tasks().ClaimTask(ctx, &pb.ClaimTaskRequest{})
			return err
		})
	}, nil
}

// manyGlobs: an agent locks many long paths, again and again, while another one holds globs.
func manyGlobs(ctx context.Context, b *bench, prefix string) (func(context.Context) error, error) {
	agents, err := b.joinMany(ctx, 2, prefix+"-%d", prefix)
	if err != nil {
		closeAll(agents)
		return nil, err
	}
	globs := make([]string, b.bulk(bulkGlobs))
	for i := range globs {
		globs[i] = fmt.Sprintf("%sz%d", strings.Repeat("*/", 60), i)
	}
	if _, err := agents[0].Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: globs}); err != nil {
		return nil, err
	}
	paths := make([]string, b.bulk(bulkPaths))
	for i := range paths {
		paths[i] = fmt.Sprintf("%s%d", strings.Repeat("x/", 60), i)
	}
	return func(ctx context.Context) error {
		defer closeAll(agents)
		return until(ctx, func() error {
			held, err := agents[1].Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: paths})
			if status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.InvalidArgument {
				return nil // refused at once, which is no work
			}
			if err != nil {
				return err
			}
			_, err = agents[1].Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Fences: []int64{held.GetFence()}})
			return err
		})
	}, nil
}

// bulkTasks creates tasks, many in a call, several calls at a time.
func (b *bench) bulkTasks(ctx context.Context, c *client.Client, count int, task func(i int) *pb.NewTask) error {
	var mu sync.Mutex // guards task
	clients := make([]*client.Client, min(4, (count+tasksAtOnce-1)/tasksAtOnce))
	for i := range clients {
		clients[i] = c
	}
	return atOnce(clients, func(i int, c *client.Client) error {
		for first := i * tasksAtOnce; first < count; first += len(clients) * tasksAtOnce {
			in := &pb.CreateTasksRequest{}
			mu.Lock()
			for n := range min(tasksAtOnce, count-first) {
				t := task(first + n)
				t.Title = "a task of brokerctl bench"
				in.Tasks = append(in.Tasks, t)
			}
			mu.Unlock()
			if _, err := c.Tasks().CreateTasks(ctx, in); err != nil {
				return fmt.Errorf("create tasks: %w", err)
			}
		}
		return nil
	})
}
