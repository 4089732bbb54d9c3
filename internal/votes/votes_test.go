package votes_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestOpen_InvitesTheElectorateAndNoOther(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("lead", "lead")
	builders := team(w, "b1", "b2")
	v := open(lead, &pb.OpenVoteRequest{
		Title: "Which database?", Description: "See the draft.", Options: []string{"SQLite", "PostgreSQL"},
		Electorate: &pb.OpenVoteRequest_Role{Role: "builder"}, TaskId: "t1",
	})
	late := w.Agent("b3", "builder")
	for _, b := range builders {
		mail := inbox(b, "vote_initiate")
		if len(mail) != 1 || mail[0].GetSubject() != "Which database?" || mail[0].GetBody() != "See the draft." ||
			mail[0].GetSender() != "lead" || mail[0].GetTaskId() != "t1" {
			t.Fatalf("%s has %v", b.Name, mail)
		}
		var payload struct {
			VoteID  string `json:"vote_id"`
			Options []string
		}
		apptest.NoError(t, json.Unmarshal([]byte(mail[0].GetPayload()), &payload))
		if payload.VoteID != v.GetId() || !slices.Equal(payload.Options, []string{"SQLite", "PostgreSQL"}) {
			t.Errorf("payload %s", mail[0].GetPayload())
		}
	}
	for _, other := range []*apptest.Actor{lead, late} {
		if mail := inbox(other, "vote_initiate"); len(mail) > 0 {
			t.Errorf("%s was invited", other.Name)
		}
		in := &pb.CastVoteRequest{Id: v.GetId(), Option: "SQLite"}
		apptest.Refuses(t, other.CastVote, in, codes.PermissionDenied, "NOT_AN_ELECTOR")
	}
	if got := get(lead, v); len(got.GetBallots()) != 2 || got.GetVote().GetElectors() != 2 {
		t.Errorf("got %v", got)
	}
	threads := apptest.Must(t, lead.ListThreads, &pb.ListThreadsRequest{})
	if all := threads.GetThreads(); len(all) != 1 || all[0].GetMessages() != 2 {
		t.Errorf("the letters to the electors are the conversations %v", all)
	}
}

func TestOpen_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("lead", "builder")
	valid := func() *pb.OpenVoteRequest { return &pb.OpenVoteRequest{Title: "Q", Options: []string{"a", "b"}} }
	now := w.Clock.Now()
	refused := func(name string, code codes.Code, reason string, change func(*pb.OpenVoteRequest)) {
		in := valid()
		change(in)
		if err := apptest.Err(lead.OpenVote(lead.Ctx, in)); !apptest.Refused(t, err, code, reason) {
			t.Error(name)
		}
	}
	for name, change := range map[string]func(*pb.OpenVoteRequest){
		"one option":        func(r *pb.OpenVoteRequest) { r.Options = r.Options[:1] },
		"equal options":     func(r *pb.OpenVoteRequest) { r.Options = []string{"a", "a"} },
		"the past":          func(r *pb.OpenVoteRequest) { r.Deadline = timestamppb.New(now) },
		"the far future":    func(r *pb.OpenVoteRequest) { r.Deadline = timestamppb.New(now.Add(366 * 24 * time.Hour)) },
		"too large quorum":  func(r *pb.OpenVoteRequest) { r.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: 2}} },
		"a share of 0":      func(r *pb.OpenVoteRequest) { r.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Share{}} },
		"no names":          func(r *pb.OpenVoteRequest) { r.Electorate = names() },
		"a name twice":      func(r *pb.OpenVoteRequest) { r.Electorate = names("lead", "lead") },
		"everyone is false": func(r *pb.OpenVoteRequest) { r.Electorate = &pb.OpenVoteRequest_Everyone{} },
	} {
		refused(name, codes.InvalidArgument, "INVALID_ARGUMENT", change)
	}
	refused("no such agent", codes.NotFound, "AGENT_NOT_FOUND",
		func(r *pb.OpenVoteRequest) { r.Electorate = names("leda") })
	refused("no such role", codes.NotFound, "ROLE_NOT_FOUND",
		func(r *pb.OpenVoteRequest) { r.Electorate = &pb.OpenVoteRequest_Role{Role: "critic"} })
	if out, err := lead.ListVotes(lead.Ctx, &pb.ListVotesRequest{}); err != nil || len(out.GetVotes()) > 0 {
		t.Errorf("%v, %v", out, err)
	}
	if mail := inbox(lead, "vote_initiate"); len(mail) > 0 {
		t.Errorf("a refused vote sent %v", mail)
	}
}

