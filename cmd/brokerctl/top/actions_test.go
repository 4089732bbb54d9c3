package top_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A stage is a real broker with a small team, and a screen that shows it.
type stage struct {
	*screen
	ctx    context.Context
	broker *apptest.Broker
	lead   *grpc.ClientConn
	worker *grpc.ClientConn // builder-1
	id     string           // of what the test has arranged
}

func newStage(t *testing.T) *stage {
	t.Helper()
	b := apptest.Start(t, apptest.WithFakeClock())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s := &stage{ctx: ctx, broker: b, lead: b.Registered("lead", "lead"), worker: b.Registered("builder-1", "builder")}
	s.screen = newScreen(t, 120, 40, false, false, dial(t, client.WithAddress(b.Socket())))
	return s
}

func dial(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// must fails the test at an error and returns the answer of a call.
func must[T any](s *stage, answer T, err error) T {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// act chooses the action with this label on the first row that contains a text, fills in the fields,
// and confirms. It returns what the screen said about the count.
func (s *stage) act(view, filter string, below bool, label string, fields map[string]string) (counted string) {
	s.t.Helper()
	s.press(view)
	s.refresh()
	if filter != "" {
		s.press("/")
		s.write(filter)
		s.press("enter")
	}
	if below {
		s.press("down")
	}
	s.press("a")
	n := slices.Index(s.state().Offered(), label)
	if n < 0 {
		s.t.Fatalf("%q is not offered but %q in\n%s", label, s.state().Offered(), s.state().Screen())
	}
	s.press(fmt.Sprint(n + 1))
	names, choices := s.state().Fields()
	for name := range fields {
		if !slices.Contains(names, name) {
			s.t.Fatalf("no field %q but %q", name, names)
		}
	}
	for _, name := range names {
		value, given := fields[name]
		switch {
		case given && choices[name] != nil:
			for range choices[name] {
				if s.state().Value(name) != value {
					s.press("right")
				}
			}
		case given:
			s.press("ctrl+u")
			s.write(value)
		}
		s.press("enter")
	}
	asks, counted := s.state().Asks()
	if !asks {
		s.t.Fatalf("no confirmation in\n%s", s.state().Screen())
	}
	s.press("y")
	if open, failure := s.state().Open(); open {
		s.t.Fatalf("the action has failed: %s\n%s", failure, s.state().Screen())
	}
	return counted
}

func (s *stage) send(from *grpc.ClientConn, m *pb.Message) string {
	s.t.Helper()
	sent, err := pb.NewMessageServiceClient(from).SendMessages(s.ctx,
		&pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	return must(s, sent, err).GetResults()[0].GetId()
}

// die sends a message to builder-1 that becomes a dead letter.
func (s *stage) die(subject, failure string) string {
	s.t.Helper()
	id := s.send(s.lead, &pb.Message{Target: to("builder-1"), Subject: subject})
	messages := pb.NewMessageServiceClient(s.worker)
	claimed, err := messages.ClaimMessages(s.ctx, &pb.ClaimMessagesRequest{Ids: []string{id}})
	must(s, claimed, err)
	nacked, err := messages.NackMessages(s.ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: id, Fatal: true,
		Error: failure}}})
	must(s, nacked, err)
	return id
}

func to(agent string) *pb.Target { return &pb.Target{To: &pb.Target_Agent{Agent: agent}} }

func (s *stage) operator() *grpc.ClientConn { return s.broker.Operator() }

// delivery returns the state of the only delivery of a message.
func (s *stage) delivery(id string) pb.DeliveryState {
	s.t.Helper()
	m, err := pb.NewMessageServiceClient(s.operator()).GetMessage(s.ctx, &pb.GetMessageRequest{Id: id})
	return must(s, m, err).GetDeliveries()[0].GetState()
}

// inbox returns the types and texts of the messages of an agent.
func (s *stage) inbox(conn *grpc.ClientConn) []string {
	s.t.Helper()
	page, err := pb.NewMessageServiceClient(conn).ListMessages(s.ctx, &pb.ListMessagesRequest{})
	var all []string
	for _, i := range must(s, page, err).GetItems() {
		m := i.GetMessage()
		all = append(all, strings.Join([]string{m.GetType(), m.GetSubject(), m.GetBody()}, "|"))
	}
	return all
}

func (s *stage) has(got []string, want string) {
	s.t.Helper()
	if !slices.Contains(got, want) {
		s.t.Errorf("no %q in %q", want, got)
	}
}

func equal[T comparable](s *stage, what string, got, want T) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (s *stage) lock(conn *grpc.ClientConn, path string) *pb.AcquireLocksResponse {
	s.t.Helper()
	r, err := pb.NewLockServiceClient(conn).AcquireLocks(s.ctx,
		&pb.AcquireLocksRequest{Paths: []string{path}, KeepTicket: true})
	return must(s, r, err)
}

