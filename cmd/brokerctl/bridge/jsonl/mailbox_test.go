package jsonl_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/jsonl"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mailboxOf opens the mailbox file of an agent in a folder, without a bridge that runs. The file has a text before.
func mailboxOf(t *testing.T, broker *apptest.Broker, agent, text string) (*jsonl.Mailbox, *os.Root) {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	apptest.NoError(t, root.Mkdir("mailbox", 0o755))
	apptest.NoError(t, root.WriteFile("mailbox/"+agent+".jsonl", []byte(text), 0o644))
	c, err := client.Dial(t.Context(), client.WithAddress(broker.Socket()))
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	m, err := jsonl.OpenMailbox(t.Context(), c, root, agent)
	apptest.NoError(t, err)
	return m, root
}

func TestMailbox_PositionIsSavedAfterAFailure(t *testing.T) {
	t.Parallel()
	broker := apptest.Start(t)
	m, _ := mailboxOf(t, broker, "scout", "\n")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Collect(ended); err == nil {
		t.Fatal("the position was saved without a broker")
	}
	apptest.NoError(t, apptest.Err(m.Collect(t.Context())))
	out, err := pb.NewStateServiceClient(broker.Operator()).ListState(t.Context(), &pb.ListStateRequest{
		Namespace: setting.BridgeNamespace, Values: true})
	if err != nil || len(out.GetEntries()) != 1 || out.GetEntries()[0].GetValue().GetStringValue() != "1 1 0" {
		t.Errorf("the state has %v, %v", out.GetEntries(), err)
	}
}

func TestMailbox_FailedAppendDoesNotRepeatWhatTheFileHas(t *testing.T) {
	t.Parallel()
	broker := apptest.Start(t)
	scout := pb.NewMessageServiceClient(broker.Registered("scout", "scout"))
	lead := pb.NewMessageServiceClient(broker.Registered("lead", "lead"))
	for _, text := range []string{"one", "two"} {
		_, err := lead.SendMessages(t.Context(), &pb.SendMessagesRequest{Messages: []*pb.Message{
			{Target: &pb.Target{To: &pb.Target_Agent{Agent: "scout"}}, Body: text}}})
		apptest.NoError(t, err)
	}
	out, err := scout.ListMessages(t.Context(), &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	if err != nil || len(out.GetItems()) != 2 {
		t.Fatal(out, err)
	}
	one, two := out.GetItems()[0].GetMessage(), out.GetItems()[1].GetMessage()
	m, root := mailboxOf(t, broker, "scout", "")
	apptest.NoError(t, m.Deliver(t.Context(), []*pb.Message{one}))
	// One is in the file before the scan that comes first in a delivery.
	apptest.NoError(t, m.Deliver(t.Context(), []*pb.Message{one}))
	file, err := root.Open("mailbox/scout.jsonl") // not for writing
	apptest.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is only read
	if err := m.Append(t.Context(), file, []*pb.Message{one, two}); err == nil {
		t.Fatal("the append has not failed")
	}
	apptest.NoError(t, m.Deliver(t.Context(), []*pb.Message{one, two}))
	text, err := root.ReadFile("mailbox/scout.jsonl")
	if lines := strings.Count(string(text), "\n"); err != nil || lines != 2 {
		t.Errorf("the file has %d lines, %v:\n%s", lines, err, text)
	}
}
