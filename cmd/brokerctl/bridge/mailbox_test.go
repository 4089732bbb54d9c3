package bridge_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge"
	pb "brokerd/gen/brokerd/v1"
)

func (d *team) client() *client.Client {
	d.t.Helper()
	c, err := client.Dial(d.t.Context(), client.WithAddress(d.broker.Socket()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(c.Close)
	return c
}

// mailbox opens the mailbox file of an agent, without a bridge that runs.
func (d *team) mailbox(agent string) *bridge.Mailbox {
	d.t.Helper()
	m, err := bridge.OpenMailbox(d.t.Context(), d.client(), openRoot(d.t, d.dir), agent)
	if err != nil {
		d.t.Fatal(err)
	}
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
	if err := m.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, err := pb.NewStateServiceClient(d.broker.Operator()).ListState(t.Context(), &pb.ListStateRequest{
		Namespace: bridge.StateNamespace, Values: true})
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
	if err := m.Deliver(t.Context(), []*pb.Message{one}); err != nil {
		t.Fatal(err)
	}
	// One is in the file before the scan that comes first in a delivery.
	if err := m.Deliver(t.Context(), []*pb.Message{one}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(d.dir, "mailbox/scout.jsonl")) // not for writing
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	if err := m.Append(t.Context(), file, []*pb.Message{one, two}); err == nil {
		t.Fatal("the append has not failed")
	}
	if err := m.Deliver(t.Context(), []*pb.Message{one, two}); err != nil {
		t.Fatal(err)
	}
	d.awaitLines("scout", 2)
}
