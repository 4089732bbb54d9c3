package demo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// features are what the sprints build.
var features = []string{"sign-in", "search", "billing", "export", "notifications"}

// sprintTasks are the tasks of a sprint. after names the task that a task depends on.
var sprintTasks = []struct {
	id, title, after string
	labels           map[string]string
}{
	{"design", "Design the %s", "", map[string]string{"path": "docs/guide.md", "question": "Is the design small enough?"}},
	{"schema", "Write the schema of the %s", "design", map[string]string{
		"path": "db/schema.sql", "breaks": "the test database is locked",
	}},
	{"api", "Write the API of the %s", "design", map[string]string{"path": "src/api/", "review": "yes"}},
	{"form", "Write the form of the %s", "api", map[string]string{"path": "src/", "fails": "2 of 40 tests fail"}},
	{"release", "Release the %s", "form", map[string]string{"path": "src/api/routes.go", "review": "yes"}},
}

// lead plans one sprint after another.
func (s *shift) lead(ctx context.Context) error {
	for sprint := 1; ctx.Err() == nil; sprint++ {
		if err := s.sprint(ctx, sprint); err != nil {
			return err
		}
		s.rest(ctx, 3*time.Second)
	}
	return context.Cause(ctx)
}

// sprint creates the tasks of a feature, sends a request, opens a vote or raises a blocker, and waits
// for the tasks.
func (s *shift) sprint(ctx context.Context, number int) error {
	feature := features[number%len(features)]
	if err := s.say(ctx, pb.AgentStatus_AGENT_STATUS_ACTIVE, "plans the "+feature); err != nil {
		return err
	}
	tasks, err := s.plan(ctx, feature)
	if err != nil {
		return err
	}
	repository := map[string]string{"repository": "old-" + feature}
	_, err = s.agent.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: toRole("builder"), Type: "request", Subject: "Archive the old " + feature, Labels: repository},
		{Target: toRole("builder"), Type: "request", Subject: "Port the old " + feature, Labels: repository,
			RequiresResponse: true},
	}})
	if err != nil {
		return err
	}
	_, err = s.agent.Votes().OpenVote(ctx, &pb.OpenVoteRequest{
		Title: "When do we release the " + feature + "?", Options: []string{"today", "tomorrow", "next week"},
		Electorate: &pb.OpenVoteRequest_Everyone{Everyone: true}, Deadline: timestamppb.New(time.Now().Add(2 * time.Minute)),
	})
	if err != nil {
		return err
	}
	settle, err := s.block(ctx, feature)
	if err != nil {
		return err
	}
	for range 4 { // the tasks end in several waits, or a person has cancelled some
		s.rest(ctx, 8*time.Second)
		if err := s.say(ctx, pb.AgentStatus_AGENT_STATUS_WAITING, "waits for the "+feature); err != nil {
			return err
		}
	}
	if err := settle(); err != nil {
		return err
	}
	_, err = s.agent.Tasks().WaitTasks(ctx, &pb.WaitTasksRequest{TaskIds: tasks, Wait: seconds(5)})
	return err
}

// plan creates the tasks of a feature and returns their ids.
func (s *shift) plan(ctx context.Context, feature string) ([]string, error) {
	run := time.Now().UTC().Format("150405.000")
	id := func(task string) string { return feature + "-" + task + "-" + run }
	request := &pb.CreateTasksRequest{}
	var ids []string
	for _, t := range sprintTasks {
		task := &pb.NewTask{Id: id(t.id), Title: fmt.Sprintf(t.title, feature), Role: "builder", Labels: t.labels}
		if t.after != "" {
			task.DependsOn = []string{id(t.after)}
		}
		request.Tasks, ids = append(request.Tasks, task), append(ids, task.GetId())
	}
	_, err := s.agent.Tasks().CreateTasks(ctx, request)
	return ids, err
}

// block raises a blocker, offers the release to the reviewer, and holds the token of deployments. It
// returns a function that resolves the blocker and releases the token.
func (s *shift) block(ctx context.Context, feature string) (settle func() error, err error) {
	raised, err := s.agent.Blockers().RaiseBlocker(ctx, &pb.RaiseBlockerRequest{
		Reason: "No access to the staging server for the " + feature, Severity: pb.BlockerSeverity_BLOCKER_SEVERITY_HIGH,
		Awaited: &pb.AwaitedObject{Object: &pb.AwaitedObject_Role{Role: "operator"}},
	})
	if err != nil {
		return nil, err
	}
	_, err = s.agent.Handoffs().CreateHandoff(ctx, &pb.CreateHandoffRequest{
		Title: "The release notes of the " + feature, ToAgent: reviewer, Checklist: []string{"name every change"},
	})
	if err != nil {
		return nil, err
	}
	token := &pb.AcquireTokenRequest{Type: "deploy", Scope: "staging", Wait: seconds(5), Reason: "release the " + feature}
	held, err := s.agent.Tokens().AcquireToken(ctx, token)
	if err != nil {
		return nil, err
	}
	return func() error {
		id := raised.GetBlocker().GetId()
		// An error means that a person has already resolved the blocker or revoked the token.
		_, _ = s.agent.Blockers().ResolveBlocker(ctx, &pb.ResolveBlockerRequest{Id: id, Resolution: "The access works."})
		if held.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
			_, _ = s.agent.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: token.GetType(), Scope: token.GetScope()})
		}
		return ctx.Err()
	}, nil
}

func toRole(name string) *pb.Target { return &pb.Target{To: &pb.Target_Role{Role: name}} }

func seconds(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
