package votes

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// Limits of votes.
const (
	maxOpen         = 1000 // open votes of a session
	maxElectors     = 1000 // of a vote
	minOptions      = 2
	maxOptions      = 50
	maxNames        = 100 // of electors in a request
	longest         = 365 * 24 * time.Hour
	defaultDuration = 24 * time.Hour
)

const (
	open   = pb.VoteState_VOTE_STATE_OPEN
	closed = pb.VoteState_VOTE_STATE_CLOSED
)

// kind is what the table knows of votes. Beside the description, each elector has a part with its ballot.
var kind = work.Kind[*pb.Vote]{
	Number:     work.Votes,
	Noun:       "vote",
	Letter:     "v",
	Final:      []protoreflect.EnumNumber{closed.Number()},
	PartFields: []protoreflect.Name{"description"},
	Title:      (*pb.Vote).GetTitle,
	Columns: func(v *pb.Vote) work.Columns {
		c := work.Columns{State: v.State.Number(), Opener: v.Opener, Task: v.TaskId, Finished: work.Time(v.ClosedAt)}
		if v.State == open {
			c.Due = work.Time(v.Deadline)
		}
		return c
	},
	Check: check,
}

// check returns what is wrong with a vote, for CheckDatabase.
func check(v *pb.Vote, parts []work.Part) (problems []string) {
	if (v.State == open) != (v.ClosedAt == nil) || (v.State == open) != (v.Outcome == 0) ||
		(v.Outcome == 0) != (v.End == 0) {
		problems = append(problems, "it is open with an outcome, or closed without one")
	}
	electors, cast, counts := int32(0), int32(0), map[string]int32{}
	for _, p := range parts {
		if p.Name == "description" {
			continue
		}
		b := &pb.Ballot{}
		if err := proto.Unmarshal(p.Body, b); err != nil || p.Name != ballotPart(b.Agent) {
			return append(problems, "the part "+p.Name+" is no ballot")
		}
		if b.CastAt != nil {
			cast++
			counts[b.Option]++
		}
		if b.CastAt != nil || !b.Left {
			electors++
		}
	}
	if v.Electors != electors || v.Ballots != cast {
		problems = append(problems, "its numbers of electors and ballots are not those of its electorate")
	}
	for _, o := range v.Tally {
		if o.Ballots != counts[o.Option] {
			problems = append(problems, "the ballots of an option are not those of its electorate")
		}
	}
	if v.State == open && electors <= cast {
		problems = append(problems, "it is open, but every remaining elector has voted")
	}
	return problems
}

// Checks returns the checks of the votes in a database; see work.Kind.
func Checks(most int) []func(q store.Querier) ([]string, error) { return kind.Checks(most) }

// A Service keeps the votes of all sessions and serves the VoteService of the API. Its methods may be
// called concurrently.
type Service struct {
	pb.UnimplementedVoteServiceServer
	*work.Table[*pb.Vote]
}

// New returns the votes of a store that was opened with Migrations. They do nothing by themselves before
// Start.
func New(d *work.Desk) *Service {
	s := &Service{}
	k := kind
	k.Record, k.Due, k.Chore = s.record, s.closeDue, s.chore
	s.Table = work.NewTable(d, k)
	return s
}

// record returns what exports and the archive have of a vote: the answer of GetVote.
func (s *Service) record(q store.Querier, v *pb.Vote) (proto.Message, error) {
	ballots, err := s.ballots(q, v, "", maxElectors)
	return &pb.GetVoteResponse{Vote: v, Ballots: ballots, Revision: v.Revision}, err
}

// ballotPart is the name of the part that has the ballot of an elector.
func ballotPart(agent string) string { return "ballot-" + agent }

// ballots returns the ballots of a vote after that of an agent, by the names of the electors, at most limit.
func (s *Service) ballots(q store.Querier, v *pb.Vote, after string, limit int) ([]*pb.Ballot, error) {
	if after != "" {
		after = ballotPart(after)
	}
	parts, err := s.Parts(q, s.Key(v), "ballot", after, limit)
	if err != nil {
		return nil, err
	}
	list := make([]*pb.Ballot, len(parts))
	for i, p := range parts {
		list[i] = &pb.Ballot{}
		if err := proto.Unmarshal(p.Body, list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// ballot returns the ballot of an elector; found is false for an agent that is none.
func (s *Service) ballot(q store.Querier, v *pb.Vote, agent string) (b *pb.Ballot, found bool, err error) {
	p, found, err := s.Part(q, s.Key(v), ballotPart(agent))
	if err != nil || !found {
		return nil, false, err
	}
	b = &pb.Ballot{}
	return b, true, proto.Unmarshal(p.Body, b)
}

// tally returns the tally of an option; nil if the vote has no such option.
func tally(v *pb.Vote, option string) *pb.VoteTally {
	for _, t := range v.Tally {
		if t.Option == option {
			return t
		}
	}
	return nil
}
