package events

import (
	"context"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/validate"
)

// Limits of an event.
const (
	maxDetails = 64 << 10 // bytes
	maxRelated = 16       // items
)

// PublishEvent implements pb.EventServiceServer.
func (s *Service) PublishEvent(ctx context.Context, in *pb.PublishEventRequest) (*pb.PublishEventResponse, error) {
	e, o, err := entry(in)
	if err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "PublishEvent", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	out, err := s.publisher.Publish(ctx, identity.FromContext(ctx), req, e, o)
	if err != nil {
		return nil, err
	}
	return &pb.PublishEventResponse{Revision: out.Revision, Subscribers: int32(out.Subscribers), Blocker: out.Blocker}, nil
}

// entry checks an event that is to be published and fills in what was left to the defaults. The
// obstacle is nil unless the event is to raise or resolve a blocker.
func entry(in *pb.PublishEventRequest) (Entry, *Obstacle, error) {
	var c validate.Check
	e := Entry{
		Category: Category(in.GetCategory()), Type: in.GetType(), TypeAsSent: in.GetType(),
		Severity: Severity(in.GetSeverity()), Summary: in.GetSummary(),
		Details: strings.TrimSpace(in.GetDetails()), Related: in.GetRelated(), TaskID: in.GetTaskId(),
	}
	switch {
	case !IsType(e.Type):
		c.Fail("type", "%.60q is no type of events: 1 to 128 of a-z, A-Z, 0-9, '.', '_', '-', beginning with a letter, such as build_finished", e.Type)
	case Reserved(e.Type):
		first, _, _ := strings.Cut(e.Type, ".")
		c.Fail("type", "%q is the broker's own: only the broker publishes types that begin with %q; %s is free",
			e.Type, first+".", msgtype.Fold(e.Type))
	}
	e.Type = msgtype.Canonical(e.Type)
	if len(e.Type) > validate.MaxID {
		c.Fail("type", "is longer than %d bytes in snake_case", validate.MaxID)
	}
	if e.Category == 0 {
		e.Category = Agent
	}
	if e.Severity == 0 {
		e.Severity = Info
	}
	if e.Details != "" && e.Details[0] != '{' {
		c.Fail("details", "is not a JSON object: it must begin with { and end with }")
	}
	if err := c.Err(); err != nil || !in.GetBlocker() {
		return e, nil, err
	}
	o := obstacle(&c, &e)
	return e, o, c.Err()
}
