package sessions

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/caller"
	"brokerd/internal/fault"
	"brokerd/internal/once"
	"brokerd/internal/page"
	"brokerd/internal/valid"
)

// Bounds of the settings; 0 turns ageing and the limit off.
const (
	leastAgeing     = time.Second
	mostAgeing      = 24 * time.Hour
	mostMailbox     = 10_000_000
	leastAttempts   = 1
	mostAttempts    = 100
	sessionListName = "ListSessions"
)

// Service is the SessionService of the API.
type Service struct {
	pb.UnimplementedSessionServiceServer
	registry *Registry
}

// NewService returns the service of a registry.
func NewService(r *Registry) *Service { return &Service{registry: r} }

// CreateSession implements pb.SessionServiceServer.
func (s *Service) CreateSession(ctx context.Context, in *pb.CreateSessionRequest) (*pb.CreateSessionResponse, error) {
	var c valid.Check
	c.NewName("name", in.GetName())
	change := changeOf(&c, in.GetSettings())
	change.Description = &in.Description
	c.Line("description", in.GetDescription(), valid.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := once.Of(ctx, "CreateSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	made, err := s.registry.Create(ctx, caller.FromContext(ctx), req, in.GetName(), change)
	if err != nil {
		return nil, err
	}
	return &pb.CreateSessionResponse{Session: sessionProto(made)}, nil
}

// GetSession implements pb.SessionServiceServer.
func (s *Service) GetSession(ctx context.Context, in *pb.GetSessionRequest) (*pb.GetSessionResponse, error) {
	who, name := caller.FromContext(ctx), in.GetName()
	if name == "" {
		name = who.Session
	}
	var c valid.Check
	c.Name("name", name)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if own := onlyOwn(who); own != "" && own != name {
		return nil, fault.Missing("session", name, "there is no session %q", name)
	}
	found, revision, err := s.registry.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return &pb.GetSessionResponse{Session: sessionProto(found), Revision: revision}, nil
}

// ListSessions implements pb.SessionServiceServer.
func (s *Service) ListSessions(ctx context.Context, in *pb.ListSessionsRequest) (*pb.ListSessionsResponse, error) {
	var c valid.Check
	size := c.PageSize("page_size", in.GetPageSize())
	if err := c.Err(); err != nil {
		return nil, err
	}
	var after string
	if err := page.Parse(sessionListName, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	found, err := s.registry.List(ctx, onlyOwn(caller.FromContext(ctx)), after, size)
	if err != nil {
		return nil, err
	}
	out := &pb.ListSessionsResponse{Revision: found.Revision}
	for _, session := range found.Sessions {
		out.Sessions = append(out.Sessions, sessionProto(session))
		after = session.Name
	}
	if found.More {
		out.NextPageToken = page.Token(sessionListName, after)
	}
	return out, nil
}

// ConfigureSession implements pb.SessionServiceServer.
func (s *Service) ConfigureSession(ctx context.Context, in *pb.ConfigureSessionRequest) (*pb.ConfigureSessionResponse, error) {
	var c valid.Check
	change := changeOf(&c, in.GetSettings())
	change.Description = in.Description
	c.Line("description", in.GetDescription(), valid.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := once.Of(ctx, "ConfigureSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	now, err := s.registry.Configure(ctx, caller.FromContext(ctx), req, change)
	if err != nil {
		return nil, err
	}
	return &pb.ConfigureSessionResponse{Session: sessionProto(now)}, nil
}

// onlyOwn returns the one session that a caller sees, or "" for an operator, who sees all.
func onlyOwn(who caller.Caller) string {
	if who.Access == caller.Operator {
		return ""
	}
	return who.Session
}

func changeOf(c *valid.Check, in *pb.SessionSettings) Change {
	var change Change
	if in == nil {
		return change
	}
	if in.Ageing != nil {
		ageing := c.Duration("settings.ageing", in.Ageing, 0, mostAgeing, 0)
		if ageing > 0 && ageing < leastAgeing {
			c.Fail("settings.ageing", "is %v; 0, or %v to %v is allowed", ageing, leastAgeing, mostAgeing)
		}
		change.Ageing = &ageing
	}
	if in.MailboxLimit != nil {
		c.Between("settings.mailbox_limit", in.GetMailboxLimit(), 0, mostMailbox)
		change.MailboxLimit = in.MailboxLimit
	}
	if in.MaxAttempts != nil {
		c.Between("settings.max_attempts", int64(in.GetMaxAttempts()), leastAttempts, mostAttempts)
		attempts := int(in.GetMaxAttempts())
		change.MaxAttempts = &attempts
	}
	return change
}

func sessionProto(s Session) *pb.Session {
	limit, attempts := s.Settings.MailboxLimit, int32(s.Settings.MaxAttempts)
	return &pb.Session{
		Name:        s.Name,
		Description: s.Description,
		CreatedAt:   timestamppb.New(s.CreatedAt),
		Settings: &pb.SessionSettings{
			Ageing:       durationpb.New(s.Settings.Ageing),
			MailboxLimit: &limit,
			MaxAttempts:  &attempts,
		},
		Revision: s.Revision,
	}
}
