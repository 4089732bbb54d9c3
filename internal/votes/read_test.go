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
)

func TestList_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b", "c")
	var all []string
	note := func(v *pb.Vote) *pb.Vote { all = append([]string{v.GetId()}, all...); return v }
	byA := note(team[0].open(&pb.OpenVoteRequest{Electorate: names("b"), TaskId: "t1"}))
	byB := note(team[1].open(&pb.OpenVoteRequest{Electorate: names("a", "c")}))
	closed := note(team[1].open(&pb.OpenVoteRequest{Electorate: names("c")}))
	team[2].cast(closed, "yes")
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
				out, err := team[0].ListVotes(w.ctx, in)
				must(t, err)
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
	w := newWorld(t)
	a := w.agent("a")
	options := make([]string, 50)
	for i := range options {
		options[i] = fmt.Sprintf("%02d%s", i, strings.Repeat("x", 510))
	}
	const n = 100
	for range n { // 2.5 MiB of options
		a.open(&pb.OpenVoteRequest{Options: options})
	}
	first, err := a.ListVotes(w.ctx, &pb.ListVotesRequest{PageSize: 1000})
	must(t, err)
	rest, err := a.ListVotes(w.ctx, &pb.ListVotesRequest{PageSize: 1000, PageToken: first.GetNextPageToken()})
	must(t, err)
	if a, b := len(first.GetVotes()), len(rest.GetVotes()); a == n || a+b != n || rest.GetNextPageToken() != "" {
		t.Errorf("pages of %d and %d votes, want %d in two", a, b, n)
	}
}

func TestItems_OpenVotesAreWorkOfElectorsAndOpener(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b", "c")
	v := team[0].open(&pb.OpenVoteRequest{Electorate: names("b", "c")})
	work := func(a *actor) []string {
		out, err := a.agents.GetAgent(w.ctx, &pb.GetAgentRequest{Name: a.name, View: pb.AgentView_AGENT_VIEW_FULL})
		must(t, err)
		var lines []string
		for _, i := range out.GetHoldings().GetWork() {
			lines = append(lines, fmt.Sprintf("%s %s %s %s %q: %s", i.GetRelation(), i.GetKind(), i.GetId(), i.GetState(), i.GetOther(),
				i.GetCommands()[0]))
		}
		return lines
	}
	want := [][]string{
		{fmt.Sprintf(`WORK_RELATION_OPENED vote %s open "": brokerctl vote get %s --wait 10m`, v.GetId(), v.GetId())},
		{fmt.Sprintf(`WORK_RELATION_OWES vote %s open "a": brokerctl vote cast %s OPTION`, v.GetId(), v.GetId())},
		nil,
	}
	team[2].cast(v, "yes")
	for i, a := range team {
		if d := cmp.Diff(want[i], work(a)); d != "" {
			t.Errorf("%s: wanted (-) and got (+): %s", a.name, d)
		}
	}
	counted := func() int64 {
		out, err := w.operator().admin.GetStatus(w.ctx, &pb.GetStatusRequest{})
		must(t, err)
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
	team[1].cast(v, "yes")
	for _, a := range team {
		if left := work(a); len(left) > 0 {
			t.Errorf("%s still has %v", a.name, left)
		}
	}
	if n := counted(); n != 0 {
		t.Errorf("the status counts %d open votes, want 0", n)
	}
}

func TestExplain_NamesTheElectorsThatAVoteWaitsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	team := w.team("a", "b")
	flaky := w.in("default", "flaky")
	_, err := flaky.agents.RegisterAgent(w.ctx, &pb.RegisterAgentRequest{Lease: durationpb.New(time.Minute)})
	must(t, err)
	v := team[0].open(&pb.OpenVoteRequest{})
	team[0].cast(v, "yes")
	explain := func(in *pb.ExplainRequest) string {
		t.Helper()
		out, err := w.operator().admin.Explain(w.ctx, in)
		must(t, err)
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
	for explain(&pb.ExplainRequest{}) == "" && w.ctx.Err() == nil { // until the lease has ended
		w.Clock.Advance(time.Second)
	}
	if got := explain(about); !strings.Contains(got, "they cannot vote until they return: flaky") {
		t.Errorf("after the end of a lease: %s", got)
	}
	team[1].cast(v, "yes")
	flaky.deregister()
	if got := explain(about); !strings.Contains(got, `closed at`) || !strings.Contains(got, `"yes" wins with 2 of 2 ballots`) {
		t.Errorf("of the closed vote: %s", got)
	}
	_, err = w.operator().admin.Explain(w.ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Vote{Vote: "v-9"}})
	wantError(t, "an unknown vote", err, codes.NotFound, "VOTE_NOT_FOUND")
}
