package votes

import (
	"context"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/idempotency"
	"brokerd/internal/identity"
	"brokerd/internal/page"
	"brokerd/internal/validate"
)

// longestWait is how long GetVote waits at most.
const longestWait = time.Hour

// voteList is the name of the list that page tokens belong to.
const voteList = "ListVotes"

// Service is the VoteService of the API.
type Service struct {
	pb.UnimplementedVoteServiceServer
	votes *Votes
}

// NewService returns the service of the votes.
func NewService(v *Votes) *Service { return &Service{votes: v} }

// OpenVote implements pb.VoteServiceServer.
func (s *Service) OpenVote(ctx context.Context, in *pb.OpenVoteRequest) (*pb.OpenVoteResponse, error) {
	var c validate.Check
	m := motionOf(&c, in)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "OpenVote", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	v, err := s.votes.Open(ctx, identity.FromContext(ctx), req, m)
	if err != nil {
		return nil, err
	}
	return &pb.OpenVoteResponse{Vote: voteProto(&v)}, nil
}

// CastVote implements pb.VoteServiceServer.
func (s *Service) CastVote(ctx context.Context, in *pb.CastVoteRequest) (*pb.CastVoteResponse, error) {
	var c validate.Check
	required(&c, "vote_id", in.GetVoteId(), validate.MaxID)
	required(&c, "option", in.GetOption(), validate.MaxLine)
	c.Text("reason", in.GetReason(), maxReason)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CastVote", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	v, err := s.votes.Cast(ctx, identity.FromContext(ctx), req, in.GetVoteId(), in.GetOption(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.CastVoteResponse{Vote: voteProto(&v)}, nil
}

