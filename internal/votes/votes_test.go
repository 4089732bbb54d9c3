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
	"brokerd/internal/testkit"
)

func TestOpen_InvitesTheElectorateAndNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.member("lead", "lead")
	builders := w.team("b1", "b2")
	v := lead.open(&pb.OpenVoteRequest{
		Title: "Which database?", Description: "See the draft.", Options: []string{"SQLite", "PostgreSQL"},
		Electorate: &pb.OpenVoteRequest_Role{Role: "builder"}, TaskId: "t1",
	})
	late := w.agent("b3")
	for _, b := range builders {
		mail := b.inbox("vote_initiate")
		if len(mail) != 1 || mail[0].GetSubject() != "Which database?" || mail[0].GetBody() != "See the draft." ||
			mail[0].GetSender() != "lead" || mail[0].GetTaskId() != "t1" {
			t.Fatalf("%s has %v", b.name, mail)
		}
		var payload struct {
			VoteID  string `json:"vote_id"`
			Options []string
		}
		must(t, json.Unmarshal([]byte(mail[0].GetPayload()), &payload))
		if payload.VoteID != v.GetId() || !slices.Equal(payload.Options, []string{"SQLite", "PostgreSQL"}) {
			t.Errorf("payload %s", mail[0].GetPayload())
		}
	}
	for _, other := range []*actor{lead, late} {
		if mail := other.inbox("vote_initiate"); len(mail) > 0 {
			t.Errorf("%s was invited", other.name)
		}
		_, err := other.CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "SQLite"})
		wantError(t, other.name, err, codes.PermissionDenied, "NOT_AN_ELECTOR")
	}
	if got := lead.get(v); len(got.GetBallots()) != 2 || got.GetVote().GetElectors() != 2 {
		t.Errorf("got %v", got)
	}
	threads, err := pb.NewMessageServiceClient(w.Conn("lead")).ListThreads(w.ctx, &pb.ListThreadsRequest{})
	must(t, err)
	if all := threads.GetThreads(); len(all) != 1 || all[0].GetMessages() != 2 {
		t.Errorf("the letters to the electors are the conversations %v", all)
	}
}

