package app_test

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// ofWork are the limits of tasks, decisions, blockers, handoffs, votes and artifacts.
func (g *glutton) ofWork() []beyond {
	conn := g.broker.Conn("glutton")
	tasks, decisions := pb.NewTaskServiceClient(conn), pb.NewDecisionServiceClient(conn)
	handoffs, votes := pb.NewHandoffServiceClient(conn), pb.NewVoteServiceClient(conn)
	long := durationpb.New(time.Hour + 1)
	far := timestamppb.New(time.Now().Add(366 * 24 * time.Hour))
	task := func(change func(*pb.NewTask)) func() error {
		return func() error {
			n := &pb.NewTask{Title: "T"}
			change(n)
			return apptest.Err(tasks.CreateTasks(g.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{n}}))
		}
	}
	decision := func(change func(*pb.OpenDecisionRequest)) func() error {
		return func() error {
			r := &pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_CUSTOM, To: &pb.OpenDecisionRequest_Agent{Agent: "worker"}, Verdicts: []string{"yes"},
				Content: &pb.DecisionContent{}}
			change(r)
			return apptest.Err(decisions.OpenDecision(g.ctx, r))
		}
	}
	verdict := func(change func(*pb.DecideRequest)) func() error {
		return func() error {
			r := &pb.DecideRequest{Id: "d-1", Verdict: "yes"}
			change(r)
			return apptest.Err(decisions.Decide(g.ctx, r))
		}
	}
	handoff := func(change func(*pb.CreateHandoffRequest)) func() error {
		return func() error {
			r := &pb.CreateHandoffRequest{Title: "T", ToAgent: "worker", Content: &pb.HandoffContent{}}
			change(r)
			return apptest.Err(handoffs.CreateHandoff(g.ctx, r))
		}
	}
	vote := func(change func(*pb.OpenVoteRequest)) func() error {
		return func() error {
			r := &pb.OpenVoteRequest{Title: "T", Options: []string{"a", "b"}}
			change(r)
			return apptest.Err(votes.OpenVote(g.ctx, r))
		}
	}
	names := func(n int) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("n%d", i)
		}
		return all
	}
	return []beyond{
		invalid("tasks", "1000", func() error {
			return apptest.Err(tasks.CreateTasks(g.ctx, &pb.CreateTasksRequest{Tasks: make1001(&pb.NewTask{Title: "T"})}))
		}),
		invalid("tasks", "5000", func() error {
			return apptest.Err(tasks.CreateTasks(g.ctx, &pb.CreateTasksRequest{Tasks: slices.Repeat([]*pb.NewTask{{Title: "T", DependsOn: names(1000)}}, 6)}))
		}),
		invalid("tasks", "10000", func() error {
			return apptest.Err(tasks.CreateTasks(g.ctx, &pb.CreateTasksRequest{Tasks: slices.Repeat([]*pb.NewTask{{Title: "T", Labels: labels(10)}}, 1000)}))
		}),
		invalid("tasks[0].title", "512", task(func(n *pb.NewTask) { n.Title = text(513) })),
		invalid("tasks[0].description", "65536", task(func(n *pb.NewTask) { n.Description = text(64<<10 + 1) })),
		invalid("tasks[0].depends_on", "1000", task(func(n *pb.NewTask) { n.DependsOn = names(1001) })),
		invalid("tasks[0].capabilities", "32", task(func(n *pb.NewTask) { n.Capabilities = names(33) })),
		invalid("tasks[0].labels", "64", task(func(n *pb.NewTask) { n.Labels = labels(65) })),
		invalid("tasks[0].artifacts", "100", task(func(n *pb.NewTask) { n.Artifacts = names(101) })),
		invalid("tasks[0].max_attempts", "100", task(func(n *pb.NewTask) { n.MaxAttempts = 101 })),
		invalid("tasks[0].stale_after", "30d", task(func(n *pb.NewTask) { n.StaleAfter = durationpb.New(30*24*time.Hour + 1) })),
		invalid("wait", "1h", func() error { return apptest.Err(tasks.ClaimTask(g.ctx, &pb.ClaimTaskRequest{Wait: long})) }),
		invalid("result", "65536", func() error {
			return apptest.Err(tasks.CompleteTask(g.ctx, &pb.CompleteTaskRequest{Id: "t", Result: text(64<<10 + 1)}))
		}),
		invalid("note", "4096", func() error {
			return apptest.Err(tasks.UpdateTask(g.ctx, &pb.UpdateTaskRequest{Id: "t", Note: proto.String(text(4097))}))
		}),
		invalid("error", "4096", func() error {
			return apptest.Err(tasks.FailTask(g.ctx, &pb.FailTaskRequest{Id: "t", Error: text(4097)}))
		}),
		invalid("task_ids", "1000", func() error { return apptest.Err(tasks.WaitTasks(g.ctx, &pb.WaitTasksRequest{TaskIds: names(1001)})) }),
		invalid("wait", "1h", func() error {
			return apptest.Err(tasks.WaitTasks(g.ctx, &pb.WaitTasksRequest{TaskIds: []string{"t"}, Wait: long}))
		}),

		invalid("content", "262144", decision(func(r *pb.OpenDecisionRequest) { r.Content.Artifacts = slices.Repeat([]string{text(1000)}, 300) })),
		invalid("deadline", "365 days", decision(func(r *pb.OpenDecisionRequest) { r.Deadline = far })),
		invalid("feedback", "65536", verdict(func(r *pb.DecideRequest) { r.Feedback = slices.Repeat([]*pb.Feedback{{Text: text(4 << 10)}}, 17) })),

		invalid("content", "524288", handoff(func(r *pb.CreateHandoffRequest) {
			r.Checklist, r.Content.NextSteps = slices.Repeat([]string{text(4 << 10)}, 100), slices.Repeat([]string{text(4 << 10)}, 100)
		})),

		invalid("agents", "100", vote(func(r *pb.OpenVoteRequest) {
			r.Electorate = &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: names(101)}}
		})),
		invalid("deadline", "365", vote(func(r *pb.OpenVoteRequest) { r.Deadline = far })),

		invalid("header.name", "1024", g.uploads(&pb.ArtifactHeader{Name: text(1025)})),
		invalid("header.media_type", "256", g.uploads(&pb.ArtifactHeader{Name: "a", MediaType: text(257)})),
		invalid("header.description", "512", g.uploads(&pb.ArtifactHeader{Name: "a", Description: text(513)})),
		invalid("header.labels", "64", g.uploads(&pb.ArtifactHeader{Name: "a", Labels: labels(65)})),
		exhausted("ARTIFACT_TOO_LARGE", "4294967296", g.uploads(&pb.ArtifactHeader{Name: "a", Size: 4<<30 + 1})),
	}
}

// uploads sends the header of an upload alone.
func (g *glutton) uploads(h *pb.ArtifactHeader) func() error {
	return func() error {
		stream, err := g.broker.Actor("default", "glutton").UploadArtifact(g.ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}}); err != nil {
			return err
		}
		return apptest.Err(stream.CloseAndRecv())
	}
}
