package votes

import (
	"context"
	"math"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

// longestWait is how long GetVote waits at most.
const longestWait = time.Hour

// OpenVote implements pb.VoteServiceServer.
func (s *Service) OpenVote(ctx context.Context, in *pb.OpenVoteRequest) (*pb.OpenVoteResponse, error) {
	if err := checkNew(in); err != nil {
		return nil, err
	}
	if err := s.Admit(ctx); err != nil {
		return nil, err
	}
	v, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Vote, error) { return s.open(t, in) })
	return work.Answer(err, &pb.OpenVoteResponse{Vote: v})
}

// CastVote implements pb.VoteServiceServer.
func (s *Service) CastVote(ctx context.Context, in *pb.CastVoteRequest) (*pb.CastVoteResponse, error) {
	var c validate.Check
	line(&c, "id", in.GetId(), validate.MaxID)
	line(&c, "option", in.GetOption(), validate.MaxLine)
	c.Text("reason", in.GetReason(), maxReason)
	if err := c.Err(); err != nil {
		return nil, err
	}
	v, _, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Vote, error) {
		if t.Actor.System() {
			return nil, fault.AgentRequired()
		}
		v, err := s.Get(t, t.Session.ID, in.GetId())
		if err == nil {
			err = s.cast(t, v, in.GetOption(), in.GetReason())
		}
		return v, err
	})
	return work.Answer(err, &pb.CastVoteResponse{Vote: v})
}

// CloseVote implements pb.VoteServiceServer.
func (s *Service) CloseVote(ctx context.Context, in *pb.CloseVoteRequest) (*pb.CloseVoteResponse, error) {
	var c validate.Check
	line(&c, "id", in.GetId(), validate.MaxID)
	c.Line("reason", in.GetReason(), validate.MaxLine)
	if err := c.Err(); err != nil {
		return nil, err
	}
	v, already, err := s.Change(ctx, in, func(t *work.Tx) (*pb.Vote, error) {
		v, err := s.Get(t, t.Session.ID, in.GetId())
		switch {
		case err != nil:
			return nil, err
		case !t.Actor.System() && v.Opener != t.Actor.Name:
			return nil, fault.New(fault.Denied, "NOT_THE_OPENER",
				"only %s, which opened the vote %s, and operators may close it", v.Opener, v.Id)
		case v.State != open:
			t.Flag = true
			return v, nil
		}
		return v, s.close(t, v, pb.VoteEnd_VOTE_END_CLOSED, t.Actor.Name, in.GetReason())
	})
	return work.Answer(err, &pb.CloseVoteResponse{Vote: v, AlreadyClosed: already})
}

// GetVote implements pb.VoteServiceServer.
func (s *Service) GetVote(ctx context.Context, in *pb.GetVoteRequest) (*pb.GetVoteResponse, error) {
	var c validate.Check
	line(&c, "id", in.GetId(), validate.MaxID)
	wait := c.Duration("wait", in.GetWait(), 0, longestWait, 0)
	if err := c.Err(); err != nil {
		return nil, err
	}
	out := &pb.GetVoteResponse{}
	err := s.AwaitIn(ctx, in.GetId(), wait, func(snap *store.Snapshot, v *pb.Vote) (done bool, err error) {
		out.Vote, out.Revision = v, snap.Revision()
		out.Ballots, err = s.ballots(snap, v, "", maxElectors)
		return v.State != open, err
	})
	return work.Answer(err, out)
}

// ListVotes implements pb.VoteServiceServer.
func (s *Service) ListVotes(ctx context.Context, in *pb.ListVotesRequest) (*pb.ListVotesResponse, error) {
	var c validate.Check
	c.PageSize("page_size", in.GetPageSize())
	f := work.Filter[*pb.Vote]{
		States: work.States(&c, "states", in.GetStates(), s.Noun), Opener: in.GetOpener(), Task: in.GetTaskId(),
	}
	if in.GetElector() != "" {
		f.Part = ballotPart(in.GetElector())
	}
	c.OptionalName("opener", in.GetOpener())
	c.OptionalName("elector", in.GetElector())
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	if err := c.Err(); err != nil {
		return nil, err
	}
	l, err := s.List(ctx, in, func(store.Querier, directory.Session) (work.Filter[*pb.Vote], error) { return f, nil })
	return work.Answer(err, &pb.ListVotesResponse{Votes: l.Items, NextPageToken: l.Next, Revision: l.Revision})
}

// line wants one line that is not empty.
func line(c *validate.Check, field, s string, most int) {
	if s == "" {
		c.Fail(field, "is empty; 1 to %d bytes are required", most)
	}
	c.Line(field, s, most)
}

// checkNew checks a vote to open. A request without a rule gets the plurality.
func checkNew(in *pb.OpenVoteRequest) error {
	var c validate.Check
	checkElectorate(&c, in)
	c.Time("deadline", in.GetDeadline())
	checkQuorum(&c, in.GetQuorum())
	line(&c, "title", in.GetTitle(), validate.MaxLine)
	c.Text("description", in.GetDescription(), maxDescription)
	if n := len(in.GetOptions()); n < minOptions || n > maxOptions {
		c.Fail("options", "has %d options; %d to %d are required", n, minOptions, maxOptions)
	} else {
		different(&c, "options", in.GetOptions(), func(s string) { line(&c, "", s, validate.MaxLine) })
	}
	if in.GetRule() != 0 {
		c.Between("rule", int64(in.GetRule()), 1, int64(pb.VoteRule_VOTE_RULE_UNANIMOUS))
	}
	c.Line("task_id", in.GetTaskId(), validate.MaxID)
	return c.Err()
}

// different checks each item of a list, and that it occurs only once.
func different(c *validate.Check, field string, items []string, check func(s string)) {
	seen := make(map[string]bool, len(items))
	for i, s := range items {
		c.InItem(field, i)
		check(s)
		if seen[s] {
			c.Fail("", "is %q like another", s)
		}
		seen[s] = true
	}
	c.In("")
}

func checkElectorate(c *validate.Check, in *pb.OpenVoteRequest) {
	switch e := in.GetElectorate().(type) {
	case *pb.OpenVoteRequest_Agents:
		names := e.Agents.GetNames()
		if n := len(names); n == 0 || n > maxNames {
			c.Fail("agents", "has %d names; 1 to %d are required", n, maxNames)
			return
		}
		different(c, "agents.names", names, func(s string) { c.Name("", s) })
	case *pb.OpenVoteRequest_Role:
		c.Name("role", e.Role)
	case *pb.OpenVoteRequest_Everyone:
		if !e.Everyone {
			c.Fail("everyone", "must be true, or absent")
		}
	}
}

func checkQuorum(c *validate.Check, in *pb.Quorum) {
	switch q := in.GetQuorum().(type) {
	case *pb.Quorum_Ballots:
		c.Between("quorum.ballots", int64(q.Ballots), 1, maxElectors)
	case *pb.Quorum_Share:
		if math.IsNaN(q.Share) || q.Share <= 0 || q.Share > 1 {
			c.Fail("quorum.share", "is %v; it must be greater than 0 and at most 1", q.Share)
		}
	}
}
