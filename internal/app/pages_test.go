package app_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// mostPaged is how many items of a kind one function of the writer ends at most.
const mostPaged = 200

// A crew is a lead and a builder in a session without a limit of the rate.
type crew struct {
	*apptest.Broker
	t             *testing.T
	ctx           context.Context
	session       string
	lead, builder grpc.ClientConnInterface
}

func newCrew(t *testing.T, session string, options ...apptest.Option) *crew {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*apptest.Patience)
	t.Cleanup(cancel)
	c := &crew{Broker: apptest.Start(t, options...), t: t, ctx: ctx, session: session}
	free := 0.0
	// Some tests store rows that finished long ago: the broker keeps them.
	settings := &pb.SessionSettings{SendRate: &free, MessageRetention: durationpb.New(0)}
	if session == "default" {
		_, err := c.Root().ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: settings})
		succeed(t, err)
	} else {
		_, err := c.Root().CreateSession(ctx, &pb.CreateSessionRequest{Name: session, Settings: settings})
		succeed(t, err)
	}
	c.lead, c.builder = c.register("lead"), c.register("builder")
	return c
}

// register registers an agent whose role is its name.
func (c *crew) register(name string) grpc.ClientConnInterface {
	c.t.Helper()
	conn := c.In(c.session, name)
	_, err := pb.NewAgentServiceClient(conn).RegisterAgent(c.ctx,
		&pb.RegisterAgentRequest{Role: name, Lease: durationpb.New(apptest.LongLease)})
	succeed(c.t, err)
	return conn
}

func (c *crew) deregister(name string) {
	c.t.Helper()
	_, err := c.Actor(c.session, name).DeregisterAgent(c.ctx, &pb.DeregisterAgentRequest{})
	succeed(c.t, err)
}

func (c *crew) decision(title string, deadline *timestamppb.Timestamp) string {
	c.t.Helper()
	out, err := pb.NewDecisionServiceClient(c.lead).OpenDecision(c.ctx, &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_PLAN, Title: title, To: &pb.OpenDecisionRequest_Agent{Agent: "builder"}, Deadline: deadline,
	})
	succeed(c.t, err)
	return out.GetDecision().GetId()
}

func (c *crew) vote(title string, deadline *timestamppb.Timestamp) string {
	c.t.Helper()
	out, err := pb.NewVoteServiceClient(c.lead).OpenVote(c.ctx, &pb.OpenVoteRequest{
		Title: title, Options: []string{"yes", "no"}, Deadline: deadline,
		Electorate: &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: []string{"builder", "lead"}}},
	})
	succeed(c.t, err)
	return out.GetVote().GetId()
}

func (c *crew) handoff(title string) string {
	c.t.Helper()
	out, err := pb.NewHandoffServiceClient(c.lead).CreateHandoff(c.ctx, &pb.CreateHandoffRequest{Title: title, ToAgent: "builder"})
	succeed(c.t, err)
	return out.GetHandoff().GetId()
}

func (c *crew) blocker(reason string, recipients ...*pb.BlockerRecipient) string {
	c.t.Helper()
	out, err := pb.NewBlockerServiceClient(c.lead).RaiseBlocker(c.ctx, &pb.RaiseBlockerRequest{Reason: reason, Recipients: recipients})
	succeed(c.t, err)
	return out.GetBlocker().GetId()
}

// awaitNone waits until a query counts no rows.
func (c *crew) awaitNone(query string) {
	c.t.Helper()
	for testkit.Number(c.t, c.Dir(), query) > 0 {
		if c.ctx.Err() != nil {
			c.t.Fatalf("after the time has expired: %s", query)
		}
		// A call takes its turn behind the pages.
		_, err := c.Root().GetSession(c.ctx, &pb.GetSessionRequest{Name: c.session})
		succeed(c.t, err)
	}
}

