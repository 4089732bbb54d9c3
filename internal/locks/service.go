package locks

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/rules"
)

const (
	mostHold    = 7 * 24 * time.Hour // also max_hold
	defaultHold = 30 * time.Minute
	lockList    = "locks"
)

// Service is the LockService over a Table: it checks and converts, and decides nothing.
type Service struct {
	pb.UnimplementedLockServiceServer
	table     *Table
	itemError func(context.Context, error) *pb.ItemError

	acquire, extend, release *rules.Message // checks of the requests of the stream
}

// NewService returns the LockService of a table. itemError converts the error of a refused
// request of the stream with the context.
func NewService(t *Table, itemError func(context.Context, error) *pb.ItemError) *Service {
	var set rules.Set
	return &Service{
		table: t, itemError: itemError,
		acquire: set.Message((&pb.AcquireLocksRequest{}).ProtoReflect().Descriptor()),
		extend:  set.Message((&pb.ExtendLocksRequest{}).ProtoReflect().Descriptor()),
		release: set.Message((&pb.ReleaseLocksRequest{}).ProtoReflect().Descriptor()),
	}
}

// AcquireLocks implements the RPC.
func (s *Service) AcquireLocks(ctx context.Context, r *pb.AcquireLocksRequest) (*pb.AcquireLocksResponse, error) {
	w, req, err := wish(ctx, r)
	if err != nil {
		return nil, err
	}
	a, err := s.table.Acquire(ctx, identity.FromContext(ctx), req, w)
	if err != nil {
		return nil, err
	}
	return acquired(&a), nil
}

func wish(ctx context.Context, r *pb.AcquireLocksRequest) (Wish, idempotency.Request, error) {
	w := Wish{
		Paths: r.Paths, Mode: cmp.Or(Mode(r.Mode), Exclusive), Wait: r.Wait.AsDuration(),
		MaxHold: cmp.Or(r.MaxHold.AsDuration(), defaultHold),
		Holder:  r.Holder, DryRun: r.DryRun, Reason: r.Reason, Keep: r.KeepTicket,
	}
	if n := textSize(r.Paths); n > maxPathBytes {
		return Wish{}, idempotency.Request{}, fault.Field("paths",
			"have %d bytes together; at most %d are allowed: name directories, or acquire them in several calls", n, maxPathBytes)
	}
	req, err := idempotency.Of(ctx, "AcquireLocks", r.RequestId, r)
	return w, req, err
}

func acquired(a *Answer) *pb.AcquireLocksResponse {
	return &pb.AcquireLocksResponse{
		Outcome: pb.AcquireOutcome(a.Outcome), Fence: a.Fence, HeldUntil: stamp(a.HeldUntil), AlreadyHeld: a.Held,
		Ticket: a.Ticket, Position: int32(a.Position), Obstacles: obstacles(a.Obstacles),
	}
}

