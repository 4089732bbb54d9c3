package locks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// The states of a token, for tables.
const (
	available = pb.TokenState_TOKEN_STATE_AVAILABLE
	taken     = pb.TokenState_TOKEN_STATE_HELD
	contested = pb.TokenState_TOKEN_STATE_CONTESTED
)

// A player takes turns: the token review/x, unless a test says otherwise.
type player struct {
	*agent
	holder string
}

// player returns an agent that lives as long as the test.
func (w *daemon) player(name, role string) *player {
	w.Helper()
	p := w.playing("default", name)
	apptest.Must(w, p.RegisterAgent,
		&pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(24 * time.Hour)})
	return p
}

// playing returns somebody's view of a session, who need not be registered.
func (w *daemon) playing(session, name string) *player {
	w.Helper()
	return &player{agent: w.in(session, name)}
}

// as returns another worker of the agent.
func (p *player) as(holder string) *player { return &player{p.agent, holder} }

// ask asks for the token.
func (p *player) ask(r *pb.AcquireTokenRequest) *pb.AcquireTokenResponse {
	p.Helper()
	return apptest.Must(p, p.AcquireToken, p.request(r))
}

func (p *player) request(r *pb.AcquireTokenRequest) *pb.AcquireTokenRequest {
	r.Type, r.Scope, r.Holder = "review", "x", p.holder
	return r
}

// take takes the token, which must be free or for the caller.
func (p *player) take() *pb.AcquireTokenResponse {
	p.Helper()
	return p.got(p.ask(&pb.AcquireTokenRequest{}))
}

func (p *player) got(out *pb.AcquireTokenResponse) *pb.AcquireTokenResponse {
	p.Helper()
	if out.Outcome != granted || out.Fence == 0 {
		p.Fatal(p.Name, "got", out)
	}
	return out
}

// queue takes a place that stays, and returns the ticket.
func (p *player) queue() int64 {
	p.Helper()
	out := p.ask(&pb.AcquireTokenRequest{KeepTicket: true})
	if out.Outcome != queued || out.Ticket == 0 {
		p.Fatal(p.Name, "got", out)
	}
	return out.Ticket
}

// A tokenAnswer is what a waiting call got.
type tokenAnswer struct {
	*pb.AcquireTokenResponse
	err error
}

// await has a call wait for the token, and returns once it does.
func (p *player) await() <-chan tokenAnswer {
	p.Helper()
	done := make(chan tokenAnswer, 1)
	go func() {
		out, err := p.AcquireToken(p.Ctx, p.request(&pb.AcquireTokenRequest{Wait: durationpb.New(apptest.LongWait)}))
		done <- tokenAnswer{out, err}
	}()
	select {
	case <-p.w.Waits:
	case o := <-done:
		p.Fatal(p.Name, "does not wait:", o)
	}
	return done
}

func (p *player) pass(r *pb.PassTokenRequest) *pb.PassTokenResponse {
	p.Helper()
	r.Type, r.Scope, r.Holder = "review", "x", p.holder
	return apptest.Must(p, p.PassToken, r)
}

func (p *player) passTo(name string) *pb.PassTokenResponse {
	p.Helper()
	return p.pass(&pb.PassTokenRequest{To: &pb.PassTokenRequest_Agent{Agent: name}, Note: "your turn"})
}

func (p *player) passToRole(role string) *pb.PassTokenResponse {
	p.Helper()
	return p.pass(&pb.PassTokenRequest{To: &pb.PassTokenRequest_Role{Role: role}, Note: "who is free?"})
}

func (p *player) giveBack() bool {
	p.Helper()
	out := apptest.Must(p, p.ReleaseToken,
		&pb.ReleaseTokenRequest{Type: "review", Scope: "x", Holder: p.holder})
	return out.Released
}

// token returns the token with its queue.
func (w *daemon) token() *pb.GetTokenResponse {
	w.Helper()
	o := w.playing("default", "")
	return apptest.Must(w, o.GetToken, &pb.GetTokenRequest{Type: "review", Scope: "x"})
}

