package handoffs_test

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a running daemon.
type world struct {
	*apptest.Broker
	t testing.TB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return &world{apptest.Start(t), t}
}

// An actor is one identity's view of the daemon. The operator has no name.
type actor struct {
	pb.HandoffServiceClient
	registry pb.AgentServiceClient
	messages pb.MessageServiceClient
	locks    pb.LockServiceClient
	tokens   pb.TokenServiceClient
	tasks    pb.TaskServiceClient
	state    pb.StateServiceClient
	admin    pb.AdminServiceClient

	t    testing.TB
	name string
	ctx  context.Context
}

func (w *world) actor(name string) *actor {
	w.t.Helper()
	conn := w.Conn(name)
	ctx, cancel := context.WithTimeout(w.t.Context(), 3*apptest.Patience)
	w.t.Cleanup(cancel)
	return &actor{
		pb.NewHandoffServiceClient(conn), pb.NewAgentServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewLockServiceClient(conn),
		pb.NewTokenServiceClient(conn), pb.NewTaskServiceClient(conn), pb.NewStateServiceClient(conn), pb.NewAdminServiceClient(conn), w.t, name, ctx,
	}
}

// agent registers an agent.
func (w *world) agent(name, role string) *actor {
	w.t.Helper()
	w.Registered(name, role)
	return w.actor(name)
}

func (a *actor) create(in *pb.CreateHandoffRequest) *pb.Handoff {
	a.t.Helper()
	if in.Title == "" {
		in.Title = "Login page"
	}
	out, err := a.CreateHandoff(a.ctx, in)
	must(a.t, err)
	return out.Handoff
}

func (a *actor) accept(id string) *pb.Handoff {
	a.t.Helper()
	out, err := a.AcceptHandoff(a.ctx, &pb.AcceptHandoffRequest{Id: id})
	must(a.t, err)
	return out.Handoff
}

func (a *actor) get(id string) *pb.Handoff {
	a.t.Helper()
	out, err := a.GetHandoff(a.ctx, &pb.GetHandoffRequest{Id: id})
	must(a.t, err)
	return out.Handoff
}

// lock acquires a lock and returns its fence.
func (a *actor) lock(path string) int64 {
	a.t.Helper()
	out, err := a.locks.AcquireLocks(a.ctx, &pb.AcquireLocksRequest{Paths: []string{path}})
	must(a.t, err)
	if out.Fence == 0 {
		a.t.Fatalf("%s does not get %s: %v", a.name, path, out)
	}
	return out.Fence
}

// token acquires a token and returns its fence.
func (a *actor) token(scope string) int64 {
	a.t.Helper()
	out, err := a.tokens.AcquireToken(a.ctx, &pb.AcquireTokenRequest{Type: "build", Scope: scope})
	must(a.t, err)
	return out.Fence
}

// writes reports whether the broker accepts a change under a fence.
func (a *actor) writes(fence int64) bool {
	a.t.Helper()
	ctx := metadata.AppendToOutgoingContext(a.ctx, "brokerd-fence", strconv.FormatInt(fence, 10))
	_, err := a.state.PutState(ctx, &pb.PutStateRequest{Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}})
	if err != nil && status.Code(err) != codes.FailedPrecondition {
		a.t.Fatal(err)
	}
	return err == nil
}

// notices returns the payloads of the unread notices of a type.
func (a *actor) notices(kind string) []map[string]any {
	a.t.Helper()
	out, err := a.registry.Heartbeat(a.ctx, &pb.HeartbeatRequest{Notices: true})
	must(a.t, err)
	var list []map[string]any
	for _, n := range out.Notices {
		if n.Type != kind {
			continue
		}
		var o map[string]any
		must(a.t, json.Unmarshal([]byte(n.Payload), &o))
		list = append(list, o)
	}
	return list
}

// claimed claims what waits for the agent.
func (a *actor) claimed() []*pb.Message {
	a.t.Helper()
	out, err := a.messages.ClaimMessages(a.ctx, &pb.ClaimMessagesRequest{Max: 100})
	must(a.t, err)
	var list []*pb.Message
	for _, c := range out.Claims {
		list = append(list, c.Message)
	}
	return list
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("got %v (%s), want %v %s", err, testkit.Reason(err), code, reason)
	}
}