// CloseVote implements pb.VoteServiceServer.
func (s *Service) CloseVote(ctx context.Context, in *pb.CloseVoteRequest) (*pb.CloseVoteResponse, error) {
	var c validate.Check
	required(&c, "vote_id", in.GetVoteId(), validate.MaxID)
	c.Line("reason", in.GetReason(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	req, err := idempotency.Of(ctx, "CloseVote", in.GetRequestId(), in)
	if err != nil {
		return nil, err
	}
	out, err := s.votes.Close(ctx, identity.FromContext(ctx), req, in.GetVoteId(), in.GetReason())
	if err != nil {
		return nil, err
	}
	return &pb.CloseVoteResponse{Vote: voteProto(&out.Vote), AlreadyClosed: out.Already}, nil
}

// GetVote implements pb.VoteServiceServer.
func (s *Service) GetVote(ctx context.Context, in *pb.GetVoteRequest) (*pb.GetVoteResponse, error) {
	var c validate.Check
	required(&c, "vote_id", in.GetVoteId(), validate.MaxID)
	wait := c.Duration("wait", in.GetWait(), 0, longestWait, 0)
	if err := c.Err(); err != nil {
		return nil, err
	}
	f, err := s.votes.Get(ctx, identity.FromContext(ctx), in.GetVoteId(), wait)
	if err != nil {
		return nil, err
	}
	out := &pb.GetVoteResponse{Vote: voteProto(&f.Vote), Revision: f.Revision}
	for i := range f.Ballots {
		out.Ballots = append(out.Ballots, ballotProto(&f.Ballots[i]))
	}
	return out, nil
}

// ListVotes implements pb.VoteServiceServer.
func (s *Service) ListVotes(ctx context.Context, in *pb.ListVotesRequest) (*pb.ListVotesResponse, error) {
	var c validate.Check
	sel := Selection{
		State: int(in.GetState()), Opener: in.GetOpener(), Elector: in.GetElector(), Task: in.GetTaskId(),
		Limit: c.PageSize("page_size", in.GetPageSize()),
	}
	c.Between("state", int64(sel.State), 0, int64(pb.VoteState_VOTE_STATE_CLOSED))
	c.OptionalName("opener", sel.Opener)
	c.OptionalName("elector", sel.Elector)
	c.Line("task_id", sel.Task, validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := page.Parse(voteList, in.GetPageToken(), &sel.Before); err != nil {
		return nil, err
	}
	p, err := s.votes.List(ctx, identity.FromContext(ctx), sel)
	if err != nil {
		return nil, err
	}
	out := &pb.ListVotesResponse{Revision: p.Revision}
	for i := range p.Votes {
		out.Votes = append(out.Votes, voteProto(&p.Votes[i]))
	}
	if p.Next != 0 {
		out.NextPageToken = page.Token(voteList, p.Next)
	}
	return out, nil
}

// required wants one line that is not empty.
func required(c *validate.Check, field, s string, most int) {
	if s == "" {
		c.Fail(field, "is empty; 1 to %d bytes are required", most)
	}
	c.Line(field, s, most)
}

// motionOf reads a vote to open.
func motionOf(c *validate.Check, in *pb.OpenVoteRequest) Motion {
	m := Motion{
		Title: in.GetTitle(), Description: in.GetDescription(), Options: in.GetOptions(), Electorate: electorateOf(c, in),
		Deadline: c.Time("deadline", in.GetDeadline()), Quorum: quorumOf(c, in.GetQuorum()), Rule: Rule(in.GetRule()),
		Task: in.GetTaskId(),
	}
	required(c, "title", m.Title, validate.MaxLine)
	c.Text("description", m.Description, maxDescription)
	if n := len(m.Options); n < MinOptions || n > MaxOptions {
		c.Fail("options", "has %d options; %d to %d are required", n, MinOptions, MaxOptions)
	} else {
		different(c, "options", m.Options, func(field, s string) { required(c, field, s, validate.MaxLine) })
	}
	if m.Rule == 0 {
		m.Rule = Plurality
	}
	c.Between("rule", int64(m.Rule), int64(Plurality), int64(Unanimous))
	c.Line("task_id", m.Task, validate.MaxID)
	return m
}

// different checks each item of a list, and that it occurs only once.
func different(c *validate.Check, field string, items []string, check func(field, s string)) {
	seen := make(map[string]bool, len(items))
	for i, s := range items {
		name := fmt.Sprintf("%s[%d]", field, i)
		check(name, s)
		if seen[s] {
			c.Fail(name, "is %q like another", s)
		}
		seen[s] = true
	}
}

// maxNames is how many names a request lists.
const maxNames = 100

func electorateOf(c *validate.Check, in *pb.OpenVoteRequest) Electorate {
	switch e := in.GetElectorate().(type) {
	case *pb.OpenVoteRequest_Agents:
		names := e.Agents.GetNames()
		if n := len(names); n == 0 || n > maxNames {
			c.Fail("agents", "has %d names; 1 to %d are required", n, maxNames)
			return Electorate{}
		}
		different(c, "agents.names", names, c.Name)
		return Electorate{Agents: names}
	case *pb.OpenVoteRequest_Role:
		c.Name("role", e.Role)
		return Electorate{Role: e.Role}
	case *pb.OpenVoteRequest_Everyone:
		if !e.Everyone {
			c.Fail("everyone", "must be true, or absent")
		}
	}
	return Electorate{}
}

func quorumOf(c *validate.Check, in *pb.Quorum) Quorum {
	switch q := in.GetQuorum().(type) {
	case *pb.Quorum_Ballots:
		c.Between("quorum.ballots", int64(q.Ballots), 1, MaxElectors)
		return Quorum{Ballots: int(q.Ballots)}
	case *pb.Quorum_Share:
		if math.IsNaN(q.Share) || q.Share <= 0 || q.Share > 1 {
			c.Fail("quorum.share", "is %v; it must be greater than 0 and at most 1", q.Share)
		}
		return Quorum{Share: q.Share}
	}
	return Quorum{}
}

func voteProto(v *Vote) *pb.Vote {
	out := &pb.Vote{
		Id: v.ID(), Title: v.Title, Description: v.Description, Opener: v.Opener, Rule: pb.VoteRule(v.Rule),
		State: pb.VoteState_VOTE_STATE_OPEN, Outcome: pb.VoteOutcome(v.Outcome), Winner: v.Winner, End: pb.VoteEnd(v.End),
		ClosedBy: v.ClosedBy, CloseReason: v.CloseReason, OpenedAt: timestamppb.New(v.OpenedAt),
		Deadline: timestamppb.New(v.Deadline), Electors: int32(v.Electors), Ballots: int32(v.Ballots),
		Required: int32(v.Required()), TaskId: v.Task, Revision: v.Revision,
	}
	for _, o := range v.Options {
		out.Tally = append(out.Tally, &pb.VoteTally{Option: o.Text, Ballots: int32(o.Ballots)})
	}
	switch {
	case v.Quorum.Ballots > 0:
		out.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: int32(v.Quorum.Ballots)}}
	case v.Quorum.Share > 0:
		out.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Share{Share: v.Quorum.Share}}
	}
	if !v.Open() {
		out.State, out.ClosedAt = pb.VoteState_VOTE_STATE_CLOSED, timestamppb.New(v.ClosedAt)
	}
	return out
}

func ballotProto(b *Ballot) *pb.Ballot {
	out := &pb.Ballot{Agent: b.Agent, Option: b.Option, Reason: b.Reason, Changes: int32(b.Changes), Left: b.Left}
	if !b.CastAt.IsZero() {
		out.CastAt = timestamppb.New(b.CastAt)
	}
	return out
}
