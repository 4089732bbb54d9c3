package votes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/directory"
	"brokerd/internal/fault"
	"brokerd/internal/nearest"
	"brokerd/internal/work"
)

// The types of messages.
const (
	initiateType     = "vote_initiate"
	announcementType = "decision_announcement"
)

// open opens a vote and sends a letter to each elector. Errors: fault.NotFound for an elector or a role
// without agents; fault.Invalid for a deadline or a quorum that cannot be; fault.Exhausted
// (TOO_MANY_VOTES); fault.Precondition (TOO_MANY_ELECTORS).
func (s *Service) open(t *work.Tx, in *pb.OpenVoteRequest) (*pb.Vote, error) {
	n, err := s.CountOpen(t, t.Session.ID)
	if err != nil {
		return nil, err
	}
	if n >= maxOpen {
		return nil, fault.New(fault.Exhausted, "TOO_MANY_VOTES",
			"%d votes are open in this session, which is the limit: close one first", n).
			With("limit", "open_votes").With("open_votes", strconv.Itoa(maxOpen))
	}
	electors, err := s.electors(t, in)
	if err != nil {
		return nil, err
	}
	deadline := t.Now().Add(defaultDuration)
	if in.GetDeadline() != nil {
		deadline = in.GetDeadline().AsTime()
	}
	if ahead := deadline.Sub(t.Now()); ahead <= 0 || ahead > longest {
		return nil, fault.Field("deadline", "must be in the future and at most %d days away; the broker's clock has %s",
			int(longest.Hours()/24), t.Now().UTC().Format(time.RFC3339))
	}
	if ballots := in.GetQuorum().GetBallots(); int(ballots) > len(electors) {
		return nil, fault.Field("quorum.ballots", "is %d, but the vote has only %d electors", ballots, len(electors))
	}
	v := &pb.Vote{
		Id: work.ID(s.Letter, t.NextRevision()), Title: in.GetTitle(), Description: in.GetDescription(), Opener: t.Actor.Name,
		Rule: cmp.Or(in.GetRule(), pb.VoteRule_VOTE_RULE_PLURALITY), State: open, TaskId: in.GetTaskId(),
		OpenedAt: work.Stamp(t.Now()),
		Deadline: work.Stamp(deadline), Electors: int32(len(electors)),
		Required: Required(in.GetQuorum(), int32(len(electors))),
	}
	if in.GetQuorum().GetQuorum() != nil {
		v.Quorum = in.GetQuorum()
	}
	for _, option := range in.GetOptions() {
		v.Tally = append(v.Tally, &pb.VoteTally{Option: option})
	}
	v.Revision, err = s.Append(t, v, work.Event{
		Type: "vote.opened", Summary: summary(v.Opener, "opened", v), Details: map[string]any{
			"title": v.Title, "options": in.GetOptions(), "electors": len(electors), "rule": work.Word(v.Rule),
			"deadline": deadline.UTC(),
		},
	})
	if err == nil {
		err = s.add(t, v, electors)
	}
	if err != nil {
		return nil, err
	}
	s.Count(t, "opened")
	return v, s.invite(t, v, in.GetOptions(), electors)
}

