package overview_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

const benchedMailboxes = 10_000

// crowded starts a broker with many mailboxes. In each of them, two messages wait and one is dead.
func crowded(b *testing.B) *apptest.Broker {
	b.Helper()
	broker := apptest.Start(b)
	ctx, cancel := context.WithTimeout(context.Background(), 10*apptest.Patience)
	defer cancel()
	unlimited := &pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0)}}
	apptest.Must(b, broker.Root().ConfigureSession, unlimited)
	mail := pb.NewMessageServiceClient(broker.Operator())
	var batch []*pb.Message
	for i := range 3 * benchedMailboxes {
		to := toRole(fmt.Sprintf("role-%d", i%benchedMailboxes))
		batch = append(batch, &pb.Message{Target: to, Reach: pb.Reach_REACH_ONE, Type: "note", Subject: "hello"})
		if len(batch) == 100 {
			out, err := mail.SendMessages(ctx, &pb.SendMessagesRequest{Messages: batch})
			if err != nil || out.GetResults()[0].GetError() != nil {
				b.Fatal(out, err)
			}
			batch = nil
		}
	}
	broker.Restart(func() {
		for _, change := range []string{
			`UPDATE deliveries SET state = 6, finished_at = 1
			 WHERE message IN (SELECT MIN(message) FROM deliveries GROUP BY mailbox)`,
			`UPDATE mailboxes SET waiting = 2 WHERE waiting = 3`,
		} {
			testkit.Change(b, broker.Dir(), change)
		}
	})
	return broker
}

// The first frame of a reader includes the findings of explain.
func BenchmarkWatchOverview_FirstFrameOf10000Mailboxes(b *testing.B) {
	admin := pb.NewAdminServiceClient(crowded(b).Operator())
	for b.Loop() {
		stream, err := admin.WatchOverview(b.Context(), &pb.WatchOverviewRequest{Once: true})
		apptest.NoError(b, err)
		frame, err := stream.Recv()
		if err != nil || frame.GetTotals().GetWaiting() != 2*benchedMailboxes ||
			frame.GetTotals().GetDead() != benchedMailboxes {
			b.Fatal(frame.GetTotals(), err)
		}
	}
}

func BenchmarkGetStatus_Of10000Mailboxes(b *testing.B) {
	admin := pb.NewAdminServiceClient(crowded(b).Operator())
	for b.Loop() {
		status, err := admin.GetStatus(b.Context(), &pb.GetStatusRequest{})
		if err != nil || status.GetWaiting() != 2*benchedMailboxes || status.GetDead() != benchedMailboxes {
			b.Fatal(status, err)
		}
	}
}
