package events

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/identity"
	"brokerd/internal/msgtype"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// Names of the lists that page tokens belong to.
const (
	oldestList = "ListEvents"
	newestList = "ListEvents newest first"
)

// Service is the EventService of the API.
type Service struct {
	pb.UnimplementedEventServiceServer
	reader    *Reader
	publisher *Publisher
}

// NewService returns the service that reads the log and adds to it what agents publish.
func NewService(log *Log, dir *directory.Directory, limiter Limiter, blockers Blockers) *Service {
	return &Service{reader: NewReader(log, dir), publisher: NewPublisher(log, dir, limiter, blockers)}
}

// ListEvents implements pb.EventServiceServer.
func (s *Service) ListEvents(ctx context.Context, in *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	var c validate.Check
	sel := Selection{
		Scope:       scopeOf(identity.FromContext(ctx)),
		Filter:      filterOf(&c, in.GetFilter()),
		After:       in.GetAfterRevision(),
		Until:       in.GetUntilRevision(),
		NewestFirst: in.GetNewestFirst(),
		Limit:       page.Size(in.GetPageSize()),
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	list, position := oldestList, &sel.After
	if sel.NewestFirst {
		list, position = newestList, &sel.Until
	}
	if err := page.Parse(list, in.GetPageToken(), position); err != nil {
		return nil, err
	}
	found, err := s.reader.List(ctx, sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListEventsResponse{Events: eventsProto(found.Events, sel.Scope), Revision: found.Revision}
	if found.More {
		next := found.Looked
		if sel.NewestFirst {
			next--
		}
		out.NextPageToken = page.Token(list, next)
	}
	return out, nil
}

// SubscribeEvents implements pb.EventServiceServer.
func (s *Service) SubscribeEvents(in *pb.SubscribeEventsRequest, stream grpc.ServerStreamingServer[pb.SubscribeEventsResponse]) error {
	who := identity.FromContext(stream.Context())
	var c validate.Check
	sub := Subscription{
		Scope:  scopeOf(who),
		Filter: filterOf(&c, in.GetFilter()),
		After:  in.AfterRevision,
		Owner:  who.Name(),
		Cursor: in.GetCursor(),
	}
	if sub.Cursor != "" && who.Access == identity.Observer {
		return fault.New(fault.Denied, "READ_ONLY", "the broker keeps no cursor for a credential that only permits reading: pass after_revision")
	}
	if err := c.Err(); err != nil {
		return err
	}
	return s.reader.Follow(stream.Context(), sub, func(p Page) error {
		return stream.Send(&pb.SubscribeEventsResponse{Events: eventsProto(p.Events, sub.Scope), Revision: p.Looked})
	})
}

// scopeOf: events of the broker itself are shown to operators, in whatever session they are.
func scopeOf(who identity.Caller) Scope {
	return Scope{Session: who.Session, Broker: who.Access == identity.Operator}
}

func filterOf(c *validate.Check, in *pb.EventFilter) Filter {
	f := Filter{
		LowestSeverity: Severity(in.GetLowestSeverity()),
		Sources:        in.GetSources(),
		SourceRoles:    in.GetSourceRoles(),
		TaskID:         in.GetTaskId(),
	}
	for _, category := range in.GetCategories() {
		f.Categories = append(f.Categories, Category(category))
	}
	for i, t := range in.GetTypes() {
		if strings.HasSuffix(t, ".") {
			c.Fail(fmt.Sprintf("filter.types[%d]", i), "%q ends in a dot: %q stands for all types that begin so", t, t+"*")
			continue
		}
		c.Name(fmt.Sprintf("filter.types[%d]", i), strings.TrimSuffix(t, ".*"))
		f.Types = append(f.Types, stored(t)...)
	}
	f.Since, f.Until = c.Time("filter.since", in.GetSince()), c.Time("filter.until", in.GetUntil())
	return f
}

// stored returns the types of stored events that a type in a filter stands for. One of the broker's
// own types stands for itself alone, so that a filter for it finds no event of an agent.
func stored(t string) []string {
	prefix, isPrefix := strings.CutSuffix(t, ".*")
	switch {
	case Reserved(t):
		return []string{t}
	case isPrefix:
		return []string{t, msgtype.Fold(prefix) + "_*"}
	}
	return msgtype.EventTypes(t)
}

func eventsProto(list []Event, scope Scope) []*pb.Event {
	out := make([]*pb.Event, len(list))
	for i := range list {
		e := &list[i]
		out[i] = &pb.Event{
			Revision:   e.Revision,
			Time:       timestamppb.New(e.Time),
			Category:   pb.EventCategory(e.Category),
			Type:       e.Type,
			TypeAsSent: e.TypeAsSent,
			Severity:   pb.Severity(e.Severity),
			Source:     e.Source,
			SourceRole: e.SourceRole,
			Summary:    e.Summary,
			Details:    e.Details,
			Related:    e.Related,
			TaskId:     e.TaskID,
		}
		if e.Session != 0 {
			out[i].Session = scope.Session
		}
	}
	return out
}