func TestAccept_MovesLocksAndTokensUnderNewFences(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.agent("a", "architect"), w.agent("b", "builder"), w.agent("c", "builder")
	lock, token := a.lock("src/"), a.token("main")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{token, lock, lock}})
	if len(h.Grants) != 2 || h.Grants[0].Name != "src/" || h.Grants[0].Kind != pb.GrantKind_GRANT_KIND_LOCK || h.Grants[1].Name != "build/main" ||
		h.Grants[1].Kind != pb.GrantKind_GRANT_KIND_TOKEN || h.Grants[1].Fence != token {
		t.Fatalf("grants %v", h.Grants)
	}
	if !a.writes(lock) || b.writes(lock) {
		t.Error("before it is accepted, the sender holds the lock")
	}
	got := b.accept(h.Id)
	if got.State != pb.HandoffState_HANDOFF_STATE_ACCEPTED || got.SettledBy != "b" || got.SettledAt == nil {
		t.Errorf("accepted %v", got)
	}
	for _, g := range got.Grants {
		if g.NewFence <= g.Fence || g.Lost {
			t.Errorf("grant %v", g)
		}
		if a.writes(g.Fence) || b.writes(g.Fence) || a.writes(g.NewFence) {
			t.Errorf("the broker accepts a change under the old fence of %s, or of the sender", g.Name)
		}
		if !b.writes(g.NewFence) {
			t.Errorf("the new holder cannot write under fence %d of %s", g.NewFence, g.Name)
		}
	}
	out, err := c.locks.AcquireLocks(c.ctx, &pb.AcquireLocksRequest{Paths: []string{"src/main.go"}})
	must(t, err)
	if out.Outcome != pb.AcquireOutcome_ACQUIRE_OUTCOME_BUSY || out.Obstacles[0].Agent != "b" {
		t.Errorf("another agent gets %v", out)
	}
	_, err = a.locks.ExtendLocks(a.ctx, &pb.ExtendLocksRequest{Fences: []int64{lock}})
	refused(t, err, codes.FailedPrecondition, "LOCK_LOST")
	_, err = b.locks.ReleaseLocks(b.ctx, &pb.ReleaseLocksRequest{Fences: []int64{got.Grants[0].NewFence}})
	must(t, err)
	c.lock("src/main.go")
}

func TestAccept_MovesTheClaimOfTheTask(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	_, err := a.tasks.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	must(t, err)
	claim, err := a.tasks.ClaimTask(a.ctx, &pb.ClaimTaskRequest{TaskId: "t1"})
	must(t, err)
	lock := a.lock("src/")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", TransferTask: true, Fences: []int64{lock}})
	if g := h.Grants[0]; g.Kind != pb.GrantKind_GRANT_KIND_TASK || g.Name != "t1" || g.Fence != claim.Task.Fence {
		t.Errorf("grants %v", h.Grants)
	}
	got := b.accept(h.Id).Grants[0]
	if got.NewFence <= got.Fence || a.writes(got.Fence) || !b.writes(got.NewFence) {
		t.Errorf("grant %v", got)
	}
	_, err = a.tasks.CompleteTask(a.ctx, &pb.CompleteTaskRequest{TaskId: "t1"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the former holder completes the task: %v", err)
	}
	_, err = b.tasks.CompleteTask(b.ctx, &pb.CompleteTaskRequest{TaskId: "t1", Fence: got.NewFence})
	must(t, err)

	h = b.create(&pb.CreateHandoffRequest{ToAgent: "a", TaskId: "t1"}) // a task that the sender does not hold may be named
	a.accept(h.Id)
	full, err := b.tasks.GetTask(b.ctx, &pb.GetTaskRequest{TaskId: "t1", View: pb.TaskView_TASK_VIEW_FULL})
	must(t, err)
	if n := slices.IndexFunc(full.References, func(r *pb.TaskReference) bool { return r.Kind == "handoff" }); n < 0 || full.References[n].Id != h.Id {
		t.Errorf("the task names %v", full.References)
	}
}

func TestAccept_ATaskThatTheSenderHasClaimedAgainIsLost(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	_, err := a.tasks.CreateTasks(a.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: "t1", Title: "Login page"}}})
	must(t, err)
	claim := func() {
		_, err := a.tasks.ClaimTask(a.ctx, &pb.ClaimTaskRequest{TaskId: "t1"})
		must(t, err)
	}
	claim()
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", TransferTask: true})
	_, err = a.tasks.ReleaseTask(a.ctx, &pb.ReleaseTaskRequest{TaskId: "t1"})
	must(t, err)
	claim()
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
}

