package blockers

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// RaiseBlocker implements pb.BlockerServiceServer.
func (s *Service) RaiseBlocker(ctx context.Context, in *pb.RaiseBlockerRequest) (*pb.RaiseBlockerResponse, error) {
	if err := checkNew(in); err != nil {
		return nil, err
	}
	if err := s.Admit(ctx); err != nil {
		return nil, err
	}
	b, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Blocker, error) { return s.raise(t, in) })
	return work.Answer(err, &pb.RaiseBlockerResponse{Blocker: s.timed(b)})
}

// AcknowledgeBlocker implements pb.BlockerServiceServer.
func (s *Service) AcknowledgeBlocker(
	ctx context.Context, in *pb.AcknowledgeBlockerRequest,
) (*pb.AcknowledgeBlockerResponse, error) {
	sendsNothing := func(context.Context) error { return nil }
	b, err := s.settle(ctx, in, sendsNothing, func(t *work.Tx, b *pb.Blocker) error {
		return s.acknowledge(t, b, in.GetNote())
	})
	return work.Answer(err, &pb.AcknowledgeBlockerResponse{Blocker: b})
}

// ResolveBlocker implements pb.BlockerServiceServer.
func (s *Service) ResolveBlocker(
	ctx context.Context, in *pb.ResolveBlockerRequest,
) (*pb.ResolveBlockerResponse, error) {
	b, err := s.settle(ctx, in, s.Admit, func(t *work.Tx, b *pb.Blocker) error {
		if b.State == resolved {
			return errResolved(b)
		}
		return s.resolve(t, b, in.GetResolution())
	})
	return work.Answer(err, &pb.ResolveBlockerResponse{Blocker: b})
}

// GetBlocker implements pb.BlockerServiceServer.
func (s *Service) GetBlocker(ctx context.Context, in *pb.GetBlockerRequest) (*pb.GetBlockerResponse, error) {
	ended := func(b *pb.Blocker) bool { return b.State == resolved }
	b, err := s.Await(ctx, in.GetId(), in.GetWait().AsDuration(), ended)
	return work.Answer(err, &pb.GetBlockerResponse{Blocker: s.timed(b)})
}

// ListBlockers implements pb.BlockerServiceServer.
func (s *Service) ListBlockers(ctx context.Context, in *pb.ListBlockersRequest) (*pb.ListBlockersResponse, error) {
	f := work.Filter[*pb.Blocker]{
		States: work.States(in.GetStates()), Opener: in.GetAgent(), Task: in.GetTaskId(), Whole: true,
		Match: func(b *pb.Blocker) bool {
			return b.Severity >= in.GetLowestSeverity() && (in.GetAwaitedAgent() == "" ||
				b.GetAwaited().GetAgent() == in.GetAwaitedAgent())
		},
	}
	l, err := s.List(ctx, in, func(store.Querier, directory.Session) (work.Filter[*pb.Blocker], error) { return f, nil })
	for _, b := range l.Items {
		s.timed(b)
	}
	return work.Answer(err, &pb.ListBlockersResponse{Blockers: l.Items, NextPageToken: l.Next, Revision: l.Revision})
}

// timed sets for how long a blocker has blocked the agent.
func (s *Service) timed(b *pb.Blocker) *pb.Blocker {
	if b != nil {
		b.TimeBlocked = durationpb.New(timeBlocked(b, s.Clock.Now()))
	}
	return b
}

// A settling is a request that names a blocker and changes it.
type settling interface {
	work.Request
	GetId() string
}

// settle makes a change of a blocker that exists, once admit permits it.
func (s *Service) settle(
	ctx context.Context, in settling, admit func(context.Context) error, fn func(t *work.Tx, b *pb.Blocker) error,
) (*pb.Blocker, error) {
	if err := admit(ctx); err != nil {
		return nil, err
	}
	b, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Blocker, error) {
		b, err := s.Get(t, t.Session.ID, in.GetId())
		if err == nil {
			err = fn(t, b)
		}
		return b, err
	})
	return s.timed(b), err
}

// checkNew checks what the options of blocker.proto do not say about a blocker to raise.
func checkNew(in *pb.RaiseBlockerRequest) error {
	var c validate.Check
	for i, r := range in.GetRecipients() {
		if r.GetRecipient() == nil {
			c.Fail(fmt.Sprintf("recipients[%d]", i), "is empty; name an agent or a role")
		}
	}
	if in.GetAutoResolve() && in.GetAwaited().GetAgent() == "" && in.GetAwaited().GetTaskId() == "" {
		c.Fail("auto_resolve", "is set, but awaited names neither an agent nor a task")
	}
	return c.Err()
}