func TestOpen_AtMost1000OpenVotes(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("lead", "builder")
	var first *pb.Vote
	for i := range 1000 {
		v := open(lead, &pb.OpenVoteRequest{})
		if i == 0 {
			first = v
		}
	}
	in := &pb.OpenVoteRequest{Title: "One more", Options: []string{"a", "b"}}
	apptest.Refuses(t, lead.OpenVote, in, codes.ResourceExhausted, "TOO_MANY_VOTES")
	cast(lead, first, "yes")
	open(lead, in)
}

func TestCast_LastBallotClosesAndAnnounces(t *testing.T) {
	t.Parallel()
	w := start(t)
	lead := w.Agent("lead", "lead")
	team := team(w, "a", "b", "c")
	v := open(lead, &pb.OpenVoteRequest{Electorate: names("a", "b", "c"), Rule: pb.VoteRule_VOTE_RULE_MAJORITY})
	if got := cast(team[0], v, "yes"); got.GetState() != pb.VoteState_VOTE_STATE_OPEN || got.GetBallots() != 1 {
		t.Fatalf("after the first ballot: %v", got)
	}
	if mail := inbox(team[0], "vote_initiate"); len(mail) > 0 {
		t.Errorf("the letter of an elector that has voted is still there: %v", mail)
	}
	if mail := inbox(team[1], "vote_initiate"); len(mail) != 1 {
		t.Errorf("b has the letters %v, want one", mail)
	}
	cast(team[1], v, "no")
	got := cast(team[2], v, "yes")
	want := &pb.Vote{
		Id: v.GetId(), Title: "Deploy?", Opener: "lead", Rule: pb.VoteRule_VOTE_RULE_MAJORITY,
		Tally: []*pb.VoteTally{{Option: "yes", Ballots: 2}, {Option: "no", Ballots: 1}},
		State: pb.VoteState_VOTE_STATE_CLOSED, Outcome: pb.VoteOutcome_VOTE_OUTCOME_WINNER, Winner: "yes",
		End: pb.VoteEnd_VOTE_END_ALL_VOTED, OpenedAt: v.GetOpenedAt(), Deadline: timestamppb.New(w.Clock.Now().Add(24 * time.Hour)),
		ClosedAt: timestamppb.New(w.Clock.Now()), Electors: 3, Ballots: 3, Required: 1, Revision: got.GetRevision(),
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("wanted (-) and got (+): %s", d)
	}
	for _, a := range append(team, lead) {
		mail := inbox(a, "decision_announcement")
		if len(mail) != 1 || mail[0].GetSubject() != `Deploy?: "yes" wins with 2 of 3 ballots` {
			t.Fatalf("%s was notified with %v", a.Name, mail)
		}
		var payload map[string]any
		apptest.NoError(t, json.Unmarshal([]byte(mail[0].GetPayload()), &payload))
		want := map[string]any{
			"vote_id": v.GetId(), "title": "Deploy?", "outcome": "winner", "winner": "yes", "electors": 3.0, "ballots": 3.0,
			"tally": []any{map[string]any{"option": "yes", "ballots": 2.0}, map[string]any{"option": "no", "ballots": 1.0}},
		}
		if d := cmp.Diff(want, payload); d != "" {
			t.Errorf("payload: wanted (-) and got (+): %s", d)
		}
	}
	if d := cmp.Diff([]string{"vote.opened", "vote.cast", "vote.cast", "vote.cast", "vote.closed"}, eventsOf(w, v)); d != "" {
		t.Errorf("events: wanted (-) and got (+): %s", d)
	}
}

