package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

const (
	taskWorkers = 8
	readyTasks  = 10_000
	tasksAtOnce = 1000 // of a call
)

// tasks: workers claim and complete READY tasks, each one at a time, for as long as a workload lasts.
// What is measured is both calls together. When the tasks run out, the worker that finds none creates
// as many again. A task that two claims return is an error.
func tasks(ctx context.Context, b *bench, prefix string) (Result, error) {
	working, err := b.joinMany(ctx, taskWorkers, prefix+"-%d", prefix)
	defer closeAll(working)
	if err != nil {
		return Result{}, err
	}
	if err := b.createTasks(ctx, working[0], prefix); err != nil {
		return Result{}, err
	}
	var mu sync.Mutex // guards claimed
	claimed := make(map[string]string, readyTasks)
	var creating sync.Mutex
	r, err := b.loop(ctx, working, func(ctx context.Context, i int, c *client.Client) (time.Duration, error) {
		for {
			began := time.Now()
			got, err := c.Tasks().ClaimTask(ctx, &pb.ClaimTaskRequest{RequestId: b.requestID()})
			if err != nil {
				return 0, err
			}
			if got.GetTask() == nil {
				creating.Lock()
				err := b.refillTasks(ctx, c, prefix)
				creating.Unlock()
				if err != nil {
					return 0, err
				}
				continue
			}
			id := got.GetTask().GetId()
			mu.Lock()
			former, twice := claimed[id]
			claimed[id] = name(prefix, i)
			mu.Unlock()
			if twice {
				return 0, fmt.Errorf("task %s was claimed by %s and by %s", id, former, name(prefix, i))
			}
			_, err = c.Tasks().CompleteTask(ctx, &pb.CompleteTaskRequest{RequestId: b.requestID(), Id: id, Fence: got.GetTask().GetFence()})
			return time.Since(began), err
		}
	})
	r.LeastShare, r.MostShare = 0, 0 // each takes as many as it can
	return r, err
}

// refillTasks creates tasks unless another worker has done it.
func (b *bench) refillTasks(ctx context.Context, c *client.Client, role string) error {
	ready, err := c.Tasks().ListTasks(ctx, &pb.ListTasksRequest{Claimable: true, PageSize: 1})
	if err != nil || len(ready.GetTasks()) > 0 {
		return err
	}
	return b.createTasks(ctx, c, role)
}

// createTasks creates READY tasks for a role.
func (b *bench) createTasks(ctx context.Context, c *client.Client, role string) error {
	for range readyTasks / tasksAtOnce {
		in := &pb.CreateTasksRequest{RequestId: b.requestID()}
		for range tasksAtOnce {
			in.Tasks = append(in.Tasks, &pb.NewTask{Title: "a task of brokerctl bench", Role: role})
		}
		if _, err := c.As("").Tasks().CreateTasks(ctx, in); err != nil {
			return fmt.Errorf("create tasks: %w", err)
		}
	}
	return nil
}
