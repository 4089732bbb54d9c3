package locks

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

const (
	mostItems   = 1000 // fences, tickets or paths of a call
	mostWait    = 24 * time.Hour
	leastHold   = time.Second
	mostHold    = 7 * 24 * time.Hour
	defaultHold = 30 * time.Minute
	lockList    = "locks"
)

// Service is the LockService over a Table: it checks and converts, and decides nothing.
type Service struct {
	pb.UnimplementedLockServiceServer
	table     *Table
	itemError func(context.Context, error) *pb.ItemError
}

// NewService returns the LockService of a table. itemError converts the error of a refused
// request of the stream with the context.
func NewService(t *Table, itemError func(context.Context, error) *pb.ItemError) *Service {
	return &Service{table: t, itemError: itemError}
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
	var c validate.Check
	w := Wish{
		Paths: r.Paths, Mode: mode(&c, r.Mode), Wait: c.Duration("wait", r.Wait, 0, mostWait, 0),
		MaxHold: c.Duration("max_hold", r.MaxHold, leastHold, mostHold, defaultHold),
		Holder:  r.Holder, DryRun: r.DryRun, Reason: r.Reason, Keep: r.KeepTicket,
	}
	if len(r.Paths) == 0 {
		c.Fail("paths", "is empty; name at least one path")
	}
	paths(&c, r.Paths)
	if n := textSize(r.Paths); n > maxPathBytes {
		c.Fail("paths", "have %d bytes together; at most %d are allowed: name directories, or acquire them in several calls", n, maxPathBytes)
	}
	c.Line("holder", r.Holder, validate.MaxID)
	c.Line("reason", r.Reason, validate.MaxLine)
	if err := c.Err(); err != nil {
		return Wish{}, idempotency.Request{}, err
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
	maxHold, req, err := longer(ctx, r)
	if err != nil {
		return nil, err
	}
	ends, err := s.table.Extend(ctx, identity.FromContext(ctx), req, r.Fences, maxHold)
	if err != nil {
		return nil, err
	}
	return extended(ends), nil
}

func longer(ctx context.Context, r *pb.ExtendLocksRequest) (time.Duration, idempotency.Request, error) {
	var c validate.Check
	if len(r.Fences) == 0 {
		c.Fail("fences", "is empty; name at least one")
	}
	numbers(&c, "fences", r.Fences)
	maxHold := c.Duration("max_hold", r.MaxHold, leastHold, mostHold, 0)
	if err := c.Err(); err != nil {
		return 0, idempotency.Request{}, err
	}
	req, err := idempotency.Of(ctx, "ExtendLocks", r.RequestId, r)
	return maxHold, req, err
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
	var c validate.Check
	if len(r.Fences)+len(r.Tickets)+len(r.Paths) == 0 && !r.All {
		c.Fail("fences", "is empty, and so are tickets and paths: say what to give back, or all")
	}
	numbers(&c, "fences", r.Fences)
	numbers(&c, "tickets", r.Tickets)
	paths(&c, r.Paths)
	c.Line("holder", r.Holder, validate.MaxID)
	if err := c.Err(); err != nil {
		return ReleaseWish{}, idempotency.Request{}, err
	}
	req, err := idempotency.Of(ctx, "ReleaseLocks", r.RequestId, r)
	return ReleaseWish{Fences: r.Fences, Tickets: r.Tickets, Paths: r.Paths, Holder: r.Holder, All: r.All}, req, err
}

func released(g *Released) *pb.ReleaseLocksResponse {
	return &pb.ReleaseLocksResponse{Released: int32(g.Released), Cancelled: int32(g.Cancelled), Revision: g.Revision}
}

// ForceReleaseLocks implements the RPC.
func (s *Service) ForceReleaseLocks(ctx context.Context, r *pb.ForceReleaseLocksRequest) (*pb.ForceReleaseLocksResponse, error) {
	var c validate.Check
	if len(r.Revisions)+len(r.Paths) == 0 && r.Agent == "" {
		c.Fail("revisions", "is empty, and so are paths and agent: say what to take away")
	}
	numbers(&c, "revisions", r.Revisions)
	paths(&c, r.Paths)
	c.OptionalName("agent", r.Agent)
	if r.Reason == "" {
		c.Fail("reason", "is empty; the owners are told why")
	}
	c.Line("reason", r.Reason, validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
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
	var c validate.Check
	c.OptionalName("agent", r.Agent)
	if r.Path != "" {
		if _, err := Parse(r.Path, false); err != nil {
			c.Fail("path", "%v", err)
		}
	}
	size := c.PageSize("page_size", r.PageSize)
	if err := c.Err(); err != nil {
		return nil, err
	}
	var after Mark
	if err := page.Parse(lockList, r.PageToken, &after); err != nil {
		return nil, err
	}
	p, err := s.table.List(ctx, identity.FromContext(ctx), Filter{Agent: r.Agent, Path: r.Path, Waiting: r.Waiting}, after, size)
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

func mode(c *validate.Check, m pb.LockMode) Mode {
	switch m {
	case pb.LockMode_LOCK_MODE_UNSPECIFIED, pb.LockMode_LOCK_MODE_EXCLUSIVE:
		return Exclusive
	case pb.LockMode_LOCK_MODE_SHARED:
		return Shared
	}
	c.Fail("mode", "%d is no mode", m)
	return Exclusive
}

// paths checks what costs little: a list that is far too long is not looked at, and the rules parse the paths.
func paths(c *validate.Check, list []string) {
	c.Count("paths", len(list), mostItems)
}

func numbers(c *validate.Check, field string, list []int64) {
	c.Count(field, len(list), mostItems)
	for i, n := range list[:min(len(list), mostItems)] {
		if n <= 0 {
			c.Fail(fmt.Sprintf("%s[%d]", field, i), "is %d; these numbers are greater than 0", n)
			return
		}
	}
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