func TestCast_BallotMayChangeUntilTheVoteCloses(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b")
	v := open(team[0], &pb.OpenVoteRequest{})
	cast(team[0], v, "yes")
	changed := cast(team[0], v, "no")
	if d := cmp.Diff(map[string]int32{"yes": 0, "no": 1}, tally(changed)); d != "" || changed.GetBallots() != 1 {
		t.Errorf("after the change: %v", changed)
	}
	if again := cast(team[0], v, "no"); again.GetRevision() != changed.GetRevision() {
		t.Errorf("the same ballot again changed the vote from revision %d to %d", changed.GetRevision(), again.GetRevision())
	}
	apptest.Must(t, team[0].CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: "no", Reason: "tests fail"})
	b := get(team[0], v).GetBallots()[0]
	if b.GetOption() != "no" || b.GetReason() != "tests fail" || b.GetChanges() != 2 {
		t.Errorf("ballot %v", b)
	}
	closed := cast(team[1], v, "no")
	if closed.GetWinner() != "no" {
		t.Errorf("closed as %v", closed)
	}
	apptest.Refuses(t, team[0].CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"},
		codes.FailedPrecondition, "VOTE_CLOSED")
}

func TestCast_Refusals(t *testing.T) {
	t.Parallel()
	w := start(t)
	a := team(w, "a", "b")[0]
	v := open(a, &pb.OpenVoteRequest{Options: []string{"red", "green"}})
	_, err := a.CastVote(a.Ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "gren"})
	apptest.Refused(t, err, codes.NotFound, "OPTION_NOT_FOUND")
	if !strings.Contains(fmt.Sprint(err), "did you mean green?") {
		t.Errorf("%v does not name the nearest option", err)
	}
	for _, id := range []string{"v-99999", "x", "v-"} {
		apptest.Refuses(t, a.CastVote, &pb.CastVoteRequest{Id: id, Option: "red"}, codes.NotFound, "VOTE_NOT_FOUND")
	}
	apptest.Refuses(t, w.Root().CastVote, &pb.CastVoteRequest{Id: v.GetId(), Option: "red"},
		codes.FailedPrecondition, "AGENT_REQUIRED")
	// The number alone is an id too.
	apptest.Must(t, a.CastVote, &pb.CastVoteRequest{Id: strings.TrimPrefix(v.GetId(), "v-"), Option: "red"})
	apptest.Must(t, w.Root().CreateSession, &pb.CreateSessionRequest{Name: "other"})
	apptest.Refuses(t, w.Actor("other", "").GetVote, &pb.GetVoteRequest{Id: v.GetId()},
		codes.NotFound, "VOTE_NOT_FOUND")
}

func TestCast_RequestWithTheSameIDIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := start(t)
	a := team(w, "a", "b")[0]
	opening := &pb.OpenVoteRequest{RequestId: uuid.NewString(), Title: "Q", Options: []string{"x", "y"}}
	v := open(a, opening)
	if again := open(a, opening); again.GetId() != v.GetId() {
		t.Errorf("the same request opened %s and %s", v.GetId(), again.GetId())
	}
	casting := &pb.CastVoteRequest{RequestId: uuid.NewString(), Id: v.GetId(), Option: "x"}
	first := apptest.Must(t, a.CastVote, casting)
	cast(a, v, "y")
	again := apptest.Must(t, a.CastVote, casting)
	if d := cmp.Diff(first, again, protocmp.Transform()); d != "" {
		t.Errorf("first (-) and second (+) answer: %s", d)
	}
	if got := get(a, v).GetVote(); tally(got)["y"] != 1 {
		t.Errorf("the repeated request changed the ballot: %v", got)
	}
}

