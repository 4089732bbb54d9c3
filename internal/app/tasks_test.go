package app_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestGetTask_FullHasEverythingThatCarriesTheID(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	a := b.Registered("a", "builder")
	b.Registered("b", "builder")
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	check := func(_ any, err error) {
		t.Helper()
		apptest.NoError(t, err)
	}
	const task = "t1"
	check(pb.NewTaskServiceClient(a).CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Id: task, Title: "all"}}}))
	check(pb.NewMessageServiceClient(a).SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "b"}}, Subject: "about it", TaskId: task},
	}}))
	check(pb.NewStateServiceClient(a).PutState(ctx, &pb.PutStateRequest{
		Namespace: "plan", Key: "k", Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: "v"}}, TaskId: proto.String(task),
	}))
	check(pb.NewDecisionServiceClient(a).OpenDecision(ctx, &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_REVIEW, To: &pb.OpenDecisionRequest_Agent{Agent: "b"}, Title: "review", TaskId: task,
	}))
	check(pb.NewBlockerServiceClient(a).RaiseBlocker(ctx, &pb.RaiseBlockerRequest{Reason: "blocked", TaskId: task}))
	check(pb.NewHandoffServiceClient(a).CreateHandoff(ctx, &pb.CreateHandoffRequest{Title: "handoff", TaskId: task, ToAgent: "b"}))
	check(pb.NewVoteServiceClient(a).OpenVote(ctx, &pb.OpenVoteRequest{Title: "vote", Options: []string{"x", "y"}, TaskId: task}))
	upload, err := pb.NewArtifactServiceClient(a).UploadArtifact(ctx)
	check(nil, err)
	check(nil, upload.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{
		Header: &pb.ArtifactHeader{Name: "plan.md", Description: "the plan", TaskId: task},
	}}))
	check(upload.CloseAndRecv())

	got := apptest.Must(t, pb.NewTaskServiceClient(a).GetTask,
		&pb.GetTaskRequest{Id: task, View: pb.TaskView_TASK_VIEW_FULL})
	titles := map[string]string{}
	for _, r := range got.GetReferences() {
		if r.GetRevision() == 0 || r.GetId() == "" {
			t.Errorf("%v has no id or revision", r)
		}
		if r.GetKind() != "message" || r.GetTitle() == "about it" { // letters carry the id too
			titles[r.GetKind()] = r.GetTitle()
		}
	}
	delete(titles, "event")
	want := map[string]string{
		"artifact": "the plan", "blocker": "blocked", "decision": "review: review", "handoff": "handoff",
		"message": "about it", "state": "plan/k", "vote": "vote",
	}
	if diff := cmp.Diff(want, titles); diff != "" {
		t.Errorf("titles by kind (-want +got):\n%s", diff)
	}
}