func TestOpen_RefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead")
	valid := func() *pb.OpenVoteRequest { return &pb.OpenVoteRequest{Title: "Q", Options: []string{"a", "b"}} }
	many := make([]string, 51)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	now := w.Clock.Now()
	for name, row := range map[string]struct {
		change func(*pb.OpenVoteRequest)
		code   codes.Code
		reason string
	}{
		"no title":        {func(r *pb.OpenVoteRequest) { r.Title = "" }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"one option":      {func(r *pb.OpenVoteRequest) { r.Options = many[:1] }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"51 options":      {func(r *pb.OpenVoteRequest) { r.Options = many }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"equal options":   {func(r *pb.OpenVoteRequest) { r.Options = []string{"a", "a"} }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an empty option": {func(r *pb.OpenVoteRequest) { r.Options = []string{"a", ""} }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"a long text": {
			func(r *pb.OpenVoteRequest) { r.Description = strings.Repeat("x", 64<<10+1) }, codes.InvalidArgument, "INVALID_ARGUMENT",
		},
		"the past": {
			func(r *pb.OpenVoteRequest) { r.Deadline = timestamppb.New(now) }, codes.InvalidArgument, "INVALID_ARGUMENT",
		},
		"the far future": {
			func(r *pb.OpenVoteRequest) { r.Deadline = timestamppb.New(now.Add(366 * 24 * time.Hour)) },
			codes.InvalidArgument, "INVALID_ARGUMENT",
		},
		"no such rule": {func(r *pb.OpenVoteRequest) { r.Rule = 4 }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"a quorum beyond the electorate": {
			func(r *pb.OpenVoteRequest) { r.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Ballots{Ballots: 2}} },
			codes.InvalidArgument, "INVALID_ARGUMENT",
		},
		"a share above 1": {
			func(r *pb.OpenVoteRequest) { r.Quorum = &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 1.1}} },
			codes.InvalidArgument, "INVALID_ARGUMENT",
		},
		"no names":      {func(r *pb.OpenVoteRequest) { r.Electorate = names() }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"a name twice":  {func(r *pb.OpenVoteRequest) { r.Electorate = names("lead", "lead") }, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"no such agent": {func(r *pb.OpenVoteRequest) { r.Electorate = names("leda") }, codes.NotFound, "AGENT_NOT_FOUND"},
		"no such role": {
			func(r *pb.OpenVoteRequest) { r.Electorate = &pb.OpenVoteRequest_Role{Role: "critic"} }, codes.NotFound, "ROLE_NOT_FOUND",
		},
	} {
		in := valid()
		row.change(in)
		_, err := lead.OpenVote(w.ctx, in)
		wantError(t, name, err, row.code, row.reason)
	}
	if out, err := lead.ListVotes(w.ctx, &pb.ListVotesRequest{}); err != nil || len(out.GetVotes()) > 0 {
		t.Errorf("%v, %v", out, err)
	}
	if mail := lead.inbox("vote_initiate"); len(mail) > 0 {
		t.Errorf("a refused vote sent %v", mail)
	}
}

func TestOpen_AtMost1000OpenVotes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead")
	var first *pb.Vote
	for i := range 1000 {
		v := lead.open(&pb.OpenVoteRequest{})
		if i == 0 {
			first = v
		}
	}
	in := &pb.OpenVoteRequest{Title: "One more", Options: []string{"a", "b"}}
	_, err := lead.OpenVote(w.ctx, in)
	wantError(t, "the 1,001st", err, codes.ResourceExhausted, "TOO_MANY_VOTES")
	lead.cast(first, "yes")
	lead.open(in)
}

func TestCast_LastBallotClosesAndAnnounces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.member("lead", "lead")
	team := w.team("a", "b", "c")
	v := lead.open(&pb.OpenVoteRequest{Electorate: names("a", "b", "c"), Rule: pb.VoteRule_VOTE_RULE_MAJORITY})
	if got := team[0].cast(v, "yes"); got.GetState() != pb.VoteState_VOTE_STATE_OPEN || got.GetBallots() != 1 {
		t.Fatalf("after the first ballot: %v", got)
	}
	if mail := team[0].inbox("vote_initiate"); len(mail) > 0 {
		t.Errorf("the letter of an elector that has voted is still there: %v", mail)
	}
	if mail := team[1].inbox("vote_initiate"); len(mail) != 1 {
		t.Errorf("b has the letters %v, want one", mail)
	}
	team[1].cast(v, "no")
	got := team[2].cast(v, "yes")
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
		mail := a.inbox("decision_announcement")
		if len(mail) != 1 || mail[0].GetSubject() != `Deploy?: "yes" wins with 2 of 3 ballots` {
			t.Fatalf("%s was notified with %v", a.name, mail)
		}
		var payload map[string]any
		must(t, json.Unmarshal([]byte(mail[0].GetPayload()), &payload))
		want := map[string]any{
			"vote_id": v.GetId(), "title": "Deploy?", "outcome": "winner", "winner": "yes", "electors": 3.0, "ballots": 3.0,
			"tally": []any{map[string]any{"option": "yes", "ballots": 2.0}, map[string]any{"option": "no", "ballots": 1.0}},
		}
		if d := cmp.Diff(want, payload); d != "" {
			t.Errorf("payload: wanted (-) and got (+): %s", d)
		}
	}
	if d := cmp.Diff([]string{"vote.opened", "vote.cast", "vote.cast", "vote.cast", "vote.closed"}, w.eventsOf(v)); d != "" {
		t.Errorf("events: wanted (-) and got (+): %s", d)
	}
}

