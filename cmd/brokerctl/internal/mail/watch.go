package mail

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// queueLook is the least time between two checks of the queues of the agent's role and channels. The
// broker has no signal for them that takes nothing. The time is random, up to twice as long, so that
// the first of several idle agents can take a message before the others see it.
const queueLook = 15 * time.Second

// Watch holds a stream to the broker and calls look when the stream opens, when mail arrives for
// the agent, and from time to time. It returns when look reports that it is done, when ctx ends, or
// with an error that another try does not heal. It takes no message and marks none as delivered or
// read. It survives restarts of the broker: an error of look that is transient does not end it.
func Watch(ctx context.Context, broker *client.Client, look func(context.Context) (done bool, err error)) error {
	ctx, cancel := context.WithCancel(ctx)
	arrived, broken := make(chan struct{}, 1), make(chan error, 1)
	stopped := make(chan struct{})
	go func() { // ended by cancel
		defer close(stopped)
		broken <- signalMail(ctx, broker, arrived)
	}()
	defer func() { cancel(); <-stopped }()
	for {
		again := time.NewTimer(queueLook + rand.N(queueLook))
		select {
		case <-arrived:
		case <-again.C:
		case err := <-broken:
			again.Stop()
			return err
		}
		again.Stop()
		call, end := context.WithTimeout(ctx, command.CallTimeout)
		done, err := look(call)
		end()
		if done || err != nil && !command.Away(err) {
			return err
		}
	}
}

// signalMail sends to arrived when its stream opens and when something arrives in the agent's mailbox,
// until ctx ends or the broker refuses the stream.
func signalMail(ctx context.Context, broker *client.Client, arrived chan<- struct{}) error {
	options := client.FollowOptions{
		// The broker reports that mail has arrived which the filter leaves out. No message has this id.
		Filter: &pb.MessageFilter{CorrelationId: uuid.NewString()},
		OnProgress: func(int64) {
			select {
			case arrived <- struct{}{}:
			default:
			}
		},
	}
	for _, err := range broker.Follow(ctx, options) {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// MostWaiting is how many waiting messages waitingMail returns.
const MostWaiting = 100

// Waiting returns the revisions of the messages and notices that wait for an agent that may be
// idle: those of unseenMail, with the queues. While the agent is halted, only directives count.
func Waiting(ctx context.Context, broker *client.Client) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, command.CallTimeout)
	defer cancel()
	inbox, err := broker.Messages().GetInboxSummary(ctx, &pb.GetInboxSummaryRequest{})
	if err != nil {
		return nil, err
	}
	items, err := Unseen(ctx, broker, true, MostWaiting)
	var waiting []int64
	for _, item := range items {
		if m := item.GetMessage(); !inbox.GetHalted() || prompt.Advice(m) != "" {
			waiting = append(waiting, m.GetRevision())
		}
	}
	return waiting, err
}

// Unseen returns the messages and notices that wait for the agent and that it has neither read nor
// been offered, the oldest first, at most limit. With queues, it includes the waiting messages of the queues of the
// agent's role and channels. It marks nothing as delivered or read.
func Unseen(ctx context.Context, broker *client.Client, queues bool, limit int) ([]*pb.InboxItem, error) {
	var unseen []*pb.InboxItem
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, IncludeQueues: queues}
	for {
		page, err := broker.Messages().ListMessages(ctx, request)
		if err != nil {
			return nil, err
		}
		for _, item := range page.GetItems() {
			d := item.GetDelivery()
			waits := d.GetState() == pb.DeliveryState_DELIVERY_STATE_PENDING && d.GetReadAt() == nil
			if (prompt.IsNotice(item) || waits) && len(d.GetOffers()) == 0 {
				if unseen = append(unseen, item); len(unseen) == limit {
					return unseen, nil
				}
			}
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return unseen, nil
		}
	}
}
