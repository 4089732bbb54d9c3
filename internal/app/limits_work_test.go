package app_test

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// ofWork are the limits of tasks, decisions, blockers, handoffs, votes and artifacts.
func (g *glutton) ofWork() []beyond {
	conn := g.broker.Conn("glutton")
	tasks, decisions := pb.NewTaskServiceClient(conn), pb.NewDecisionServiceClient(conn)
	votes := pb.NewVoteServiceClient(conn)
	far := timestamppb.New(time.Now().Add(366 * 24 * time.Hour))
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
		invalid("tasks", "5000", func() error {
			return apptest.Err(tasks.CreateTasks(g.ctx, &pb.CreateTasksRequest{Tasks: slices.Repeat([]*pb.NewTask{{Title: "T", DependsOn: names(1000)}}, 6)}))
		}),
		invalid("tasks", "10000", func() error {
			return apptest.Err(tasks.CreateTasks(g.ctx, &pb.CreateTasksRequest{Tasks: slices.Repeat([]*pb.NewTask{{Title: "T", Labels: labels(10)}}, 1000)}))
		}),
		invalid("content", "262144", decision(func(r *pb.OpenDecisionRequest) { r.Content.Artifacts = slices.Repeat([]string{text(1000)}, 300) })),
		invalid("deadline", "365 days", decision(func(r *pb.OpenDecisionRequest) { r.Deadline = far })),
		invalid("feedback", "65536", verdict(func(r *pb.DecideRequest) { r.Feedback = slices.Repeat([]*pb.Feedback{{Text: text(4 << 10)}}, 17) })),

		invalid("agents", "100", vote(func(r *pb.OpenVoteRequest) {
			r.Electorate = &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: names(101)}}
		})),

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
