package crashtest_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	pb "brokerd/gen/brokerd/v1"
)

// A truth is what the broker has in the end, the events apart.
type truth struct {
	messages   map[int64]*pb.Message
	deliveries map[delivery]*pb.Delivery
}

func readTruth(ctx context.Context, d *daemon) (*truth, error) {
	t := &truth{messages: map[int64]*pb.Message{}, deliveries: map[delivery]*pb.Delivery{}}
	if err := t.readMessages(ctx, d); err != nil {
		return nil, fmt.Errorf("list messages: %w", err)
	}
	if err := t.readDeliveries(ctx, d); err != nil {
		return nil, fmt.Errorf("get messages: %w", err)
	}
	return t, nil
}

func (t *truth) readMessages(ctx context.Context, d *daemon) error {
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1000}
	for {
		page, err := d.messages.ListMessages(ctx, request)
		if err != nil {
			return err
		}
		for _, item := range page.GetItems() {
			t.messages[item.GetMessage().GetRevision()] = item.GetMessage()
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			return nil
		}
	}
}

func (t *truth) readDeliveries(ctx context.Context, d *daemon) error {
	revisions := make(chan int64, len(t.messages))
	for n := range t.messages {
		revisions <- n
	}
	close(revisions)
	var mu sync.Mutex // guards what is gathered
	var failed error
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for n := range revisions {
				got, err := d.messages.GetMessage(ctx, &pb.GetMessageRequest{Id: strconv.FormatInt(n, 10)})
				mu.Lock()
				if err != nil {
					failed = err
				}
				for _, one := range got.GetDeliveries() {
					t.deliveries[delivery{n, one.GetMailbox()}] = one
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}
