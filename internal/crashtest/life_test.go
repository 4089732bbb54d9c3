package crashtest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// Leases in these tests are short, and longer than a busy machine lets an agent wait; agents beat their heart every third
// of them.
const (
	shortLease = 10 * time.Second
	beatEvery  = shortLease / 3
	inTime     = time.Minute // that what a dead agent held is with the next one after its lease, on a busy machine
	longWait   = 5 * time.Minute
)

// Environment of an agent's own process; see TestMain.
const (
	victimAddress = "BROKERD_TEST_VICTIM"
	victimName    = "victim"
)

// TestAgent_KilledLosesAllWhenItsLeaseIsOverAndNotBefore kills the process of an agent that holds a lock, a token and a claim.
func TestAgent_KilledLosesAllWhenItsLeaseIsOverAndNotBefore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := newDaemon(t, processtest.Build(t))
	testkit.NoError(t, d.start(ctx))
	heir := as(ctx, "heir")
	if _, err := d.agents.RegisterAgent(heir, &pb.RegisterAgentRequest{Role: "worker"}); err != nil {
		t.Fatal(err)
	}
	v := startVictim(t, d)
	if _, err := d.messages.SendMessages(heir, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}, Subject: "work", Type: "work"}}}); err != nil {
		t.Fatal(err)
	}
	v.await(t, "holds all")
	type inherited struct {
		what string
		at   time.Time
		err  error
	}
	got := make(chan inherited)
	wait := durationpb.New(longWait)
	inherit := func(what string, call func() (bool, error)) {
		go func() {
			ok, err := call()
			if err == nil && !ok {
				err = fmt.Errorf("it did not come")
			}
			got <- inherited{what, time.Now(), err}
		}()
	}
	inherit("the lock", func() (bool, error) {
		r, err := d.locks.AcquireLocks(heir, &pb.AcquireLocksRequest{Paths: []string{"src/"}, Wait: wait})
		return r.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED, err
	})
	inherit("the token", func() (bool, error) {
		r, err := d.tokens.AcquireToken(heir, &pb.AcquireTokenRequest{Type: "turn", Scope: "x", Wait: wait})
		return r.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED, err
	})
	other := as(ctx, "other")
	if _, err := d.agents.RegisterAgent(other, &pb.RegisterAgentRequest{Role: "worker"}); err != nil {
		t.Fatal(err)
	}
	inherit("the claim", func() (bool, error) { // not by the heir, who has sent it
		r, err := d.messages.ClaimMessages(other, &pb.ClaimMessagesRequest{Max: 1, Wait: wait})
		return len(r.GetClaims()) == 1 && r.GetClaims()[0].GetAttempt() == 2, err
	})
	beats := v.beats
	v.await(t, "beat "+strconv.Itoa(beats+2)) // it is alive, and they have been waiting for a while
	pause(ctx, beatEvery/2)
	v.kill()
	killed := time.Now()
	for range 3 {
		i := <-got
		switch {
		case i.err != nil:
			t.Errorf("%s: %v", i.what, i.err)
		case i.at.Before(v.lastBeat.Add(shortLease)):
			t.Errorf("%s was taken away %v before the lease was over", i.what, v.lastBeat.Add(shortLease).Sub(i.at))
		case i.at.After(killed.Add(shortLease + inTime)):
			t.Errorf("%s came %v after the lease was over", i.what, i.at.Sub(killed.Add(shortLease)))
		}
	}
	found, err := d.agents.GetAgent(ctx, &pb.GetAgentRequest{Name: victimName})
	if err != nil || found.GetAgent().GetHealth() != pb.Health_HEALTH_FAILED {
		t.Errorf("the victim is %v (%v)", found, err)
	}
	end(ctx, t, d)
}

// TestDaemon_StoppedForLongerThanALeaseFailsNobody stops the daemon, as a suspended machine does.
func TestDaemon_StoppedForLongerThanALeaseFailsNobody(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := newDaemon(t, processtest.Build(t))
	testkit.NoError(t, d.start(ctx))
	l := startLiving(ctx, t, d)
	pause(ctx, beatEvery)
	testkit.NoError(t, d.Signal(syscall.SIGSTOP))
	pause(ctx, shortLease+3*time.Second)
	testkit.NoError(t, d.Signal(syscall.SIGCONT))
	pause(ctx, shortLease+time.Second)
	l.verify(ctx, t, d)
	end(ctx, t, d)
}

// TestDaemon_DownForLongerThanALeaseCostsNobodyWhoReturns kills the daemon and starts it after everybody's lease.
func TestDaemon_DownForLongerThanALeaseCostsNobodyWhoReturns(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	d := newDaemon(t, processtest.Build(t))
	testkit.NoError(t, d.start(ctx))
	l := startLiving(ctx, t, d)
	sleeper := as(ctx, "sleeper") // does not call again until its lease, counted from the restart, is over, but the grace is not
	if _, err := d.agents.RegisterAgent(sleeper, &pb.RegisterAgentRequest{Lease: durationpb.New(shortLease)}); err != nil {
		t.Fatal(err)
	}
	locked, err := d.locks.AcquireLocks(sleeper, &pb.AcquireLocksRequest{Paths: []string{"sleeper/"}})
	testkit.NoError(t, err)
	d.kill()
	pause(ctx, shortLease+2*time.Second)
	testkit.NoError(t, d.start(ctx))
	pause(ctx, shortLease+2*time.Second)
	l.verify(ctx, t, d)
	again, err := d.locks.AcquireLocks(as(ctx, "sleeper"), &pb.AcquireLocksRequest{Paths: []string{"sleeper/"}})
	if err != nil || !again.GetAlreadyHeld() || again.GetFence() != locked.GetFence() {
		t.Errorf("who returned within the grace has %v (%v) instead of fence %d", again, err, locked.GetFence())
	}
	end(ctx, t, d)
}

