package app_test

import pb "brokerd/gen/brokerd/v1"

// work makes calls of tasks, decisions, blockers, handoffs and votes.
func (p *play) work() {
	const tasks = "TaskService/"
	create := func(all ...*pb.NewTask) {
		p.t.Helper()
		call[pb.CreateTasksResponse](p, "a", tasks+"CreateTasks", &pb.CreateTasksRequest{Tasks: all})
	}
	claim := func(agent string) *pb.Task {
		p.t.Helper()
		return call[pb.ClaimTaskResponse](p, agent, tasks+"ClaimTask", &pb.ClaimTaskRequest{}).Task
	}
	// Each combination of role and capabilities has a queue, which the writer keeps in memory.
	create(&pb.NewTask{Id: "one", Title: "One", Role: "builder"}, &pb.NewTask{Id: "two", Title: "Two", DependsOn: []string{"one"}})
	create(&pb.NewTask{Id: "three", Title: "Three", Role: "builder", Priority: 1})
	one := claim("b")
	call[pb.UpdateTaskResponse](p, "b", tasks+"UpdateTask", &pb.UpdateTaskRequest{Id: one.Id, BlockChange: &pb.UpdateTaskRequest_Block{Block: "no key"}})
	call[pb.UpdateTaskResponse](p, "b", tasks+"UpdateTask", &pb.UpdateTaskRequest{Id: one.Id, BlockChange: &pb.UpdateTaskRequest_Unblock{Unblock: true}})
	call[pb.CompleteTaskResponse](p, "b", tasks+"CompleteTask", &pb.CompleteTaskRequest{Id: one.Id, Fence: one.Fence})
	two := claim("c")
	call[pb.ReleaseTaskResponse](p, "c", tasks+"ReleaseTask", &pb.ReleaseTaskRequest{Id: two.Id})
	two = claim("c")
	call[pb.FailTaskResponse](p, "c", tasks+"FailTask", &pb.FailTaskRequest{Id: two.Id, Error: "broke", Fatal: true})
	call[pb.RetryTaskResponse](p, "a", tasks+"RetryTask", &pb.RetryTaskRequest{Id: two.Id})
	claim("b")

	offer := call[pb.CreateHandoffResponse](p, "b", "HandoffService/CreateHandoff",
		&pb.CreateHandoffRequest{Title: "Two", ToAgent: "c", TaskId: two.Id, TransferTask: true, Checklist: []string{"x"}}).Handoff
	call[pb.CheckHandoffItemResponse](p, "c", "HandoffService/CheckHandoffItem", &pb.CheckHandoffItemRequest{Id: offer.Id, Number: 1})
	call[pb.AcceptHandoffResponse](p, "c", "HandoffService/AcceptHandoff", &pb.AcceptHandoffRequest{Id: offer.Id})

	obstacle := call[pb.RaiseBlockerResponse](p, "c", "BlockerService/RaiseBlocker", &pb.RaiseBlockerRequest{
		Reason: "no key", TaskId: two.Id, Recipients: []*pb.BlockerRecipient{{Recipient: &pb.BlockerRecipient_Agent{Agent: "a"}}},
	}).Blocker
	call[pb.AcknowledgeBlockerResponse](p, "a", "BlockerService/AcknowledgeBlocker", &pb.AcknowledgeBlockerRequest{Id: obstacle.Id})
	call[pb.ResolveBlockerResponse](p, "a", "BlockerService/ResolveBlocker", &pb.ResolveBlockerRequest{Id: obstacle.Id})

	review := call[pb.OpenDecisionResponse](p, "a", "DecisionService/OpenDecision", &pb.OpenDecisionRequest{
		Kind: pb.DecisionKind_DECISION_KIND_REVIEW, To: &pb.OpenDecisionRequest_Agent{Agent: "b"}, Title: "T",
	}).Decision
	for _, verdict := range []string{"revise", "approve"} {
		call[pb.DecideResponse](p, "b", "DecisionService/Decide", &pb.DecideRequest{Id: review.Id, Verdict: verdict})
		if verdict == "revise" {
			call[pb.ResubmitDecisionResponse](p, "a", "DecisionService/ResubmitDecision", &pb.ResubmitDecisionRequest{Id: review.Id})
		}
	}

	vote := call[pb.OpenVoteResponse](p, "a", "VoteService/OpenVote", &pb.OpenVoteRequest{Title: "T", Options: []string{"x", "y"}}).Vote
	for _, agent := range []string{"a", "b", "c"} {
		call[pb.CastVoteResponse](p, agent, "VoteService/CastVote", &pb.CastVoteRequest{Id: vote.Id, Option: "x"})
	}

	create(&pb.NewTask{Id: "four", Title: "Four", Assignee: "a"}) // its queue is new
	call[pb.ListTasksResponse](p, "a", tasks+"ListTasks", &pb.ListTasksRequest{Claimable: true})
	call[pb.ListTasksResponse](p, "a", tasks+"ListTasks", &pb.ListTasksRequest{})
}
