package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/shared"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// obstacle is somebody in the way.
func obstacle() *pb.Obstacle {
	return &pb.Obstacle{Agent: "builder-2", Holder: "run-1", Resource: "src/", Revision: 11, HeldUntil: before(-12 * time.Minute), Reason: "big\nrefactoring"}
}

func TestLocks_AreListedWithWhoWaits(t *testing.T) {
	c, cmd, out := printer(output.FormatTable)
	items := []proto.Message{
		&pb.Lock{Fence: 11, Agent: "builder-2", Holder: "run-1", Paths: []string{"src/", "it's"}, Mode: pb.LockMode_LOCK_MODE_EXCLUSIVE, Reason: "refactoring",
			GrantedAt: before(3 * time.Minute), HeldUntil: before(-12 * time.Minute), MaxHold: durationpb.New(time.Hour), Waiting: 1},
		&pb.Lock{Fence: 12, Agent: "builder-3", Paths: []string{"docs/*"}, Mode: pb.LockMode_LOCK_MODE_SHARED, GrantedAt: before(0), HeldUntil: before(-time.Hour), Uncollected: true},
		&pb.LockTicket{Ticket: 13, Agent: "builder-1", Paths: []string{"src/a.go"}, Mode: pb.LockMode_LOCK_MODE_SHARED, CreatedAt: before(time.Minute),
			Position: 1, Obstacles: []*pb.Obstacle{obstacle()}, Kept: true},
	}
	apptest.NoError(t, output.List(&c.Output, cmd, items, shared.LockView(c)))
	wantText(t, out.String(), `
ID  STATE                                   MODE       OWNER              SINCE   ENDS    PATHS           REASON
11  held, 1 waiting                         exclusive  builder-2 (run-1)  3m ago  in 12m  src/ 'it'\''s'  refactoring
12  granted, not collected                  shared     builder-3          now     in 1h   'docs/*'
13  place 1 behind builder-2 (run-1), kept  shared     builder-1          1m ago  -       src/a.go
`)
}

