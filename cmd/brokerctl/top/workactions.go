package top

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/each"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func taskActions(t *pb.Task) []action {
	id := t.GetId()
	var actions []action
	if t.GetState() == pb.TaskState_TASK_STATE_FAILED {
		return []action{{
			label: "retry", effect: "Make the task " + id + " ready again, with all its attempts",
			run: makes(&pb.RetryTaskRequest{Id: id}, id+" is ready again"),
		}}
	}
	if t.GetHolder() != "" {
		actions = append(actions, action{
			label: "release", effect: "Take the task " + id + " from " + t.GetHolder() + " and make it ready again",
			fields: []field{{name: "reason"}},
			run:    makes(&pb.ReleaseTaskRequest{Id: id}, id+" is released"),
		})
	}
	return append(actions, action{
		label: "cancel", effect: "Cancel the task " + id,
		fields: []field{{name: "reason"}, {name: "tasks that depend on it", options: []string{keepThem, cancelThem},
			required: true}},
		run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
			r, err := broker.Tasks().CancelTask(ctx, &pb.CancelTaskRequest{
				Id: id, Reason: v["reason"], Cascade: v["tasks that depend on it"] == cancelThem,
			})
			return "cancelled " + prompt.Count(int64(r.GetCancelled()), "task"), err
		},
	})
}

// What to do with the tasks that depend on a cancelled one.
const (
	keepThem   = "keep"
	cancelThem = "cancel too"
)

func voteActions(v *pb.Vote) []action {
	id := v.GetId()
	options := each.Of(v.GetTally(), (*pb.VoteTally).GetOption)
	return []action{
		{
			label: "vote", effect: "Cast a ballot of " + id + " (" + v.GetTitle() + ") in the name of an elector",
			fields: []field{{name: "elector", required: true}, {name: "option", options: options, required: true},
				{name: "reason"}},
			run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
				r, err := broker.As(v["elector"]).Votes().CastVote(ctx,
					&pb.CastVoteRequest{Id: id, Option: v["option"], Reason: v["reason"]})
				return fmt.Sprintf("voted; %d of %d electors have voted", r.GetVote().GetBallots(), r.GetVote().GetElectors()), err
			},
		},
		{
			label: "close", effect: "Close " + id + " (" + v.GetTitle() + ") with the ballots cast so far",
			fields: []field{{name: "reason"}},
			run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
				r, err := broker.Votes().CloseVote(ctx, &pb.CloseVoteRequest{Id: id, Reason: v["reason"]})
				return "closed: " + enum(r.GetVote().GetOutcome()).text + " " + r.GetVote().GetWinner(), err
			},
		},
	}
}

func decisionActions(d *pb.Decision) []action {
	id := d.GetId()
	// An operator decides after an escalation only.
	by := prompt.Either(d.GetState() == pb.DecisionState_DECISION_STATE_ESCALATED, "", d.GetAgent())
	var actions []action
	if d.GetState() != pb.DecisionState_DECISION_STATE_REVISING {
		actions = append(actions, action{
			label: "decide", effect: "Give the verdict of " + id + " (" + d.GetTitle() +
				"), as the named agent or else as operator",
			fields: []field{
				{name: "verdict", options: d.GetVerdicts(), required: true}, {name: "reason"},
				{name: "as agent", value: by}, {name: "until"},
			},
			run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
				request := &pb.DecideRequest{Id: id, Verdict: v["verdict"], Reason: v["reason"],
					Round: d.GetRound()}
				if v["until"] != "" {
					until, err := time.Parse(time.RFC3339, v["until"])
					if err != nil {
						return "", fmt.Errorf("until %q is no time such as 2026-01-02T15:04:05Z", v["until"])
					}
					request.Until = timestamppb.New(until)
				}
				if v["as agent"] != "" {
					broker = broker.As(v["as agent"])
				}
				r, err := broker.Decisions().Decide(ctx, request)
				return id + " is " + enum(r.GetDecision().GetState()).text, err
			},
		})
	}
	return append(actions, action{
		label: "cancel", effect: "Cancel " + id + " (" + d.GetTitle() + ") without a verdict",
		fields: []field{{name: "reason"}},
		run:    makes(&pb.CancelDecisionRequest{Id: id}, id+" is cancelled"),
	})
}

func handoffActions(h *pb.Handoff) []action {
	id := h.GetId()
	return []action{
		{
			label: "cancel", effect: "Withdraw the handoff " + id + " (" + h.GetTitle() + ")",
			fields: []field{{name: "reason"}},
			run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
				_, err := broker.Handoffs().CancelHandoff(ctx, &pb.CancelHandoffRequest{Id: id, Notes: v["reason"]})
				return id + " is cancelled", err
			},
		},
		{
			label: "reject", effect: "Refuse the handoff " + id + " (" + h.GetTitle() + "); the sender keeps the work",
			fields: []field{{name: "reason", required: true}},
			run: func(ctx context.Context, broker *client.Client, v values) (string, error) {
				_, err := broker.Handoffs().RejectHandoff(ctx, &pb.RejectHandoffRequest{Id: id, Notes: v["reason"]})
				return id + " is rejected", err
			},
		},
	}
}

func blockerActions(b *pb.Blocker) []action {
	id := b.GetId()
	return []action{
		{
			label: "resolve", effect: "Resolve the blocker " + id + " of " + b.GetAgent(),
			fields: []field{{name: "resolution", required: true}},
			run:    makes(&pb.ResolveBlockerRequest{Id: id}, id+" is resolved"),
		},
		{
			label: "acknowledge", effect: "Say that the blocker " + id +
				" is being worked on, which ends its escalation", fields: []field{{name: "note"}},
			run: makes(&pb.AcknowledgeBlockerRequest{Id: id}, id+" is acknowledged"),
		},
	}
}