func (c *crew) wantPages(kinds ...string) {
	c.t.Helper()
	for _, kind := range kinds {
		if n := testkit.MostEvents(c.t, c.Dir(), kind); n > mostPaged || n == 0 {
			c.t.Errorf("one function has appended %d events %s, want 1 to %d", n, kind, mostPaged)
		}
	}
}

// insertItems inserts n finished items of a kind, with numbers from one on.
func (c *crew) insertItems(kind int, letter string, from, n int64, state int, item func(id string, revision int64) proto.Message) {
	c.t.Helper()
	const each = 1000 // rows of a statement
	for first := from; first < from+n; first += each {
		var rows []string
		for i := first; i < min(first+each, from+n); i++ {
			text, err := proto.Marshal(item(fmt.Sprintf("%s-%d", letter, i), i))
			succeed(c.t, err)
			rows = append(rows, fmt.Sprintf("(%d, 1, %d, %d, 'lead', 1, %d, x'%x')", i, kind, state, i, text))
		}
		testkit.Change(c.t, c.Dir(), `INSERT INTO items (id, session, kind, state, opener, finished_at, revision, item) VALUES `+strings.Join(rows, ", "))
	}
}

const unfinished = `
	SELECT (SELECT count(*) FROM work_backlog) + (SELECT count(*) FROM items WHERE finished_at IS NULL)`

func TestSessionClosed_EndsManyItemsInPages(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "site")
	const n = mostPaged + 50
	for range n {
		c.vote("Deploy?", nil)
		c.decision("Plan", nil)
		c.handoff("Login")
	}
	_, err := c.Root().CloseSession(c.ctx, &pb.CloseSessionRequest{Name: "site"})
	succeed(t, err)
	c.Restart() // the backlog survives it
	c.awaitNone(unfinished)
	c.wantPages("vote.closed", "decision.cancelled", "handoff.cancelled")
	for kind, query := range map[string]string{
		"votes":     `SELECT count(*) FROM items WHERE kind = 4 AND state = 2`,
		"decisions": `SELECT count(*) FROM items WHERE kind = 1 AND state = 5 AND instr(item, 'the session was closed') > 0`,
		"handoffs":  `SELECT count(*) FROM items WHERE kind = 3 AND state = 4 AND instr(item, 'the session was closed') > 0`,
	} {
		if ended := testkit.Number(t, c.Dir(), query); ended != n {
			t.Errorf("%d %s have ended with the session, want %d", ended, kind, n)
		}
	}
	if events := testkit.Number(t, c.Dir(), `SELECT count(*) FROM events WHERE type = 'handoff.cancelled'`); events != n {
		t.Errorf("%d events of %d cancelled handoffs", events, n)
	}
}

func TestDeregister_EndsManyItemsInPages(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "default")
	const n = mostPaged + 50
	helper := c.register("helper")
	for range n {
		c.vote("Deploy?", nil)
		c.decision("Plan", nil)
		c.handoff("Login")
		id := c.blocker("No key", &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: "helper"}})
		_, err := pb.NewBlockerServiceClient(helper).AcknowledgeBlocker(c.ctx, &pb.AcknowledgeBlockerRequest{Id: id})
		succeed(t, err)
	}
	c.deregister("helper")
	c.deregister("builder")
	c.awaitNone(`SELECT count(*) FROM work_backlog`)
	c.wantPages("vote.elector_left", "decision.escalated", "handoff.rejected", "blocker.reopened")
	for what, query := range map[string]string{
		"votes without builder": `SELECT count(*) FROM item_parts WHERE part = 'ballot-builder' AND hex(body) LIKE '%3001'`,
		"escalated decisions":   `SELECT count(*) FROM items WHERE kind = 1 AND state = 3`,
		"rejected handoffs":     `SELECT count(*) FROM items WHERE kind = 3 AND state = 3`,
		"open blockers":         `SELECT count(*) FROM items WHERE kind = 2 AND state = 1`,
	} {
		if got := testkit.Number(t, c.Dir(), query); got != n {
			t.Errorf("%d %s, want %d", got, what, n)
		}
	}
	dead := `SELECT count(*) FROM deliveries d JOIN messages m ON m.revision = d.message WHERE d.state = 6 AND m.type = 'vote_initiate'`
	if n := testkit.Number(t, c.Dir(), dead); n > 0 {
		t.Errorf("%d letters of votes became dead letters", n)
	}
	c.deregister("lead")
	c.awaitNone(`SELECT (SELECT count(*) FROM work_backlog) + (SELECT count(*) FROM items WHERE kind = 2 AND state < 3)`)
	c.wantPages("blocker.resolved", "decision.cancelled")
}

