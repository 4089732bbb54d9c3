package agentmessages_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/agentmessages"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestInbox_FileThatIsMissingForAMomentIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	broker, root := apptest.Start(t), openRoot(t, t.TempDir())
	broker.Registered("scout", "scout")
	lead := pb.NewMessageServiceClient(broker.Registered("lead", "lead"))
	out, err := lead.SendMessages(t.Context(), &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "scout"}}, Body: "x"}}})
	apptest.NoError(t, err)
	in := agentmessages.NewInbox(dial(t, broker), root, "scout", out.GetResults()[0].GetId())
	write(t, root, "inbox/other", "")
	for range 2 {
		if n, err := in.Settle(t.Context()); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		write(t, root, "inbox/m.json", `{"status": "read"}`)
		if n, err := in.Settle(t.Context()); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		apptest.NoError(t, root.Remove("inbox/m.json"))
		if status, err := in.Status(); status != "" || err != nil {
			t.Fatal(status, err)
		}
		write(t, root, "inbox/m.json", `{"status": "read"}`)
		if status, err := in.Status(); status != "read" || err != nil {
			t.Fatal(status, err)
		}
		apptest.NoError(t, root.Remove("inbox/m.json"))
	}
}

func TestInbox_FileThatIsRemovedWhileTheBridgeReadsItIsNoError(t *testing.T) {
	t.Parallel()
	root := openRoot(t, t.TempDir())
	in := agentmessages.NewInbox(dial(t, apptest.Start(t)), root, "scout", "id")
	write(t, root, "inbox/other", "")
	file := filepath.Join(root.Name(), "inbox/m.json")
	done, removed := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-done:
				removed <- nil
				return
			default:
				err = errors.Join(os.WriteFile(file, nil, 0o600), os.Remove(file))
			}
		}
		removed <- err
	}()
	for range 5000 { // enough that a call meets the removal
		if _, err := in.Status(); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	apptest.NoError(t, <-removed)
}

// dial connects as an operator.
func dial(t *testing.T, broker *apptest.Broker) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.WithAddress(broker.Socket()))
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}
