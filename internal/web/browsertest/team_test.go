package browsertest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// patience is how long a test waits for what should come at once.
const patience = 5 * time.Minute

// A team is a broker with agents at work. A call that fails ends the test.
type team struct {
	*apptest.Broker
	t   testing.TB
	ctx context.Context
}

// newTeam starts a broker with four agents: lead, builder-1, builder-2 and reviewer.
func newTeam(t testing.TB, options ...apptest.Option) *team {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience) // the longest test takes a minute alone
	t.Cleanup(cancel)
	m := &team{Broker: apptest.Start(t, options...), t: t, ctx: ctx}
	for _, member := range []struct{ name, role string }{
		{"lead", "lead"}, {"builder-1", "builder"}, {"builder-2", "builder"}, {"reviewer", "reviewer"},
	} {
		m.Registered(member.name, member.role)
	}
	return m
}

// call makes a call in the name of an agent, of an operator if it is empty.
func call[C, Req, Res any](m *team, agent string, client func(grpc.ClientConnInterface) C,
	method func(C, context.Context, Req, ...grpc.CallOption) (Res, error), request Req,
) Res {
	m.t.Helper()
	answer, err := method(client(m.Conn(agent)), m.ctx, request)
	if err != nil {
		m.t.Fatalf("%T: %v", request, err)
	}
	return answer
}

// send sends messages and returns their ids.
func (m *team) send(sender string, messages ...*pb.Message) []string {
	m.t.Helper()
	out := call(m, sender, pb.NewMessageServiceClient, pb.MessageServiceClient.SendMessages,
		&pb.SendMessagesRequest{Messages: messages})
	ids := make([]string, 0, len(messages))
	for _, r := range out.GetResults() {
		if r.GetError() != nil {
			m.t.Fatalf("send: %s", r.GetError().GetMessage())
		}
		ids = append(ids, r.GetId())
	}
	return ids
}

// to returns a message to an agent.
func to(agent, subject string) *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: agent}}, Subject: subject}
}

// toRole returns a message to a role.
func toRole(role, subject string) *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: role}}, Subject: subject}
}

// kill turns a message into a dead letter of an agent, and returns its id. After five in a row, the
// broker delivers no further message to the agent.
func (m *team) kill(agent, subject, reason string) string {
	m.t.Helper()
	id := m.send("lead", to(agent, subject))[0]
	claims := call(m, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.ClaimMessages,
		&pb.ClaimMessagesRequest{Ids: []string{id}}).GetClaims()
	call(m, agent, pb.NewMessageServiceClient, pb.MessageServiceClient.NackMessages,
		&pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: claims[0].GetClaimId(), Fatal: true, Error: reason}}})
	return id
}

// letters returns the ids of the dead letters, the newest first.
func (m *team) letters() (ids []string) {
	m.t.Helper()
	out := call(m, "", pb.NewMessageServiceClient, pb.MessageServiceClient.ListDeadLetters, &pb.ListDeadLettersRequest{})
	for _, item := range out.GetItems() {
		ids = append(ids, item.GetMessage().GetId())
	}
	return ids
}

// lock acquires a lock for an agent, or a kept place in its queue, and returns the fence.
func (m *team) lock(agent string, paths ...string) int64 {
	m.t.Helper()
	return call(m, agent, pb.NewLockServiceClient, pb.LockServiceClient.AcquireLocks,
		&pb.AcquireLocksRequest{Paths: paths, KeepTicket: true, Reason: "edits " + paths[0]}).GetFence()
}

// locks returns the locks and the requests that wait.
func (m *team) locks() *pb.ListLocksResponse {
	m.t.Helper()
	return call(m, "", pb.NewLockServiceClient, pb.LockServiceClient.ListLocks, &pb.ListLocksRequest{})
}

// token acquires a token for an agent, or a kept place in its queue.
func (m *team) token(agent, kind, scope string) {
	m.t.Helper()
	call(m, agent, pb.NewTokenServiceClient, pb.TokenServiceClient.AcquireToken,
		&pb.AcquireTokenRequest{Type: kind, Scope: scope, KeepTicket: true})
}

// vote opens a vote of two options for the builders, and returns its id.
func (m *team) vote(title string) string {
	m.t.Helper()
	return call(m, "lead", pb.NewVoteServiceClient, pb.VoteServiceClient.OpenVote, &pb.OpenVoteRequest{
		Title: title, Options: []string{"sqlite", "postgres"}, Electorate: &pb.OpenVoteRequest_Role{Role: "builder"},
	}).GetVote().GetId()
}

// review opens a decision about a piece of work of builder-1, which the reviewer owes, and returns its id.
func (m *team) review(title string) string {
	m.t.Helper()
	return call(m, "builder-1", pb.NewDecisionServiceClient, pb.DecisionServiceClient.OpenDecision,
		&pb.OpenDecisionRequest{
			Kind: pb.DecisionKind_DECISION_KIND_REVIEW, To: &pb.OpenDecisionRequest_Agent{Agent: "reviewer"},
			Title: title, Content: &pb.DecisionContent{Body: "The form posts to /login."},
			Deadline: timestamppb.New(time.Now().Add(time.Hour)),
		}).GetDecision().GetId()
}

