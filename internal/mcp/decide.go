package mcp

import (
	"fmt"
	"regexp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// outcomeWait is the wait in proposed calls.
func outcomeWait() *durationpb.Duration { return durationpb.New(mostWait) }

// decisionIDs are texts that name a decision by its id, not by its scope.
var decisionIDs = regexp.MustCompile(`^(d-)?[0-9]+$`)

// decisionID returns the id of a decision: the given one, or that of the newest decision of a scope.
func decisionID(c *call, kind pb.DecisionKind) (string, error) {
	ref := c.arg("id")
	if decisionIDs.MatchString(ref) {
		return ref, nil
	}
	page, err := c.api.ListDecisions(c.ctx, &pb.ListDecisionsRequest{Kind: kind, Scope: ref, PageSize: 1})
	if err != nil {
		return "", err
	}
	if len(page.GetDecisions()) == 0 {
		what := prompt.Enum(kind)
		if kind == 0 {
			what = "decision"
		}
		return "", refusef("there is no %s of %s in this session", what, quote(ref))
	}
	return page.GetDecisions()[0].GetId(), nil
}

func submitReview(c *call) error {
	return submitDecision(c, pb.DecisionKind_DECISION_KIND_REVIEW, c.arg("about"))
}

func submitPlan(c *call) error {
	return submitDecision(c, pb.DecisionKind_DECISION_KIND_PLAN, c.arg("about"))
}

func submitShutdown(c *call) error {
	return submitDecision(c, pb.DecisionKind_DECISION_KIND_SHUTDOWN, c.arg("to"))
}

func submitQuestion(c *call) error {
	return submitDecision(c, pb.DecisionKind_DECISION_KIND_CUSTOM, "")
}

// submitDecision opens a decision, or the next round of the agent's own one of the same kind and scope, and
// waits for the verdict. While that one waits for its verdict, it sends nothing, and refuses other content.
func submitDecision(c *call, kind pb.DecisionKind, scope string) error {
	r := &pb.OpenDecisionRequest{
		RequestId: c.requestID, Kind: kind, Scope: scope, TaskId: c.arg("task"), Verdicts: c.args["options"],
		Content: &pb.DecisionContent{Body: c.arg("text")}, MaxRounds: 3,
	}
	switch kind {
	case pb.DecisionKind_DECISION_KIND_SHUTDOWN:
		r.Title, r.Content, r.MaxRounds = c.arg("text"), nil, 0
	case pb.DecisionKind_DECISION_KIND_CUSTOM:
		if r.Title = c.arg("about"); r.Title == "" {
			r.Title, r.Content = c.arg("text"), &pb.DecisionContent{}
		}
	}
	if c.has("to") {
		agent, role, err := ParseAgentOrRole(c.arg("to"))
		if err != nil {
			return err
		}
		r.To = &pb.OpenDecisionRequest_Agent{Agent: agent}
		if role != "" {
			r.To = &pb.OpenDecisionRequest_Role{Role: role}
		}
	}
	d, err := ownDecision(c, r)
	if err != nil {
		return err
	}
	switch {
	case d.GetState() == pb.DecisionState_DECISION_STATE_REVISING:
		answer, err := c.api.ResubmitDecision(c.ctx, &pb.ResubmitDecisionRequest{
			RequestId: c.requestID, Id: d.GetId(), Title: r.Title, Content: r.Content,
		})
		if err != nil {
			return err
		}
		d = answer.GetDecision()
	case d == nil && r.To == nil:
		return argumentf("the receiver is missing: give to, an agent or role:NAME that decides")
	case d == nil:
		answer, err := c.api.OpenDecision(c.ctx, r)
		if err != nil {
			return err
		}
		d = answer.GetDecision()
	default:
		if err := checkSameRound(c, r, d); err != nil {
			return err
		}
	}
	return awaitVerdict(c, d)
}

// ownDecision returns the unfinished decision of the kind and scope of a request that the agent opened; nil if there is
// none.
func ownDecision(c *call, r *pb.OpenDecisionRequest) (*pb.Decision, error) {
	if r.GetScope() == "" {
		return nil, nil
	}
	page, err := c.api.ListDecisions(c.ctx, &pb.ListDecisionsRequest{
		Kind: r.GetKind(), Scope: r.GetScope(), Opener: c.name, PageSize: 1, States: []pb.DecisionState{
			pb.DecisionState_DECISION_STATE_OPEN, pb.DecisionState_DECISION_STATE_REVISING,
			pb.DecisionState_DECISION_STATE_ESCALATED,
		},
	})
	if err != nil || len(page.GetDecisions()) == 0 {
		return nil, err
	}
	return page.GetDecisions()[0], nil
}

// checkSameRound reports that the round of a decision is open, and refuses a submission that differs from it.
// An absent title or content does not differ.
func checkSameRound(c *call, r *pb.OpenDecisionRequest, d *pb.Decision) error {
	answer, err := c.api.GetDecision(c.ctx, &pb.GetDecisionRequest{Id: d.GetId()})
	if err != nil {
		return err
	}
	d = answer.GetDecision()
	differs := r.GetTitle() != "" && r.GetTitle() != d.GetTitle() || r.GetAgent() != "" && r.GetAgent() != d.GetAgent() ||
		r.GetRole() != "" && r.GetRole() != d.GetRole() ||
		r.GetContent().GetBody() != "" && !proto.Equal(r.GetContent(), d.GetContent())
	open := fmt.Sprintf("round %d of %s is open, and its receiver and content are unchanged", d.GetRound(), d.GetId())
	if differs {
		return refusef("%s: wait for the verdict (%s), or cancel it (%s) and submit again", open,
			do(&pb.GetDecisionRequest{Id: d.GetId(), Wait: outcomeWait()}),
			do(&pb.CancelDecisionRequest{Id: d.GetId()}))
	}
	return c.say("warning: %s", open)
}

// awaitVerdict shows a decision, after the wait of the call for a verdict.
func awaitVerdict(c *call, d *pb.Decision) error {
	wait := c.wait()
	if wait == 0 {
		c.voice.Decision(c.w, d)
		return nil
	}
	decided, err := c.await(wait, func(left *durationpb.Duration) (bool, error) {
		answer, err := c.api.GetDecision(c.ctx, &pb.GetDecisionRequest{Id: d.GetId(), Wait: left})
		if err == nil {
			d = answer.GetDecision()
		}
		open := d.GetState() == pb.DecisionState_DECISION_STATE_OPEN || d.GetState() == pb.DecisionState_DECISION_STATE_ESCALATED
		return !open, err
	})
	if err != nil {
		return err
	}
	if !decided {
		return nothingf("no verdict on %s within %s; to wait on: %s", d.GetId(), prompt.Duration(wait),
			do(&pb.GetDecisionRequest{Id: d.GetId(), Wait: outcomeWait()}))
	}
	c.voice.Decision(c.w, d)
	return nil
}

func decide(c *call) error { return giveVerdict(c, 0) }

func decideReview(c *call) error { return giveVerdict(c, pb.DecisionKind_DECISION_KIND_REVIEW) }

// giveVerdict gives a verdict.
func giveVerdict(c *call, kind pb.DecisionKind) error {
	id, err := decisionID(c, kind)
	if err != nil {
		return err
	}
	answer, err := c.api.Decide(c.ctx, &pb.DecideRequest{
		RequestId: c.requestID, Id: id, Verdict: c.arg("answer"), Reason: c.arg("text"),
	})
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

// deferDecision puts a decision off; wait is for how long.
func deferDecision(c *call) error {
	id, err := decisionID(c, 0)
	if err != nil {
		return err
	}
	wait, err := time.ParseDuration(c.arg("wait"))
	if err != nil || wait <= 0 {
		return argumentf("wait must be a number of seconds, not %s", quote(c.arg("wait")))
	}
	answer, err := c.api.Decide(c.ctx, &pb.DecideRequest{
		RequestId: c.requestID, Id: id, Verdict: "defer", Until: timestamppb.New(c.server.Clock.Now().Add(wait)),
	})
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

func cancelDecision(c *call) error {
	answer, err := c.api.CancelDecision(c.ctx, &pb.CancelDecisionRequest{
		RequestId: c.requestID, Id: c.arg("id"),
	})
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

func resubmitDecision(c *call) error {
	request := &pb.ResubmitDecisionRequest{RequestId: c.requestID, Id: c.arg("id")}
	if c.has("text") {
		request.Content = &pb.DecisionContent{Body: c.arg("text")}
	}
	answer, err := c.api.ResubmitDecision(c.ctx, request)
	if err != nil {
		return err
	}
	c.voice.Decision(c.w, answer.GetDecision())
	return nil
}

// showDecision shows a decision with its content and all verdicts, or waits for one.
func showDecision(c *call) error {
	id, err := decisionID(c, 0)
	if err != nil {
		return err
	}
	answer, err := c.api.GetDecision(c.ctx, &pb.GetDecisionRequest{Id: id})
	if err != nil {
		return err
	}
	d := answer.GetDecision()
	if c.wait() > 0 {
		return awaitVerdict(c, d)
	}
	fmt.Fprintln(c.w, prompt.OneLine(prompt.DecisionLine(d)))
	c.details(d, "content", "rounds")
	c.details(d.GetContent())
	for _, v := range d.GetRounds() {
		fmt.Fprintf(c.w, "round %d: %s by %s, %s: %s\n",
			v.GetRound(), prompt.Clean(v.GetVerdict()), prompt.Clean(v.GetDecidedBy()),
			c.voice.When(v.GetDecidedAt()), prompt.Clean(v.GetReason()))
		c.voice.Feedback(c.w, v)
	}
	c.voice.AfterDecision(c.w, d)
	return nil
}
