package bash_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/processtest"
)

const (
	tasks    = 100
	patience = 10 * time.Minute
)

// TestAgent_KilledTwiceFinishesEachTaskOnce kills agent.sh with all that it has started, as soon as the broker has
// handed out a third and two thirds of the work, and starts it again.
func TestAgent_KilledTwiceFinishesEachTaskOnce(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is missing")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broker, data := startBroker(t)
	register(t, broker, "lead", "lead")
	register(t, broker, "worker-1", "worker")
	revisions := send(ctx, t, broker.As("lead"))

	env := environment(t, data, "1s")
	effects := filepath.Join(t.TempDir(), "effects")
	start := func() (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(ctx, "./agent.sh", "worker-1", "worker", "sh", "-c", `cat >> "$0"`, effects)
		cmd.Env, cmd.SysProcAttr = env, &syscall.SysProcAttr{Setpgid: true}
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said // Wait returns when nobody of the group holds them any more
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, &said
	}

	claims := countClaims(ctx, t, broker)
	underWay := map[int64]bool{} // what was being worked on at a kill
	for _, after := range []int{tasks / 3, 2 * tasks / 3} {
		agent, said := start()
		for n := range claims {
			if n >= after {
				break
			}
		}
		if err := syscall.Kill(-agent.Process.Pid, syscall.SIGKILL); err != nil {
			t.Fatalf("the agent was gone before the kill: %v\n%s", err, said)
		}
		_ = agent.Wait() // it was killed
		for _, r := range revisions {
			if delivery(ctx, t, broker, r).GetState() == pb.DeliveryState_DELIVERY_STATE_CLAIMED {
				underWay[r] = true
			}
		}
	}
	agent, said := start()
	if err := agent.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}

	done := effectsIn(t, effects)
	for _, r := range revisions {
		d := delivery(ctx, t, broker, r)
		if d.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED || d.GetAttempts() != 0 || d.GetAckedBy() != "worker-1" {
			t.Errorf("message %d: %v", r, d)
		}
		if n := done[r]; n != 1 && (n != 2 || !underWay[r]) {
			t.Errorf("message %d had its effect %d times; under way at a kill: %t", r, n, underWay[r])
		}
	}
	acked := ackedIn(ctx, t, broker)
	for claim, n := range acked {
		if n != 1 {
			t.Errorf("claim %s was acknowledged %d times", claim, n)
		}
	}
	if len(acked) != tasks || len(underWay) > 2 {
		t.Errorf("%d claims acknowledged, %d under way at two kills", len(acked), len(underWay))
	}
}

// TestAgent_FailureIsKeptAndTriedAgain shows the other branch of agent.sh.
func TestAgent_FailureIsKeptAndTriedAgain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broker, data := startBroker(t)
	register(t, broker, "lead", "lead")
	sent, err := broker.As("lead").Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}, Subject: "cannot be done", MaxAttempts: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "./agent.sh", "worker-1", "worker", "false")
	cmd.Env = environment(t, data, "1s")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d := delivery(ctx, t, broker, sent.GetResults()[0].GetRevision())
	if d.GetState() != pb.DeliveryState_DELIVERY_STATE_DEAD || d.GetHistory()[0].GetError() != "false: exit code 1" {
		t.Errorf("delivery is %v", d)
	}
}

// TestAgent_TakesTheRetryOfItsOwnFailure waits longer than the delay of a first retry, about a second.
func TestAgent_TakesTheRetryOfItsOwnFailure(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	broker, data := startBroker(t)
	register(t, broker, "lead", "lead")
	sent, err := broker.As("lead").Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}, Subject: "fails once"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	failed := filepath.Join(t.TempDir(), "failed")
	const failOnce = `test -e "$0" || { touch "$0"; exit 1; }`
	cmd := exec.CommandContext(ctx, "./agent.sh", "worker-1", "worker", "sh", "-c", failOnce, failed)
	cmd.Env = environment(t, data, "5s")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d := delivery(ctx, t, broker, sent.GetResults()[0].GetRevision())
	if d.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED || d.GetAttempts() != 1 {
		t.Errorf("delivery is %v", d)
	}
}

// startBroker runs a daemon and returns an operator's client and the data folder.
func startBroker(t *testing.T) (*client.Client, string) {
	t.Helper()
	data := t.TempDir()
	daemon, err := app.Start(t.Context(), app.Config{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := daemon.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	broker, err := client.Dial(t.Context(), client.WithAddress(daemon.Addresses()[0]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return broker, data
}

// environment is that of an agent: it finds brokerctl, and the broker by its data folder.
func environment(t *testing.T, data, wait string) []string {
	t.Helper()
	dir := filepath.Dir(processtest.Build(t))
	return append(processtest.Environment(t), "PATH="+dir+":"+os.Getenv("PATH"), "BROKERD_DATA="+data, "WAIT="+wait)
}

func register(t *testing.T, broker *client.Client, name, role string) {
	t.Helper()
	if _, err := broker.As(name).Agents().RegisterAgent(t.Context(), &pb.RegisterAgentRequest{Role: role}); err != nil {
		t.Fatal(err)
	}
}

// send sends the tasks and returns their revisions.
func send(ctx context.Context, t *testing.T, lead *client.Client) (revisions []int64) {
	t.Helper()
	var batch []*pb.Message
	for i := range tasks {
		batch = append(batch, &pb.Message{
			Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}, Type: "task_assignment", Subject: fmt.Sprintf("task %d", i+1),
		})
	}
	answer, err := lead.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: batch})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range answer.GetResults() {
		revisions = append(revisions, r.GetRevision())
	}
	return revisions
}

// countClaims yields how many claims the broker has given so far, each time that it gives one.
func countClaims(ctx context.Context, t *testing.T, broker *client.Client) <-chan int {
	t.Helper()
	ctx, stop := context.WithCancel(ctx)
	counts := make(chan int, tasks)
	t.Cleanup(func() {
		stop()
		for range counts { // until the follower is gone
		}
	})
	go func() {
		defer close(counts)
		n := 0
		for event, err := range broker.FollowEvents(ctx, client.EventOptions{Filter: &pb.EventFilter{Types: []string{"message.claimed"}}}) {
			if err != nil {
				t.Error(err)
				return
			}
			if event != nil {
				n++
				counts <- n
			}
		}
	}()
	return counts
}

func delivery(ctx context.Context, t *testing.T, broker *client.Client, revision int64) *pb.Delivery {
	t.Helper()
	answer, err := broker.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: fmt.Sprint(revision)})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetDeliveries()[0]
}

// effectsIn counts what the agent's command was given, by message.
func effectsIn(t *testing.T, file string) map[int64]int {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	counts := map[int64]int{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var claim struct {
			Message struct{ Revision int64 }
		}
		if err := json.Unmarshal(lines.Bytes(), &claim); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		counts[claim.Message.Revision]++
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

// ackedIn counts the acknowledgements in the log, by claim.
func ackedIn(ctx context.Context, t *testing.T, broker *client.Client) map[string]int {
	t.Helper()
	answer, err := broker.Events().ListEvents(ctx, &pb.ListEventsRequest{
		Filter: &pb.EventFilter{Types: []string{"message.acked"}}, PageSize: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, event := range answer.GetEvents() {
		var details struct{ Claims []string }
		if err := json.NewDecoder(strings.NewReader(event.GetDetails())).Decode(&details); err != nil {
			t.Fatal(err)
		}
		for _, claim := range details.Claims {
			counts[claim]++
		}
	}
	return counts
}
