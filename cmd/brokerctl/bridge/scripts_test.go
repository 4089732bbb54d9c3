package bridge_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

const (
	kills  = 20 // of the bridge
	pieces = kills + 1
)

// eachWay returns the number of messages in each direction: BRIDGE_MESSAGES, or fewer than `make
// bridge` for a run with the race detector.
func eachWay(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BRIDGE_MESSAGES")
	if text == "" {
		return 250
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < pieces*len(scripts) {
		t.Fatalf("BRIDGE_MESSAGES is %q; it must be at least %d", text, pieces*len(scripts))
	}
	return n
}

// scripts are the agents that only have files.
var scripts = []string{"alpha", "beta"}

func TestScripts_ExchangeMessagesOnceAndInOrderWhileTheBridgeIsKilled(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "flock", "mv", "jq"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	inboxes := map[string]string{"jsonl": "mailbox", "maildir": "messages/inbox/NAME", "agent-messages": ".agent-messages/inbox/NAME"}
	brokerctl := filepath.Join(filepath.Dir(processtest.Build(t)), "brokerctl")
	for format, inbox := range inboxes {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			testKills(t, brokerctl, format, inbox)
		})
	}
}

// testKills exchanges messages between scripts and a gRPC agent. In each of its pieces, it kills the
// bridge when about half of the messages of the piece have arrived.
func testKills(t *testing.T, brokerctl, format, inbox string) {
	d := newTeam(t, format)
	limit, cancel := context.WithTimeout(t.Context(), 10*apptest.Patience)
	defer cancel()
	if _, err := pb.NewSessionServiceClient(d.broker.Operator()).ConfigureSession(limit,
		&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: proto.Float64(0)}}); err != nil {
		t.Fatal(err)
	}
	lead := d.broker.Registered("lead", "lead")
	arrivals := newArrivals(t)
	claimed := make(chan struct{})
	go func() {
		defer close(claimed)
		claimAll(limit, messages(lead), arrivals)
	}()
	defer func() { cancel(); <-claimed }()
	agents := map[string]*script{}
	for _, name := range scripts {
		agents[name] = startScript(t, d, format, name, strings.Replace(inbox, "NAME", name, 1), arrivals)
	}
	kill := d.startProcess(brokerctl)
	for _, name := range scripts {
		d.awaitAgent(name)
	}
	sent, count := 0, eachWay(t)
	for piece := range pieces {
		upTo := count * (piece + 1) / pieces / len(scripts)
		for _, name := range scripts {
			agents[name].write(fmt.Sprintf("send %d %d", sent+1, upTo))
			var batch []*pb.Message
			for n := sent + 1; n <= upTo; n++ {
				batch = append(batch, toAgent(name, strconv.Itoa(n)))
			}
			apptest.NoError(t, apptest.Err(messages(lead).SendMessages(limit, &pb.SendMessagesRequest{Messages: batch})))
		}
		arrivals.await(limit, len(scripts)*(sent+upTo)) // both ways
		if piece < kills {
			kill()
			kill = d.startProcess(brokerctl)
		}
		sent = upTo
	}
	arrivals.await(limit, 2*len(scripts)*sent)
	// The bridge that starts now would repeat what its ledger does not have. The last message follows it.
	kill()
	d.startProcess(brokerctl)
	for _, name := range scripts {
		agents[name].write(fmt.Sprintf("send %d %d", sent+1, sent+1))
		d.send(lead, toAgent(name, strconv.Itoa(sent+1)))
	}
	arrivals.await(limit, 2*len(scripts)*(sent+1))
	for _, name := range scripts {
		d.awaitEmpty(name)
	}
	if rejected := d.names("rejected"); len(rejected) > 0 {
		t.Errorf("the bridge rejected %q", rejected)
	}
	arrivals.check(sent + 1)
}