// add stores a new vote with a ballot for each elector.
func (s *Service) add(t *work.Tx, v *pb.Vote, electors []string) error {
	if err := s.Add(t, v); err != nil {
		return err
	}
	if v.Description != "" {
		if err := s.PutPart(t, v, "description", &pb.Vote{Description: v.Description}); err != nil {
			return err
		}
	}
	for _, name := range electors {
		if err := s.putBallot(t, v, &pb.Ballot{Agent: name}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) putBallot(t *work.Tx, v *pb.Vote, b *pb.Ballot) error {
	return s.PutPart(t, v, ballotPart(b.Agent), b)
}

// electors resolves an electorate to names.
func (s *Service) electors(t *work.Tx, in *pb.OpenVoteRequest) ([]string, error) {
	if names := in.GetAgents().GetNames(); len(names) > 0 {
		for _, name := range names {
			if err := s.Known(t, t.Session.ID, name); err != nil {
				return nil, err
			}
		}
		return names, nil
	}
	agents, err := s.Directory.Matching(t, t.Session.ID, directory.Selection{Role: in.GetRole()})
	if err != nil {
		return nil, err
	}
	switch {
	case len(agents) > maxElectors:
		return nil, fault.New(fault.Precondition, "TOO_MANY_ELECTORS",
			"the electorate has %d agents, and a vote can have %d: name the agents or a smaller role", len(agents), maxElectors)
	case len(agents) == 0 && in.GetRole() != "":
		return nil, fault.Missing("role", in.GetRole(), "no agent has the role %q in this session", in.GetRole())
	case len(agents) == 0:
		return nil, fault.Missing("agent", "*", "no agent is registered in this session, so no agent could vote")
	}
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Name
	}
	return names, nil
}

// invite sends the letters to the electorate.
func (s *Service) invite(t *work.Tx, v *pb.Vote, options, electors []string) error {
	payload, err := json.Marshal(map[string]any{
		"vote_id": v.Id, "title": v.Title, "options": options, "rule": work.Word(v.Rule), "deadline": v.Deadline.AsTime(),
	})
	if err != nil {
		return err
	}
	_, err = s.Post.Post(t.Tx, t.Session.ID, work.Letter{
		From: t.Actor, To: electors, Type: initiateType, Subject: v.Title, Body: v.Description, Payload: string(payload),
		Task: v.TaskId, About: s.Key(v),
	})
	return err
}

// cast casts or changes the ballot of the actor. The last ballot closes the vote. Errors: fault.NotFound for
// the option; fault.Precondition (VOTE_CLOSED); fault.Denied (NOT_AN_ELECTOR).
func (s *Service) cast(t *work.Tx, v *pb.Vote, option, reason string) error {
	if v.State != open || !t.Now().Before(v.Deadline.AsTime()) {
		return errClosed(v)
	}
	b, err := s.ownBallot(t, v)
	if err != nil {
		return err
	}
	to := tally(v, option)
	if to == nil {
		return errNoOption(v, option)
	}
	if b.Option == option && b.Reason == reason {
		return nil
	}
	first, did, details := b.CastAt == nil, "voted in", map[string]any{"option": option}
	if !first {
		did, details["before"] = "changed its ballot in", b.Option
	}
	e := work.Event{Type: "vote.cast", Summary: summary(t.Actor.Name, did, v), Details: details}
	v.Revision, err = s.Append(t, v, e)
	if err != nil {
		return err
	}
	to.Ballots++
	if first {
		v.Ballots++
		moot := work.Moot{About: s.Key(v), Type: initiateType, Agent: t.Actor.Name}
		if err := s.Post.Withdraw(t.Tx, t.Session.ID, moot); err != nil {
			return err
		}
	} else {
		b.Changes++
		tally(v, b.Option).Ballots--
	}
	b.Option, b.Reason, b.CastAt = option, reason, work.Stamp(t.Now())
	if err := s.putBallot(t, v, b); err != nil {
		return err
	}
	s.Count(t, "cast")
	return s.settle(t, v)
}

// ownBallot returns the ballot of the actor. Errors: fault.Denied (NOT_AN_ELECTOR).
func (s *Service) ownBallot(t *work.Tx, v *pb.Vote) (*pb.Ballot, error) {
	b, found, err := s.ballot(t, v, t.Actor.Name)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fault.New(fault.Denied, "NOT_AN_ELECTOR",
			"%s is no elector of the vote %s: the electorate was fixed when the vote opened", t.Actor.Name, v.Id)
	}
	left, err := s.leaves(t, t.Session.ID, t.Actor.Name, s.Key(v))
	if err == nil && (left || b.Left) {
		err = fault.New(fault.Denied, "NOT_AN_ELECTOR",
			"%s has left the electorate of the vote %s, because it deregistered while the vote was open", t.Actor.Name, v.Id)
	}
	return b, err
}

// settle stores a vote that has changed, and closes it if every remaining elector has voted.
func (s *Service) settle(t *work.Tx, v *pb.Vote) error {
	v.Required = Required(v.Quorum, v.Electors)
	if v.Ballots < v.Electors {
		return s.Update(t, v)
	}
	return s.close(t.ByBroker(), v, pb.VoteEnd_VOTE_END_ALL_VOTED, "", "")
}

