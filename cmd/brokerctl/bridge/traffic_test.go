package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// trafficKills returns how many times the test of the traffic kills a bridge or a daemon: BRIDGE_KILLS, or fewer than
// `make bridge`.
func trafficKills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BRIDGE_KILLS")
	if text == "" {
		return 8
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("BRIDGE_KILLS is %q; it must be a number from 1 on", text)
	}
	return n
}

// A traffic is a folder with the agent scout, a daemon, and what has crossed between them.
type traffic struct {
	*team
	daemon    *processtest.Daemon
	broker    *client.Client
	brokerctl string
	round     int
	sent      []string // bodies of scout that the broker must have, in order
	received  []string // bodies that the files of scout must have
	refused   int
}

// An asked is a message with which scout was asked, by the sender.
type asked struct {
	sender, id string
	revision   int64
}

// A request is what scout is asked for in a round: two answers, a verdict, and whether it takes work over.
type request struct {
	operators, lead   asked
	decision, handoff string // ids
}

// becomes says what the broker makes of a file.
type becomes int

const (
	aMessage becomes = iota
	aRefusal
	aSettlement
)

// files are the kinds of files that scout writes in each round.
var files = []struct {
	kind    string
	becomes becomes
	message func(request) refusedFile
}{
	{"mail to an agent", aMessage, func(request) refusedFile { return refusedFile{} }},
	{"an unknown recipient", aRefusal, func(request) refusedFile { return refusedFile{to: "laed"} }},
	{"an answer to operators", aMessage,
		func(r request) refusedFile { return refusedFile{to: r.operators.sender, answers: r.operators.id} }},
	{"a bad type", aRefusal, func(request) refusedFile { return refusedFile{kind: "a b"} }},
	{"a verdict", aSettlement, func(r request) refusedFile {
		return refusedFile{kind: "plan_approval", thread: r.decision, body: "Approve"}
	}},
	{"an answer to an agent", aMessage,
		func(r request) refusedFile { return refusedFile{to: r.lead.sender, answers: r.lead.id} }},
	{"a directive", aRefusal, func(request) refusedFile { return refusedFile{kind: "halt"} }},
	{"an accepted handoff", aSettlement, func(r request) refusedFile {
		return refusedFile{kind: "handoff_accepted", thread: r.handoff, body: "I begin"}
	}},
	{"mail to operators", aMessage, func(request) refusedFile { return refusedFile{to: "operator"} }},
}

// trafficMoments are the changes of a folder, relative to that of the bridge, at which a process is killed.
var trafficMoments = map[string][]moment{
	"jsonl": {{"mailbox", fsnotify.Write}, {"rejected", fsnotify.Create}, {"mailbox", fsnotify.Write}},
	"maildir": {{".bridge/sending/scout", fsnotify.Create}, {".bridge/sending/scout", fsnotify.Remove},
		{"rejected", fsnotify.Create}, {".bridge/inbox/scout", fsnotify.Create}, {"messages/inbox/scout", fsnotify.Create}},
	"agent-messages": {{"outbox", fsnotify.Create}, {"rejected", fsnotify.Create}, {".bridge/edit", fsnotify.Create},
		{".bridge/inbox/scout", fsnotify.Create}, {"inbox/scout", fsnotify.Create}, {"outbox", fsnotify.Rename}},
}

