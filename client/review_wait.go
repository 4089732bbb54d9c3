package client

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// isNews reports whether a review was decided and the calling agent, its producer, has not been told.
func (c *Client) isNews(ctx context.Context, r *Review) (bool, error) {
	if r == nil || r.Verdict == nil || r.Producer != c.identity.Agent {
		return false, nil
	}
	found, err := c.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: r.Verdict.GetId()})
	if err != nil || slices.ContainsFunc(found.GetDeliveries(), func(d *pb.Delivery) bool {
		return d.GetMailbox() == c.identity.Agent && d.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED
	}) {
		return err == nil, err
	}
	// Another consumer of the agent may have finished it. The turn that came with it waits to be collected then.
	turn, err := c.Tokens().GetToken(ctx, &pb.GetTokenRequest{Type: ReviewToken, Scope: r.Scope})
	token := turn.GetToken()
	return token.GetUncollected() && token.GetAgent() == c.identity.Agent && token.GetFence() > r.Verdict.GetRevision(), err
}

// awaitVerdict waits until the round is decided. It looks for the verdict in the thread and not in the mailbox, where another consumer
// of the agent may be first to take and finish it. When to look the turn tells, which follows each verdict.
func (c *Client) awaitVerdict(ctx context.Context, r *Review) error {
	for r.Verdict == nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := c.watchTurn(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// watchTurn looks for the verdict at once and whenever the turn changes hands. It returns after a minute, so that the caller looks
// again: a critic that lost its turn just before its word has none to pass.
func (c *Client) watchTurn(ctx context.Context, r *Review) (err error) {
	following, stop := context.WithCancel(ctx)
	defer stop()
	// A deadline instead would reach the broker, which could be first to end the call.
	defer time.AfterFunc(turnAtATime, stop).Stop()
	due := true // to look
	look := func() {
		verdict, failed := c.findVerdict(following, r)
		due = failed != nil // the broker is away: once it is back
		if failed != nil && !transient(failed) && following.Err() == nil {
			err = failed
		}
		if r.Verdict = verdict; verdict != nil || err != nil {
			stop()
		}
	}
	o := EventOptions{FromNow: true, Filter: &pb.EventFilter{Types: []string{"token.*"}}}
	o.OnProgress = func(int64) {
		if due && following.Err() == nil {
			look()
		}
	}
	for e, failed := range c.FollowEvents(following, o) {
		if failed != nil {
			return failed
		}
		due = due || tellsOfTurn(e, r.Scope)
	}
	return err
}

// tellsOfTurn reports whether an event is about the turn of a review.
func tellsOfTurn(e *pb.Event, scope string) bool {
	var details struct {
		Token string `json:"token"`
	}
	return json.Unmarshal([]byte(e.GetDetails()), &details) != nil || details.Token == ReviewToken+"/"+scope
}

// findVerdict looks for the verdict on what was submitted, whoever has finished it; nil if there is none. Newer rounds may follow it.
func (c *Client) findVerdict(ctx context.Context, r *Review) (verdict *pb.Message, err error) {
	request := &pb.ListMessagesRequest{
		Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1000, NewestFirst: true,
		Filter: &pb.MessageFilter{ThreadId: reviewThread(r.Scope), Types: []string{reviewApprove, reviewRevise, reviewReject}},
	}
	for {
		page, err := c.Messages().ListMessages(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, item := range page.GetItems() {
			m := item.GetMessage()
			if m.GetRevision() < r.Submitted.GetRevision() {
				return verdict, nil
			}
			if m.GetLabels()[labelRound] == strconv.Itoa(r.Round) {
				verdict = m
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return verdict, nil
		}
	}
}

// takeBack waits until the turn is back, keeps it if the producer is to go on, and finishes the verdict.
func (c *Client) takeBack(ctx context.Context, r *Review) error {
	for {
		answer, err := c.acquireReview(ctx, r.Scope, turnAtATime)
		if err != nil {
			return err
		}
		if answer.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
			break
		}
	}
	if r.Decision() != Revise {
		if _, err := c.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: ReviewToken, Scope: r.Scope}); err != nil {
			return err
		}
	}
	return c.finishMail(ctx, r.Verdict)
}