func TestVote_EveryElectorOfALargeElectorateIsNotifiedOnceInPages(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "default")
	const n = mostPaged + 50
	for i := range n {
		ctx := metadata.AppendToOutgoingContext(c.ctx, "brokerd-agent", fmt.Sprintf("elector-%03d", i))
		_, err := c.Root().RegisterAgent(ctx,
			&pb.RegisterAgentRequest{Role: "elector", Lease: durationpb.New(apptest.LongLease)})
		succeed(t, err)
	}
	votes := pb.NewVoteServiceClient(c.lead)
	for range 2 {
		out, err := votes.OpenVote(c.ctx, &pb.OpenVoteRequest{
			Title: "Deploy?", Options: []string{"yes", "no"}, Electorate: &pb.OpenVoteRequest_Role{Role: "elector"},
		})
		succeed(t, err)
		_, err = votes.CloseVote(c.ctx, &pb.CloseVoteRequest{Id: out.GetVote().GetId()})
		succeed(t, err)
		c.Restart() // the backlog survives it
	}
	c.awaitNone(`SELECT count(*) FROM work_backlog`)
	const counts = `
		SELECT count(*) FROM (
			SELECT b.name, count(*) AS n FROM deliveries d JOIN messages m ON m.revision = d.message JOIN mailboxes b ON b.id = d.mailbox
			WHERE m.type = ? GROUP BY b.name) AS x WHERE n = 2`
	if notified := testkit.Number(t, c.Dir(), counts, "decision_announcement"); notified != n+1 {
		t.Errorf("%d agents have two notices of two votes, want %d electors and the opener", notified, n)
	}
	const waiting = `
		SELECT count(*) FROM deliveries d JOIN messages m ON m.revision = d.message WHERE m.type = 'vote_initiate' AND d.state <> 8`
	if letters := testkit.Number(t, c.Dir(), waiting); letters != 0 {
		t.Errorf("%d letters of closed votes still wait", letters)
	}
	c.wantPages("message.cancelled")
	sent := testkit.Number(t, c.Dir(), `
		SELECT max(n) FROM (SELECT count(*) AS n FROM messages
			WHERE type = 'decision_announcement' GROUP BY created_at) AS x`)
	if sent > mostPaged {
		t.Errorf("one function has sent %d notices, want at most %d", sent, mostPaged)
	}
}

func TestDue_DamagedItemDelaysNoOther(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "default", apptest.WithFakeClock())
	soon, later := timestamppb.New(c.Clock.Now().Add(10*time.Minute)), timestamppb.New(c.Clock.Now().Add(11*time.Minute))
	for _, deadline := range []*timestamppb.Timestamp{soon, later} {
		c.vote("Deploy?", deadline)
		c.decision("Plan", deadline)
	}
	builder := &pb.BlockerRecipient{Recipient: &pb.BlockerRecipient_Agent{Agent: "builder"}}
	c.blocker("No key", builder) // escalates in 15 min
	c.Clock.Advance(time.Minute)
	c.blocker("No account", builder)
	const first = ` WHERE id IN (SELECT min(id) FROM items GROUP BY kind)`
	c.Restart(func() { testkit.Change(t, c.Dir(), `UPDATE items SET item = x'0a' || item`+first) })
	for _, kind := range []string{"decision.escalated", "vote.closed", "blocker.escalated"} {
		for testkit.Number(t, c.Dir(), `SELECT count(*) FROM events WHERE type = ?`, kind) == 0 {
			if c.ctx.Err() != nil {
				t.Fatalf("%s: no other item became due beside a damaged one", kind)
			}
			c.Clock.Advance(time.Minute)
		}
	}
	c.Restart(func() { testkit.Change(t, c.Dir(), `UPDATE items SET item = substr(item, 2)`+first) })
}

