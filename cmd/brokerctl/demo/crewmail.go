package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// leaveTime is how long a loop may settle its work when its context has ended.
const leaveTime = time.Millisecond

// mail handles the messages of a member and of its role.
func (s *shift) mail(ctx context.Context) error {
	return s.agent.Work(ctx, client.WorkOptions{DrainTimeout: leaveTime}, s.handle)
}

// handle handles one message. Its payload says what the broker asks for.
func (s *shift) handle(ctx context.Context, claim *client.Claim) error {
	m := claim.Message
	var of struct {
		DecisionID string   `json:"decision_id"`
		VoteID     string   `json:"vote_id"`
		HandoffID  string   `json:"handoff_id"`
		Options    []string `json:"options"`
	}
	if m.GetPayload() != "" {
		if err := json.Unmarshal([]byte(m.GetPayload()), &of); err != nil {
			return client.Fatal(err)
		}
	}
	if m.GetType() == "terminate" {
		s.end(errTerminated)
		return nil
	}
	s.rest(ctx, 1500*time.Millisecond)
	var err error
	switch m.GetType() {
	case "question":
		if s.crew.oneOf(4, questions) {
			return nil // the question stays open
		}
		err = claim.Reply(ctx, &pb.Message{Body: "Yes, and add a test."})
	case "submit_for_review":
		verdict := &pb.DecideRequest{Id: of.DecisionID, Verdict: "approve", Reason: "Looks good."}
		if s.crew.oneOf(4, reviews) {
			verdict.Verdict, verdict.Reason = "reject", "The tests do not cover the errors."
		}
		_, err = s.agent.Decisions().Decide(ctx, verdict)
	case "vote_initiate":
		if len(of.Options) == 0 { // a person has sent the message
			return client.Fatal(errors.New("the vote has no options"))
		}
		choice := of.Options[len(s.agent.Identity().Agent)%len(of.Options)]
		_, err = s.agent.Votes().CastVote(ctx, &pb.CastVoteRequest{Id: of.VoteID, Option: choice})
	case "handoff_request":
		_, err = s.agent.Handoffs().AcceptHandoff(ctx, &pb.AcceptHandoffRequest{Id: of.HandoffID})
	case "request":
		if s.crew.oneOf(2, requests) {
			return client.Fatal(errors.New("no such repository: " + m.GetLabels()["repository"]))
		}
		err = claim.Reply(ctx, &pb.Message{Body: "Done."})
	}
	return err
}

// build does tasks.
func (s *shift) build(ctx context.Context) error {
	return s.agent.WorkTasks(ctx, client.TaskOptions{DrainTimeout: leaveTime}, s.do)
}

// do does one task while it holds the lock of the task's files.
func (s *shift) do(ctx context.Context, t *client.TaskClaim) error {
	labels := t.Task.GetLabels()
	if err := s.say(ctx, pb.AgentStatus_AGENT_STATUS_ACTIVE, t.Task.GetTitle()); err != nil {
		return err
	}
	free, err := s.lock(ctx, labels["path"], t.Task.GetTitle())
	if err != nil {
		return err
	}
	defer free()
	for step := range 4 {
		s.rest(ctx, 1200*time.Millisecond)
		if err := t.Report(ctx, float64(step+1)/5, fmt.Sprintf("step %d of 4", step+1)); err != nil {
			return err
		}
	}
	if text := labels["question"]; text != "" {
		question := &pb.Message{Target: toRole(reviewer), Type: "question", Subject: text, TaskId: t.Task.GetId()}
		_, err := s.agent.Messages().Ask(ctx, &pb.AskRequest{Message: question, Wait: seconds(4)})
		if err != nil {
			return err
		}
	}
	if text := labels["breaks"]; text != "" && s.crew.oneOf(2, schemas) {
		return client.Fatal(errors.New(text))
	}
	if text := labels["fails"]; text != "" && t.Attempt == 1 {
		return errors.New(text)
	}
	if labels["review"] != "" {
		_, err := s.agent.Decisions().OpenDecision(ctx, &pb.OpenDecisionRequest{
			Kind: pb.DecisionKind_DECISION_KIND_REVIEW, To: &pb.OpenDecisionRequest_Role{Role: reviewer},
			Title: t.Task.GetTitle(), TaskId: t.Task.GetId(),
			Content: &pb.DecisionContent{Body: "Please review " + labels["path"] + "."},
		})
		if err != nil {
			return err
		}
	}
	t.Result = "merged"
	return nil
}

// lock acquires a path and returns a function that releases it.
func (s *shift) lock(ctx context.Context, path, reason string) (free func(), err error) {
	got, err := s.agent.Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{
		Paths: []string{path}, Wait: seconds(20), Reason: reason,
	})
	if err != nil {
		return nil, err
	}
	if got.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		return nil, errors.New(path + " is locked by another agent")
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		// An error means that the lock was lost: a person has released it, or the broker stops.
		_, _ = s.agent.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Fences: []int64{got.GetFence()}})
	}, nil
}