func TestCast_ConcurrentBallotsAllCount(t *testing.T) {
	t.Parallel()
	const electors = 24
	w := start(t)
	var team []*apptest.Actor
	for i := range electors {
		team = append(team, w.Agent(fmt.Sprintf("a%02d", i), "builder"))
	}
	v := open(w.Root(), &pb.OpenVoteRequest{Options: []string{"x", "y", "z"}})
	var calls sync.WaitGroup
	want := make(map[string]string, electors) // the option of each elector's last ballot
	var mu sync.Mutex                         // guards want
	for i, a := range team {
		calls.Go(func() {
			for _, option := range []string{"z", "x", []string{"x", "y"}[i%2]} {
				_, err := a.CastVote(a.Ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: option})
				if testkit.Reason(err) == "VOTE_CLOSED" {
					return
				}
				if err != nil {
					t.Errorf("%s: %v", a.Name, err)
				}
				mu.Lock()
				want[a.Name] = option
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	got := get(w.Root(), v)
	counts, last := map[string]int32{"x": 0, "y": 0, "z": 0}, map[string]string{}
	for _, b := range got.GetBallots() {
		counts[b.GetOption()]++
		last[b.GetAgent()] = b.GetOption()
	}
	if d := cmp.Diff(want, last); d != "" {
		t.Errorf("accepted ballots (-) and ballots of the vote (+): %s", d)
	}
	if d := cmp.Diff(counts, tally(got.GetVote())); d != "" {
		t.Errorf("ballots (-) and tally (+): %s", d)
	}
	if n := strings.Count(strings.Join(eventsOf(w, v), " "), "vote.closed"); n != 1 {
		t.Errorf("closed %d times", n)
	}
	if got.GetVote().GetBallots() != electors || got.GetVote().GetEnd() != pb.VoteEnd_VOTE_END_ALL_VOTED {
		t.Errorf("got %v", got.GetVote())
	}
}

func TestClose_IsForTheOpenerAndOperators(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b")
	mine := open(team[0], &pb.OpenVoteRequest{Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 1}}})
	apptest.Refuses(t, team[1].CloseVote, &pb.CloseVoteRequest{Id: mine.GetId()},
		codes.PermissionDenied, "NOT_THE_OPENER")
	cast(team[1], mine, "yes")
	out := apptest.Must(t, team[0].CloseVote, &pb.CloseVoteRequest{Id: mine.GetId(), Reason: "obsolete"})
	v := out.GetVote()
	if v.GetClosedBy() != "a" || v.GetCloseReason() != "obsolete" || v.GetEnd() != pb.VoteEnd_VOTE_END_CLOSED ||
		v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM || v.GetRequired() != 2 || out.GetAlreadyClosed() {
		t.Errorf("closed as %v", out)
	}
	if mail := inbox(team[0], "vote_initiate"); len(mail) > 0 {
		t.Errorf("the letters of a closed vote are still there: %v", mail)
	}
	again := apptest.Must(t, team[0].CloseVote, &pb.CloseVoteRequest{Id: mine.GetId()})
	if !again.GetAlreadyClosed() || again.GetVote().GetRevision() != v.GetRevision() {
		t.Errorf("closed again: %v", again)
	}
	other := open(team[0], &pb.OpenVoteRequest{})
	out = apptest.Must(t, w.Root().CloseVote, &pb.CloseVoteRequest{Id: other.GetId()})
	if out.GetVote().GetClosedBy() != "system" {
		t.Errorf("closed by %q, want system", out.GetVote().GetClosedBy())
	}
}

func TestGet_WaitsForTheEnd(t *testing.T) {
	t.Parallel()
	w := start(t)
	a := w.Agent("a", "builder")
	v := open(a, &pb.OpenVoteRequest{})
	type answer struct {
		out *pb.GetVoteResponse
		err error
	}
	wait := func() <-chan answer {
		got := make(chan answer, 1)
		go func() {
			out, err := a.GetVote(a.Ctx, &pb.GetVoteRequest{Id: v.GetId(), Wait: durationpb.New(5 * time.Second)})
			got <- answer{out, err}
		}()
		return got
	}
	waited := wait()
	for len(waited) == 0 && a.Ctx.Err() == nil { // the wait ends by the clock, in steps that no read takes for its own time
		get(a, v)
		w.Clock.Advance(100 * time.Millisecond)
	}
	if got := <-waited; got.err != nil || got.out.GetVote().GetState() != pb.VoteState_VOTE_STATE_OPEN {
		t.Errorf("after the wait: %v, %v", got.out, got.err)
	}
	waited = wait()
	cast(a, v, "yes")
	if got := <-waited; got.err != nil || got.out.GetVote().GetWinner() != "yes" {
		t.Errorf("after the end: %v, %v", got.out, got.err)
	}
}

func TestOpen_AtMost1000Electors(t *testing.T) {
	t.Parallel()
	w := start(t)
	for i := range 1001 {
		w.Agent(fmt.Sprintf("a%04d", i), "builder")
	}
	in := &pb.OpenVoteRequest{Title: "Q", Options: []string{"x", "y"}}
	apptest.Refuses(t, w.Root().OpenVote, in, codes.FailedPrecondition, "TOO_MANY_ELECTORS")
	deregister(w.Actor("default", "a0000"))
	if v := open(w.Root(), in); v.GetElectors() != 1000 {
		t.Errorf("%d electors, want 1,000", v.GetElectors())
	}
}