// TestLists_ReadABoundedNumberOfRows has filters that match nothing.
func TestLists_ReadABoundedNumberOfRows(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "default")
	c.Restart(func() {
		testkit.Change(t, c.Dir(), `UPDATE meta SET revision = 200000`)
		const n = 20_500
		at := &timestamppb.Timestamp{Nanos: 1}
		c.insertItems(1, "d", 1000, n, 5, func(id string, revision int64) proto.Message {
			return &pb.Decision{
				Id: id, Revision: revision, Kind: 2, State: pb.DecisionState_DECISION_STATE_CANCELLED, Opener: "lead", Scope: "s", TaskId: "x",
				Round: 1, ChangedAt: at,
			}
		})
		testkit.Change(t, c.Dir(), `UPDATE items SET scope = 's', task = 'x' WHERE kind = 1`)
		c.insertItems(2, "b", 90_000, n, 3, func(id string, revision int64) proto.Message {
			entries := []*pb.BlockerTimelineEntry{{Step: 1, Revision: revision}, {Step: 5, Revision: revision}}
			return &pb.Blocker{Id: id, Revision: revision, State: pb.BlockerState_BLOCKER_STATE_RESOLVED, Agent: "lead", ResolvedAt: at, Timeline: entries}
		})
		c.insertItems(3, "h", 30_000, n, 3, func(id string, revision int64) proto.Message {
			return &pb.Handoff{Id: id, Revision: revision, State: pb.HandoffState_HANDOFF_STATE_REJECTED, From: "lead", SettledAt: at}
		})
		c.insertItems(4, "v", 60_000, n, 2, func(id string, revision int64) proto.Message {
			return &pb.Vote{Id: id, Revision: revision, State: pb.VoteState_VOTE_STATE_CLOSED, Opener: "lead", ClosedAt: at, Outcome: 4, End: 2}
		})
	})
	for name, list := range map[string]func(token string) (int, string, error){
		"votes": func(token string) (int, string, error) {
			out, err := pb.NewVoteServiceClient(c.lead).ListVotes(c.ctx, &pb.ListVotesRequest{Elector: "nobody", PageToken: token})
			return len(out.GetVotes()), out.GetNextPageToken(), err
		},
		"decisions": func(token string) (int, string, error) {
			out, err := pb.NewDecisionServiceClient(c.lead).ListDecisions(c.ctx, &pb.ListDecisionsRequest{Opener: "nobody", PageToken: token})
			return len(out.GetDecisions()), out.GetNextPageToken(), err
		},
		"decisions of a scope": func(token string) (int, string, error) {
			out, err := pb.NewDecisionServiceClient(c.lead).ListDecisions(c.ctx,
				&pb.ListDecisionsRequest{Opener: "nobody", Scope: "s", PageToken: token})
			return len(out.GetDecisions()), out.GetNextPageToken(), err
		},
		"decisions of a task": func(token string) (int, string, error) {
			out, err := pb.NewDecisionServiceClient(c.lead).ListDecisions(c.ctx,
				&pb.ListDecisionsRequest{Opener: "nobody", TaskId: "x", PageToken: token})
			return len(out.GetDecisions()), out.GetNextPageToken(), err
		},
		"handoffs": func(token string) (int, string, error) {
			out, err := pb.NewHandoffServiceClient(c.lead).ListHandoffs(c.ctx, &pb.ListHandoffsRequest{From: "nobody", PageToken: token})
			return len(out.GetHandoffs()), out.GetNextPageToken(), err
		},
		"blockers": func(token string) (int, string, error) {
			out, err := pb.NewBlockerServiceClient(c.lead).ListBlockers(c.ctx, &pb.ListBlockersRequest{Agent: "nobody", PageToken: token})
			return len(out.GetBlockers()), out.GetNextPageToken(), err
		},
	} {
		pages, token := 0, ""
		for {
			n, next, err := list(token)
			succeed(t, err)
			if n != 0 {
				t.Errorf("%s: page %d has %d items, want none", name, pages, n)
			}
			pages++
			if token = next; token == "" {
				break
			}
		}
		if pages != 2 {
			t.Errorf("%s: %d pages read 20,500 rows, want 2", name, pages)
		}
	}
}

