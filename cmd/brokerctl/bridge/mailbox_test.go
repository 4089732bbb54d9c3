package bridge_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge"
	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func (d *team) client() *client.Client {
	d.t.Helper()
	c, err := client.Dial(d.t.Context(), client.WithAddress(d.broker.Socket()))
	apptest.NoError(d.t, err)
	d.t.Cleanup(c.Close)
	return c
}

// mailbox opens the mailbox file of an agent, without a bridge that runs.
func (d *team) mailbox(agent string) *bridge.Mailbox {
	d.t.Helper()
	m, err := bridge.OpenMailbox(d.t.Context(), d.client(), openRoot(d.t, d.dir), agent)
	apptest.NoError(d.t, err)
	return m
}

func TestMailbox_PositionIsSavedAfterAFailure(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	d.appendLine("scout", "\n")
	m := d.mailbox("scout")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Collect(ended); err == nil {
		t.Fatal("the position was saved without a broker")
	}
	apptest.NoError(t, m.Collect(t.Context()))
	out, err := pb.NewStateServiceClient(d.broker.Operator()).ListState(t.Context(), &pb.ListStateRequest{
		Namespace: setting.BridgeNamespace, Values: true})
	if err != nil || len(out.GetEntries()) != 1 || out.GetEntries()[0].GetValue().GetStringValue() != "1 1 0" {
		t.Errorf("the state has %v, %v", out.GetEntries(), err)
	}
}

func TestMailbox_FailedAppendDoesNotRepeatWhatTheFileHas(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	scout := d.broker.Registered("scout", "scout")
	lead := d.broker.Registered("lead", "lead")
	d.appendLine("scout", "")
	d.send(lead, toAgent("scout", "one"))
	d.send(lead, toAgent("scout", "two"))
	out, err := messages(scout).ListMessages(t.Context(), &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	if err != nil || len(out.GetItems()) != 2 {
		t.Fatal(out, err)
	}
	one, two := out.GetItems()[0].GetMessage(), out.GetItems()[1].GetMessage()
	m := d.mailbox("scout")
	apptest.NoError(t, m.Deliver(t.Context(), []*pb.Message{one}))
	// One is in the file before the scan that comes first in a delivery.
	apptest.NoError(t, m.Deliver(t.Context(), []*pb.Message{one}))
	file, err := os.Open(filepath.Join(d.dir, "mailbox/scout.jsonl")) // not for writing
	apptest.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is only read
	if err := m.Append(t.Context(), file, []*pb.Message{one, two}); err == nil {
		t.Fatal("the append has not failed")
	}
	apptest.NoError(t, m.Deliver(t.Context(), []*pb.Message{one, two}))
	d.awaitLines("scout", 2)
}
