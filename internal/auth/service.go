package auth

import (
	"context"
	"time"

	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

const (
	credentialList = "ListCredentials"
	longestTTL     = 3650 * 24 * time.Hour
)

// Service is the CredentialService of the API.
type Service struct {
	pb.UnimplementedCredentialServiceServer
	registry *Registry
	clock    clockwork.Clock
}

// NewService returns the service of a registry.
func NewService(r *Registry) *Service { return &Service{registry: r, clock: r.clock} }

// IssueCredential implements pb.CredentialServiceServer.
func (s *Service) IssueCredential(ctx context.Context, in *pb.IssueCredentialRequest) (*pb.IssueCredentialResponse, error) {
	var c validate.Check
	d := s.draftOf(&c, in)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "IssueCredential", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	issued, err := s.registry.Issue(ctx, req, d)
	if err != nil {
		return nil, err
	}
	return &pb.IssueCredentialResponse{
		Credential: credentialProto(&issued.Credential), Secret: issued.Secret, AlreadyIssued: issued.Secret == "",
	}, nil
}

// ListCredentials implements pb.CredentialServiceServer.
func (s *Service) ListCredentials(ctx context.Context, in *pb.ListCredentialsRequest) (*pb.ListCredentialsResponse, error) {
	sel := Selection{Session: in.GetSession(), Agent: in.GetAgent(), Limit: page.Size(in.GetPageSize())}
	for _, state := range in.GetStates() {
		sel.States = append(sel.States, State(state))
	}
	if err := page.Parse(credentialList, in.GetPageToken(), &sel.After); err != nil {
		return nil, err
	}
	p, err := s.registry.List(ctx, sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListCredentialsResponse{Revision: p.Revision}
	for i := range p.Credentials {
		out.Credentials = append(out.Credentials, credentialProto(&p.Credentials[i]))
	}
	if p.Next != 0 {
		out.NextPageToken = page.Token(credentialList, p.Next)
	}
	return out, nil
}

// RevokeCredential implements pb.CredentialServiceServer.
func (s *Service) RevokeCredential(ctx context.Context, in *pb.RevokeCredentialRequest) (*pb.RevokeCredentialResponse, error) {
	req, err := idempotency.Of(ctx, "RevokeCredential", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	revoked, err := s.registry.Revoke(ctx, req, in.GetId(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.RevokeCredentialResponse{Credential: credentialProto(&revoked)}, nil
}

// CreateLoginLink implements pb.CredentialServiceServer.
func (s *Service) CreateLoginLink(
	ctx context.Context, in *pb.CreateLoginLinkRequest,
) (*pb.CreateLoginLinkResponse, error) {
	access, session := identity.Access(in.GetAccess()), identity.FromContext(ctx).Session
	if access != identity.Observer && access != identity.Operator {
		return nil, fault.Field("access", "must be OBSERVER or OPERATOR")
	}
	link, err := s.registry.CreateLoginLink(ctx, access, session)
	if err != nil {
		return nil, err
	}
	return &pb.CreateLoginLinkResponse{Secret: link.Secret, ExpiresAt: stamp(link.Until), Session: session}, nil
}

// Login implements pb.CredentialServiceServer.
func (s *Service) Login(ctx context.Context, in *pb.LoginRequest) (*pb.LoginResponse, error) {
	login, err := s.registry.Login(ctx, in.GetSecret())
	if err != nil {
		return nil, err
	}
	c := &login.Credential
	return &pb.LoginResponse{
		Token: login.Token, Level: pb.CredentialAccess(c.Access), Session: login.Session, ExpiresAt: stamp(c.ExpiresAt),
	}, nil
}

// Logout implements pb.CredentialServiceServer.
func (s *Service) Logout(ctx context.Context, _ *pb.LogoutRequest) (*pb.LogoutResponse, error) {
	if err := s.registry.Logout(ctx, identity.FromContext(ctx)); err != nil {
		return nil, err
	}
	return &pb.LogoutResponse{}, nil
}

func (s *Service) draftOf(c *validate.Check, in *pb.IssueCredentialRequest) Draft {
	d := Draft{
		Access: identity.Access(in.GetAccess()), Session: in.GetSession(), Agent: in.GetAgent(), Role: in.GetRole(), Description: in.GetDescription(),
	}
	switch in.GetAccess() {
	case pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT:
		c.Name("session", d.Session)
		c.Name("agent", d.Agent)
	case pb.CredentialAccess_CREDENTIAL_ACCESS_OBSERVER:
		absent(c, "agent", d.Agent, "an observer acts as no agent")
		absent(c, "role", d.Role, "an observer has no role")
	case pb.CredentialAccess_CREDENTIAL_ACCESS_OPERATOR:
		absent(c, "session", d.Session, "an operator works in every session")
		absent(c, "agent", d.Agent, "an operator can name any agent")
		absent(c, "role", d.Role, "an operator has no role")
	}
	switch expiry := in.GetExpiry().(type) {
	case *pb.IssueCredentialRequest_Ttl:
		d.TTL = expiry.Ttl.AsDuration()
	case *pb.IssueCredentialRequest_ExpiresAt:
		d.ExpiresAt = expiry.ExpiresAt.AsTime()
		if left := d.ExpiresAt.Sub(s.clock.Now()); left <= 0 || left > longestTTL {
			c.Fail("expires_at", "must be in the future, at most 3650 days from now")
		}
	}
	return d
}

func absent(c *validate.Check, field, value, why string) {
	if value != "" {
		c.Fail(field, "must be empty: %s", why)
	}
}

// credentialProto converts a credential.
func credentialProto(c *Credential) *pb.Credential {
	return &pb.Credential{
		Id: name(c.ID), Access: pb.CredentialAccess(c.Access), Session: c.Session, Agent: c.Agent, Role: c.Role, Description: c.Description,
		State: pb.CredentialState(c.State), IssuedAt: stamp(c.IssuedAt), ExpiresAt: stamp(c.ExpiresAt), EndedAt: stamp(c.EndedAt),
		EndReason: c.EndReason, LastUsedAt: stamp(c.LastUsedAt), LastUsedFrom: c.LastUsedFrom, Revision: c.Revision,
	}
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