func TestToken_StatesAndQueue(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", ""), w.player("c", "")
	apptest.Refuses(t, a.GetToken, &pb.GetTokenRequest{Type: "review", Scope: "x"}, codes.NotFound, "TOKEN_NOT_FOUND")
	want(t, "a dry run", a.ask(&pb.AcquireTokenRequest{DryRun: true}).Fence, 0)
	apptest.Refuses(t, a.GetToken, &pb.GetTokenRequest{Type: "review", Scope: "x"}, codes.NotFound, "TOKEN_NOT_FOUND")

	got := a.ask(&pb.AcquireTokenRequest{Reason: "first"})
	now := w.token().Token
	want(t, "state", now.State, taken)
	want(t, "owner", now.Agent, "a")
	want(t, "reason", now.Reason, "first")
	want(t, "fence", now.Fence, got.Fence)
	want(t, "longest hold", now.LongestHold.AsDuration(), 7*24*time.Hour)
	want(t, "held until", now.HeldUntil.AsTime().Sub(w.Clock.Now()), 30*time.Minute)
	again := a.take()
	want(t, "again", again.Fence, got.Fence)
	want(t, "already held", again.AlreadyHeld, true)
	want(t, "another worker", a.as("two").ask(&pb.AcquireTokenRequest{}).Outcome, busy)
	first, second := b.queue(), c.queue()
	q := w.token()
	want(t, "state with a queue", q.Token.State, contested)
	want(t, "waiting", q.Token.Waiting, 2)
	wantList(t, "queue", []int64{q.Tickets[0].Ticket, q.Tickets[1].Ticket, int64(q.Tickets[0].Position), int64(q.Tickets[1].Position)}, first, second, 1, 2)
	want(t, "kept", q.Tickets[0].Kept, true)

	want(t, "the place is given up", b.giveBack(), true)
	want(t, "released", a.giveBack(), true)
	want(t, "twice", a.giveBack(), false)
	want(t, "uncollected", w.token().Token.Uncollected, true)
	want(t, "next", c.take().AlreadyHeld, false)
	want(t, "collected", w.token().Token.Uncollected, false)
	before := w.token().Token.Revision
	c.giveBack()
	end := w.token().Token
	want(t, "state at the end", end.State, available)
	want(t, "owner at the end", end.Agent, "")
	if end.Revision <= before {
		t.Errorf("revision %d after %d", end.Revision, before)
	}
}

func TestToken_LongestHoldIsTheFirstAcquirers(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	_, err := a.AcquireToken(a.Ctx, a.request(&pb.AcquireTokenRequest{LongestHold: durationpb.New(time.Minute), MaxHold: durationpb.New(2 * time.Minute)}))
	apptest.Invalid(t, err, "max_hold")
	got := a.ask(&pb.AcquireTokenRequest{LongestHold: durationpb.New(time.Minute)})
	want(t, "held for", got.HeldUntil.AsTime().Sub(w.Clock.Now()), time.Minute)
	extend := func(d time.Duration) (time.Duration, error) {
		r := &pb.ExtendTokenRequest{Type: "review", Scope: "x"}
		if d > 0 {
			r.MaxHold = durationpb.New(d)
		}
		out, err := a.ExtendToken(a.Ctx, r)
		return out.GetHeldUntil().AsTime().Sub(w.Clock.Now()), err
	}
	w.Clock.Advance(10 * time.Second)
	left, err := extend(20 * time.Second)
	apptest.NoError(t, err)
	want(t, "extended", left, 20*time.Second)
	left, err = extend(55 * time.Second)
	apptest.NoError(t, err)
	want(t, "extended up to the longest hold", left, 50*time.Second)
	apptest.Invalid(t, apptest.Err(extend(2*time.Minute)), "max_hold")
	_, err = b.ExtendToken(b.Ctx, &pb.ExtendTokenRequest{Type: "review", Scope: "x"})
	apptest.Refused(t, err, codes.FailedPrecondition, "TOKEN_LOST")
	_, err = a.PassToken(a.Ctx, &pb.PassTokenRequest{Type: "review", Scope: "x", MaxHold: durationpb.New(time.Hour), To: &pb.PassTokenRequest_Agent{Agent: "b"}})
	apptest.Invalid(t, err, "max_hold")
	a.giveBack()
	for _, dry := range []bool{true, false} {
		_, err = b.AcquireToken(b.Ctx, b.request(&pb.AcquireTokenRequest{LongestHold: durationpb.New(time.Hour), DryRun: dry}))
		apptest.Invalid(t, err, "longest_hold")
		if !strings.Contains(err.Error(), "the first acquirer of review/x has set it to 1m0s") {
			t.Errorf("the error does not name the longest hold in force: %v", err)
		}
	}
	got = b.ask(&pb.AcquireTokenRequest{LongestHold: durationpb.New(time.Minute), MaxHold: durationpb.New(30 * time.Second)})
	want(t, "held by the next for", got.HeldUntil.AsTime().Sub(w.Clock.Now()), 30*time.Second)
	want(t, "longest hold stays", w.token().Token.LongestHold.AsDuration(), time.Minute)
	apptest.Refused(t, apptest.Err(extend(0)), codes.FailedPrecondition, "TOKEN_LOST")
}

