package sessions

import (
	"context"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/settings"
	"brokerd/internal/validate"
)

const sessionListName = "ListSessions"

// Service is the SessionService of the API.
type Service struct {
	pb.UnimplementedSessionServiceServer
	registry *Registry
}

// NewService returns the service of a registry.
func NewService(r *Registry) *Service { return &Service{registry: r} }

// CreateSession implements pb.SessionServiceServer.
func (s *Service) CreateSession(ctx context.Context, in *pb.CreateSessionRequest) (*pb.CreateSessionResponse, error) {
	var c validate.Check
	settings.Check(&c, in.GetSettings())
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CreateSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	made, err := s.registry.Create(ctx, identity.FromContext(ctx), req, in.GetName(),
		Change{Description: &in.Description, Settings: in.GetSettings()})
	if err != nil {
		return nil, err
	}
	return &pb.CreateSessionResponse{Session: made}, nil
}

// GetSession implements pb.SessionServiceServer.
func (s *Service) GetSession(ctx context.Context, in *pb.GetSessionRequest) (*pb.GetSessionResponse, error) {
	who, name := identity.FromContext(ctx), in.GetName()
	if name == "" {
		name = who.Session
	}
	if own := onlyOwn(who); own != "" && own != name {
		return nil, fault.Missing("session", name, "there is no session %q", name)
	}
	found, revision, err := s.registry.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return &pb.GetSessionResponse{Session: found.proto(), Revision: revision}, nil
}

// ListSessions implements pb.SessionServiceServer.
func (s *Service) ListSessions(ctx context.Context, in *pb.ListSessionsRequest) (*pb.ListSessionsResponse, error) {
	var after string
	if err := page.Parse(sessionListName, in.GetPageToken(), &after); err != nil {
		return nil, err
	}
	found, err := s.registry.List(ctx, onlyOwn(identity.FromContext(ctx)), after, page.Size(in.GetPageSize()))
	if err != nil {
		return nil, err
	}
	out := &pb.ListSessionsResponse{Revision: found.Revision}
	for _, session := range found.Sessions {
		out.Sessions = append(out.Sessions, session.proto())
		after = session.Name
	}
	if found.More {
		out.NextPageToken = page.Token(sessionListName, after)
	}
	return out, nil
}

// ConfigureSession implements pb.SessionServiceServer.
func (s *Service) ConfigureSession(ctx context.Context, in *pb.ConfigureSessionRequest) (*pb.ConfigureSessionResponse, error) {
	var c validate.Check
	settings.Check(&c, in.GetSettings())
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ConfigureSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	now, err := s.registry.Configure(ctx, identity.FromContext(ctx), req,
		Change{Description: in.Description, Settings: in.GetSettings()})
	if err != nil {
		return nil, err
	}
	return &pb.ConfigureSessionResponse{Session: now}, nil
}

// CloseSession implements pb.SessionServiceServer.
func (s *Service) CloseSession(ctx context.Context, in *pb.CloseSessionRequest) (*pb.CloseSessionResponse, error) {
	req, err := idempotency.Of(ctx, "CloseSession", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	now, err := s.registry.Close(ctx, identity.FromContext(ctx), req, in.GetName(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.CloseSessionResponse{Session: now}, nil
}

// onlyOwn returns the one session that a caller sees, or "" for an operator, who sees all.
func onlyOwn(who identity.Caller) string {
	if who.Access == identity.Operator {
		return ""
	}
	return who.Session
}