func (s *stage) locks() *pb.ListLocksResponse {
	s.t.Helper()
	r, err := pb.NewLockServiceClient(s.operator()).ListLocks(s.ctx, &pb.ListLocksRequest{})
	return must(s, r, err)
}

// turn asks for the token review/login.
func (s *stage) turn(conn *grpc.ClientConn) {
	s.t.Helper()
	r, err := pb.NewTokenServiceClient(conn).AcquireToken(s.ctx,
		&pb.AcquireTokenRequest{Type: "review", Scope: "login", KeepTicket: true})
	must(s, r, err)
}

func (s *stage) token() *pb.GetTokenResponse {
	s.t.Helper()
	r, err := pb.NewTokenServiceClient(s.operator()).GetToken(s.ctx, &pb.GetTokenRequest{Type: "review", Scope: "login"})
	return must(s, r, err)
}

func (s *stage) task(id string) *pb.Task {
	s.t.Helper()
	r, err := pb.NewTaskServiceClient(s.operator()).GetTask(s.ctx, &pb.GetTaskRequest{Id: id})
	return must(s, r, err).GetTask()
}

// tasks creates the tasks build and, after it, test. builder-1 claims the first.
func (s *stage) tasks() {
	s.t.Helper()
	created, err := pb.NewTaskServiceClient(s.lead).CreateTasks(s.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{
		{Id: "build", Title: "Build"}, {Id: "test", Title: "Test", DependsOn: []string{"build"}},
	}})
	must(s, created, err)
	claimed, err := pb.NewTaskServiceClient(s.worker).ClaimTask(s.ctx, &pb.ClaimTaskRequest{Id: "build"})
	must(s, claimed, err)
}

func (s *stage) decision() *pb.Decision {
	s.t.Helper()
	r, err := pb.NewDecisionServiceClient(s.operator()).GetDecision(s.ctx, &pb.GetDecisionRequest{Id: s.id})
	return must(s, r, err).GetDecision()
}

// review opens a review of builder-1, for lead.
func (s *stage) review(deadline *timestamppb.Timestamp) {
	s.t.Helper()
	r, err := pb.NewDecisionServiceClient(s.worker).OpenDecision(s.ctx, &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_REVIEW, To: &pb.OpenDecisionRequest_Agent{Agent: "lead"}, Title: "login",
		Deadline: deadline,
	})
	s.id = must(s, r, err).GetDecision().GetId()
}

func (s *stage) vote() *pb.GetVoteResponse {
	s.t.Helper()
	r, err := pb.NewVoteServiceClient(s.operator()).GetVote(s.ctx, &pb.GetVoteRequest{Id: s.id})
	return must(s, r, err)
}

func (s *stage) openVote() {
	s.t.Helper()
	r, err := pb.NewVoteServiceClient(s.lead).OpenVote(s.ctx,
		&pb.OpenVoteRequest{Title: "Deploy?", Options: []string{"yes", "no"}})
	s.id = must(s, r, err).GetVote().GetId()
}

func (s *stage) handoff() *pb.Handoff {
	s.t.Helper()
	r, err := pb.NewHandoffServiceClient(s.operator()).GetHandoff(s.ctx, &pb.GetHandoffRequest{Id: s.id})
	return must(s, r, err).GetHandoff()
}

func (s *stage) openHandoff() {
	s.t.Helper()
	r, err := pb.NewHandoffServiceClient(s.lead).CreateHandoff(s.ctx,
		&pb.CreateHandoffRequest{Title: "Login", ToAgent: "builder-1"})
	s.id = must(s, r, err).GetHandoff().GetId()
}

func (s *stage) blocker() *pb.Blocker {
	s.t.Helper()
	r, err := pb.NewBlockerServiceClient(s.operator()).GetBlocker(s.ctx, &pb.GetBlockerRequest{Id: s.id})
	return must(s, r, err).GetBlocker()
}

func (s *stage) raise() {
	s.t.Helper()
	r, err := pb.NewBlockerServiceClient(s.worker).RaiseBlocker(s.ctx, &pb.RaiseBlockerRequest{Reason: "no access"})
	s.id = must(s, r, err).GetBlocker().GetId()
}

func (s *stage) thread() *pb.ThreadSummary {
	s.t.Helper()
	r, err := pb.NewMessageServiceClient(s.operator()).ListMessages(s.ctx,
		&pb.ListMessagesRequest{Filter: &pb.MessageFilter{ThreadId: s.id}})
	return must(s, r, err).GetThread()
}

func TestFinding_OffersTheCallsThatNeedNothingMore(t *testing.T) {
	s := full(t, 120, 40, false, false)
	s.press("1", "a")
	if got := s.state().Offered(); !slices.Equal(got, []string{`MoveMessages {"from":"role:painter","to":"role:builder"}`}) {
		t.Errorf("offered: %q", got)
	}
}