// TestIDs_LongOnesAreRefused calls every method with an id that is far too long.
func TestIDs_LongOnesAreRefused(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	conn := b.Registered("builder-1", "builder")
	long := strings.Repeat("x", 64<<10)
	tried := 0
	for method, d := range served(t, b) {
		if d.IsStreamingClient() || d.IsStreamingServer() || !strings.HasPrefix(method, "brokerd.v1.") {
			continue
		}
		fields := d.Input().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			name := string(f.Name())
			if f.Kind() != protoreflect.StringKind || f.IsMap() || name == "request_id" ||
				name != "id" && name != "ids" && !strings.HasSuffix(name, "_id") && !strings.HasSuffix(name, "_ids") {
				continue
			}
			in := dynamicpb.NewMessage(d.Input())
			if f.IsList() {
				in.Mutable(f).List().Append(protoreflect.ValueOfString(long))
			} else {
				in.Set(f, protoreflect.ValueOfString(long))
			}
			tried++
			err := conn.Invoke(t.Context(), "/"+method, in, dynamicpb.NewMessage(d.Output()))
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.PermissionDenied {
				t.Errorf("%s with a long %s: %v, want INVALID_ARGUMENT", method, name, code)
			}
			if size := proto.Size(status.Convert(err).Proto()); size > 4<<10 {
				t.Errorf("%s with a long %s: a status of %d bytes", method, name, size)
			}
		}
	}
	if tried < 30 {
		t.Errorf("only %d ids were tried", tried)
	}
}

// mostKept is how many bytes the broker keeps of an answer.
const mostKept = 8 << 10