// living is an agent that beats its heart all the time and holds a lock.
type living struct {
	client      *client.Client
	incarnation int64
	fence       int64
}

func startLiving(ctx context.Context, t *testing.T, d *daemon) *living {
	t.Helper()
	c, err := client.Dial(ctx, client.WithAddress(d.Address()), client.WithAgent("living"))
	testkit.NoError(t, err)
	t.Cleanup(c.Close)
	request := &pb.RegisterAgentRequest{Lease: durationpb.New(shortLease)}
	member, err := c.Join(ctx, request, client.JoinOptions{Once: true})
	testkit.NoError(t, err)
	t.Cleanup(member.Abandon)
	locked, err := member.Client().Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"living/"}})
	testkit.NoError(t, err)
	return &living{c, member.Client().Identity().Incarnation, locked.GetFence()}
}

// verify checks that the agent has never failed. On a busy machine its heartbeats may be late.
func (l *living) verify(ctx context.Context, t *testing.T, d *daemon) {
	t.Helper()
	found, err := d.agents.GetAgent(ctx, &pb.GetAgentRequest{Name: "living"})
	if err != nil || found.GetAgent().GetHealth() == pb.Health_HEALTH_FAILED || found.GetAgent().GetIncarnation() != l.incarnation {
		t.Errorf("the living agent is %v (%v), and was at incarnation %d", found, err, l.incarnation)
	}
	again, err := l.client.Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"living/"}})
	if err != nil || !again.GetAlreadyHeld() || again.GetFence() != l.fence {
		t.Errorf("the living agent has %v (%v) instead of fence %d", again, err, l.fence)
	}
	events, err := d.events.ListEvents(ctx, &pb.ListEventsRequest{PageSize: 1000, Filter: &pb.EventFilter{Types: []string{"agent.failed"}}})
	if err != nil || len(events.GetEvents()) > 0 {
		t.Errorf("somebody failed: %v (%v)", events, err)
	}
}

// end stops the daemon and checks its folder.
func end(ctx context.Context, t *testing.T, d *daemon) {
	t.Helper()
	found, err := d.admin.CheckDatabase(ctx, &pb.CheckDatabaseRequest{})
	if err != nil || len(found.GetProblems()) > 0 {
		t.Errorf("the database is not sound: %q (%v)", found.GetProblems(), err)
	}
	if err := d.terminate(); err != nil {
		t.Errorf("the daemon did not stop in order: %v\n%s", err, d.Stderr())
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}

// A victim is an agent in a process of its own that is killed.
type victim struct {
	process  *exec.Cmd
	lines    *bufio.Scanner
	beats    int
	lastBeat time.Time // before the last confirmed heartbeat was sent
}

func startVictim(t *testing.T, d *daemon) *victim {
	t.Helper()
	v := &victim{process: exec.CommandContext(t.Context(), os.Args[0])}
	v.process.Env = append(processtest.Environment(t), victimAddress+"="+d.Address())
	v.process.Stderr = os.Stderr
	out, err := v.process.StdoutPipe()
	testkit.NoError(t, err)
	v.lines = bufio.NewScanner(out)
	testkit.NoError(t, v.process.Start())
	t.Cleanup(v.kill)
	return v
}

// await reads what the victim says until it says this.
func (v *victim) await(t *testing.T, what string) {
	t.Helper()
	for v.lines.Scan() {
		said, at, _ := strings.Cut(v.lines.Text(), " at ")
		if nanoseconds, err := strconv.ParseInt(at, 10, 64); err == nil {
			v.beats++
			v.lastBeat = time.Unix(0, nanoseconds)
		}
		if said == what {
			return
		}
	}
	t.Fatalf("the victim ended before it said %q", what)
}

// kill sends SIGKILL, waits for the end, and reads what was said before. Killing twice is fine.
func (v *victim) kill() {
	if v.process.ProcessState != nil {
		return
	}
	_ = v.process.Process.Kill()
	for v.lines.Scan() {
		if _, at, found := strings.Cut(v.lines.Text(), " at "); found {
			if nanoseconds, err := strconv.ParseInt(at, 10, 64); err == nil {
				v.lastBeat = time.Unix(0, nanoseconds)
			}
		}
	}
	_ = v.process.Wait()
}

// isVictim reports whether this process is the agent to be killed.
func isVictim() bool { return os.Getenv(victimAddress) != "" }

// liveAsVictim is its process: it takes what there is to take, and beats its heart.
func liveAsVictim() error {
	ctx := context.Background()
	c, err := client.Dial(ctx, client.WithAddress(os.Getenv(victimAddress)), client.WithAgent(victimName))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "worker", Lease: durationpb.New(shortLease)}); err != nil {
		return err
	}
	if _, err := c.Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"src/a.go", "src/b.go"}}); err != nil {
		return err
	}
	if _, err := c.Tokens().AcquireToken(ctx, &pb.AcquireTokenRequest{Type: "turn", Scope: "x"}); err != nil {
		return err
	}
	claimed, err := c.Messages().ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 1, Wait: durationpb.New(longWait), ClaimFor: durationpb.New(time.Hour)})
	if err != nil || len(claimed.GetClaims()) != 1 {
		return fmt.Errorf("claim: %v (%w)", claimed, err)
	}
	say := func(what string) {
		fmt.Fprintln(os.Stdout, what)
	}
	say("holds all")
	for beat := 1; ; beat++ {
		at := time.Now()
		if _, err := c.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{}); err != nil {
			return err
		}
		say(fmt.Sprintf("beat %d at %d", beat, at.UnixNano()))
		pause(ctx, beatEvery)
	}
}
