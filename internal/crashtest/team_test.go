package crashtest_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// The team: agents that talk to each other in all ways at once, of which two are killed and come again.
const (
	teamSize     = 20
	teamTasks    = 200
	teamPace     = 20 * time.Millisecond // between two sends of one agent
	teamAnswered = 30 * time.Second      // no question may stay without an answer for longer
)

// Environment of an agent's own process; see TestMain.
const (
	mateName    = "BROKERD_TEST_MATE"
	mateAddress = "BROKERD_TEST_ADDRESS"
	mateFirst   = "BROKERD_TEST_FIRST"
	mateCount   = "BROKERD_TEST_COUNT"
)

func mate(i int) string { return fmt.Sprintf("mate-%02d", i) }

// A teamAgent sends its messages one after the other and works on all that it gets meanwhile.
type teamAgent struct {
	name   string
	client *client.Client
	sent   func(number int) // is told of every confirmed message
	got    func(m *pb.Message)
}

// run sends the messages from first up to count, then goes on working until ctx ends.
func (a *teamAgent) run(ctx context.Context, first, count int, done func()) error {
	if _, err := a.client.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "mate"}); err != nil {
		return err
	}
	if _, err := a.client.Channels().SubscribeChannel(ctx, &pb.SubscribeChannelRequest{Channel: "news"}); err != nil {
		return err
	}
	worked := make(chan error, 2)
	go func() { worked <- a.client.Work(ctx, client.WorkOptions{Concurrency: 8}, a.work) }()
	go func() { worked <- a.client.WorkTasks(ctx, client.TaskOptions{Resume: true}, a.task) }()
	for number := first; number <= count; number++ {
		if err := a.say(ctx, number); err != nil {
			return fmt.Errorf("%s, message %d: %w", a.name, number, err)
		}
		a.sent(number)
		pause(ctx, teamPace)
	}
	done()
	return errors.Join(<-worked, <-worked)
}

// task takes its time for a task.
func (a *teamAgent) task(ctx context.Context, c *client.TaskClaim) error {
	c.Result = a.name
	if err := c.Report(ctx, 0.5, "half done"); err != nil {
		return err
	}
	pause(ctx, teamPace)
	return nil
}

// say sends one message: to one, to all, to the channel, or as a question, whose answer it waits for. A message that
// a killed process may have sent already is recognised.
func (a *teamAgent) say(ctx context.Context, number int) error {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(a.name+"/"+strconv.Itoa(number)))
	request := id.String()
	random := rand.New(rand.NewPCG(binary.BigEndian.Uint64(id[:8]), 0)) // the same choice if it has to be said again
	peer := mate(random.IntN(teamSize))
	for peer == a.name {
		peer = mate(random.IntN(teamSize))
	}
	m := &pb.Message{
		Target:  &pb.Target{To: &pb.Target_Agent{Agent: peer}},
		Subject: fmt.Sprintf("%s %d", a.name, number),
		Payload: strconv.FormatInt(time.Now().UnixNano(), 10),
	}
	switch kind := number % 10; {
	case kind < 3:
		m.Type = "question"
		m.Payload = "" // the same request again must have the same body
		answer, err := a.client.Messages().Ask(ctx, &pb.AskRequest{RequestId: request, Message: m, Wait: durationpb.New(teamAnswered)})
		if err != nil {
			return err
		}
		if want := "re: " + m.GetSubject(); answer.GetReply().GetSubject() != want {
			return fmt.Errorf("the reply is %q, not %q", answer.GetReply().GetSubject(), want)
		}
		return nil
	case kind == 3:
		m.Target = &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	case kind < 6:
		m.Target = &pb.Target{To: &pb.Target_Channel{Channel: "news"}}
	}
	_, err := a.client.Messages().SendMessages(ctx, &pb.SendMessagesRequest{RequestId: request, Messages: []*pb.Message{m}})
	if status.Code(err) == codes.AlreadyExists {
		return nil // sent by the process before, with another time in it
	}
	return err
}

// work answers questions and takes note of everything else.
func (a *teamAgent) work(ctx context.Context, c *client.Claim) error {
	if c.Message.GetType() != "question" {
		a.got(c.Message)
		return nil
	}
	_, err := a.client.Messages().Reply(ctx, &pb.ReplyRequest{
		Id:      c.Message.GetId(),
		Message: &pb.Message{Type: "response", Subject: "re: " + c.Message.GetSubject()},
	})
	return err
}

