package backup_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// put sets a key of the state and returns the revision.
func put(t *testing.T, b *apptest.Broker, key string) int64 {
	t.Helper()
	return apptest.Must(t, b.Actor("default", "a").PutState, &pb.PutStateRequest{
		Namespace: "n", Key: key, Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "x"}},
	}).GetEntry().GetRevision()
}

// events subscribes to the events of the broker.
func events(t *testing.T, b *apptest.Broker, in *pb.SubscribeEventsRequest) grpc.ServerStreamingClient[pb.SubscribeEventsResponse] {
	t.Helper()
	stream, err := b.Root().SubscribeEvents(patient(t), in)
	must(t, err)
	return stream
}

// nextEvent returns the next event of a subscription.
func nextEvent(t *testing.T, stream grpc.ServerStreamingClient[pb.SubscribeEventsResponse]) *pb.Event {
	t.Helper()
	for {
		in, err := stream.Recv()
		must(t, err)
		if all := in.GetEvents(); len(all) > 0 {
			return all[0]
		}
	}
}

func TestRestored_ResumingFromALostRevisionIsRefused(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("a", "worker")
	put(t, b, "kept")
	apptest.Must(t, b.Actor("default", "a").CreateTasks,
		&pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "t", Id: "t"}}})
	file, made := backUp(t, b)
	lost := put(t, b, "lost")
	dir, restored := restore(t, file)
	r := run(t, dir)

	first := func(recv func() error, err error) error {
		if err != nil {
			return err
		}
		return recv()
	}
	calls := map[string]func(ctx context.Context, after int64) error{
		"SubscribeEvents": func(ctx context.Context, after int64) error {
			s, err := r.Root().SubscribeEvents(ctx, &pb.SubscribeEventsRequest{AfterRevision: &after})
			return first(func() error { return apptest.Err(s.Recv()) }, err)
		},
		"ListEvents": func(ctx context.Context, after int64) error {
			return apptest.Err(r.Root().ListEvents(ctx, &pb.ListEventsRequest{AfterRevision: after}))
		},
		"Receive": func(ctx context.Context, after int64) error {
			s, err := r.Actor("default", "a").Receive(ctx, &pb.ReceiveRequest{AfterRevision: after, Follow: true})
			return first(func() error { return apptest.Err(s.Recv()) }, err)
		},
		"WatchState": func(ctx context.Context, after int64) error {
			s, err := r.Actor("default", "a").WatchState(ctx, &pb.WatchStateRequest{Namespace: "n", AfterRevision: &after})
			return first(func() error { return apptest.Err(s.Recv()) }, err)
		},
		"WaitTasks": func(ctx context.Context, after int64) error {
			_, err := r.Root().WaitTasks(ctx, &pb.WaitTasksRequest{TaskIds: []string{"t"}, AfterRevision: after})
			return err
		},
		"GetState": func(ctx context.Context, after int64) error {
			_, err := r.Actor("default", "a").GetState(ctx, &pb.GetStateRequest{Namespace: "n", Key: "kept", AtRevision: after})
			return err
		},
	}
	for name, call := range calls {
		for _, after := range []int64{made.GetRevision() + 1, lost, restored.Next - 2} {
			err := call(patient(t), after)
			if status.Code(err) != codes.OutOfRange || testkit.Reason(err) != "RESTORED" ||
				!strings.Contains(err.Error(), fmt.Sprintf("resume after revision %d", made.GetRevision())) {
				t.Errorf("%s after %d: %v", name, after, err)
			}
		}
		for _, after := range []int64{made.GetRevision(), restored.Next - 1, restored.Next} {
			if err := call(patient(t), after); err != nil {
				t.Errorf("%s after %d: %v", name, after, err)
			}
		}
	}
}

func TestRestored_CursorsOfTheBrokerContinueAndPositionsAreAccepted(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("a", "worker")
	stream := events(t, b, &pb.SubscribeEventsRequest{Cursor: "mine"})
	_, err := stream.Recv() // the cursor is kept from now on
	must(t, err)
	put(t, b, "kept")
	file, made := backUp(t, b)
	put(t, b, "lost")
	dir, restored := restore(t, file)
	r := run(t, dir)

	resumed := events(t, r, &pb.SubscribeEventsRequest{Cursor: "mine", Filter: &pb.EventFilter{Types: []string{"broker.restored"}}})
	if e := nextEvent(t, resumed); e.GetRevision() != restored.Next || made.GetRevision() >= e.GetRevision() {
		t.Errorf("the cursor continues with event %d", e.GetRevision())
	}
	// Every position that the broker returns while it passes the jump is accepted.
	api := r.Root()
	request, found := &pb.ListEventsRequest{PageSize: 3}, 0
	for {
		page := apptest.Must(t, api.ListEvents, request)
		for _, e := range page.GetEvents() {
			if e.GetType() == "broker.restored" {
				found++
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if found != 1 {
		t.Errorf("the pages have %d events broker.restored", found)
	}
	all, zero := events(t, r, &pb.SubscribeEventsRequest{AfterRevision: new(int64), Filter: &pb.EventFilter{Types: []string{"none"}}}), int64(0)
	for reached := zero; reached < restored.Next; {
		in, err := all.Recv()
		must(t, err)
		reached = in.GetRevision()
		_, err = events(t, r, &pb.SubscribeEventsRequest{AfterRevision: &reached}).Recv()
		must(t, err)
	}
	put(t, r, "later")
	watch, err := r.Actor("default", "a").WatchState(patient(t), &pb.WatchStateRequest{Namespace: "n", AfterRevision: &zero})
	must(t, err)
	for keys := 0; keys < 2; {
		in, err := watch.Recv()
		must(t, err)
		keys += len(in.GetChanges())
		at := in.GetRevision()
		again, err := r.Actor("default", "a").WatchState(patient(t), &pb.WatchStateRequest{Namespace: "n", AfterRevision: &at})
		must(t, err)
		_, err = again.Recv()
		must(t, err)
	}
}

func TestRestored_LeasesClaimsAndLocksContinueAsAfterARestart(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("a", "worker")
	b.Registered("lead", "lead")
	_, err := send(patient(t), b, "lead", "work")
	must(t, err)
	claimed := apptest.Must(t, b.Actor("default", "a").ClaimMessages, &pb.ClaimMessagesRequest{})
	held := apptest.Must(t, b.Actor("default", "a").AcquireLocks,
		&pb.AcquireLocksRequest{Paths: []string{"src"}})
	request := &pb.SendMessagesRequest{RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f", Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}, Subject: "once"},
	}}
	sent := apptest.Must(t, b.Actor("default", "a").SendMessages, request)
	file, _ := backUp(t, b)
	dir, restored := restore(t, file)
	r := run(t, dir)
	api := r.Actor("default", "a")
	again := apptest.Must(t, api.SendMessages, request)
	if again.GetResults()[0].GetId() != sent.GetResults()[0].GetId() {
		t.Error("a repeated request was applied twice")
	}
	apptest.Must(t, api.AckMessages, &pb.AckMessagesRequest{Ids: []string{claimed.GetClaims()[0].GetClaimId()}})
	locks := r.Actor("default", "a")
	apptest.Must(t, locks.ExtendLocks,
		&pb.ExtendLocksRequest{Fences: []int64{held.GetFence()}, MaxHold: durationpb.New(apptest.LongLease)})
	next := apptest.Must(t, locks.AcquireLocks, &pb.AcquireLocksRequest{Paths: []string{"docs"}})
	if next.GetFence() <= restored.Next {
		t.Errorf("the fence %d may have been granted before the restore", next.GetFence())
	}
}