func TestAcquire_SaysWhoIsInTheWay(t *testing.T) {
	c, cmd, out := printer(output.FormatTable)
	held := "src/ is held by builder-2 (run-1), ends in 12m (big refactoring)"
	waiting := &pb.Obstacle{Agent: "builder-3", Resource: "src/a.go", Waiting: true}
	for _, test := range []struct {
		answer turn.Acquired
		code   int
		text   string
	}{
		{&pb.AcquireLocksResponse{Outcome: pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY, Obstacles: []*pb.Obstacle{obstacle()}}, 5, held},
		{&pb.AcquireLocksResponse{Outcome: pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED, Obstacles: []*pb.Obstacle{obstacle(), waiting, waiting, waiting}, Ticket: 13, Position: 2},
			4, "the wait has ended: " + held + "; src/a.go is wanted earlier by builder-3; src/a.go is wanted earlier by builder-3; 1 more in the way; place 2 in the queue, ticket 13; " +
				"the agent stays in the queue for 10s: run the command again to keep the place, or release the ticket"},
	} {
		err := shared.ShowAcquired(c, cmd, test.answer, []string{"src/a.go"}, &shared.AcquireOptions{}, nil)
		if code, text := c.Explain(err); code != test.code || text != test.text {
			t.Errorf("%d, %q; want %d, %q", code, text, test.code, test.text)
		}
	}
	if out.Len() > 0 {
		t.Errorf("%s", out)
	}
	c.Global.Output, c.Found = output.FormatJSON, nil
	err := shared.ShowAcquired(c, cmd, &pb.AcquireLocksResponse{Outcome: pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY, Obstacles: []*pb.Obstacle{obstacle()}}, nil, &shared.AcquireOptions{}, nil)
	if err == nil || at(t, decode(t, out.String()), "obstacles", 0, "agent") != "builder-2" {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAcquire_AModelReadsNoPathAndNoHolderOfOthers(t *testing.T) {
	c, _, _ := printer(output.FormatPrompt)
	held := &pb.Obstacle{Agent: "builder-2", Holder: canary, Resource: "src/" + canary + "/*", Reason: canary, HeldUntil: before(-12 * time.Minute)}
	own := &pb.Obstacle{Agent: "builder-2", Holder: canary, Resource: "src/a.go"}
	token := &pb.Obstacle{Agent: "builder-2", Holder: canary, Resource: "review/login"}
	for _, test := range []struct {
		obstacle *pb.Obstacle
		paths    []string
		want     string
	}{
		{held, []string{"src/a.go"}, "src/a.go is held by builder-2, ends in 12m"},
		{held, []string{"src/a.go", "b.go"}, "what is wanted is held by builder-2, ends in 12m"},
		{own, []string{"src/a.go", "b.go"}, "src/a.go is held by builder-2"},
		{token, nil, "review login is held by builder-2"},
	} {
		if got := turn.InTheWay(c, []*pb.Obstacle{test.obstacle}, test.paths); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestTokens_AreShownWithTheirQueue(t *testing.T) {
	c, cmd, out := printer(output.FormatTable)
	token := &pb.Token{Type: "review", Scope: "login page", State: pb.TokenState_TOKEN_STATE_CONTESTED, Agent: "builder-2", Role: "builder", Fence: 11, GrantedAt: before(time.Minute),
		HeldUntil: before(-time.Hour), LongestHold: durationpb.New(168 * time.Hour), LastReleasedAt: before(2 * time.Minute), Waiting: 1}
	passed := &pb.Token{Type: "review", Scope: "x", State: pb.TokenState_TOKEN_STATE_HELD, Fence: 12, PassedToRole: "critic", Uncollected: true, HeldUntil: before(-time.Hour)}
	free := &pb.Token{Type: "test_run", Scope: "ci", State: pb.TokenState_TOKEN_STATE_AVAILABLE, LastReleasedAt: before(time.Minute)}
	apptest.NoError(t, output.List(&c.Output, cmd, []*pb.Token{token, passed, free}, shared.TokenView(c)))
	shared.PrintToken(c, out, &pb.GetTokenResponse{Token: token, Tickets: []*pb.TokenTicket{{Ticket: 13, Agent: "builder-1", Position: 1, CreatedAt: before(time.Minute)}}})
	wantText(t, out.String(), `
TOKEN                STATE                OWNER        ROLE     ENDS   WAITING  FENCE  RELEASED
review 'login page'  contested            builder-2    builder  in 1h  1        11     2m ago
review x             held, not collected  role:critic  -        in 1h  0        12
test_run ci          available            -            -        -      0        -      1m ago
token          review 'login page'
state          contested
owner          builder-2
role           builder
fence          11
granted        1m ago
ends           in 1h
longest hold   7d
last released  2m ago

TICKET  PLACE  WAITING    SINCE
13      1      builder-1  1m ago
`)
}

func TestRun_WantsACommandAfterTheDash(tt *testing.T) {
	t := newShell(tt)
	for _, test := range []struct {
		args []string
		text string
	}{
		{[]string{"lock", "run", "a.go"}, "the command is missing"},
		{[]string{"lock", "run", "a.go", "--"}, "the command is missing"},
		{[]string{"lock", "run", "--", "true"}, "the path is missing"},
		{[]string{"token", "run", "review", "--", "true"}, "the scope is missing"},
		{[]string{"token", "run", "review", "x", "y", "--", "true"}, `"y" is one too many`},
		{[]string{"lock", "release"}, "give a path, a fence, a ticket, or --all"},
		{[]string{"lock", "revoke", "a.go"}, "--reason is missing"},
		{[]string{"lock", "extend"}, "the path or fence is missing"},
		{[]string{"lock", "revoke", "--reason", "x"}, "give a path, a fence, a ticket, or --owner"},
		{[]string{"lock", "acquire", "../a.go"}, "outside of the session's root"},
		{[]string{"token", "pass", "review", "x", "channel:y"}, "NAME or role:NAME"},
	} {
		isolate(t)
		if got := ctl(t, test.args...); got.code != 2 || !strings.Contains(got.err, test.text) {
			t.Errorf("%q: %+v", test.args, got)
		}
	}
}

func TestHold_TheHolderInTheEnvironmentIsItsAgents(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv("BROKERD_AGENT", "builder-1")
	t.Setenv(turn.HolderVariable, "run-1")
	for _, test := range []struct {
		agent string
		args  []string
		want  string
	}{{"", nil, "run-1"}, {"builder-1", nil, "run-1"}, {"builder-2", nil, ""}, {"", []string{"--holder", ""}, ""}, {"builder-2", []string{"--holder", "x"}, "x"}} {
		cmd := &cobra.Command{}
		cmd.Flags().String("holder", "", "")
		apptest.NoError(t, cmd.ParseFlags(test.args))
		c := command.New(t.environment("", nil, nil))
		c.Global.Agent = test.agent
		if got, err := shared.HolderOf(&command.Given{Caller: c, Cmd: cmd}); err != nil || got != test.want {
			t.Errorf("%+v: %q, %v", test, got, err)
		}
	}
}