func TestAccept_GrantsTheRequestOfTheAcceptorThatWaitedForTheLockAndNoOther(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.agent("a", "architect"), w.agent("b", "builder"), w.agent("c", "builder")
	fence := a.lock("src/a.go")
	for _, x := range []*actor{b, c} {
		out, err := x.locks.AcquireLocks(x.ctx, &pb.AcquireLocksRequest{Paths: []string{"src/a.go"}, KeepTicket: true})
		must(t, err)
		if out.Ticket == 0 {
			t.Fatalf("no ticket: %v", out)
		}
	}
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{fence}})
	b.accept(h.Id)
	out, err := a.locks.ListLocks(a.ctx, &pb.ListLocksRequest{})
	must(t, err)
	if len(out.Tickets) != 1 || out.Tickets[0].Agent != "c" || slices.ContainsFunc(out.Locks, func(l *pb.Lock) bool { return l.Agent != "b" }) {
		t.Errorf("held %v, waiting %v", out.Locks, out.Tickets)
	}
	_, err = b.locks.ReleaseLocks(b.ctx, &pb.ReleaseLocksRequest{All: true})
	must(t, err)
	if out, err = a.locks.ListLocks(a.ctx, &pb.ListLocksRequest{}); err != nil || len(out.Locks) != 1 || out.Locks[0].Agent != "c" {
		t.Errorf("after the release, held %v, %v", out.GetLocks(), err)
	}
}

func TestAccept_OfTwoAcceptorsOneAccepts(t *testing.T) {
	w := newWorld(t)
	a := w.agent("a", "architect")
	builders := []*actor{w.agent("b", "builder"), w.agent("c", "builder")}
	for range 5 {
		fence := a.lock("src/a.go")
		h := a.create(&pb.CreateHandoffRequest{ToRole: "builder", Fences: []int64{fence}})
		type answer struct {
			h   *pb.Handoff
			err error
		}
		done := make(chan answer)
		for _, x := range builders {
			go func() {
				out, err := x.AcceptHandoff(x.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
				done <- answer{out.GetHandoff(), err}
			}()
		}
		var winner *pb.Handoff
		for range builders {
			switch got := <-done; {
			case got.err != nil:
				refused(t, got.err, codes.FailedPrecondition, "HANDOFF_CLOSED")
			case winner != nil:
				t.Fatal("both accepted")
			default:
				winner = got.h
			}
		}
		now := a.get(h.Id)
		if winner == nil || now.SettledBy != winner.SettledBy {
			t.Fatalf("accepted by %v, got by %v", winner, now)
		}
		holder := builders[slices.Index([]string{"b", "c"}, now.SettledBy)]
		_, err := holder.locks.ReleaseLocks(holder.ctx, &pb.ReleaseLocksRequest{Fences: []int64{now.Grants[0].NewFence}})
		must(t, err)
	}
}

func TestAccept_LostGrantsNeedTheConsentOfTheAcceptor(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	kept, lost := a.lock("src/kept.go"), a.lock("src/lost.go")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{kept, lost}})
	_, err := a.locks.ReleaseLocks(a.ctx, &pb.ReleaseLocksRequest{Fences: []int64{lost}})
	must(t, err)
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
	if !strings.Contains(status.Convert(err).Message(), "src/lost.go") || !a.writes(kept) {
		t.Errorf("refused with %v", err)
	}
	out, err := b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id, Partial: true})
	must(t, err)
	g := out.Handoff.Grants
	if g[0].NewFence == 0 || g[0].Lost || g[1].NewFence != 0 || !g[1].Lost || !b.writes(g[0].NewFence) {
		t.Errorf("grants %v", g)
	}
}

func TestAccept_SenderThatHasDeregisteredLeavesTheDescription(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{a.lock("src/")}})
	_, err := a.registry.DeregisterAgent(a.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id})
	refused(t, err, codes.FailedPrecondition, "GRANTS_LOST")
	_, err = b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id, Partial: true})
	must(t, err)
}

