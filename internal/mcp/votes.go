package mcp

import (
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

func openVote(c *call) error {
	r := &pb.OpenVoteRequest{
		RequestId: c.requestID, Title: c.arg("about"), Options: c.args["options"], Description: c.arg("text"),
		TaskId: c.arg("task"),
	}
	if r.Title == "" {
		r.Title, r.Description = r.Description, ""
	}
	if err := ParseElectorate("to", r, c.args["to"]); err != nil {
		return err
	}
	answer, err := c.api.OpenVote(c.ctx, r)
	if err != nil {
		return err
	}
	v := answer.GetVote()
	if c.wait() > 0 {
		return awaitVote(c, v.GetId())
	}
	_ = c.say("opened %s for %s, closes %s",
		v.GetId(), prompt.Count(int64(v.GetElectors()), "elector"), c.voice.When(v.GetDeadline()))
	c.then("to wait for the outcome", &pb.GetVoteRequest{Id: v.GetId(), Wait: outcomeWait()})
	return nil
}

func castVote(c *call) error {
	answer, err := c.api.CastVote(c.ctx, &pb.CastVoteRequest{
		RequestId: c.requestID, Id: c.arg("id"), Option: c.arg("answer"), Reason: c.arg("text"),
	})
	if err != nil {
		return err
	}
	v, closed := answer.GetVote(), ""
	if v.GetState() == pb.VoteState_VOTE_STATE_CLOSED {
		closed = "; it closed: " + prompt.VoteOutcome(c.w, v)
	}
	return c.say("voted %s in %s: %d of %s%s",
		prompt.ShellWord(prompt.Clean(c.arg("answer"))), v.GetId(), v.GetBallots(),
		prompt.Count(int64(v.GetElectors()), "elector"), closed)
}

func closeVote(c *call) error {
	answer, err := c.api.CloseVote(c.ctx, &pb.CloseVoteRequest{RequestId: c.requestID, Id: c.arg("id")})
	if err != nil {
		return err
	}
	verb := "closed"
	if answer.GetAlreadyClosed() {
		verb = "closed before:"
	}
	return c.say("%s %s: %s", verb, answer.GetVote().GetId(), prompt.VoteOutcome(c.w, answer.GetVote()))
}

func showVote(c *call) error { return awaitVote(c, c.arg("id")) }

// awaitVote shows a vote, after the wait of the call for its outcome.
func awaitVote(c *call, id string) error {
	var answer *pb.GetVoteResponse
	wait := c.wait()
	closed, err := c.await(wait, func(left *durationpb.Duration) (bool, error) {
		var err error
		answer, err = c.api.GetVote(c.ctx, &pb.GetVoteRequest{Id: id, Wait: left})
		return answer.GetVote().GetState() == pb.VoteState_VOTE_STATE_CLOSED, err
	})
	if err != nil {
		return err
	}
	v := answer.GetVote()
	c.details(v)
	for _, b := range answer.GetBallots() {
		c.line("elector", b.GetAgent(), "ballot", b.GetOption(), "cast", c.voice.When(b.GetCastAt()),
			"reason", prompt.Clip(b.GetReason(), 500))
	}
	switch {
	case !closed && wait > 0:
		return nothingf("vote %s is not closed after %s", v.GetId(), prompt.Duration(wait))
	case !closed:
		c.then("if you are an elector", &pb.CastVoteRequest{Id: v.GetId()}, "option")
	case wait > 0 && v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_WINNER:
		return refusef("vote %s closed without a winner: %s", v.GetId(), prompt.VoteOutcome(nil, v))
	}
	return nil
}
