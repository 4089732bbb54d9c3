package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// errLate is a change that did not come.
var errLate = fmt.Errorf("a watcher has not got all changes %v after the last", drainTime)

const (
	putters  = 32
	writers  = 8
	watchers = 20
)

// state: clients write keys of their own, each time on condition that the key is as they left it.
func state(ctx context.Context, b *bench, prefix string) (Result, error) {
	putting, err := b.joinMany(ctx, putters, prefix+"-%d", "putter")
	defer closeAll(putting)
	if err != nil {
		return Result{}, err
	}
	value := payload(0, padding(b.o.Size))
	revisions := make([]int64, putters)
	r, err := b.loop(ctx, putting, func(ctx context.Context, i int, c *client.Client) (time.Duration, error) {
		began := time.Now()
		answer, err := c.State().PutState(ctx, &pb.PutStateRequest{RequestId: b.requestID(), Key: name(prefix, i), Value: jsonValue(value), CompareRevision: &revisions[i]})
		revisions[i] = answer.GetEntry().GetRevision()
		return time.Since(began), err
	})
	r.LeastShare, r.MostShare = 0, 0 // they share nothing
	return r, err
}

// watch: some write, and watchers must get all of it, in order, each change once. What is measured is the time from
// the beginning of a put until a watcher has it.
func watch(ctx context.Context, b *bench, prefix string) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watching, err := b.joinMany(ctx, watchers, prefix+"-watcher-%d", "watcher")
	defer closeAll(watching)
	if err != nil {
		return Result{}, err
	}
	writing, err := b.joinMany(ctx, writers, prefix+"-writer-%d", "writer")
	defer closeAll(writing)
	if err != nil {
		return Result{}, err
	}
	streams := make([]pb.StateService_WatchStateClient, watchers)
	for i, c := range watching {
		if streams[i], err = c.State().WatchState(ctx, &pb.WatchStateRequest{KeyPrefix: prefix + "-"}); err == nil {
			_, err = streams[i].Recv() // the first mark: from here on
		}
		if err != nil {
			return Result{}, fmt.Errorf("open a watch: %w", err)
		}
	}
	usage, err := b.meter(ctx)
	if err != nil {
		return Result{}, err
	}
	defer usage.stop()
	start := time.Now()
	written := make(chan error, 1)
	go func() {
		err := atOnce(writing, func(i int, c *client.Client) error {
			return b.write(ctx, c, name(prefix, i), start, (b.o.Changes+writers-1-i)/writers)
		})
		if err != nil {
			cancel(err)
		}
		written <- err
		late := time.AfterFunc(drainTime, func() { cancel(errLate) })
		context.AfterFunc(ctx, func() { late.Stop() })
	}()
	took := make([][]time.Duration, watchers)
	err = atOnce(watching, func(i int, _ *client.Client) (err error) {
		took[i], err = follow(streams[i], start, b.o.Changes)
		return err
	})
	ended := time.Since(start)
	if failed := <-written; failed != nil {
		return Result{}, failed
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return Result{}, err
	}
	var all []time.Duration
	for _, own := range took {
		all = append(all, own...)
	}
	r := resultOf(b.o.Changes, ended, all)
	return r, usage.into(ctx, &r)
}

// write puts one writer's part of the changes.
func (b *bench) write(ctx context.Context, c *client.Client, key string, start time.Time, count int) error {
	pad := padding(b.o.Size)
	for range count {
		value := payload(time.Since(start), pad)
		if _, err := c.State().PutState(ctx, &pb.PutStateRequest{RequestId: b.requestID(), Key: key, Value: jsonValue(value)}); err != nil {
			return err
		}
	}
	return nil
}

// follow reads all changes, and returns how long each took.
func follow(stream pb.StateService_WatchStateClient, start time.Time, changes int) ([]time.Duration, error) {
	took := make([]time.Duration, 0, changes)
	versions := map[string]int64{}
	var last int64
	for len(took) < changes {
		frame, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("after %d of %d changes: %w", len(took), changes, err)
		}
		now := time.Since(start)
		for _, change := range frame.GetChanges() {
			if versions[change.GetKey()]++; change.GetRevision() <= last || change.GetVersion() != versions[change.GetKey()] {
				return nil, fmt.Errorf("version %d of %s came at revision %d after version %d and revision %d",
					change.GetVersion(), change.GetKey(), change.GetRevision(), versions[change.GetKey()]-1, last)
			}
			last = change.GetRevision()
			at, err := sentAt(change.GetValue().GetJsonValue())
			if err != nil {
				return nil, err
			}
			took = append(took, now-at)
		}
	}
	if len(took) > changes {
		return nil, errors.New("a watcher got more changes than there were")
	}
	return took, nil
}

func jsonValue(text string) *pb.StateValue {
	return &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: text}}
}