func TestHandoff_IsARequestAndAnAnswer(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", Content: &pb.HandoffContent{Background: "Users log in.", Artifacts: []string{"spec.yaml"}}})
	mail := b.claimed()
	if len(mail) != 1 || mail[0].Type != "handoff_request" || mail[0].Sender != "a" || mail[0].TaskId != "t1" ||
		!strings.Contains(mail[0].Body, "Users log in.") || !slices.Equal(mail[0].Artifacts, []string{"spec.yaml"}) || !strings.Contains(mail[0].Payload, h.Id) {
		t.Fatalf("the recipient got %v", mail)
	}
	out, err := b.AcceptHandoff(b.ctx, &pb.AcceptHandoffRequest{Id: h.Id, Notes: "thanks"})
	must(t, err)
	if n := a.notices("handoff_accepted"); len(n) != 1 || n[0]["handoff_id"] != h.Id || n[0]["accepted_by"] != "b" || n[0]["notes"] != "thanks" {
		t.Errorf("the sender has %v", n)
	}
	if out.Handoff.Notes != "thanks" {
		t.Errorf("accepted %v", out.Handoff)
	}
	if left := b.claimed(); len(left) != 0 {
		t.Errorf("the request is still claimed: %v", left)
	}
	h = a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	_, err = b.RejectHandoff(b.ctx, &pb.RejectHandoffRequest{Id: h.Id})
	refused(t, err, codes.InvalidArgument, "INVALID_ARGUMENT") // without notes
	_, err = b.RejectHandoff(b.ctx, &pb.RejectHandoffRequest{Id: h.Id, Notes: "no time"})
	must(t, err)
	if n := a.notices("handoff_rejected"); len(n) != 1 || n[0]["notes"] != "no time" {
		t.Errorf("the sender has %v", n)
	}
}