// ExtendLocks implements the RPC.
func (s *Service) ExtendLocks(ctx context.Context, r *pb.ExtendLocksRequest) (*pb.ExtendLocksResponse, error) {
	req, err := idempotency.Of(ctx, "ExtendLocks", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	ends, err := s.table.Extend(ctx, identity.FromContext(ctx), req, r.Fences, r.MaxHold.AsDuration())
	if err != nil {
		return nil, err
	}
	return extended(ends), nil
}

func extended(ends []time.Time) *pb.ExtendLocksResponse {
	out := &pb.ExtendLocksResponse{}
	for _, end := range ends {
		out.HeldUntil = append(out.HeldUntil, stamp(end))
	}
	return out
}

// ReleaseLocks implements the RPC.
func (s *Service) ReleaseLocks(ctx context.Context, r *pb.ReleaseLocksRequest) (*pb.ReleaseLocksResponse, error) {
	g, req, err := back(ctx, r)
	if err != nil {
		return nil, err
	}
	given, err := s.table.Release(ctx, identity.FromContext(ctx), req, g)
	if err != nil {
		return nil, err
	}
	return released(&given), nil
}

func back(ctx context.Context, r *pb.ReleaseLocksRequest) (ReleaseWish, idempotency.Request, error) {
	if len(r.Fences)+len(r.Tickets)+len(r.Paths) == 0 && !r.All {
		return ReleaseWish{}, idempotency.Request{}, fault.Field("fences",
			"is empty, and so are tickets and paths: say what to give back, or all")
	}
	req, err := idempotency.Of(ctx, "ReleaseLocks", r.RequestId, r)
	return ReleaseWish{Fences: r.Fences, Tickets: r.Tickets, Paths: r.Paths, Holder: r.Holder, All: r.All}, req, err
}

func released(g *Released) *pb.ReleaseLocksResponse {
	return &pb.ReleaseLocksResponse{Released: int32(g.Released), Cancelled: int32(g.Cancelled), Revision: g.Revision}
}

// ForceReleaseLocks implements the RPC.
func (s *Service) ForceReleaseLocks(ctx context.Context, r *pb.ForceReleaseLocksRequest) (*pb.ForceReleaseLocksResponse, error) {
	if len(r.Revisions)+len(r.Paths) == 0 && r.Agent == "" {
		return nil, fault.Field("revisions", "is empty, and so are paths and agent: say what to take away")
	}
	req, err := idempotency.Of(ctx, "ForceReleaseLocks", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	seized, err := s.table.ForceRelease(ctx, identity.FromContext(ctx), req,
		Seizure{Revisions: r.Revisions, Paths: r.Paths, Agent: r.Agent, Reason: r.Reason})
	if err != nil {
		return nil, err
	}
	out := &pb.ForceReleaseLocksResponse{Revision: seized.Revision}
	for i := range seized.Locks {
		if seized.Locks[i].Kind == Lock {
			out.Released = append(out.Released, lock(&seized.Locks[i]))
		}
	}
	return out, nil
}

// ListLocks implements the RPC.
func (s *Service) ListLocks(ctx context.Context, r *pb.ListLocksRequest) (*pb.ListLocksResponse, error) {
	if r.Path != "" {
		if _, err := Parse(r.Path, false); err != nil {
			return nil, fault.Field("path", "%v", err)
		}
	}
	var after Mark
	if err := page.Parse(lockList, r.PageToken, &after); err != nil {
		return nil, err
	}
	p, err := s.table.List(ctx, identity.FromContext(ctx), Filter{Agent: r.Agent, Path: r.Path, Waiting: r.Waiting}, after, page.Size(r.PageSize))
	if err != nil {
		return nil, err
	}
	out := &pb.ListLocksResponse{Revision: p.Revision}
	for i := range p.Locks {
		out.Locks = append(out.Locks, lock(&p.Locks[i]))
	}
	for i := range p.Tickets {
		k := &p.Tickets[i]
		out.Tickets = append(out.Tickets, &pb.LockTicket{
			Ticket: k.Ticket, Agent: k.Owner.Agent, Holder: k.Owner.Holder, Paths: k.Names, Mode: pb.LockMode(k.Mode), Reason: k.Reason,
			CreatedAt: stamp(k.CreatedAt), Position: int32(k.Position), Obstacles: obstacles(k.Obstacles), Kept: k.Kept,
		})
	}
	if p.More {
		out.NextPageToken = page.Token(lockList, p.Next)
	}
	return out, nil
}

func lock(h *Held) *pb.Lock {
	return &pb.Lock{
		Fence: h.Fence, Agent: h.Owner.Agent, Holder: h.Owner.Holder, Paths: h.Names, Mode: pb.LockMode(h.Mode), Reason: h.Reason,
		GrantedAt: stamp(h.GrantedAt), HeldUntil: stamp(h.HeldUntil), MaxHold: durationpb.New(h.MaxHold), Waiting: int32(h.Waiting),
		Uncollected: h.Uncollected,
	}
}

func obstacles(list []Obstacle) []*pb.Obstacle {
	var out []*pb.Obstacle
	for _, o := range list {
		out = append(out, &pb.Obstacle{
			Agent: o.Owner.Agent, Holder: o.Owner.Holder, Resource: o.Resource, Mode: pb.LockMode(o.Mode), Revision: o.Revision,
			Waiting: o.Waiting, HeldUntil: stamp(o.HeldUntil), Reason: o.Reason,
		})
	}
	return out
}

// stamp is a time as the API has it; absent for the zero time.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