// close closes a vote. by is empty for the broker.
func (s *Service) close(t *work.Tx, v *pb.Vote, end pb.VoteEnd, by, reason string) (err error) {
	v.Outcome, v.Winner = Count(v)
	v.State, v.End, v.ClosedBy, v.CloseReason, v.ClosedAt = closed, end, by, reason, work.Stamp(t.Now())
	v.Revision, err = s.Append(t, v, work.Event{
		Type: "vote.closed", Summary: fmt.Sprintf("the vote %q closed: %s", v.Title, result(v)), Details: announcement(v),
	})
	if err != nil {
		return err
	}
	if err := s.Put(t, v); err != nil {
		return err
	}
	s.Count(t, work.Word(v.Outcome))
	if end == pb.VoteEnd_VOTE_END_SESSION_CLOSED {
		return nil // the session has cancelled its messages, and takes no notices
	}
	_, err = s.Backlog.Do(t.Tx, work.Chore{Kind: announceChore, Session: t.Session.ID, Item: s.Key(v)})
	return err
}

// closeDue closes a vote whose deadline has passed.
func (s *Service) closeDue(t *work.Tx, v *pb.Vote) error {
	return s.close(t, v, pb.VoteEnd_VOTE_END_DEADLINE, "", "")
}

// errClosed is the error for a vote in which no ballot can be cast any more.
func errClosed(v *pb.Vote) error {
	text, outcome := "the deadline of the vote "+v.Id+" has passed", "open"
	if v.State != open {
		text, outcome = fmt.Sprintf("the vote %s is closed: %s", v.Id, result(v)), work.Word(v.Outcome)
	}
	return fault.New(fault.Precondition, "VOTE_CLOSED", "%s", text).With("outcome", outcome)
}

func errNoOption(v *pb.Vote, option string) error {
	options := make([]string, len(v.Tally))
	for i, o := range v.Tally {
		options[i] = o.Option
	}
	return fault.Missing("option", option, "the vote %s has no option %q; %s", v.Id, option, nearest.Hint(option, options))
}

// summary is a line such as: lead opened the vote "Deploy on Friday?".
func summary(agent, did string, v *pb.Vote) string {
	return fmt.Sprintf("%s %s the vote %q", agent, did, v.Title)
}

// announcement is the payload of the notices, and the details of the event, of a closed vote.
func announcement(v *pb.Vote) map[string]any {
	counts := make([]map[string]any, len(v.Tally))
	for i, o := range v.Tally {
		counts[i] = map[string]any{"option": o.Option, "ballots": o.Ballots}
	}
	out := map[string]any{
		"vote_id": v.Id, "title": v.Title, "outcome": work.Word(v.Outcome), "tally": counts, "electors": v.Electors,
		"ballots": v.Ballots,
	}
	if v.Winner != "" {
		out["winner"] = v.Winner
	}
	return out
}

// result says the outcome in a few words, such as: "yes" wins with 3 of 5 ballots.
func result(v *pb.Vote) string {
	var tied []string
	most := int32(0)
	for _, o := range v.Tally {
		switch {
		case o.Ballots > most:
			most, tied = o.Ballots, []string{o.Option}
		case o.Ballots == most:
			tied = append(tied, o.Option)
		}
	}
	switch v.Outcome {
	case pb.VoteOutcome_VOTE_OUTCOME_WINNER:
		return fmt.Sprintf("%q wins with %d of %d ballots", v.Winner, most, v.Ballots)
	case pb.VoteOutcome_VOTE_OUTCOME_TIE:
		return fmt.Sprintf("a tie with %d ballots each for %s", most, strings.Join(tied, ", "))
	case pb.VoteOutcome_VOTE_OUTCOME_NO_MAJORITY:
		return fmt.Sprintf("no majority among %d ballots", v.Ballots)
	default:
		return fmt.Sprintf("no quorum: %d of the required %d ballots", v.Ballots, v.Required)
	}
}
