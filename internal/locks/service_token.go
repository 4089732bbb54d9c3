package locks

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/fault"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
)

const tokenList = "tokens"

// TokenService is the TokenService over a Table: it checks and converts, and decides nothing.
type TokenService struct {
	pb.UnimplementedTokenServiceServer
	table *Table
}

// NewTokenService returns the TokenService of a table.
func NewTokenService(t *Table) *TokenService { return &TokenService{table: t} }

// AcquireToken implements the RPC.
func (s *TokenService) AcquireToken(ctx context.Context, r *pb.AcquireTokenRequest) (*pb.AcquireTokenResponse, error) {
	w := Wish{
		Token: tokenName(r), Mode: Exclusive, Wait: r.Wait.AsDuration(), MaxHold: r.MaxHold.AsDuration(),
		Longest: r.LongestHold.AsDuration(), Holder: r.Holder, DryRun: r.DryRun, Reason: r.Reason, Keep: r.KeepTicket,
	}
	req, err := idempotency.Of(ctx, "AcquireToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	a, err := s.table.Acquire(ctx, identity.FromContext(ctx), req, w)
	if err != nil {
		return nil, err
	}
	return &pb.AcquireTokenResponse{
		Outcome: pb.AcquireOutcome(a.Outcome), Fence: a.Fence, HeldUntil: stamp(a.HeldUntil), AlreadyHeld: a.Held,
		Ticket: a.Ticket, Position: int32(a.Position), Obstacles: obstacles(a.Obstacles), PassedBy: a.PassedBy, Note: a.Note,
	}, nil
}

// PassToken implements the RPC.
func (s *TokenService) PassToken(ctx context.Context, r *pb.PassTokenRequest) (*pb.PassTokenResponse, error) {
	p := PassWish{
		TokenRef: tokenRef(r), Agent: r.GetAgent(), Role: r.GetRole(), Note: r.Note, MaxHold: r.MaxHold.AsDuration(),
	}
	if r.To == nil {
		return nil, fault.Field("to", "is empty; name the agent or the role that gets it")
	}
	req, err := idempotency.Of(ctx, "PassToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	passed, err := s.table.Pass(ctx, identity.FromContext(ctx), req, p)
	if err != nil {
		return nil, err
	}
	return &pb.PassTokenResponse{Agent: passed.Agent, Fence: passed.Fence, Revision: passed.Revision}, nil
}

// ExtendToken implements the RPC.
func (s *TokenService) ExtendToken(ctx context.Context, r *pb.ExtendTokenRequest) (*pb.ExtendTokenResponse, error) {
	req, err := idempotency.Of(ctx, "ExtendToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	end, err := s.table.ExtendToken(ctx, identity.FromContext(ctx), req, tokenRef(r), r.MaxHold.AsDuration())
	if err != nil {
		return nil, err
	}
	return &pb.ExtendTokenResponse{HeldUntil: stamp(end)}, nil
}

// ReleaseToken implements the RPC.
func (s *TokenService) ReleaseToken(ctx context.Context, r *pb.ReleaseTokenRequest) (*pb.ReleaseTokenResponse, error) {
	req, err := idempotency.Of(ctx, "ReleaseToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	g, err := s.table.ReleaseToken(ctx, identity.FromContext(ctx), req, tokenRef(r))
	if err != nil {
		return nil, err
	}
	return &pb.ReleaseTokenResponse{Released: g.Released+g.Cancelled > 0, Revision: g.Revision}, nil
}

// RevokeToken implements the RPC.
func (s *TokenService) RevokeToken(ctx context.Context, r *pb.RevokeTokenRequest) (*pb.RevokeTokenResponse, error) {
	req, err := idempotency.Of(ctx, "RevokeToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	revoked, err := s.table.RevokeToken(ctx, identity.FromContext(ctx), req, tokenName(r), r.Ticket, r.Reason)
	if err != nil {
		return nil, err
	}
	return &pb.RevokeTokenResponse{Agent: revoked.Agent, Revision: revoked.Revision}, nil
}

// GetToken implements the RPC.
func (s *TokenService) GetToken(ctx context.Context, r *pb.GetTokenRequest) (*pb.GetTokenResponse, error) {
	status, queue, revision, err := s.table.GetToken(ctx, identity.FromContext(ctx), tokenName(r))
	if err != nil {
		return nil, err
	}
	out := &pb.GetTokenResponse{Token: tokenProto(&status), Revision: revision}
	for i := range queue {
		k := &queue[i]
		out.Tickets = append(out.Tickets, &pb.TokenTicket{
			Ticket: k.Ticket, Agent: k.Owner.Agent, Holder: k.Owner.Holder, Reason: k.Reason, CreatedAt: stamp(k.CreatedAt),
			Position: int32(k.Position), Kept: k.Kept,
		})
	}
	return out, nil
}

// ListTokens implements the RPC.
func (s *TokenService) ListTokens(ctx context.Context, r *pb.ListTokensRequest) (*pb.ListTokensResponse, error) {
	var after string
	if err := page.Parse(tokenList, r.PageToken, &after); err != nil {
		return nil, err
	}
	found, err := s.table.ListTokens(ctx, identity.FromContext(ctx), TokenFilter{Type: r.Type, Agent: r.Agent, State: TokenState(r.State)}, after, page.Size(r.PageSize))
	if err != nil {
		return nil, err
	}
	out := &pb.ListTokensResponse{Revision: found.Revision}
	for i := range found.Tokens {
		out.Tokens = append(out.Tokens, tokenProto(&found.Tokens[i]))
	}
	if found.More {
		out.NextPageToken = page.Token(tokenList, found.Last)
	}
	return out, nil
}

// A tokenRequest is about a token.
type tokenRequest interface {
	GetType() string
	GetScope() string
}

// A heldRequest is about a token of the caller's.
type heldRequest interface {
	tokenRequest
	GetHolder() string
}

func tokenRef(r heldRequest) TokenRef {
	return TokenRef{Token: tokenName(r), Holder: r.GetHolder()}
}

// tokenName is TYPE/SCOPE. A type is a name, so it has no slash.
func tokenName(r tokenRequest) string { return r.GetType() + "/" + r.GetScope() }

func tokenProto(s *TokenStatus) *pb.Token {
	out := &pb.Token{
		Type: s.Type, Scope: s.Scope, State: pb.TokenState(s.State), LongestHold: durationpb.New(s.Longest), Waiting: int32(s.Waiting),
		PassedToRole: s.Role, Role: s.HolderRole, LastReleasedAt: stamp(s.ReleasedAt), Revision: s.Revision,
	}
	if s.Held.Fence != 0 {
		h := &s.Held
		out.Agent, out.Holder, out.Fence, out.Reason, out.Uncollected = h.Owner.Agent, h.Owner.Holder, h.Fence, h.Reason, h.Uncollected
		out.GrantedAt, out.HeldUntil = stamp(h.GrantedAt), stamp(h.HeldUntil)
	}
	return out
}
