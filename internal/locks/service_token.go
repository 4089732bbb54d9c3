package locks

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
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
	var c validate.Check
	w := Wish{
		Token: tokenName(&c, r.Type, r.Scope), Mode: Exclusive, Wait: c.Duration("wait", r.Wait, 0, mostWait, 0),
		MaxHold: c.Duration("max_hold", r.MaxHold, leastHold, mostHold, 0), Longest: c.Duration("longest_hold", r.LongestHold, leastHold, mostHold, 0),
		Holder: r.Holder, DryRun: r.DryRun, Reason: r.Reason, Keep: r.KeepTicket,
	}
	c.Line("holder", r.Holder, validate.MaxID)
	c.Line("reason", r.Reason, validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
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
	var c validate.Check
	p := PassWish{
		TokenRef: tokenRef(&c, r), Agent: r.GetAgent(), Role: r.GetRole(), Note: r.Note, MaxHold: c.Duration("max_hold", r.MaxHold, leastHold, mostHold, 0),
	}
	switch r.To.(type) {
	case *pb.PassTokenRequest_Agent:
		c.Name("agent", p.Agent)
	case *pb.PassTokenRequest_Role:
		c.Name("role", p.Role)
	default:
		c.Fail("to", "is empty; name the agent or the role that gets it")
	}
	c.Line("note", r.Note, validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
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
	var c validate.Check
	which := tokenRef(&c, r)
	maxHold := c.Duration("max_hold", r.MaxHold, leastHold, mostHold, 0)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ExtendToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	end, err := s.table.ExtendToken(ctx, identity.FromContext(ctx), req, which, maxHold)
	if err != nil {
		return nil, err
	}
	return &pb.ExtendTokenResponse{HeldUntil: stamp(end)}, nil
}

// ReleaseToken implements the RPC.
func (s *TokenService) ReleaseToken(ctx context.Context, r *pb.ReleaseTokenRequest) (*pb.ReleaseTokenResponse, error) {
	var c validate.Check
	which := tokenRef(&c, r)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "ReleaseToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	g, err := s.table.ReleaseToken(ctx, identity.FromContext(ctx), req, which)
	if err != nil {
		return nil, err
	}
	return &pb.ReleaseTokenResponse{Released: g.Released+g.Cancelled > 0, Revision: g.Revision}, nil
}

// RevokeToken implements the RPC.
func (s *TokenService) RevokeToken(ctx context.Context, r *pb.RevokeTokenRequest) (*pb.RevokeTokenResponse, error) {
	var c validate.Check
	token := tokenName(&c, r.Type, r.Scope)
	if r.Ticket < 0 {
		c.Fail("ticket", "must not be negative")
	}
	if r.Reason == "" {
		c.Fail("reason", "is empty; its owner is told why")
	}
	c.Line("reason", r.Reason, validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "RevokeToken", r.RequestId, r)
	if err != nil {
		return nil, err
	}
	revoked, err := s.table.RevokeToken(ctx, identity.FromContext(ctx), req, token, r.Ticket, r.Reason)
	if err != nil {
		return nil, err
	}
	return &pb.RevokeTokenResponse{Agent: revoked.Agent, Revision: revoked.Revision}, nil
}

// GetToken implements the RPC.
func (s *TokenService) GetToken(ctx context.Context, r *pb.GetTokenRequest) (*pb.GetTokenResponse, error) {
	var c validate.Check
	token := tokenName(&c, r.Type, r.Scope)
	if err := c.Err(); err != nil {
		return nil, err
	}
	status, queue, revision, err := s.table.GetToken(ctx, identity.FromContext(ctx), token)
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
	var c validate.Check
	c.OptionalName("type", r.Type)
	c.OptionalName("agent", r.Agent)
	if _, known := pb.TokenState_name[int32(r.State)]; !known {
		c.Fail("state", "%d is no state of a token", r.State)
	}
	size := c.PageSize("page_size", r.PageSize)
	if err := c.Err(); err != nil {
		return nil, err
	}
	var after string
	if err := page.Parse(tokenList, r.PageToken, &after); err != nil {
		return nil, err
	}
	found, err := s.table.ListTokens(ctx, identity.FromContext(ctx), TokenFilter{Type: r.Type, Agent: r.Agent, State: TokenState(r.State)}, after, size)
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

// A tokenRequest is about a token of the caller's.
type tokenRequest interface {
	GetType() string
	GetScope() string
	GetHolder() string
}

func tokenRef(c *validate.Check, r tokenRequest) TokenRef {
	c.Line("holder", r.GetHolder(), validate.MaxID)
	return TokenRef{Token: tokenName(c, r.GetType(), r.GetScope()), Holder: r.GetHolder()}
}

// tokenName is TYPE/SCOPE. A type is a name, so it has no slash.
func tokenName(c *validate.Check, kind, scope string) string {
	c.Name("type", kind)
	if scope == "" {
		c.Fail("scope", "is empty; say what the turn is about")
	}
	c.Line("scope", scope, validate.MaxLine)
	return kind + "/" + scope
}

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