func TestTraffic_IsCompleteAfterKillsOfTheBridgeAndTheDaemon(t *testing.T) {
	t.Parallel()
	program := processtest.Build(t)
	for format, moments := range trafficMoments {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*apptest.Patience)
			defer cancel()
			x := &traffic{team: &team{t: t, format: format, dir: t.TempDir()}, daemon: processtest.New(t, program),
				brokerctl: filepath.Join(filepath.Dir(program), "brokerctl")}
			root := x.empty("scout")
			x.begin(ctx)
			kill := x.bridge()
			x.awaitEvent(ctx, "agent.registered", "scout", 1)
			for n := range trafficKills(t) {
				seen := x.watch(filepath.Join(root, moments[n%len(moments)].dir))
				x.exchange(ctx)
				x.awaitMoment(seen, moments[n%len(moments)])
				if n/len(moments)%2 == 0 {
					kill()
					kill = x.bridge()
				} else {
					x.daemon.Kill()
					apptest.NoError(t, x.daemon.Start(ctx))
				}
			}
			x.check(ctx, root)
			kill()
			kill = x.bridge()
			x.exchange(ctx)
			x.check(ctx, root) // the last bridge repeats nothing
			kill()
			if err := x.daemon.Terminate(); err != nil {
				t.Error(err)
			}
			if err := x.daemon.Check(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// bridge starts a bridge, and returns when it has taken the folder over: a bridge ends if no broker runs when it starts.
func (x *traffic) bridge() (kill func()) {
	x.t.Helper()
	kill, ready := x.startBridge(x.brokerctl, x.daemon.Address(), "100ms")
	select {
	case <-ready:
	case <-time.After(apptest.Patience):
		x.t.Fatal("the bridge did not start")
	}
	return kill
}

// begin starts the daemon, with the agent lead.
func (x *traffic) begin(ctx context.Context) {
	x.t.Helper()
	apptest.NoError(x.t, x.daemon.Start(ctx))
	c, err := client.Dial(ctx, client.WithAddress(x.daemon.Address()))
	apptest.NoError(x.t, err)
	x.t.Cleanup(c.Close)
	x.broker = c
	apptest.NoError(x.t, apptest.Err(c.As("lead").Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "worker"})))
	_, err = c.Sessions().ConfigureSession(ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0)}})
	apptest.NoError(x.t, err)
}

// exchange sends mail to scout, and writes a file of each kind.
func (x *traffic) exchange(ctx context.Context) {
	x.t.Helper()
	x.round++
	ask := func(sender string) asked {
		body := fmt.Sprintf("%s-%d", sender, x.round)
		c := x.broker
		if sender != "system" {
			c = c.As(sender)
		}
		m := toAgent("scout", body)
		m.RequiresResponse = true
		out, err := c.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}}, grpc.WaitForReady(true))
		apptest.NoError(x.t, err)
		x.received = append(x.received, body)
		r := out.GetResults()[0]
		a := asked{sender: sender, id: r.GetId(), revision: r.GetRevision()}
		if x.format == "agent-messages" {
			a.id = fmt.Sprintf("msg_20260101_000000_r%012d", r.GetRevision())
		}
		return a
	}
	r := request{operators: ask("system"), lead: ask("lead")}
	r.decision, r.handoff = x.offer(ctx)
	for i, f := range files {
		m := f.message(r)
		m.name = fmt.Sprintf("m%04d-%d", x.round, i)
		x.put(m)
		switch f.becomes {
		case aMessage:
			x.sent = append(x.sent, m.name)
		case aRefusal:
			x.refused++
		}
	}
}

// offer submits a plan to scout and hands work over to it. It returns their ids.
func (x *traffic) offer(ctx context.Context) (decision, handoff string) {
	x.t.Helper()
	lead := x.broker.As("lead")
	plan, err := lead.Decisions().OpenDecision(ctx, &pb.OpenDecisionRequest{Kind: pb.DecisionKind_DECISION_KIND_PLAN,
		To: &pb.OpenDecisionRequest_Agent{Agent: "scout"}, Title: "The plan"}, grpc.WaitForReady(true))
	apptest.NoError(x.t, err)
	work, err := lead.Handoffs().CreateHandoff(ctx, &pb.CreateHandoffRequest{Title: "The work", ToAgent: "scout"},
		grpc.WaitForReady(true))
	apptest.NoError(x.t, err)
	return plan.GetDecision().GetId(), work.GetHandoff().GetId()
}