func TestCast_BallotMayChangeUntilTheVoteCloses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b")
	v := team[0].open(&pb.OpenVoteRequest{})
	team[0].cast(v, "yes")
	changed := team[0].cast(v, "no")
	if d := cmp.Diff(map[string]int32{"yes": 0, "no": 1}, tally(changed)); d != "" || changed.GetBallots() != 1 {
		t.Errorf("after the change: %v", changed)
	}
	if again := team[0].cast(v, "no"); again.GetRevision() != changed.GetRevision() {
		t.Errorf("the same ballot again changed the vote from revision %d to %d", changed.GetRevision(), again.GetRevision())
	}
	_, err := team[0].CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "no", Reason: "tests fail"})
	must(t, err)
	b := team[0].get(v).GetBallots()[0]
	if b.GetOption() != "no" || b.GetReason() != "tests fail" || b.GetChanges() != 2 {
		t.Errorf("ballot %v", b)
	}
	closed := team[1].cast(v, "no")
	if closed.GetWinner() != "no" {
		t.Errorf("closed as %v", closed)
	}
	_, err = team[0].CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "yes"})
	wantError(t, "a change after the end", err, codes.FailedPrecondition, "VOTE_CLOSED")
}

func TestCast_Refusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.team("a", "b")[0]
	v := a.open(&pb.OpenVoteRequest{Options: []string{"red", "green"}})
	_, err := a.CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "gren"})
	wantError(t, "an unknown option", err, codes.NotFound, "OPTION_NOT_FOUND")
	if !strings.Contains(fmt.Sprint(err), "did you mean green?") {
		t.Errorf("%v does not name the nearest option", err)
	}
	for _, id := range []string{"v-99999", "x", "v-"} {
		_, err = a.CastVote(w.ctx, &pb.CastVoteRequest{Id: id, Option: "red"})
		wantError(t, id, err, codes.NotFound, "VOTE_NOT_FOUND")
	}
	_, err = w.operator().CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: "red"})
	wantError(t, "an operator", err, codes.FailedPrecondition, "AGENT_REQUIRED")
	_, err = a.CastVote(w.ctx, &pb.CastVoteRequest{Id: strings.TrimPrefix(v.GetId(), "v-"), Option: "red"})
	must(t, err) // the number alone is an id too
	_, err = w.operator().sessions.CreateSession(w.ctx, &pb.CreateSessionRequest{Name: "other"})
	must(t, err)
	_, err = w.in("other", "").GetVote(w.ctx, &pb.GetVoteRequest{Id: v.GetId()})
	wantError(t, "another session", err, codes.NotFound, "VOTE_NOT_FOUND")
}

func TestCast_RequestWithTheSameIDIsDoneOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.team("a", "b")[0]
	open := &pb.OpenVoteRequest{RequestId: uuid.NewString(), Title: "Q", Options: []string{"x", "y"}}
	v := a.open(open)
	if again := a.open(open); again.GetId() != v.GetId() {
		t.Errorf("the same request opened %s and %s", v.GetId(), again.GetId())
	}
	cast := &pb.CastVoteRequest{RequestId: uuid.NewString(), Id: v.GetId(), Option: "x"}
	first, err := a.CastVote(w.ctx, cast)
	must(t, err)
	a.cast(v, "y")
	again, err := a.CastVote(w.ctx, cast)
	must(t, err)
	if d := cmp.Diff(first, again, protocmp.Transform()); d != "" {
		t.Errorf("first (-) and second (+) answer: %s", d)
	}
	if got := a.get(v).GetVote(); tally(got)["y"] != 1 {
		t.Errorf("the repeated request changed the ballot: %v", got)
	}
}

func TestCast_ConcurrentBallotsAllCount(t *testing.T) {
	t.Parallel()
	const electors = 24
	w := newWorld(t)
	var team []*actor
	for i := range electors {
		team = append(team, w.agent(fmt.Sprintf("a%02d", i)))
	}
	v := w.operator().open(&pb.OpenVoteRequest{Options: []string{"x", "y", "z"}})
	var calls sync.WaitGroup
	want := make(map[string]string, electors) // the option of each elector's last ballot
	var mu sync.Mutex                         // guards want
	for i, a := range team {
		calls.Go(func() {
			for _, option := range []string{"z", "x", []string{"x", "y"}[i%2]} {
				_, err := a.CastVote(w.ctx, &pb.CastVoteRequest{Id: v.GetId(), Option: option})
				if testkit.Reason(err) == "VOTE_CLOSED" {
					return
				}
				if err != nil {
					t.Errorf("%s: %v", a.name, err)
				}
				mu.Lock()
				want[a.name] = option
				mu.Unlock()
			}
		})
	}
	calls.Wait()
	got := w.operator().get(v)
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
	if n := strings.Count(strings.Join(w.eventsOf(v), " "), "vote.closed"); n != 1 {
		t.Errorf("closed %d times", n)
	}
	if got.GetVote().GetBallots() != electors || got.GetVote().GetEnd() != pb.VoteEnd_VOTE_END_ALL_VOTED {
		t.Errorf("got %v", got.GetVote())
	}
}

