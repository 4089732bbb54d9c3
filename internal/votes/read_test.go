package votes_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b", "c")
	var all []string
	note := func(v *pb.Vote) *pb.Vote { all = append([]string{v.GetId()}, all...); return v }
	byA := note(open(team[0], &pb.OpenVoteRequest{Electorate: names("b"), TaskId: "t1"}))
	byB := note(open(team[1], &pb.OpenVoteRequest{Electorate: names("a", "c")}))
	closed := note(open(team[1], &pb.OpenVoteRequest{Electorate: names("c")}))
	cast(team[2], closed, "yes")
	for name, row := range map[string]struct {
		in   *pb.ListVotesRequest
		want []string
	}{
		"all":  {&pb.ListVotesRequest{}, all},
		"open": {&pb.ListVotesRequest{States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN}}, []string{byB.GetId(), byA.GetId()}},
		"oldest first": {
			&pb.ListVotesRequest{States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN}, OldestFirst: true},
			[]string{byA.GetId(), byB.GetId()},
		},
		"closed":     {&pb.ListVotesRequest{States: []pb.VoteState{pb.VoteState_VOTE_STATE_CLOSED}}, []string{closed.GetId()}},
		"by opener":  {&pb.ListVotesRequest{Opener: "b"}, []string{closed.GetId(), byB.GetId()}},
		"by elector": {&pb.ListVotesRequest{Elector: "c"}, []string{closed.GetId(), byB.GetId()}},
		"by task":    {&pb.ListVotesRequest{TaskId: "t1"}, []string{byA.GetId()}},
		"together": {
			&pb.ListVotesRequest{Opener: "b", Elector: "c", States: []pb.VoteState{pb.VoteState_VOTE_STATE_OPEN}}, []string{byB.GetId()},
		},
		"none": {&pb.ListVotesRequest{Opener: "c"}, nil},
	} {
		for size := int32(1); size <= 4; size++ {
			var got []string
			in := row.in
			in.PageSize, in.PageToken = size, ""
			for more := true; more; {
				out := apptest.Must(t, team[0].ListVotes, in)
				for _, v := range out.GetVotes() {
					got = append(got, v.GetId())
				}
				in.PageToken = out.GetNextPageToken()
				more = in.GetPageToken() != ""
			}
			if d := cmp.Diff(row.want, got); d != "" {
				t.Errorf("%s in pages of %d: wanted (-) and got (+): %s", name, size, d)
			}
		}
	}
}

func TestList_PagesHaveABoundedSize(t *testing.T) {
	t.Parallel()
	w := start(t)
	a := w.Agent("a", "builder")
	options := make([]string, 50)
	for i := range options {
		options[i] = fmt.Sprintf("%02d%s", i, strings.Repeat("x", 510))
	}
	const n = 100
	for range n { // 2.5 MiB of options
		open(a, &pb.OpenVoteRequest{Options: options})
	}
	first := apptest.Must(t, a.ListVotes, &pb.ListVotesRequest{PageSize: 1000})
	rest := apptest.Must(t, a.ListVotes, &pb.ListVotesRequest{PageSize: 1000, PageToken: first.GetNextPageToken()})
	if a, b := len(first.GetVotes()), len(rest.GetVotes()); a == n || a+b != n || rest.GetNextPageToken() != "" {
		t.Errorf("pages of %d and %d votes, want %d in two", a, b, n)
	}
}