// check waits until everything has crossed, and wants it once, in order, and nothing else.
func (x *traffic) check(ctx context.Context, root string) {
	x.t.Helper()
	x.awaitEvent(ctx, "message.sent", "scout", len(x.sent))
	x.awaitEvent(ctx, "decision.decided", "scout", x.round)
	x.awaitEvent(ctx, "handoff.accepted", "scout", x.round)
	dir := map[string]string{"jsonl": "mailbox", "maildir": "messages/inbox/scout", "agent-messages": root + "inbox/scout"}[x.format]
	x.await(dir, "the mail of scout", func() bool { return len(x.inbox(dir)) >= len(x.received) })
	inbox := x.inbox(dir)
	slices.Sort(inbox)
	want := slices.Sorted(slices.Values(x.received))
	if !slices.Equal(inbox, want) {
		x.t.Errorf("scout received %q, not %q", inbox, want)
	}
	x.awaitFiles(root+"rejected", 2*x.refused)
	var sent []string
	for token := ""; ; {
		page, err := x.broker.Messages().ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL,
			PageSize: 1000, PageToken: token, Filter: &pb.MessageFilter{Senders: []string{"scout"}}}, grpc.WaitForReady(true))
		apptest.NoError(x.t, err)
		for _, item := range page.GetItems() {
			m := item.GetMessage()
			sent = append(sent, m.GetBody())
			kind := files[int(m.GetBody()[len(m.GetBody())-1]-'0')].kind
			if strings.HasPrefix(kind, "an answer") != (m.GetInReplyTo() != "") {
				x.t.Errorf("%s: %v", kind, m)
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if !slices.Equal(sent, x.sent) {
		x.t.Errorf("scout has sent %q, not %q", sent, x.sent)
	}
	for kind, want := range map[string]int{"bridge.file_rejected": x.refused, "decision.decided": x.round,
		"handoff.accepted": x.round} {
		if n := x.count(ctx, kind); n != want {
			x.t.Errorf("there are %d events %s, not %d", n, kind, want)
		}
	}
	for _, dir := range []string{"messages/outbox/scout", ".bridge/sending/scout"} {
		if left := x.names(dir); len(left) > 0 {
			x.t.Errorf("%s has %q", dir, left)
		}
	}
}

// inbox returns the bodies of the messages in the files of scout that ask has sent.
func (x *traffic) inbox(dir string) (bodies []string) {
	x.t.Helper()
	add := func(text any) {
		if body, _ := text.(string); strings.HasPrefix(body, "system-") || strings.HasPrefix(body, "lead-") {
			bodies = append(bodies, body)
		}
	}
	if x.format == "jsonl" {
		for line := range strings.Lines(x.text(dir + "/scout.jsonl")) {
			if strings.HasSuffix(line, "\n") {
				add(object(x.t, line)["Content"])
			}
		}
		return bodies
	}
	for _, name := range x.names(dir) {
		// The bridge archives the request of a decision that is settled.
		if data, err := os.ReadFile(filepath.Join(x.dir, dir, name)); err == nil {
			file := object(x.t, string(data))
			add(file["body"])
			add(file["payload"])
		}
	}
	return bodies
}

// count returns how many events of a type the log has.
func (x *traffic) count(ctx context.Context, kind string) (n int) {
	x.t.Helper()
	for token := ""; ; {
		page, err := x.broker.Events().ListEvents(ctx, &pb.ListEventsRequest{PageSize: 1000, PageToken: token,
			Filter: &pb.EventFilter{Types: []string{kind}}})
		apptest.NoError(x.t, err)
		n += len(page.GetEvents())
		if token = page.GetNextPageToken(); token == "" {
			return n
		}
	}
}

// awaitEvent waits until the log has a number of events of a type and a source.
func (x *traffic) awaitEvent(ctx context.Context, kind, source string, count int) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, apptest.Patience)
	defer cancel()
	stream, err := x.broker.Events().SubscribeEvents(ctx, &pb.SubscribeEventsRequest{AfterRevision: proto.Int64(0),
		Filter: &pb.EventFilter{Types: []string{kind}, Sources: []string{source}}}, grpc.WaitForReady(true))
	apptest.NoError(x.t, err)
	for n := 0; n < count; {
		page, err := stream.Recv()
		if err != nil {
			x.t.Fatalf("%d of %d events %s of %s came, then: %v", n, count, kind, source, err)
		}
		n += len(page.GetEvents())
	}
}

// watch watches a folder, which it makes.
func (x *traffic) watch(dir string) *fsnotify.Watcher {
	x.t.Helper()
	watcher, err := fsnotify.NewWatcher()
	apptest.NoError(x.t, err)
	apptest.NoError(x.t, os.MkdirAll(filepath.Join(x.dir, dir), 0o755))
	apptest.NoError(x.t, watcher.Add(filepath.Join(x.dir, dir)))
	return watcher
}

// awaitMoment waits for a change of a watched folder.
func (x *traffic) awaitMoment(watcher *fsnotify.Watcher, m moment) {
	x.t.Helper()
	defer watcher.Close() //nolint:errcheck // nothing to do about it
	limit := time.NewTimer(apptest.Patience)
	defer limit.Stop()
	for {
		select {
		case e := <-watcher.Events:
			if e.Has(m.op) {
				return
			}
		case <-limit.C:
			x.t.Fatalf("round %d: no %v in %s", x.round, m.op, m.dir)
		}
	}
}