func TestRequestIDs_KeptAnswersAreSmallAndTheSameAfterChanges(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "default", apptest.WithFakeClock())
	long := strings.Repeat("text ", 12_000)
	note := strings.Repeat("n", 4<<10)
	type pair struct {
		method          string
		conn            grpc.ClientConnInterface
		request, answer proto.Message
	}
	var calls []pair
	do := func(conn grpc.ClientConnInterface, method string, request, answer proto.Message) {
		t.Helper()
		request.ProtoReflect().Set(requestID(request), protoreflect.ValueOfString(uuid.NewString()))
		succeed(t, conn.Invoke(c.ctx, "/brokerd.v1."+method, request, answer))
		calls = append(calls, pair{method, conn, request, answer})
	}
	handoff := &pb.CreateHandoffResponse{}
	do(c.lead, "HandoffService/CreateHandoff", &pb.CreateHandoffRequest{
		Title: "Login", ToAgent: "builder", Content: &pb.HandoffContent{Background: long, NextSteps: []string{note, note}},
		Checklist: []string{note[1:] + "1", note[1:] + "2"},
	}, handoff)
	id := handoff.GetHandoff().GetId()
	do(c.builder, "HandoffService/CheckHandoffItem", &pb.CheckHandoffItemRequest{Id: id, Number: 1}, &pb.CheckHandoffItemResponse{})
	do(c.builder, "HandoffService/AcceptHandoff", &pb.AcceptHandoffRequest{Id: id, Notes: note}, &pb.AcceptHandoffResponse{})
	do(c.builder, "HandoffService/CheckHandoffItem", &pb.CheckHandoffItemRequest{Id: id, Number: 1, Uncheck: true}, &pb.CheckHandoffItemResponse{})
	do(c.builder, "HandoffService/CheckHandoffItem", &pb.CheckHandoffItemRequest{Id: id, Number: 2}, &pb.CheckHandoffItemResponse{})

	blocker := &pb.RaiseBlockerResponse{}
	do(c.lead, "BlockerService/RaiseBlocker", &pb.RaiseBlockerRequest{
		Reason: long, Recipients: []*pb.BlockerRecipient{{Recipient: &pb.BlockerRecipient_Agent{Agent: "builder"}}},
	}, blocker)
	id = blocker.GetBlocker().GetId()
	do(c.builder, "BlockerService/AcknowledgeBlocker", &pb.AcknowledgeBlockerRequest{Id: id, Note: note}, &pb.AcknowledgeBlockerResponse{})
	do(c.builder, "BlockerService/ResolveBlocker", &pb.ResolveBlockerRequest{Id: id, Resolution: note}, &pb.ResolveBlockerResponse{})

	vote := &pb.OpenVoteResponse{}
	do(c.lead, "VoteService/OpenVote", &pb.OpenVoteRequest{Title: "Deploy?", Description: long, Options: []string{note[:500] + "1", note[:500] + "2"}}, vote)
	id = vote.GetVote().GetId()
	do(c.lead, "VoteService/CastVote", &pb.CastVoteRequest{Id: id, Option: note[:500] + "1", Reason: note}, &pb.CastVoteResponse{})
	do(c.lead, "VoteService/CastVote", &pb.CastVoteRequest{Id: id, Option: note[:500] + "2", Reason: note}, &pb.CastVoteResponse{})
	do(c.lead, "VoteService/CloseVote", &pb.CloseVoteRequest{Id: id}, &pb.CloseVoteResponse{})
	do(c.lead, "VoteService/CloseVote", &pb.CloseVoteRequest{Id: id}, &pb.CloseVoteResponse{})

	decision := &pb.OpenDecisionResponse{}
	do(c.lead, "DecisionService/OpenDecision", &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_PLAN, Title: "Plan", To: &pb.OpenDecisionRequest_Agent{Agent: "builder"},
		Content: &pb.DecisionContent{Body: long},
	}, decision)
	id = decision.GetDecision().GetId()
	feedback := []*pb.Feedback{{Text: note, Severity: pb.FeedbackSeverity_FEEDBACK_SEVERITY_MAJOR}}
	do(c.builder, "DecisionService/Decide", &pb.DecideRequest{Id: id, Verdict: "revise", Reason: long, Feedback: feedback}, &pb.DecideResponse{})
	do(c.lead, "DecisionService/ResubmitDecision", &pb.ResubmitDecisionRequest{Id: id}, &pb.ResubmitDecisionResponse{})
	do(c.builder, "DecisionService/Decide", &pb.DecideRequest{Id: id, Verdict: "approve", Reason: long}, &pb.DecideResponse{})

	if n := testkit.Number(t, c.Dir(), `SELECT max(length(answer)) FROM requests`); n > mostKept {
		t.Errorf("the broker keeps an answer of %d bytes, want at most %d", n, mostKept)
	}
	c.Restart()
	for _, call := range calls {
		again := call.answer.ProtoReflect().New().Interface()
		succeed(t, call.conn.Invoke(c.ctx, "/brokerd.v1."+call.method, call.request, again))
		if d := cmp.Diff(call.answer, again, protocmp.Transform()); d != "" {
			t.Errorf("%s repeated: first (-) and again (+): %s", call.method, d)
		}
	}
}