func TestItems_OpenVotesAreWorkOfElectorsAndOpener(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b", "c")
	v := open(team[0], &pb.OpenVoteRequest{Electorate: names("b", "c")})
	work := func(a *apptest.Actor) []string {
		out := apptest.Must(t, a.GetAgent, &pb.GetAgentRequest{Name: a.Name, View: pb.AgentView_AGENT_VIEW_FULL})
		var lines []string
		for _, i := range out.GetHoldings().GetWork() {
			lines = append(lines, fmt.Sprintf("%s %s %s %s %q: %s", i.GetRelation(), i.GetKind(), i.GetId(), i.GetState(), i.GetOther(),
				testkit.Call(i.GetCalls()[0])))
		}
		return lines
	}
	want := [][]string{
		{fmt.Sprintf(`WORK_RELATION_OPENED vote %s open "": GetVote {"id":"%s","wait":"600s"}`, v.GetId(), v.GetId())},
		{fmt.Sprintf(`WORK_RELATION_OWES vote %s open "a": CastVote {"id":"%s"} option`, v.GetId(), v.GetId())},
		nil,
	}
	cast(team[2], v, "yes")
	for i, a := range team {
		if d := cmp.Diff(want[i], work(a)); d != "" {
			t.Errorf("%s: wanted (-) and got (+): %s", a.Name, d)
		}
	}
	counted := func() int64 {
		out := apptest.Must(t, w.Root().GetStatus, &pb.GetStatusRequest{})
		for _, c := range out.GetWork() {
			if c.GetKind() == "vote" && c.GetState() == "open" {
				return c.GetCount()
			}
		}
		return 0
	}
	if n := counted(); n != 1 {
		t.Errorf("the status counts %d open votes, want 1", n)
	}
	cast(team[1], v, "yes")
	for _, a := range team {
		if left := work(a); len(left) > 0 {
			t.Errorf("%s still has %v", a.Name, left)
		}
	}
	if n := counted(); n != 0 {
		t.Errorf("the status counts %d open votes, want 0", n)
	}
}

func TestExplain_NamesTheElectorsThatAVoteWaitsFor(t *testing.T) {
	t.Parallel()
	w := start(t)
	team := team(w, "a", "b")
	flaky := w.Actor("default", "flaky")
	apptest.Must(t, flaky.RegisterAgent, &pb.RegisterAgentRequest{Lease: durationpb.New(time.Minute)})
	v := open(team[0], &pb.OpenVoteRequest{})
	cast(team[0], v, "yes")
	explain := func(in *pb.ExplainRequest) string {
		t.Helper()
		out := apptest.Must(t, w.Root().Explain, in)
		var text []string
		for _, f := range out.GetFindings() {
			if strings.HasPrefix(f.GetSubject(), "vote") {
				text = append(text, f.GetSummary(), strings.Join(f.GetReasons(), "; "))
			}
		}
		return strings.Join(text, "\n")
	}
	about := &pb.ExplainRequest{Subject: &pb.ExplainRequest_Vote{Vote: v.GetId()}}
	want := `"Deploy?" is open until 2026-01-03 03:04:05 UTC (in 24h); 1 of 3 electors have voted` + "\n" +
		"it waits for the ballots of b and flaky"
	if got := explain(about); got != want {
		t.Errorf("got %s", got)
	}
	if got := explain(&pb.ExplainRequest{Subject: &pb.ExplainRequest_Agent{Agent: "b"}}); !strings.Contains(got, `b has not voted in "Deploy?"`) {
		t.Errorf("of b: %s", got)
	}
	if got := explain(&pb.ExplainRequest{}); got != "" {
		t.Errorf("of the session: %s", got)
	}
	for explain(&pb.ExplainRequest{}) == "" && flaky.Ctx.Err() == nil { // until the lease has ended
		w.Clock.Advance(time.Second)
	}
	if got := explain(about); !strings.Contains(got, "they cannot vote until they return: flaky") {
		t.Errorf("after the end of a lease: %s", got)
	}
	cast(team[1], v, "yes")
	deregister(flaky)
	if got := explain(about); !strings.Contains(got, `closed at`) || !strings.Contains(got, `"yes" wins with 2 of 2 ballots`) {
		t.Errorf("of the closed vote: %s", got)
	}
	apptest.Refuses(t, w.Root().Explain, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Vote{Vote: "v-9"}},
		codes.NotFound, "VOTE_NOT_FOUND")
}
