package votes

import (
	"context"
	"fmt"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/store"
	"brokerd/internal/validate"
	"brokerd/internal/work"
)

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
	out := &pb.GetVoteResponse{}
	err := s.AwaitIn(ctx, in.GetId(), in.GetWait().AsDuration(), func(snap *store.Snapshot, v *pb.Vote) (done bool, err error) {
		out.Vote, out.Revision = v, snap.Revision()
		out.Ballots, err = s.ballots(snap, v, "", maxElectors)
		return v.State != open, err
	})
	return work.Answer(err, out)
}

// ListVotes implements pb.VoteServiceServer.
func (s *Service) ListVotes(ctx context.Context, in *pb.ListVotesRequest) (*pb.ListVotesResponse, error) {
	f := work.Filter[*pb.Vote]{States: work.States(in.GetStates()), Opener: in.GetOpener(), Task: in.GetTaskId()}
	if in.GetElector() != "" {
		f.Part = ballotPart(in.GetElector())
	}
	l, err := s.List(ctx, in, func(store.Querier, directory.Session) (work.Filter[*pb.Vote], error) { return f, nil })
	return work.Answer(err, &pb.ListVotesResponse{Votes: l.Items, NextPageToken: l.Next, Revision: l.Revision})
}

// checkNew checks what the options of vote.proto do not say about a vote to open.
func checkNew(in *pb.OpenVoteRequest) error {
	var c validate.Check
	checkElectorate(&c, in)
	if q, ok := in.GetQuorum().GetQuorum().(*pb.Quorum_Share); ok && q.Share == 0 {
		c.Fail("quorum.share", "is 0; it must be greater than 0 and at most 1")
	}
	if n := len(in.GetOptions()); n < minOptions {
		c.Fail("options", "has %d options; %d to %d are required", n, minOptions, maxOptions)
	}
	different(&c, "options", in.GetOptions())
	return c.Err()
}

// different wants that each item of a list occurs only once.
func different(c *validate.Check, field string, items []string) {
	seen := make(map[string]bool, len(items))
	for i, s := range items {
		if seen[s] {
			c.Fail(fmt.Sprintf("%s[%d]", field, i), "is %q like another", s)
		}
		seen[s] = true
	}
}

func checkElectorate(c *validate.Check, in *pb.OpenVoteRequest) {
	switch e := in.GetElectorate().(type) {
	case *pb.OpenVoteRequest_Agents:
		names := e.Agents.GetNames()
		if n := len(names); n == 0 || n > maxNames {
			c.Fail("agents", "has %d names; 1 to %d are required", n, maxNames)
			return
		}
		for i, name := range names { // a setting has such a list as well, and other rules
			c.Name(fmt.Sprintf("agents.names[%d]", i), name)
		}
		different(c, "agents.names", names)
	case *pb.OpenVoteRequest_Everyone:
		if !e.Everyone {
			c.Fail("everyone", "must be true, or absent")
		}
	}
}