func TestHandoff_IsSettledOnce(t *testing.T) {
	w := newWorld(t)
	a, b, stranger := w.agent("a", "architect"), w.agent("b", "builder"), w.agent("s", "scribe")
	settlers := map[string]func(x *actor, id string) error{
		"accept": func(x *actor, id string) error {
			_, err := x.AcceptHandoff(x.ctx, &pb.AcceptHandoffRequest{Id: id})
			return err
		},
		"reject": func(x *actor, id string) error {
			_, err := x.RejectHandoff(x.ctx, &pb.RejectHandoffRequest{Id: id, Notes: "no"})
			return err
		},
		"cancel": func(x *actor, id string) error {
			_, err := x.CancelHandoff(x.ctx, &pb.CancelHandoffRequest{Id: id})
			return err
		},
	}
	by := map[string]*actor{"accept": b, "reject": b, "cancel": a}
	for first, settle := range settlers {
		h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
		must(t, settle(by[first], h.Id))
		for then, again := range settlers {
			if refused(t, again(by[then], h.Id), codes.FailedPrecondition, "HANDOFF_CLOSED"); t.Failed() {
				t.Fatalf("%s after %s", then, first)
			}
		}
		if len(b.claimed()) != 0 {
			t.Errorf("after %s the request is left", first)
		}
	}
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	refused(t, settlers["accept"](stranger, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	refused(t, settlers["accept"](a, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	refused(t, settlers["reject"](stranger, h.Id), codes.PermissionDenied, "NOT_THE_RECIPIENT")
	refused(t, settlers["cancel"](b, h.Id), codes.PermissionDenied, "NOT_THE_SENDER")
	refused(t, settlers["accept"](w.actor(""), h.Id), codes.FailedPrecondition, "AGENT_REQUIRED")
	refused(t, settlers["accept"](b, "h-999999"), codes.NotFound, "HANDOFF_NOT_FOUND")
	must(t, settlers["cancel"](w.actor(""), h.Id))
}

func TestCreate_RefusesWhatCannotBe(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	fence := b.lock("src/")
	for name, c := range map[string]struct {
		in     *pb.CreateHandoffRequest
		code   codes.Code
		reason string
	}{
		"no title":            {&pb.CreateHandoffRequest{ToAgent: "b"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"no recipient":        {&pb.CreateHandoffRequest{Title: "x"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"two recipients":      {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", ToRole: "builder"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"itself":              {&pb.CreateHandoffRequest{Title: "x", ToAgent: "a"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an unknown agent":    {&pb.CreateHandoffRequest{Title: "x", ToAgent: "z"}, codes.NotFound, "AGENT_NOT_FOUND"},
		"its own role alone":  {&pb.CreateHandoffRequest{Title: "x", ToRole: "architect"}, codes.NotFound, "ROLE_NOT_FOUND"},
		"a foreign lock":      {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Fences: []int64{fence}}, codes.FailedPrecondition, "NOT_HELD"},
		"no task to transfer": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TransferTask: true}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"a task not held":     {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", TaskId: "t1", TransferTask: true}, codes.FailedPrecondition, "NOT_HELD"},
		"a bad link": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b",
			Content: &pb.HandoffContent{ContextLinks: []*pb.ContextLink{{Target: "x"}}}}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"too much text": {&pb.CreateHandoffRequest{Title: "x", ToAgent: "b", Content: &pb.HandoffContent{
			NextSteps: slices.Repeat([]string{strings.Repeat("x", 4<<10)}, 100), KnownIssues: slices.Repeat([]string{strings.Repeat("x", 4<<10)}, 100)}},
			codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		_, err := a.CreateHandoff(a.ctx, c.in)
		if refused(t, err, c.code, c.reason); t.Failed() {
			t.Fatal(name)
		}
	}
	if left := b.claimed(); len(left) != 0 {
		t.Errorf("requests %v were sent", left)
	}
}

func TestCreate_SameRequestCreatesOneHandoff(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	in := &pb.CreateHandoffRequest{RequestId: uuid.NewString(), ToAgent: "b"}
	first, second := a.create(in), a.create(in)
	if first.Id != second.Id || len(b.claimed()) != 1 {
		t.Errorf("created %s and %s", first.Id, second.Id)
	}
	accept := &pb.AcceptHandoffRequest{RequestId: uuid.NewString(), Id: first.Id}
	for range 2 {
		_, err := b.AcceptHandoff(b.ctx, accept)
		must(t, err)
	}
}

func TestCheck_NamesTheAgentAndTheTime(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Checklist: []string{"tests pass", "docs read"}})
	check := func(x *actor, number int32, uncheck bool) (*pb.Handoff, error) {
		out, err := x.CheckHandoffItem(x.ctx, &pb.CheckHandoffItemRequest{Id: h.Id, Number: number, Uncheck: uncheck})
		return out.GetHandoff(), err
	}
	_, err := check(a, 1, false)
	refused(t, err, codes.PermissionDenied, "NOT_THE_RECIPIENT")
	_, err = check(b, 3, false)
	refused(t, err, codes.NotFound, "ITEM_NOT_FOUND")
	got, err := check(b, 2, false)
	must(t, err)
	if i := got.Checklist[1]; !i.Checked || i.CheckedBy != "b" || i.CheckedAt == nil || got.Checked != 1 || got.Checklist[0].Checked {
		t.Errorf("checked %v", got.Checklist)
	}
	again, err := check(b, 2, false)
	must(t, err)
	if again.Revision != got.Revision {
		t.Error("checking it again changed it")
	}
	got, err = check(b, 2, true)
	must(t, err)
	if got.Checked != 0 || got.Checklist[1].CheckedBy != "" {
		t.Errorf("unchecked %v", got.Checklist)
	}
	b.accept(h.Id)
	if got, err = check(b, 1, false); err != nil || got.Checked != 1 {
		t.Errorf("after it is accepted: %v, %v", got, err)
	}
}

func TestGet_WaitsUntilTheHandoffIsSettledAndRendersMarkdown(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{
		ToAgent: "b", TaskId: "t1", Checklist: []string{"tests pass"}, Fences: []int64{a.lock("src/")}, Content: &pb.HandoffContent{
			Background: "Users log in.", WorkDone: "The form.", Artifacts: []string{"spec.yaml@2"}, NextSteps: []string{"call it", "test it"},
			KnownIssues: []string{"slow\non Mondays"}, OpenQuestions: []string{"which font?"}, ContextLinks: []*pb.ContextLink{
				{Kind: pb.ContextLinkKind_CONTEXT_LINK_KIND_STATE, Target: "default/design", Title: "the design"},
				{Kind: pb.ContextLinkKind_CONTEXT_LINK_KIND_URL, Target: "https://example.org/a"},
			},
		},
	})
	got := make(chan *pb.GetHandoffResponse)
	go func() {
		out, err := a.GetHandoff(a.ctx, &pb.GetHandoffRequest{Id: h.Id, Wait: durationpb.New(time.Hour), Markdown: true})
		if err != nil {
			t.Error(err)
		}
		got <- out
	}()
	_, err := b.CheckHandoffItem(b.ctx, &pb.CheckHandoffItemRequest{Id: h.Id, Number: 1}) // does not end the wait
	must(t, err)
	b.accept(h.Id)
	out := <-got
	if out.GetHandoff().GetState() != pb.HandoffState_HANDOFF_STATE_ACCEPTED {
		t.Fatalf("the wait returned %v", out)
	}
	for _, want := range []string{
		"# Handoff " + h.Id + ": Login page\n", "- State: accepted\n", "- Task: t1\n", "## Background\n\nUsers log in.\n", "## Work done\n\nThe form.\n",
		"- `spec.yaml@2`\n", "- state `default/design`: the design\n", "- <https://example.org/a>\n", "1. call it\n2. test it\n", "- slow\n  on Mondays\n",
		"- which font?\n", "- [x] tests pass (b, ", "- lock `src/`, fence ",
	} {
		if !strings.Contains(out.Markdown, want) {
			t.Errorf("the Markdown has no %q:\n%s", want, out.Markdown)
		}
	}
}

func TestList_FiltersAndPages(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	ids := []string{
		a.create(&pb.CreateHandoffRequest{ToAgent: "b", TaskId: "t1", Content: &pb.HandoffContent{Background: "long"}}).Id,
		a.create(&pb.CreateHandoffRequest{ToRole: "builder"}).Id,
		b.create(&pb.CreateHandoffRequest{ToAgent: "a", TaskId: "t1"}).Id,
	}
	b.accept(ids[0])
	list := func(in *pb.ListHandoffsRequest) (got []string) {
		t.Helper()
		for {
			out, err := a.ListHandoffs(a.ctx, in)
			must(t, err)
			for _, h := range out.Handoffs {
				if got = append(got, h.Id); h.Content != nil {
					t.Errorf("%s has its content in a list", h.Id)
				}
			}
			if in.PageToken = out.NextPageToken; in.PageToken == "" {
				return got
			}
		}
	}
	for name, c := range map[string]struct {
		in   *pb.ListHandoffsRequest
		want []string
	}{
		"all, one per page": {&pb.ListHandoffsRequest{PageSize: 1}, ids},
		"pending":           {&pb.ListHandoffsRequest{States: []pb.HandoffState{1}}, ids[1:]},
		"accepted":          {&pb.ListHandoffsRequest{States: []pb.HandoffState{2}}, ids[:1]},
		"from b":            {&pb.ListHandoffsRequest{From: "b"}, ids[2:]},
		"to b or its role":  {&pb.ListHandoffsRequest{ToAgent: "b"}, ids[:2]},
		"to the role":       {&pb.ListHandoffsRequest{ToRole: "builder"}, ids[1:2]},
		"of the task":       {&pb.ListHandoffsRequest{TaskId: "t1"}, []string{ids[0], ids[2]}},
	} {
		if d := cmp.Diff(c.want, list(c.in)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestAgentGone_RejectsWhatADeregisteredAgentCannotAccept(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b"})
	_, err := b.registry.DeregisterAgent(b.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	if got := a.get(h.Id); got.State != pb.HandoffState_HANDOFF_STATE_REJECTED || got.SettledBy != "system" {
		t.Errorf("got %v", got)
	}
	if n := a.notices("handoff_rejected"); len(n) != 1 || n[0]["notes"] != "b has deregistered" {
		t.Errorf("the sender has %v", n)
	}
}

func TestItems_ShowTheAnswerThatEachSideOwes(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToRole: "builder"})
	for who, want := range map[*actor]struct {
		relation pb.WorkRelation
		command  string
	}{
		a: {pb.WorkRelation_WORK_RELATION_OPENED, "handoff get " + h.Id},
		b: {pb.WorkRelation_WORK_RELATION_OWES, "handoff accept " + h.Id},
	} {
		out, err := who.registry.GetAgent(who.ctx, &pb.GetAgentRequest{View: pb.AgentView_AGENT_VIEW_FULL})
		must(t, err)
		items := out.GetHoldings().GetWork()
		if len(items) != 1 || items[0].Id != h.Id || items[0].Relation != want.relation || !strings.Contains(strings.Join(items[0].Commands, "\n"), want.command) {
			t.Errorf("%s has the items %v", who.name, items)
		}
	}
	out, err := a.admin.Explain(a.ctx, &pb.ExplainRequest{Subject: &pb.ExplainRequest_Handoff{Handoff: h.Id}})
	must(t, err)
	if len(out.Findings) != 1 || !strings.Contains(out.Findings[0].Summary, "role:builder has not answered") {
		t.Errorf("explain says %v", out.Findings)
	}
}

func TestHandoff_SurvivesARestartOfTheBroker(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("a", "architect"), w.agent("b", "builder")
	h := a.create(&pb.CreateHandoffRequest{ToAgent: "b", Fences: []int64{a.lock("src/")}})
	w.Restart()
	if got := b.accept(h.Id); got.Grants[0].NewFence == 0 || !b.writes(got.Grants[0].NewFence) {
		t.Errorf("accepted %v", got)
	}
}
