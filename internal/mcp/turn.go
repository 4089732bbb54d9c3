package mcp

import (
	"cmp"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A TurnRequest says what a turn may take.
type TurnRequest struct {
	Limit    int32         // messages to hold, those already held included
	Wait     time.Duration // if there is nothing; 1 h at most
	ClaimFor time.Duration
	Offer    *pb.NoticeOffer // to whom notices are offered; nil = they are marked read
}

// TakeTurn renews the lease of the calling agent, and returns what it has to do: directives, losses, what it holds,
// and if it holds less than the limit, a new message or a task. The second answer says why there is no message.
func TakeTurn(ctx context.Context, conn grpc.ClientConnInterface, r TurnRequest,
) (*prompt.Turn, *pb.ClaimMessagesResponse, error) {
	a := newAPI(conn)
	alive, err := a.Heartbeat(ctx, &pb.HeartbeatRequest{})
	if err != nil {
		return nil, nil, err
	}
	inbox, err := a.GetInboxSummary(ctx, &pb.GetInboxSummaryRequest{})
	if err != nil {
		return nil, nil, err
	}
	work, err := workOf(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	if len(inbox.GetDirectives())+len(alive.GetLosses()) > 0 {
		r.Wait = 0
	}
	answer, task, err := r.take(ctx, a, inbox.GetHalted())
	if err != nil {
		return nil, nil, err
	}
	t := prompt.NewTurn(inbox, answer.GetClaims())
	t.Losses, t.MoreLosses, t.Notices = alive.GetLosses(), alive.GetMoreLosses(), answer.GetNotices()
	t.Task, t.Work = task, work
	return &t, answer, nil
}

// take claims messages or, if there are none, a task. It waits for both at the same time; the first
// to come ends the wait. If both come at once, the agent holds both. A halted agent takes no task.
func (r *TurnRequest) take(
	ctx context.Context, a api, halted bool,
) (messages *pb.ClaimMessagesResponse, task *pb.ClaimTaskResponse, err error) {
	claimMessages := func(ctx context.Context, wait time.Duration) (*pb.ClaimMessagesResponse, error) {
		return a.ClaimMessages(ctx, &pb.ClaimMessagesRequest{
			Max: r.Limit, Wait: duration(wait), ClaimFor: durationpb.New(r.ClaimFor), Notices: true, Offer: r.Offer,
		})
	}
	claimTask := func(ctx context.Context, wait time.Duration) (*pb.ClaimTaskResponse, error) {
		return a.ClaimTask(ctx, &pb.ClaimTaskRequest{Resume: true, Wait: duration(wait)})
	}
	if halted {
		messages, err = claimMessages(ctx, r.Wait)
		return messages, nil, err
	}
	messages, err = claimMessages(ctx, 0)
	if err != nil || len(messages.GetClaims())+len(messages.GetNotices()) > 0 {
		return messages, nil, err
	}
	task, err = claimTask(ctx, 0)
	if err != nil || task.GetTask() != nil || r.Wait <= 0 {
		return messages, task, err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var offer sync.WaitGroup
	var failed error // of the offer
	offer.Go(func() {
		if task, failed = claimTask(waiting, r.Wait); failed != nil || task.GetTask() != nil {
			stop()
		}
	})
	messages, err = claimMessages(waiting, r.Wait)
	if err != nil || len(messages.GetClaims())+len(messages.GetNotices()) > 0 {
		stop()
	}
	offer.Wait()
	if r.Offer != nil && err != nil && waiting.Err() != nil {
		// The call that stop has ended may have offered notices, which nobody shows.
		r.returnNotices(ctx, a)
	}
	switch {
	case len(messages.GetClaims())+len(messages.GetNotices()) > 0, task.GetTask() != nil:
		return messages, task, nil
	case err == nil, status.Code(err) == codes.Canceled: // by stop, if the offer has failed
		err = cmp.Or(failed, err)
	}
	return messages, task, err
}

// returnNotices returns the offer of notices. If that fails, it returns by itself after a minute.
func (r *TurnRequest) returnNotices(ctx context.Context, a api) {
	ctx, cancel := context.WithTimeout(afterwards(ctx), settleTime)
	defer cancel()
	_, _ = a.SettleOffers(ctx, &pb.SettleOffersRequest{
		Marks: []string{r.Offer.GetMark()}, Harness: r.Offer.GetHarness(),
		Outcome: &pb.SettleOffersRequest_Returned{Returned: "the call that offered it has ended"},
	})
}

// nextTurn is the turn of the agent.
func nextTurn(c *call) error {
	wait := c.wait()
	c.offer.asks()
	t, answer, err := TakeTurn(c.ctx, c.agent, TurnRequest{
		Limit: 1, Wait: wait, ClaimFor: claimFor,
		Offer: &pb.NoticeOffer{Way: pb.OfferWay_OFFER_WAY_MCP, Harness: c.server.Harness, Mark: c.mark},
	})
	if err != nil {
		return err
	}
	c.offer.shows(len(t.Notices))
	c.work.set(t.Work)
	c.voice.Turn(c.w, t, nil, nil, nil)
	if !t.Empty() {
		return nil
	}
	waited := ""
	if wait > 0 {
		waited = prompt.Duration(wait)
	}
	_ = c.say("%s", c.voice.Why(t, c.voice.WhyNoMessage(answer, waited)))
	return c.say(`Next: turn {"wait":%v} to wait for work, or end if you expect none`, mostWait.Seconds())
}
