package votes_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

func TestDeregister_LeavesTheElectorate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b", "c", "d")
	v := team[0].open(&pb.OpenVoteRequest{Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 0.5}}})
	team[1].cast(v, "no")
	team[1].deregister()
	team[2].deregister()
	got := team[0].get(v)
	if got.GetVote().GetElectors() != 3 || got.GetVote().GetBallots() != 1 || got.GetVote().GetRequired() != 2 {
		t.Errorf("got %v, want 3 electors, one of which has left with a ballot", got.GetVote())
	}
	for _, b := range got.GetBallots() {
		if want := b.GetAgent() == "b" || b.GetAgent() == "c"; b.GetLeft() != want {
			t.Errorf("ballot %v", b)
		}
	}
	again := w.agent("c")
	_, err := again.CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"})
	wantError(t, "an elector that has left and registered again", err, codes.PermissionDenied, "NOT_AN_ELECTOR")
	team[0].cast(v, "yes")
	if end := team[3].cast(v, "no"); end.GetWinner() != "no" || end.GetBallots() != 3 {
		t.Errorf("closed as %v, want the ballot of b to count", end)
	}
	want := []string{"vote.opened", "vote.cast", "vote.elector_left", "vote.elector_left", "vote.cast", "vote.cast", "vote.closed"}
	if d := cmp.Diff(want, w.eventsOf(v)); d != "" {
		t.Errorf("events: wanted (-) and got (+): %s", d)
	}
}

func TestDeregister_OfTheLastMissingElectorCloses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b", "c")
	v := team[0].open(&pb.OpenVoteRequest{Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 1}}})
	team[0].cast(v, "yes")
	team[1].cast(v, "yes")
	team[2].deregister()
	got := team[0].get(v).GetVote()
	if got.GetWinner() != "yes" || got.GetEnd() != pb.VoteEnd_VOTE_END_ALL_VOTED || got.GetElectors() != 2 {
		t.Errorf("got %v", got)
	}
	if mail := team[1].inbox("decision_announcement"); len(mail) != 1 {
		t.Errorf("b was notified %d times", len(mail))
	}
}

func TestDeregister_LeavesNoDeadLetterOfTheVote(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b")
	team[0].open(&pb.OpenVoteRequest{})
	team[1].deregister()
	dead, err := w.operator().messages.ListDeadLetters(w.ctx, &pb.ListDeadLettersRequest{})
	if must(t, err); len(dead.GetItems()) != 0 {
		t.Errorf("dead letters %v", dead.GetItems())
	}
}

func TestDeregister_OfTheWholeElectorateIsNoQuorum(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.member("lead", "lead")
	b := w.agent("b")
	v := lead.open(&pb.OpenVoteRequest{Electorate: names("b")})
	b.deregister()
	got := lead.get(v).GetVote()
	if got.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM || got.GetElectors() != 0 {
		t.Errorf("got %v", got)
	}
	if mail := lead.inbox("decision_announcement"); len(mail) != 1 ||
		!strings.Contains(mail[0].GetSubject(), "no quorum: 0 of the required 1 ballots") {
		t.Errorf("the opener was notified with %v", mail)
	}
}

func TestDeregister_OfTheOpenerEndsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b", "c")
	v := team[0].open(&pb.OpenVoteRequest{})
	team[0].deregister()
	team[1].cast(v, "yes")
	if end := team[2].cast(v, "yes"); end.GetWinner() != "yes" || end.GetElectors() != 2 {
		t.Errorf("closed as %v", end)
	}
	alone := w.agent("x")
	own := alone.open(&pb.OpenVoteRequest{Electorate: names("x")})
	alone.deregister()
	if got := team[1].get(own).GetVote(); got.GetState() != pb.VoteState_VOTE_STATE_CLOSED {
		t.Errorf("the vote of its only elector is %v", got)
	}
}

func TestDeadline_ClosesWithTheBallotsCast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b", "c")
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(w.Clock.Now().Add(d)) }
	later := team[0].open(&pb.OpenVoteRequest{Deadline: in(2 * time.Hour)})
	v := team[0].open(&pb.OpenVoteRequest{Deadline: in(time.Hour)})
	team[0].cast(v, "yes")
	w.Clock.Advance(time.Hour)
	got := team[1].awaitEnd(v)
	if got.GetWinner() != "yes" || got.GetEnd() != pb.VoteEnd_VOTE_END_DEADLINE || got.GetClosedBy() != "" ||
		!got.GetClosedAt().AsTime().Equal(got.GetDeadline().AsTime()) {
		t.Errorf("closed as %v", got)
	}
	if still := team[0].get(later).GetVote(); still.GetState() != pb.VoteState_VOTE_STATE_OPEN {
		t.Errorf("a vote with a later deadline is %v", still)
	}
	w.Clock.Advance(time.Hour)
	if got := team[1].awaitEnd(later); got.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM {
		t.Errorf("a vote without a ballot closed as %v", got)
	}
}

func TestDeadline_ThatPassesWhileTheBrokerIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.team("a", "b")[0]
	v := a.open(&pb.OpenVoteRequest{Deadline: timestamppb.New(w.Clock.Now().Add(time.Hour))})
	a.cast(v, "no")
	w.Clock.Advance(30 * time.Minute)
	w.Restart()
	if got := a.get(v).GetVote(); got.GetState() != pb.VoteState_VOTE_STATE_OPEN || tally(got)["no"] != 1 {
		t.Fatalf("after the restart: %v", got)
	}
	w.Clock.Advance(30 * time.Minute)
	if got := a.awaitEnd(v); got.GetWinner() != "no" {
		t.Errorf("closed as %v", got)
	}
	_, err := a.CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"})
	wantError(t, "a ballot after the deadline", err, codes.FailedPrecondition, "VOTE_CLOSED")
}

func TestSessionClosed_ClosesItsVotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	_, err := o.sessions.CreateSession(w.ctx, &pb.CreateSessionRequest{Name: "project"})
	must(t, err)
	a := w.in("project", "a")
	_, err = a.agents.RegisterAgent(w.ctx, &pb.RegisterAgentRequest{})
	must(t, err)
	v := a.open(&pb.OpenVoteRequest{})
	_, err = o.sessions.CloseSession(w.ctx, &pb.CloseSessionRequest{Name: "project"})
	must(t, err)
	got := w.in("project", "").get(v).GetVote()
	if got.GetEnd() != pb.VoteEnd_VOTE_END_SESSION_CLOSED || got.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM {
		t.Errorf("got %v", got)
	}
	_, err = a.CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"})
	wantError(t, "a ballot", err, codes.FailedPrecondition, "SESSION_CLOSED")
}