// claimAll claims and acknowledges the messages of an agent.
func claimAll(ctx context.Context, calls pb.MessageServiceClient, to *arrivals) {
	for {
		out, err := calls.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(apptest.Patience), Max: 50})
		if err != nil {
			return // the test has ended
		}
		var ids []string
		for _, c := range out.GetClaims() {
			ids = append(ids, c.GetClaimId())
			to.add(c.GetMessage().GetSender()+" to lead", c.GetMessage().GetBody())
		}
		if len(ids) == 0 {
			continue
		}
		if _, err := calls.AckMessages(ctx, &pb.AckMessagesRequest{Ids: ids}); err != nil {
			return
		}
	}
}

// arrivals are the messages that the agents have received.
type arrivals struct {
	t *testing.T

	mu      sync.Mutex          // guards the fields below
	bodies  map[string][]string // "SENDER to RECIPIENT" → bodies in the order of arrival
	count   int
	changed chan struct{} // closed and replaced when a message arrives
}

func newArrivals(t *testing.T) *arrivals {
	return &arrivals{t: t, bodies: map[string][]string{}, changed: make(chan struct{})}
}

func (a *arrivals) add(way, body string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bodies[way] = append(a.bodies[way], body)
	a.count++
	close(a.changed)
	a.changed = make(chan struct{})
}

// await waits until a number of messages have arrived.
func (a *arrivals) await(ctx context.Context, count int) {
	a.t.Helper()
	for {
		a.mu.Lock()
		now, changed := a.count, a.changed
		a.mu.Unlock()
		if now >= count {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			a.t.Fatalf("%d messages arrived, not %d", now, count)
		}
	}
}

// check wants the numbers from 1 to last, once each and in order, on every way.
func (a *arrivals) check(last int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.bodies) != 2*len(scripts) {
		a.t.Errorf("messages have gone %d ways, not %d", len(a.bodies), 2*len(scripts))
	}
	for way, bodies := range a.bodies {
		for i, body := range bodies {
			if body != strconv.Itoa(i+1) {
				a.t.Errorf("%s: message %d is number %s", way, i+1, body)
				break
			}
		}
		if len(bodies) != last {
			a.t.Errorf("%s: %d messages arrived, not %d", way, len(bodies), last)
		}
	}
}

// A script is an agent of testdata.
type script struct {
	t       *testing.T
	mu      sync.Mutex // guards stdin
	stdin   io.WriteCloser
	watcher *fsnotify.Watcher
}

// startScript starts an agent, makes it look whenever its inbox changes, and adds what it receives to
// the arrivals.
func startScript(t *testing.T, d *team, format, name, inbox string, to *arrivals) *script {
	t.Helper()
	path := filepath.Join("testdata", format+".sh")
	if _, err := os.ReadFile(path); err != nil { // so that the result of the test depends on it
		t.Fatal(err)
	}
	apptest.NoError(t, os.MkdirAll(filepath.Join(d.dir, inbox), 0o755))
	command := exec.Command("bash", path, d.dir, name, "lead")
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	apptest.NoError(t, err)
	stdout, err := command.StdoutPipe()
	apptest.NoError(t, err)
	s := &script{t: t, stdin: stdin}
	if s.watcher, err = fsnotify.NewWatcher(); err != nil {
		t.Fatal(err)
	}
	apptest.NoError(t, s.watcher.Add(filepath.Join(d.dir, inbox)))
	apptest.NoError(t, command.Start())
	var running sync.WaitGroup
	running.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if got := strings.SplitN(lines.Text(), " ", 3); len(got) == 3 {
				to.add(got[1]+" to "+name, got[2])
			}
		}
	})
	running.Go(s.lookAfterChanges)
	t.Cleanup(func() {
		_ = s.watcher.Close()
		_ = stdin.Close()
		running.Wait()
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	return s
}

// lookAfterChanges makes the script look once for all changes that have come meanwhile.
func (s *script) lookAfterChanges() {
	for range s.watcher.Events {
		for more := true; more; {
			select {
			case _, more = <-s.watcher.Events:
			default:
				more = false
			}
		}
		s.write("look")
	}
}

// write writes a command for the script.
func (s *script) write(command string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.stdin, command); err != nil {
		s.t.Errorf("%s: %v", command, err)
	}
}
