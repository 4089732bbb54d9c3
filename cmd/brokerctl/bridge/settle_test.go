package bridge_test

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// slowly makes a bridge wait for days until a file has settled; age ends the wait of a file.
func slowly(o *engine.Options) { o.Settle = 24 * time.Hour }

// passed waits until the bridge has read the whole folder after everything that the test has written before.
func (d *team) passed(probe string) {
	d.t.Helper()
	d.broker.Registered("probe", "probe")
	d.write(agentRoot+"inbox/probe/"+probe+".json", toLead(probe, "probe", "x"))
	d.claim(d.broker.Conn("probe"), 1)
	d.write(agentRoot+"inbox/probe/"+probe+"-2.json", toLead(probe+"-2", "probe", "x"))
	d.claim(d.broker.Conn("probe"), 1)
}

func TestAgentMessages_EventThatItsPublisherCopiesStaysUntilItHasSettled(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	d.empty("scout", "reader")
	d.write(agentRoot+"registry.json", `{"event_subscriptions": {"TaskCompleted": ["reader"]}}`)
	d.start(slowly)
	d.awaitSubscriber("event/task_complete", "reader")
	event := `{"event_id": "e1", "event_type": "TaskCompleted", "source_agent": "scout", "event_data": {"n": 1}}`
	d.write(agentRoot+"events/TaskCompleted/e1.json", event)
	d.awaitFiles(agentRoot+"inbox/reader", 1)
	d.passed("p1")
	// The publisher copies the file only now.
	if text := d.text(agentRoot + "events/TaskCompleted/e1.json"); text != event {
		t.Errorf("the file of the event has %s", text)
	}
	d.write(agentRoot+"inbox/reader/e1.json", event)
	d.age(agentRoot + "events/TaskCompleted/e1.json")
	d.archived(agentRoot + "events/TaskCompleted/e1.json")
	out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(t.Context(),
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"task_complete"}}})
	if err != nil || len(out.GetEvents()) != 1 {
		t.Errorf("the events are %v, %v", out.GetEvents(), err)
	}
	if names := d.awaitFiles(agentRoot+"inbox/reader", 1); names[0] != "e1.json" {
		t.Errorf("the inbox has %q", names)
	}
}