func TestToken_ShowsTheRoleOfItsHolderAndTheLastRelease(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", "producer"), w.player("b", "critic")
	o := w.playing("default", "")
	shows := func(when, role string, released time.Time) {
		t.Helper()
		out := apptest.Must(t, o.ListTokens, &pb.ListTokensRequest{})
		for _, k := range append(out.GetTokens(), w.token().Token) {
			at := time.Time{}
			if k.LastReleasedAt != nil {
				at = k.LastReleasedAt.AsTime()
			}
			want(t, when+": role", k.Role, role)
			want(t, when+": last released", at, released)
		}
	}
	a.take()
	shows("held", "producer", time.Time{})
	w.Clock.Advance(time.Second)
	a.passTo("b")
	b.take()
	shows("passed", "critic", time.Time{})
	w.Clock.Advance(time.Second)
	b.giveBack()
	released := w.Clock.Now().UTC()
	shows("released", "", released)
	w.Clock.Advance(time.Second)
	a.take()
	shows("acquired again", "producer", released)
	a.passToRole("critic")
	shows("passed to a role", "", released)
	w.Clock.Advance(time.Second)
	apptest.Must(t, o.RevokeToken, &pb.RevokeTokenRequest{Type: "review", Scope: "x", Reason: "enough"})
	shows("revoked", "", w.Clock.Now().UTC())
	released = w.Clock.Now().UTC()
	w.Restart()
	shows("after a restart", "", released)
}

func TestToken_RevokedByOperatorsWithAReason(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.player("a", ""), w.player("b", ""), w.playing("default", "")
	revoke := func(p *player, reason string) (*pb.RevokeTokenResponse, error) {
		return p.RevokeToken(p.Ctx, &pb.RevokeTokenRequest{Type: "review", Scope: "x", Reason: reason})
	}
	got, err := revoke(o, "early")
	apptest.NoError(t, err)
	want(t, "nobody's", got.Agent, "")
	a.take()
	b.queue()
	apptest.Invalid(t, apptest.Err(revoke(o, "")), "reason")
	got, err = revoke(o, "stuck")
	apptest.NoError(t, err)
	want(t, "whose", got.Agent, "a")
	want(t, "event", w.Root().Events("token.revoked")[0].Revision, got.Revision)
	want(t, "message", len(a.mail("token_revoked")), 1)
	want(t, "next", b.take().AlreadyHeld, false)
	b.passToRole("critic")
	got, err = revoke(o, "nobody comes")
	apptest.NoError(t, err)
	want(t, "whose, passed to a role", got.Agent, "")
	want(t, "state", w.token().Token.State, available)
}

func TestToken_OperatorsEndOneWait(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c, o := w.player("a", ""), w.player("b", ""), w.player("c", ""), w.playing("default", "")
	end := func(scope string, ticket int64) (*pb.RevokeTokenResponse, error) {
		return o.RevokeToken(o.Ctx,
			&pb.RevokeTokenRequest{Type: "review", Scope: scope, Ticket: ticket, Reason: "stuck"})
	}
	a.take()
	first, _ := b.queue(), c.queue()
	for scope, ticket := range map[string]int64{"y": first, "x": first + 100} {
		got, err := end(scope, ticket)
		apptest.NoError(t, err)
		want(t, "whose", got.Agent, "")
	}
	want(t, "waiting", len(w.token().Tickets), 2)
	got, err := end("x", first)
	apptest.NoError(t, err)
	want(t, "whose", got.Agent, "b")
	want(t, "event", w.Root().Events("token.revoked")[0].Revision, got.Revision)
	want(t, "message", len(b.mail("token_revoked")), 1)
	want(t, "waiting", len(w.token().Tickets), 1)
	want(t, "who waits", w.token().Tickets[0].Agent, "c")
	want(t, "owner", w.token().Token.Agent, "a")
	a.giveBack()
	want(t, "next", w.token().Token.Agent, "c")
	apptest.Invalid(t, apptest.Err(end("x", -1)), "ticket")
}

func TestToken_EndOfItsAgentPassesItOn(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	a.take()
	waits := b.await()
	apptest.Must(t, a.DeregisterAgent, &pb.DeregisterAgentRequest{})
	got := <-waits
	apptest.NoError(t, got.err)
	want(t, "owner", w.token().Token.Agent, "b")
	_, err := a.AcquireToken(a.Ctx, a.request(&pb.AcquireTokenRequest{}))
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	o := w.playing("default", "")
	apptest.Refuses(t, o.AcquireToken, o.request(&pb.AcquireTokenRequest{}), codes.FailedPrecondition, "AGENT_REQUIRED")
}

func TestToken_FenceHoldsUntilItIsPassedOn(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	fence := a.take().Fence
	ctx := metadata.AppendToOutgoingContext(a.Ctx, "brokerd-fence", fmt.Sprint(fence))
	beat := func() error {
		return apptest.Err(a.Heartbeat(ctx, &pb.HeartbeatRequest{Activity: proto.String("x")}))
	}
	apptest.NoError(t, beat())
	passed := a.passTo("b")
	apptest.Refused(t, beat(), codes.FailedPrecondition, "FENCE_LOST")
	b.take()
	ctx = metadata.AppendToOutgoingContext(b.Ctx, "brokerd-fence", fmt.Sprint(passed.Fence))
	apptest.NoError(t, apptest.Err(b.Heartbeat(ctx, &pb.HeartbeatRequest{})))
}