func TestClose_IsForTheOpenerAndOperators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b")
	mine := team[0].open(&pb.OpenVoteRequest{Quorum: &pb.Quorum{Quorum: &pb.Quorum_Share{Share: 1}}})
	_, err := team[1].CloseVote(w.ctx, &pb.CloseVoteRequest{Id: mine.GetId()})
	wantError(t, "another agent", err, codes.PermissionDenied, "NOT_THE_OPENER")
	team[1].cast(mine, "yes")
	out, err := team[0].CloseVote(w.ctx, &pb.CloseVoteRequest{Id: mine.GetId(), Reason: "obsolete"})
	must(t, err)
	v := out.GetVote()
	if v.GetClosedBy() != "a" || v.GetCloseReason() != "obsolete" || v.GetEnd() != pb.VoteEnd_VOTE_END_CLOSED ||
		v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_NO_QUORUM || v.GetRequired() != 2 || out.GetAlreadyClosed() {
		t.Errorf("closed as %v", out)
	}
	if mail := team[0].inbox("vote_initiate"); len(mail) > 0 {
		t.Errorf("the letters of a closed vote are still there: %v", mail)
	}
	again, err := team[0].CloseVote(w.ctx, &pb.CloseVoteRequest{Id: mine.GetId()})
	must(t, err)
	if !again.GetAlreadyClosed() || again.GetVote().GetRevision() != v.GetRevision() {
		t.Errorf("closed again: %v", again)
	}
	other := team[0].open(&pb.OpenVoteRequest{})
	out, err = w.operator().CloseVote(w.ctx, &pb.CloseVoteRequest{Id: other.GetId()})
	must(t, err)
	if out.GetVote().GetClosedBy() != "system" {
		t.Errorf("closed by %q, want system", out.GetVote().GetClosedBy())
	}
}

func TestGet_WaitsForTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a")
	v := a.open(&pb.OpenVoteRequest{})
	type answer struct {
		out *pb.GetVoteResponse
		err error
	}
	wait := func() <-chan answer {
		got := make(chan answer, 1)
		go func() {
			out, err := a.GetVote(w.ctx, &pb.GetVoteRequest{Id: v.GetId(), Wait: durationpb.New(5 * time.Second)})
			got <- answer{out, err}
		}()
		return got
	}
	waited := wait()
	for len(waited) == 0 && w.ctx.Err() == nil { // the wait ends by the clock, in steps that no read takes for its own time
		a.get(v)
		w.Clock.Advance(100 * time.Millisecond)
	}
	if got := <-waited; got.err != nil || got.out.GetVote().GetState() != pb.VoteState_VOTE_STATE_OPEN {
		t.Errorf("after the wait: %v, %v", got.out, got.err)
	}
	waited = wait()
	a.cast(v, "yes")
	if got := <-waited; got.err != nil || got.out.GetVote().GetWinner() != "yes" {
		t.Errorf("after the end: %v, %v", got.out, got.err)
	}
}

func TestOpen_AtMost1000Electors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 1001 {
		w.agent(fmt.Sprintf("a%04d", i))
	}
	in := &pb.OpenVoteRequest{Title: "Q", Options: []string{"x", "y"}}
	_, err := w.operator().OpenVote(w.ctx, in)
	wantError(t, "a vote of 1,001 agents", err, codes.FailedPrecondition, "TOO_MANY_ELECTORS")
	w.in("default", "a0000").deregister()
	if v := w.operator().open(in); v.GetElectors() != 1000 {
		t.Errorf("%d electors, want 1,000", v.GetElectors())
	}
}