func TestAgentMessages_FinishedAndRefusedFilesStayUntilTheyHaveSettled(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.empty("scout")
	stop := d.start(slowly)
	d.awaitAgent("scout")
	sent := agentRoot + "inbox/lead/m1.json"
	d.write(sent, toLead("m1", "lead", "one"))
	bad := agentRoot + "broadcasts/b1.json"
	d.write(bad, strings.Replace(toLead("b1", "ALL", "x"), "{", `{"message_type": "a b", `, 1))
	d.claim(lead, 1)
	mail := d.send(lead, toAgent("scout", "mail"))
	own := agentRoot + "inbox/scout/" + d.awaitFiles(agentRoot+"inbox/scout", 1)[0]
	d.write(own, strings.Replace(d.text(own), `"delivered"`, `"acknowledged"`, 1))
	d.awaitState(mail.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
	d.passed("p1")
	stop()
	d.start(slowly)
	d.passed("p2")
	// The sender copies its file to its log only now.
	d.write(agentRoot+"outbox/m1_to_lead.json", d.text(sent))
	for _, name := range []string{sent, own, bad} {
		d.text(name)
		d.age(name)
	}
	d.archived(sent)
	d.archived(own)
	d.wantRejected(agentRoot, map[string]string{"broadcasts-b1.json": "type"})
	d.checkEvents(1)
	d.await(agentRoot+"outbox", "the archiving of the log", func() bool { return len(d.names(agentRoot+"outbox")) == 0 })
	d.awaitSent("scout", 5) // with the probes
}

func TestAgentMessages_ReadMarkFinishesAMessageUnlessItAwaitsAReply(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.empty("scout")
	stop := d.start()
	d.awaitAgent("scout")
	mark := func(name string) { d.write(name+".read", "2026-01-01T00:00:00Z\n") }
	inbox := agentRoot + "inbox/scout/"
	deliver := func(m *pb.Message) (id, name string) {
		id = d.send(lead, m).GetId()
		return id, inbox + d.awaitFiles(inbox, 1)[0]
	}
	finished := func(id, name string) {
		t.Helper()
		d.awaitState(id, pb.DeliveryState_DELIVERY_STATE_ACKED)
		if mark := filepath.Join(d.dir, name+".read"); slices.Contains(d.names(inbox), path.Base(name)+".read") {
			if _, err := os.Stat(filepath.Join(d.dir, name)); err != nil {
				t.Errorf("the file has moved as soon as it was read: %v", err)
			}
			past := time.Now().Add(-2 * time.Hour)
			apptest.NoError(t, os.Chtimes(mark, past, past))
		}
		d.archived(name)
		d.await(inbox, "the removal of the mark", func() bool { return len(d.names(inbox)) == 0 })
	}
	id, name := deliver(toAgent("scout", "marked"))
	mark(name)
	finished(id, name)
	id, name = deliver(toAgent("scout", "status"))
	d.write(name, strings.Replace(d.text(name), `"delivered"`, `"read"`, 1))
	finished(id, name)

	question := func(body string) *pb.Message {
		m := toAgent("scout", body)
		m.RequiresResponse = true
		return m
	}
	answer := func(id string) {
		d.write(agentRoot+"inbox/lead/"+id+".json", `{"message_id": "`+id+`", "from_agent": "scout", "payload": "yes",
			"in_reply_to": "`+d.object(name)["message_id"].(string)+`"}`)
		if m := d.claim(lead, 1)[0]; m.GetInReplyTo() == "" {
			t.Errorf("the answer is %v", m)
		}
	}
	id, name = deliver(question("read, then answered"))
	mark(name)
	d.awaitRead(id)
	answer("r1")
	finished(id, name)

	id, name = deliver(question("answered, then read"))
	answer("r2")
	mark(name)
	finished(id, name)

	id, name = deliver(question("answered while no bridge followed"))
	mark(name)
	d.awaitRead(id)
	stop()
	reply := toAgent("lead", "yes")
	reply.InReplyTo = id
	d.send(d.broker.Conn("scout"), reply)
	d.start()
	finished(id, name)

	id, name = deliver(question("acknowledged without an answer"))
	mark(name)
	d.awaitRead(id)
	if state := d.delivery(id).GetState(); state == pb.DeliveryState_DELIVERY_STATE_ACKED {
		t.Error("a read question is acknowledged")
	}
	d.write(name, strings.Replace(d.text(name), `"delivered"`, `"acknowledged"`, 1))
	finished(id, name)
}

// awaitRead waits until the only recipient of a message has read it.
func (d *team) awaitRead(id string) {
	d.t.Helper()
	d.awaitEvents("the message is read", func(context.Context) bool { return d.delivery(id).GetReadAt() != nil })
}

func (d *team) delivery(id string) *pb.Delivery {
	d.t.Helper()
	out, err := messages(d.broker.Operator()).GetMessage(d.t.Context(), &pb.GetMessageRequest{Id: id})
	apptest.NoError(d.t, err)
	return out.GetDeliveries()[0]
}

func TestAgentMessages_ForeignRegistryStaysAndIsReportedOnce(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"cut off": `{"agents": {"a"`, "list": `[1, 2]`, "other agents": `{"agents": ["a"]}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, "agent-messages")
			d.empty("scout", "system", "operator", "everyone")
			registry := agentRoot + "registry.json"
			d.write(registry, text)
			d.age(registry)
			stop := d.start()
			d.passed("p1")
			d.passed("p2")
			if got := d.text(registry); got != text {
				t.Errorf("registry.json has %q", got)
			}
			d.write(registry, `{"agents": {"late": {"role": "late"}}}`)
			d.awaitAgent("late")
			log := stop()
			for _, want := range []string{"registry.json stays as it is", "operator means the operators", "register everyone"} {
				if n := strings.Count(log, want); n != 1 {
					t.Errorf("the bridge reports %d times: %s\n%s", n, want, log)
				}
			}
			if strings.Contains(log, "register system") || len(d.names(agentRoot+"rejected")) > 0 {
				t.Errorf("rejected %q; the bridge logged:\n%s", d.names(agentRoot+"rejected"), log)
			}
		})
	}
}

func TestMaildir_ReservedNameIsReportedOnce(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.empty("scout", "system", "all")
	stop := d.start()
	for _, name := range []string{"1", "2", "3"} {
		d.write("messages/outbox/scout/"+name+".json", `{"to": "lead", "body": "x"}`)
		d.claim(lead, 1)
	}
	log := stop()
	for _, want := range []string{"system means the operators", "register all"} {
		if n := strings.Count(log, want); n != 1 {
			t.Errorf("the bridge reports %d times: %s\n%s", n, want, log)
		}
	}
}