// TestTeam_LosesNothingAndFinishesEveryTaskOnce shows that 20 agents can talk in all ways at once, and work through 200
// tasks that depend on each other, while two of the agents are killed. TEAM_MESSAGES is how many messages each of them
// sends (100).
func TestTeam_LosesNothingAndFinishesEveryTaskOnce(t *testing.T) {
	t.Parallel()
	count := int(fromEnvironment(t, "TEAM_MESSAGES", 100))
	ctx := t.Context()
	d := newDaemon(t, processtest.Build(t))
	testkit.NoError(t, d.start(ctx))
	if _, err := d.sessions.ConfigureSession(ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: proto.Float64(0)},
	}); err != nil {
		t.Fatal(err)
	}
	for i := range teamSize { // so that nobody speaks to somebody who is not there yet
		if _, err := d.agents.RegisterAgent(as(ctx, mate(i)), &pb.RegisterAgentRequest{Role: "mate"}); err != nil {
			t.Fatal(err)
		}
	}
	needs := planTeam(ctx, t, d)
	address := d.Address()
	team := &team{times: map[string]int{}}
	var senders, workers sync.WaitGroup
	working, stop := context.WithCancel(ctx)
	for i := range teamSize - 2 {
		c, err := client.Dial(ctx, client.WithAddress(address), client.WithAgent(mate(i)))
		testkit.NoError(t, err)
		defer c.Close()
		a := &teamAgent{name: mate(i), client: c, sent: func(int) {}, got: func(m *pb.Message) { team.note(mate(i), m) }}
		senders.Add(1)
		var once sync.Once
		workers.Go(func() {
			defer once.Do(senders.Done)
			if err := a.run(working, 1, count, func() { once.Do(senders.Done) }); err != nil && working.Err() == nil {
				t.Error(err)
			}
		})
	}
	var mortals []*mortal
	for i := teamSize - 2; i < teamSize; i++ {
		m := &mortal{name: mate(i), env: processtest.Environment(t), address: address, count: count}
		mortals = append(mortals, m)
		senders.Go(func() {
			if err := m.liveTwice(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	senders.Wait()
	awaitDrained(ctx, t, d)
	stop()
	for _, m := range mortals {
		m.kill()
	}
	workers.Wait()
	if t.Failed() {
		return
	}
	verifyTeam(ctx, t, d, team, count)
	verifyTasks(ctx, t, d, needs)
	slices.Sort(team.took)
	t.Logf("%d deliveries between living agents, from send to receive p50 %v, p95 %v, p99 %v", len(team.took),
		team.quantile(50), team.quantile(95), team.quantile(99))
	if err := d.terminate(); err != nil {
		t.Errorf("brokerd ended with %v", err)
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}

// planTeam creates the tasks, each of which may need others, and returns what each one needs.
func planTeam(ctx context.Context, t *testing.T, d *daemon) map[string][]string {
	t.Helper()
	needs := map[string][]string{}
	request := &pb.CreateTasksRequest{}
	for i := range teamTasks {
		one := &pb.NewTask{Id: fmt.Sprintf("step-%03d", i), Title: "a step"}
		for _, before := range []int{i - 7, i - 20} { // twenty ways, tied together
			if before >= 0 {
				one.DependsOn = append(one.DependsOn, fmt.Sprintf("step-%03d", before))
			}
		}
		needs[one.Id] = one.DependsOn
		request.Tasks = append(request.Tasks, one)
	}
	if _, err := d.tasks.CreateTasks(ctx, request); err != nil {
		t.Fatal(err)
	}
	return needs
}

// verifyTasks goes through the events: every task was completed once, after those that it needs.
func verifyTasks(ctx context.Context, t *testing.T, d *daemon, needs map[string][]string) {
	t.Helper()
	completed := map[string]int{}
	err := listEvents(ctx, d, func(e *pb.Event) {
		if e.GetType() != "task.completed" {
			return
		}
		completed[e.GetTaskId()]++
		for _, need := range needs[e.GetTaskId()] {
			if completed[need] == 0 {
				t.Errorf("%s was completed before %s, which it needs", e.GetTaskId(), need)
			}
		}
	})
	testkit.NoError(t, err)
	for id := range needs {
		if completed[id] != 1 {
			t.Errorf("%s was completed %d times", id, completed[id])
		}
	}
	stuck, err := d.admin.Explain(ctx, &pb.ExplainRequest{})
	if err != nil || len(stuck.GetFindings()) > 0 {
		t.Errorf("something still waits: %v (%v)", stuck, err)
	}
}

// A team is what its living agents have got.
type team struct {
	mu    sync.Mutex
	times map[string]int // by recipient and subject
	took  []time.Duration
}

func (t *team) note(who string, m *pb.Message) {
	now := time.Now().UnixNano()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times[who+" "+m.GetSubject()]++
	if at, err := strconv.ParseInt(m.GetPayload(), 10, 64); err == nil && m.GetSender() < mate(teamSize-2) {
		t.took = append(t.took, time.Duration(now-at))
	}
}

func (t *team) quantile(percent int) time.Duration {
	return t.took[len(t.took)*percent/100].Round(10 * time.Microsecond)
}

// awaitDrained waits until nothing is left to be worked on.
func awaitDrained(ctx context.Context, t *testing.T, d *daemon) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		s, err := d.admin.GetStatus(ctx, &pb.GetStatusRequest{})
		testkit.NoError(t, err)
		if s.GetWaiting() == 0 && s.GetClaimed() == 0 && len(s.GetWork()) == 0 {
			return
		}
		pause(ctx, 10*time.Millisecond)
	}
	t.Fatal("something waits for ever")
}

// verifyTeam compares what everybody got with what everybody sent.
func verifyTeam(ctx context.Context, t *testing.T, d *daemon, team *team, count int) {
	t.Helper()
	found := map[string]int{}
	token := ""
	for {
		page, err := d.messages.ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1000, PageToken: token})
		testkit.NoError(t, err)
		for _, item := range page.GetItems() {
			m := item.GetMessage()
			found[m.GetSubject()]++
			got, err := d.messages.GetMessage(ctx, &pb.GetMessageRequest{Id: m.GetId()})
			testkit.NoError(t, err)
			for _, delivery := range got.GetDeliveries() {
				if delivery.GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED {
					t.Errorf("%q of %s is %v for %s", m.GetSubject(), m.GetSender(), delivery.GetState(), delivery.GetMailbox())
				}
				who := delivery.GetMailbox()
				if who < mate(teamSize-2) && m.GetType() != "question" && m.GetType() != "response" && team.times[who+" "+m.GetSubject()] != 1 {
					t.Errorf("%s got %q %d times", who, m.GetSubject(), team.times[who+" "+m.GetSubject()])
				}
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	for i := range teamSize {
		for number := 1; number <= count; number++ {
			if subject := fmt.Sprintf("%s %d", mate(i), number); found[subject] != 1 {
				t.Errorf("%q was sent %d times", subject, found[subject])
			}
		}
	}
}

// A mortal is an agent in a process of its own that is killed in the middle, and comes again.
type mortal struct {
	name    string
	env     []string
	address string
	count   int
	process *exec.Cmd
	lines   *bufio.Scanner
}

func (m *mortal) liveTwice(ctx context.Context) error {
	last := 0
	for _, until := range []int{m.count / 3, m.count} {
		if err := m.start(ctx, last+1); err != nil {
			return err
		}
		for last < until && m.lines.Scan() {
			number, err := strconv.Atoi(m.lines.Text())
			if err != nil {
				return fmt.Errorf("%s: %s", m.name, m.lines.Text())
			}
			last = number
		}
		if last < until {
			return fmt.Errorf("%s ended after %d messages", m.name, last)
		}
		if until < m.count {
			m.kill()
		}
	}
	return nil
}

func (m *mortal) start(ctx context.Context, first int) error {
	m.process = exec.CommandContext(ctx, os.Args[0])
	m.process.Env = append(slices.Clone(m.env), mateName+"="+m.name, mateAddress+"="+m.address,
		mateFirst+"="+strconv.Itoa(first), mateCount+"="+strconv.Itoa(m.count))
	m.process.Stderr = os.Stderr
	out, err := m.process.StdoutPipe()
	if err != nil {
		return err
	}
	m.lines = bufio.NewScanner(out)
	return m.process.Start()
}

// kill sends SIGKILL and waits for the end.
func (m *mortal) kill() {
	_ = m.process.Process.Kill()
	_ = m.process.Wait()
}

// liveAsMate is the process of a mortal agent: it prints the number of every confirmed message.
func liveAsMate() error {
	first, err := strconv.Atoi(os.Getenv(mateFirst))
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(os.Getenv(mateCount))
	if err != nil {
		return err
	}
	name := os.Getenv(mateName)
	ctx := context.Background()
	c, err := client.Dial(ctx, client.WithAddress(os.Getenv(mateAddress)), client.WithAgent(name))
	if err != nil {
		return err
	}
	defer c.Close()
	out := bufio.NewWriter(os.Stdout)
	a := &teamAgent{name: name, client: c, got: func(*pb.Message) {}, sent: func(number int) {
		fmt.Fprintln(out, number)
		_ = out.Flush() // a reader that is gone is the end of this process as well
	}}
	return a.run(ctx, first, count, func() {})
}

// isMate reports whether this process is an agent of the team.
func isMate() bool { return strings.HasPrefix(os.Getenv(mateName), "mate-") }
