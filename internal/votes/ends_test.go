package votes_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestDeregister_LeavesTheElectorate(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b", "c", "d")
	v := open(team[0], &pb.OpenVoteRequest{Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 0.5}}})
	cast(team[1], v, "no")
	deregister(team[1])
	deregister(team[2])
	got := get(team[0], v)
	if got.GetVote().GetElectors() != 3 || got.GetVote().GetBallots() != 1 || got.GetVote().GetRequired() != 2 {
		t.Errorf("got %v, want 3 electors, one of which has left with a ballot", got.GetVote())
	}
	for _, b := range got.GetBallots() {
		if want := b.GetAgent() == "b" || b.GetAgent() == "c"; b.GetLeft() != want {
			t.Errorf("ballot %v", b)
		}
	}
	again := w.Agent("c", "builder")
	apptest.Refuses(t, again.CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"},
		codes.PermissionDenied, "NOT_AN_ELECTOR")
	cast(team[0], v, "yes")
	if end := cast(team[3], v, "no"); end.GetWinner() != "no" || end.GetBallots() != 3 {
		t.Errorf("closed as %v, want the ballot of b to count", end)
	}
	want := []string{"vote.opened", "vote.cast", "vote.elector_left", "vote.elector_left", "vote.cast", "vote.cast", "vote.closed"}
	if d := cmp.Diff(want, eventsOf(w, v)); d != "" {
		t.Errorf("events: wanted (-) and got (+): %s", d)
	}
}

func TestDeregister_OfTheLastMissingElectorCloses(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b", "c")
	v := open(team[0], &pb.OpenVoteRequest{Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 1}}})
	cast(team[0], v, "yes")
	cast(team[1], v, "yes")
	deregister(team[2])
	got := get(team[0], v).GetVote()
	if got.GetWinner() != "yes" || got.GetEnd() != pb.VoteEnd_VOTE_END_ALL_VOTED || got.GetElectors() != 2 {
		t.Errorf("got %v", got)
	}
	if mail := inbox(team[1], "decision_announcement"); len(mail) != 1 {
		t.Errorf("b was notified %d times", len(mail))
	}
}

func TestDeregister_LeavesNoDeadLetterOfTheVote(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b")
	open(team[0], &pb.OpenVoteRequest{})
	deregister(team[1])
	dead := apptest.Must(t, w.Root().ListDeadLetters, &pb.ListDeadLettersRequest{})
	if len(dead.GetItems()) != 0 {
		t.Errorf("dead letters %v", dead.GetItems())
	}
}

func TestDeregister_OfTheWholeElectorateIsNoQuorum(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("lead", "lead")
	b := w.Agent("b", "builder")
	v := open(lead, &pb.OpenVoteRequest{Electorate: names("b")})
	deregister(b)
	got := get(lead, v).GetVote()
	if got.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM || got.GetElectors() != 0 {
		t.Errorf("got %v", got)
	}
	if mail := inbox(lead, "decision_announcement"); len(mail) != 1 ||
		!strings.Contains(mail[0].GetSubject(), "no quorum: 0 of the required 1 ballots") {
		t.Errorf("the opener was notified with %v", mail)
	}
}

func TestDeregister_OfTheOpenerEndsNothing(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b", "c")
	v := open(team[0], &pb.OpenVoteRequest{})
	deregister(team[0])
	cast(team[1], v, "yes")
	if end := cast(team[2], v, "yes"); end.GetWinner() != "yes" || end.GetElectors() != 2 {
		t.Errorf("closed as %v", end)
	}
	alone := w.Agent("x", "builder")
	own := open(alone, &pb.OpenVoteRequest{Electorate: names("x")})
	deregister(alone)
	if got := get(team[1], own).GetVote(); got.GetState() != pb.VoteState_VOTE_STATE_CLOSED {
		t.Errorf("the vote of its only elector is %v", got)
	}
}

func TestDeadline_ClosesWithTheBallotsCast(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b", "c")
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(w.Clock.Now().Add(d)) }
	later := open(team[0], &pb.OpenVoteRequest{Deadline: in(2 * time.Hour)})
	v := open(team[0], &pb.OpenVoteRequest{Deadline: in(time.Hour)})
	cast(team[0], v, "yes")
	w.Clock.Advance(time.Hour)
	got := awaitEnd(team[1], v)
	if got.GetWinner() != "yes" || got.GetEnd() != pb.VoteEnd_VOTE_END_DEADLINE || got.GetClosedBy() != "" ||
		!got.GetClosedAt().AsTime().Equal(got.GetDeadline().AsTime()) {
		t.Errorf("closed as %v", got)
	}
	if still := get(team[0], later).GetVote(); still.GetState() != pb.VoteState_VOTE_STATE_OPEN {
		t.Errorf("a vote with a later deadline is %v", still)
	}
	w.Clock.Advance(time.Hour)
	if got := awaitEnd(team[1], later); got.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM {
		t.Errorf("a vote without a ballot closed as %v", got)
	}
}

func TestDeadline_ThatPassesWhileTheBrokerIsDown(t *testing.T) {
	t.Parallel()
	w := start(t)
	a := team(w, "a", "b")[0]
	v := open(a, &pb.OpenVoteRequest{Deadline: timestamppb.New(w.Clock.Now().Add(time.Hour))})
	cast(a, v, "no")
	w.Clock.Advance(30 * time.Minute)
	w.Restart()
	if got := get(a, v).GetVote(); got.GetState() != pb.VoteState_VOTE_STATE_OPEN || tally(got)["no"] != 1 {
		t.Fatalf("after the restart: %v", got)
	}
	w.Clock.Advance(30 * time.Minute)
	if got := awaitEnd(a, v); got.GetWinner() != "no" {
		t.Errorf("closed as %v", got)
	}
	apptest.Refuses(t, a.CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"},
		codes.FailedPrecondition, "VOTE_CLOSED")
}

func TestSessionClosed_ClosesItsVotes(t *testing.T) {
	t.Parallel()
	w := start(t)
	o := w.Root()
	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "project"})
	a := w.Actor("project", "a")
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{})
	v := open(a, &pb.OpenVoteRequest{})
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "project"})
	got := get(w.Actor("project", ""), v).GetVote()
	if got.GetEnd() != pb.VoteEnd_VOTE_END_SESSION_CLOSED || got.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM {
		t.Errorf("got %v", got)
	}
	apptest.Refuses(t, a.CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"},
		codes.FailedPrecondition, "SESSION_CLOSED")
}