// ask sends a question from an agent to another one, and returns the id of the message.
func (m *team) ask(from, agent, subject string) string {
	m.t.Helper()
	question := to(agent, subject)
	question.RequiresResponse = true
	return m.send(from, question)[0]
}

// work gives the team something of each kind, so that no view is empty.
func (m *team) work() {
	m.t.Helper()
	for _, letter := range []struct{ subject, reason string }{
		{"Port the old importer", "no such repository: importer"},
		{"Write the migration", "test database is locked"},
		{"Rename the tables", "test database is locked"},
	} {
		m.kill("builder-1", letter.subject, letter.reason)
	}
	m.send("lead", toRole("builder", "Add the login form"), toRole("builder", "Fix the failing session test"),
		toRole("designer", "Draw a logo"), to("builder-2", "Pull main"))
	m.send("builder-1", to("lead", "The login form is complete"))
	m.ask("builder-2", "reviewer", "bcrypt or argon2id?")

	m.lock("builder-1", "src/auth/")
	m.lock("builder-2", "src/auth/login.go")
	m.token("reviewer", "review", "login")
	m.token("builder-1", "review", "login")

	call(m, "lead", pb.NewTaskServiceClient, pb.TaskServiceClient.CreateTasks, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "schema", Title: "Write the schema", Role: "builder"},
		{Id: "api", Title: "Serve the API", Role: "builder", DependsOn: []string{"schema"}},
		{Id: "form", Title: "Build the form", Role: "builder", DependsOn: []string{"schema"}},
		{Id: "release", Title: "Release", DependsOn: []string{"api", "form"}},
	}})
	m.do("builder-1", "schema", false)
	m.do("builder-1", "api", true)
	call(m, "builder-2", pb.NewTaskServiceClient, pb.TaskServiceClient.ClaimTask, &pb.ClaimTaskRequest{Id: "form"})

	vote := m.vote("Which database?")
	call(m, "builder-1", pb.NewVoteServiceClient, pb.VoteServiceClient.CastVote,
		&pb.CastVoteRequest{Id: vote, Option: "sqlite", Reason: "One file"})
	m.review("Review the login form")
	m.handoff("The importer")
	m.block("The staging server does not answer")
}

// handoff offers work of builder-1 to builder-2, and returns the id.
func (m *team) handoff(title string) string {
	m.t.Helper()
	return call(m, "builder-1", pb.NewHandoffServiceClient, pb.HandoffServiceClient.CreateHandoff, &pb.CreateHandoffRequest{
		Title: title, ToAgent: "builder-2", Checklist: []string{"Read the notes"},
		Content: &pb.HandoffContent{WorkDone: "The parser works.", NextSteps: []string{"Write the tests"}},
	}).GetHandoff().GetId()
}

// block raises a blocker of builder-2, of which lead is notified, and returns the id.
func (m *team) block(reason string) string {
	m.t.Helper()
	return call(m, "builder-2", pb.NewBlockerServiceClient, pb.BlockerServiceClient.RaiseBlocker, &pb.RaiseBlockerRequest{
		Reason: reason, Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_HIGH,
		Recipients: []*pb.BlockerRecipient{{Recipient: &pb.BlockerRecipient_Agent{Agent: "lead"}}},
	}).GetBlocker().GetId()
}

// do claims a task for an agent, and completes or fails it.
func (m *team) do(agent, task string, fails bool) {
	m.t.Helper()
	tasks := pb.NewTaskServiceClient
	call(m, agent, tasks, pb.TaskServiceClient.ClaimTask, &pb.ClaimTaskRequest{Id: task})
	if fails {
		call(m, agent, tasks, pb.TaskServiceClient.FailTask, &pb.FailTaskRequest{Id: task, Error: "no port is free", Fatal: true})
		return
	}
	call(m, agent, tasks, pb.TaskServiceClient.CompleteTask, &pb.CompleteTaskRequest{Id: task, Result: "{}"})
}

// fail registers an agent with the shortest lease, and returns when the broker considers it failed. No
// other agent may have failed before.
func (m *team) fail(agent, role string) {
	m.t.Helper()
	call(m, agent, pb.NewAgentServiceClient, pb.AgentServiceClient.RegisterAgent,
		&pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(time.Second)})
	m.awaitEvent("agent.failed", 0)
}

// awaitEvent waits for the first event of a type after a revision.
func (m *team) awaitEvent(kind string, after int64) {
	m.t.Helper()
	stream, err := pb.NewEventServiceClient(m.Operator()).SubscribeEvents(m.ctx,
		&pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{kind}}, AfterRevision: &after})
	if err != nil {
		m.t.Fatal(err)
	}
	for {
		page, err := stream.Recv()
		if err != nil {
			m.t.Fatal(err)
		}
		if len(page.GetEvents()) > 0 {
			return
		}
	}
}
