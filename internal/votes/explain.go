package votes

import (
	"fmt"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/directory"
	"brokerd/internal/finding"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// mostExplained is how many open votes Explain reads.
const mostExplained = 100

// Items returns the open votes in which an agent has yet to vote, and those that it has opened, at
// most limit, each oldest first.
func (s *Service) Items(q store.Querier, session int64, a directory.Agent, limit int) ([]work.Item, error) {
	owed, err := s.owed(q, session, a.Name, limit)
	if err != nil {
		return nil, err
	}
	var items []work.Item
	for _, v := range owed {
		item := s.Item(v, work.Owes)
		item.Other = v.Opener
		item.Calls = []calls.Call{
			calls.Do(&pb.CastVoteRequest{Id: v.Id}, "option"), calls.Do(&pb.GetVoteRequest{Id: v.Id}),
		}
		items = append(items, item)
	}
	opened, err := s.Open(q, session, work.Filter[*pb.Vote]{Opener: a.Name}, limit-len(items))
	for _, v := range opened {
		item := s.Item(v, work.Opened)
		item.Calls = []calls.Call{
			calls.Do(&pb.GetVoteRequest{Id: v.Id, Wait: finding.Patience()}), calls.Do(&pb.CloseVoteRequest{Id: v.Id}),
		}
		items = append(items, item)
	}
	return items, err
}

// owed returns the open votes in which an agent has yet to vote, the oldest first, at most limit.
func (s *Service) owed(q store.Querier, session int64, agent string, limit int) (owed []*pb.Vote, err error) {
	all, err := s.Open(q, session, work.Filter[*pb.Vote]{Part: ballotPart(agent)}, maxOpen)
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		if len(owed) == limit {
			break
		}
		b, _, err := s.ballot(q, v, agent)
		if err != nil {
			return nil, err
		}
		if b.GetCastAt() == nil && !b.GetLeft() {
			owed = append(owed, v)
		}
	}
	return owed, nil
}

// Explain reports the state of a vote, the votes that wait for a given agent, and for the session the
// open votes that wait for agents that have failed.
func (s *Service) Explain(q store.Querier, about finding.Question) ([]finding.Finding, error) {
	list := make([]*pb.Vote, 1)
	var err error
	switch about.Kind {
	case finding.Vote:
		list[0], err = s.Get(q, about.Session, about.Name)
	case finding.Agent:
		owed, err := s.owed(q, about.Session, about.Name, mostExplained)
		found := make([]finding.Finding, len(owed))
		for i, v := range owed {
			found[i] = finding.Finding{
				Severity: finding.Info, Subject: "vote " + v.Id, Since: v.OpenedAt.AsTime(),
				Summary: fmt.Sprintf("%s has not voted in %q, which closes at %s", about.Name, v.Title,
					about.When(v.Deadline.AsTime())),
				Calls: []calls.Call{calls.Do(&pb.GetVoteRequest{Id: v.Id})},
			}
		}
		return found, err
	case finding.Everything:
		list, err = s.Open(q, about.Session, work.Filter[*pb.Vote]{}, mostExplained)
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("explain votes: %w", err)
	}
	return work.Findings(&about, list, mostExplained, func(*pb.Vote) bool { return true },
		func(v *pb.Vote) (finding.Finding, error) { return s.finding(q, &about, v) })
}

func (s *Service) finding(q store.Querier, about *finding.Question, v *pb.Vote) (finding.Finding, error) {
	f := finding.Finding{
		Severity: finding.Info, Subject: "vote " + v.Id, Since: v.OpenedAt.AsTime(),
		Calls: []calls.Call{calls.Do(&pb.GetVoteRequest{Id: v.Id})},
	}
	if v.State != open {
		f.Since = v.ClosedAt.AsTime()
		f.Summary = fmt.Sprintf("%q closed at %s: %s", v.Title, about.When(f.Since), result(v))
		return f, nil
	}
	f.Summary = fmt.Sprintf("%q is open until %s; %d of %d electors have voted", v.Title,
		about.When(v.Deadline.AsTime()), v.Ballots, v.Electors)
	if about.Mine(v.Opener) {
		f.Calls = append(f.Calls, calls.Do(&pb.CloseVoteRequest{Id: v.Id}))
	}
	cast, err := s.ballots(q, v, "", maxElectors)
	if err != nil {
		return f, err
	}
	var missing, ended []string
	for _, b := range cast {
		if b.Left || b.CastAt != nil {
			continue
		}
		missing = append(missing, b.Agent)
		a, known, err := s.Directory.Find(q, about.Session, b.Agent)
		if err != nil {
			return f, err
		}
		if known && a.Ended() {
			ended = append(ended, b.Agent)
		}
	}
	f.Reasons = append(f.Reasons, "it waits for the ballots of "+finding.Names(missing))
	if len(ended) > 0 {
		f.Severity = finding.Warning
		f.Reasons = append(f.Reasons, "these electors have failed or stopped, so they cannot vote until they return: "+
			finding.Names(ended))
	}
	return f, nil
}
