package bridge_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestRun_SecondBridgeOnAFolderIsRefused(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	stop := d.start()
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	err := d.run(ctx, func(string) {})
	if err == nil || !strings.Contains(err.Error(), "another bridge has") {
		t.Fatalf("the second bridge ended with: %v", err)
	}
	stop()
	d.start()
}

func TestRun_UnknownFormatAndMissingFolderAreRefused(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "pigeon")
	if err := d.run(t.Context(), func(string) {}); err == nil || !strings.Contains(err.Error(), "not a format") {
		t.Errorf("an unknown format: %v", err)
	}
	d.format, d.dir = "maildir", filepath.Join(d.dir, "missing")
	if err := d.run(t.Context(), func(string) {}); err == nil {
		t.Error("a missing folder was accepted")
	}
}

func TestRun_AgentOfAnotherClientIsNotTakenOver(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.broker.Registered("scout", "scout")
	d.write("messages/inbox/scout/.keep", "")
	d.write("messages/outbox/scout/1.json", `{"to":"lead","body":"from the folder"}`)
	d.write("messages/inbox/other/.keep", "")
	d.start()
	d.awaitAgent("other")
	d.send(lead, toAgent("scout", "for the client"))
	d.send(lead, toAgent("other", "for the folder"))
	d.awaitFiles("messages/inbox/other", 1)
	if agent := d.agent("scout"); agent.GetIncarnation() != 1 || agent.GetLabels()["via"] != "" {
		t.Errorf("the agent is registered as %v", agent)
	}
	if names := d.names("messages/inbox/scout"); len(names) > 0 {
		t.Errorf("the inbox has %q", names)
	}
	d.awaitFiles("messages/outbox/scout", 1) // it waits until only the folder has the agent
	if _, err := pb.NewAgentServiceClient(d.broker.Conn("scout")).DeregisterAgent(t.Context(), &pb.DeregisterAgentRequest{}); err != nil {
		t.Fatal(err)
	}
	if m := d.claim(lead, 1)[0]; m.GetBody() != "from the folder" {
		t.Errorf("the message is %v", m)
	}
}

func TestRun_ClientThatRegistersAnAgentOfTheFolderGetsItsMail(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.appendLine("scout", "")
	d.start()
	d.awaitAgent("scout")
	d.send(lead, toAgent("scout", "one"))
	d.awaitLines("scout", 1)
	d.awaitEmpty("scout")
	scout := d.broker.Conn("scout")
	if _, err := pb.NewAgentServiceClient(scout).RegisterAgent(t.Context(), &pb.RegisterAgentRequest{
		Replace: true, Lease: durationpb.New(apptest.LongLease)}); err != nil {
		t.Fatal(err)
	}
	d.send(lead, toAgent("scout", "two"))
	if m := d.claim(scout, 1)[0]; m.GetBody() != "two" {
		t.Errorf("the client got %v", m)
	}
	d.awaitLines("scout", 1)
}

func TestRun_BridgeReconnectsAfterARestartOfTheBroker(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("messages/inbox/scout/.keep", "")
	d.start()
	d.awaitAgent("scout")
	d.broker.Restart()
	d.write("messages/outbox/scout/1.json", `{"to":"lead","body":"one"}`)
	d.claim(lead, 1)
	d.send(lead, toAgent("scout", "two"))
	d.awaitFiles("messages/inbox/scout", 1)
}

func TestRun_SymbolicLinkDoesNotLeadOutOfTheFolder(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.broker.Registered("lead", "lead")
	secret := filepath.Join(t.TempDir(), "secret.json")
	apptest.NoError(t, os.WriteFile(secret, []byte(`{"to":"lead","body":"secret"}`), 0o600))
	d.write("messages/outbox/a/.keep", "")
	apptest.NoError(t, os.Symlink(secret, filepath.Join(d.dir, "messages/outbox/a/1.json")))
	d.start()
	d.awaitFiles("rejected", 2)
	if text := d.text("rejected/messages-outbox-a-1.json.error"); !strings.Contains(text, "symbolic link") {
		t.Errorf("the reason is %q", text)
	}
	d.awaitEvents("the event", func(ctx context.Context) bool {
		out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(ctx, &pb.ListEventsRequest{
			Filter: &pb.EventFilter{Types: []string{"bridge.file_rejected"}}})
		apptest.NoError(t, err)
		return len(out.GetEvents()) == 1
	})
}

func TestRun_SenderBeyondItsRateIsSlowedDownAndLosesNothing(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	_, err := pb.NewSessionServiceClient(d.broker.Operator()).ConfigureSession(t.Context(), &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: new(20.0), SendBurst: new(int32(1))}})
	apptest.NoError(t, err)
	for _, name := range []string{"1", "2", "3", "4", "5"} {
		d.write("messages/outbox/a/"+name+".json", `{"to":"lead","body":"`+name+`"}`)
	}
	d.start()
	for i, m := range d.claim(lead, 5) {
		if want := string(rune('1' + i)); m.GetBody() != want {
			t.Errorf("message %s is %q", want, m.GetBody())
		}
	}
}

func TestRun_EndsWhenTheSessionIsClosed(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	d.write("messages/outbox/a/.keep", "")
	sessions := pb.NewSessionServiceClient(d.broker.Operator())
	apptest.NoError(t, apptest.Err(sessions.CreateSession(t.Context(), &pb.CreateSessionRequest{Name: "team"})))
	ended, stopped, ready := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ended <- d.run(t.Context(), func(line string) {
			if strings.HasPrefix(line, "a joined") {
				close(ready)
			}
		}, func(o *engine.Options) { o.Client = o.Client.In("team") })
	}()
	t.Cleanup(func() { <-stopped })
	<-ready
	apptest.NoError(t, apptest.Err(sessions.CloseSession(t.Context(), &pb.CloseSessionRequest{Name: "team"})))
	d.write("messages/outbox/a/1.json", `{"to":"b","body":"too late"}`)
	select {
	case err := <-ended:
		if client.Reason(err) != "SESSION_CLOSED" {
			t.Errorf("the bridge ended with: %v", err)
		}
	case <-time.After(apptest.Patience):
		t.Fatal("the bridge did not end")
	}
	if names := d.names("messages/outbox/a"); len(names)+len(d.names(".bridge/sending/a")) != 1 {
		t.Errorf("the message is neither in the outbox, which has %q, nor taken", names)
	}
}