func TestToken_RestartKeepsHoldersAndPlaces(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, c := w.player("a", ""), w.player("b", ""), w.player("c", "critic")
	fence := a.take().Fence
	b.queue()
	c.queue()
	before := w.token()
	w.Restart()
	after := w.token()
	want(t, "owner", after.Token.Agent, "a")
	want(t, "fence", after.Token.Fence, fence)
	wantList(t, "queue", []int64{after.Tickets[0].Ticket, after.Tickets[1].Ticket}, before.Tickets[0].Ticket, before.Tickets[1].Ticket)
	a.passToRole("critic")
	w.Restart()
	got := c.take()
	want(t, "passed by", got.PassedBy, "a")
	c.giveBack()
	want(t, "next", b.take().AlreadyHeld, false)
}

func TestListTokens_FiltersAndPages(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b := w.player("a", ""), w.player("b", "")
	take := func(p *player, kind, scope string, keep bool) {
		apptest.Must(t, p.AcquireToken, &pb.AcquireTokenRequest{Type: kind, Scope: scope, KeepTicket: keep})
	}
	for i := range 7 {
		take([]*player{a, b}[i%2], "file_write", fmt.Sprintf("src/%d", i), false)
	}
	take(b, "file_write", "src/0", true)
	take(a, "file", "z", false)
	take(a, "file_writer", "z", false)
	apptest.Must(t, a.ReleaseToken, &pb.ReleaseTokenRequest{Type: "file_write", Scope: "src/6"})
	list := func(r *pb.ListTokensRequest) (names []string, pages int) {
		for {
			out := apptest.Must(t, a.ListTokens, r)
			pages++
			for _, k := range out.Tokens {
				names = append(names, k.Type+"/"+k.Scope)
			}
			if out.NextPageToken == "" {
				return names, pages
			}
			r.PageToken = out.NextPageToken
		}
	}
	all, pages := list(&pb.ListTokensRequest{PageSize: 4})
	want(t, "tokens", len(all), 9)
	want(t, "pages", pages, 3)
	for _, c := range []struct {
		r    *pb.ListTokensRequest
		want []string
	}{
		{&pb.ListTokensRequest{Type: "file"}, []string{"file/z"}},
		{&pb.ListTokensRequest{Type: "file_write", Agent: "b"}, []string{"file_write/src/1", "file_write/src/3", "file_write/src/5"}},
		{&pb.ListTokensRequest{State: contested}, []string{"file_write/src/0"}},
		{&pb.ListTokensRequest{State: available}, []string{"file_write/src/6"}},
		{&pb.ListTokensRequest{State: taken, Agent: "a", PageSize: 1}, []string{"file/z", "file_write/src/2", "file_write/src/4", "file_writer/z"}},
	} {
		got, _ := list(c.r)
		wantList(t, c.r.String(), got, c.want...)
	}
	other := w.playing("other", "")
	apptest.Must(t, other.CreateSession, &pb.CreateSessionRequest{Name: "other"})
	out := apptest.Must(t, other.ListTokens, &pb.ListTokensRequest{})
	want(t, "of another session", len(out.Tokens), 0)
}

func TestPass_WantsAnotherHolder(t *testing.T) {
	t.Parallel()
	a := newDaemon(t).player("a", "")
	in := &pb.PassTokenRequest{Type: "review", Scope: "x"}
	apptest.Invalid(t, apptest.Err(a.PassToken(a.Ctx, in)), "to")
	in.To = &pb.PassTokenRequest_Role{}
	apptest.Invalid(t, apptest.Err(a.PassToken(a.Ctx, in)), "role")
}

func TestFoldCase_ChangesWhileNoPathIsLocked(t *testing.T) {
	t.Parallel()
	w := newDaemon(t)
	a, b, o := w.player("a", ""), w.player("b", ""), w.operator()
	fold := func(on bool) error {
		return apptest.Err(o.ConfigureSession(o.Ctx, &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{FoldCase: &on}}))
	}
	a.take() // a token is no path
	fence := a.lock("Src/A.go")
	apptest.Refused(t, fold(true), codes.FailedPrecondition, "PATHS_LOCKED")
	apptest.NoError(t, fold(false))
	a.release(fence)
	apptest.NoError(t, fold(true))
	a.lock("Src/A.go")
	want(t, "in other letters", b.try("sRC/a.GO").Outcome, busy)
	apptest.Refused(t, fold(false), codes.FailedPrecondition, "PATHS_LOCKED")
}
