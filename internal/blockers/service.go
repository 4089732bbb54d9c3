package blockers

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

const longestWait = time.Hour

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
	var c validate.Check
	c.Text("note", in.GetNote(), maxNote)
	sendsNothing := func(context.Context) error { return nil }
	b, err := s.settle(ctx, &c, in, sendsNothing, func(t *work.Tx, b *pb.Blocker) error {
		return s.acknowledge(t, b,
			in.GetNote())
	})
	return work.Answer(err, &pb.AcknowledgeBlockerResponse{Blocker: b})
}

// ResolveBlocker implements pb.BlockerServiceServer.
func (s *Service) ResolveBlocker(
	ctx context.Context, in *pb.ResolveBlockerRequest,
) (*pb.ResolveBlockerResponse, error) {
	var c validate.Check
	c.Text("resolution", in.GetResolution(), maxNote)
	b, err := s.settle(ctx, &c, in, s.Admit, func(t *work.Tx, b *pb.Blocker) error {
		if b.State == resolved {
			return errResolved(b)
		}
		return s.resolve(t, b, in.GetResolution())
	})
	return work.Answer(err, &pb.ResolveBlockerResponse{Blocker: b})
}

// GetBlocker implements pb.BlockerServiceServer.
func (s *Service) GetBlocker(ctx context.Context, in *pb.GetBlockerRequest) (*pb.GetBlockerResponse, error) {
	var c validate.Check
	c.Line("id", in.GetId(), validate.MaxID)
	wait := c.Duration("wait", in.GetWait(), 0, longestWait, 0)
	if err := c.Err(); err != nil {
		return nil, err
	}
	b, err := s.Await(ctx, in.GetId(), wait, func(b *pb.Blocker) bool { return b.State == resolved })
	return work.Answer(err, &pb.GetBlockerResponse{Blocker: s.timed(b)})
}

// ListBlockers implements pb.BlockerServiceServer.
func (s *Service) ListBlockers(ctx context.Context, in *pb.ListBlockersRequest) (*pb.ListBlockersResponse, error) {
	var c validate.Check
	c.PageSize("page_size", in.GetPageSize())
	states := work.States(in.GetStates())
	checkSeverity(&c, "lowest_severity", in.GetLowestSeverity())
	c.OptionalName("agent", in.GetAgent())
	c.OptionalName("awaited_agent", in.GetAwaitedAgent())
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	f := work.Filter[*pb.Blocker]{
		States: states, Opener: in.GetAgent(), Task: in.GetTaskId(), Whole: true,
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

// settle makes a change of a blocker that exists, once admit permits it. c has checked the other fields of the
// request.
func (s *Service) settle(
	ctx context.Context, c *validate.Check, in settling, admit func(context.Context) error,
	fn func(t *work.Tx, b *pb.Blocker) error,
) (*pb.Blocker, error) {
	c.Line("id", in.GetId(), validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
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

// checkNew checks a blocker to raise.
func checkNew(in *pb.RaiseBlockerRequest) error {
	var c validate.Check
	if strings.TrimSpace(in.GetReason()) == "" {
		c.Fail("reason", "is empty; say what stops the work")
	}
	c.Text("reason", in.GetReason(), maxReason)
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	c.Count("recipients", len(in.GetRecipients()), maxRecipients)
	checkSeverity(&c, "severity", in.GetSeverity())
	checkAwaited(&c, in.GetAwaited())
	for _, r := range in.GetRecipients() {
		c.Name("recipients", r.GetAgent()+r.GetRole())
	}
	if in.GetAutoResolve() && in.GetAwaited().GetAgent() == "" && in.GetAwaited().GetTaskId() == "" {
		c.Fail("auto_resolve", "is set, but awaited names neither an agent nor a task")
	}
	return c.Err()
}

func checkSeverity(c *validate.Check, field string, in pb.BlockerSeverity) {
	if in != 0 {
		c.Enum(field, in, "severity of a blocker")
	}
}

func checkAwaited(c *validate.Check, in *pb.AwaitedObject) {
	line := func(field, s string, most int) {
		if s == "" {
			c.Fail(field, "is empty")
		}
		c.Line(field, s, most)
	}
	switch o := in.GetObject().(type) {
	case *pb.AwaitedObject_Agent:
		c.NewName("awaited.agent", o.Agent)
	case *pb.AwaitedObject_Role:
		c.Name("awaited.role", o.Role)
	case *pb.AwaitedObject_TaskId:
		line("awaited.task_id", o.TaskId, validate.MaxID)
	case *pb.AwaitedObject_Lock:
		line("awaited.lock", o.Lock, maxAwaited)
	case *pb.AwaitedObject_Text:
		line("awaited.text", o.Text, validate.MaxLine)
	}
}
