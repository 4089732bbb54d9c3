package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// Names of the team. The overseer is no agent: it follows the event log as an operator.
const (
	leader   = "lead"
	builder1 = "builder-1"
	builder2 = "builder-2"
	reviewer = "reviewer"
	overseer = "overseer"
)

var members = []struct{ name, role string }{
	{leader, "lead"}, {builder1, "builder"}, {builder2, "builder"}, {reviewer, "reviewer"},
}

// Types of the team's messages.
const (
	typeTask     = "task_assignment"
	typeResult   = "task_result"
	typeQuestion = "question"
	typeAnswer   = "answer"
	typeNotice   = "notice"
)

// askTime is how long a builder waits for the reviewer's answer.
const askTime = 30 * time.Second

// task is a piece of work, and what becomes of it.
type task struct {
	subject  string
	priority int32
	takes    time.Duration // at pace 1
	question string        // asked before it is done
	fails    string        // at the first attempt
	fatal    string        // at every one: it cannot be done
}

// The most urgent comes first, as it is taken.
var tasks = []task{
	{subject: "Fix the failing session test", priority: 10, takes: 1000 * time.Millisecond},
	{subject: "Store passwords", priority: 7, takes: 1200 * time.Millisecond, question: "bcrypt or argon2id?"},
	{subject: "Write the migration", priority: 5, takes: 1400 * time.Millisecond, fails: "test database is locked"},
	{subject: "Add the login form", priority: 5, takes: 1800 * time.Millisecond},
	{subject: "Port the old importer", priority: 5, takes: 900 * time.Millisecond, fatal: "no such repository: importer"},
	{subject: "Limit sign-in attempts", priority: 3, takes: 1500 * time.Millisecond},
}

// team is four agents at work. Its methods are called concurrently.
type team struct {
	broker *client.Client
	t      *transcript
	pace   pace

	results chan struct{} // the lead has got a result
	dead    chan struct{} // the log has a dead letter
	notices chan struct{} // somebody has got the lead's notice

	read int64 // up to where watch has read the log

	mu     sync.Mutex
	counts map[string]int // events by type
}

func newTeam(broker *client.Client, t *transcript, pace pace) *team {
	return &team{
		broker: broker, t: t, pace: pace, counts: map[string]int{},
		results: make(chan struct{}, len(tasks)), dead: make(chan struct{}, len(tasks)), notices: make(chan struct{}, len(members)),
	}
}

// run lets the team join, work and leave, and returns when all of that is in the log and was read there. The first
// error of any of them ends it for all.
func (m *team) run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	start := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				end(err)
			}
		})
	}
	for _, a := range members {
		if _, err := m.broker.As(a.name).Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: a.role}); err != nil {
			return err
		}
		m.t.say(a.name, plain, "joins", "as %s", a.role)
	}
	work, home := context.WithCancel(ctx)
	defer home()
	for _, a := range members {
		start(func() error { return m.work(ctx, work, a.name, end) })
	}
	start(func() error { defer home(); return m.lead(ctx) })
	if err := m.watch(ctx, len(members)); err != nil {
		end(err)
	}
	return context.Cause(ctx)
}

// share plays the second act, and returns when all of it was read in the log.
func (m *team) share(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	s := &sharing{address: m.broker.Address(), t: m.t, pace: m.pace}
	played := make(chan struct{})
	go func() {
		defer close(played)
		if err := s.run(ctx); err != nil {
			end(err)
		}
	}()
	if err := m.watch(ctx, sharers); err != nil {
		end(err)
	}
	<-played
	return context.Cause(ctx)
}

// work is an agent's day: it handles what it is sent until work ends, and leaves. A call that fails is no part of the
// play: it goes to broken.
func (m *team) work(ctx, work context.Context, name string, broken func(error)) error {
	me := m.broker.As(name)
	err := me.Work(work, client.WorkOptions{DrainTimeout: time.Second}, func(ctx context.Context, c *client.Claim) (outcome error) {
		var err error
		switch c.Message.GetType() {
		case typeTask:
			outcome, err = m.build(ctx, me, c)
		case typeQuestion:
			err = m.answer(ctx, me, c)
		case typeNotice:
			m.t.say(name, plain, "hears", "%s: %s", c.Message.GetSender(), c.Message.GetSubject())
			m.notices <- struct{}{}
		default:
			m.t.say(name, plain, "hears", "%s: %s", c.Message.GetSender(), c.Message.GetSubject())
			m.results <- struct{}{}
		}
		if err != nil && ctx.Err() == nil {
			broken(err)
		}
		return cmp.Or(outcome, err)
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	_, err = me.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{})
	return err
}

// lead hands out the work, and closes when all of it is done or given up.
func (m *team) lead(ctx context.Context) error {
	lead := m.broker.As(leader)
	var batch []*pb.Message
	for _, t := range tasks {
		batch = append(batch, &pb.Message{
			Target: &pb.Target{To: &pb.Target_Role{Role: "builder"}}, Type: typeTask,
			Subject: t.subject, Priority: t.priority, TaskId: "sign-in",
		})
	}
	m.pace.take(ctx, 600*time.Millisecond)
	m.t.say(leader, plain, "sends", "%d tasks to role:builder; the most urgent is taken first", len(batch))
	if _, err := lead.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: batch}); err != nil {
		return err
	}
	if !wait(ctx, m.results, len(tasks)-1) || !wait(ctx, m.dead, 1) {
		return nil
	}
	m.pace.take(ctx, 600*time.Millisecond)
	if err := m.lookUp(ctx); err != nil {
		return err
	}
	m.pace.take(ctx, 600*time.Millisecond)
	const notice = "sign-in is complete, pull main"
	m.t.say(leader, plain, "sends", "to everyone: %s", notice)
	_, err := lead.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Type: typeNotice, Subject: notice,
	}}})
	if err == nil {
		wait(ctx, m.notices, len(members)-1)
	}
	return err
}

// lookUp shows what was given up, and why.
func (m *team) lookUp(ctx context.Context) error {
	answer, err := m.broker.Messages().ListDeadLetters(ctx, &pb.ListDeadLettersRequest{})
	if err != nil {
		return err
	}
	for _, item := range answer.GetItems() {
		for _, attempt := range item.GetDelivery().GetHistory() {
			m.t.say(leader, plain, "looks up", "the dead letter %q: attempt %d by %s, %s",
				item.GetMessage().GetSubject(), attempt.GetNumber(), attempt.GetAgent(), attempt.GetError())
		}
	}
	return nil
}

// build works on a task. The reply to the lead finishes it; outcome says what becomes of it otherwise.
func (m *team) build(ctx context.Context, me *client.Client, c *client.Claim) (outcome, err error) {
	name := me.Identity().Agent
	t := taskOf(c.Message)
	again := ""
	if c.Attempt > 1 {
		again = fmt.Sprintf(", attempt %d of %d", c.Attempt, c.MaxAttempts)
	}
	m.t.say(name, plain, "claims", "%s (priority %d%s)", t.subject, c.Message.GetPriority(), again)
	m.pace.take(ctx, t.takes)
	result := t.subject + ": done"
	switch {
	case t.fatal != "":
		m.t.say(name, red, "gives up", "%s: %s", t.subject, t.fatal)
		return client.Fatal(errors.New(t.fatal)), nil
	case t.fails != "" && c.Attempt == 1:
		m.t.say(name, yellow, "fails", "%s: %s", t.subject, t.fails)
		return client.RetryAfter(errors.New(t.fails), m.pace.scaled(time.Second)), nil
	case t.question != "":
		answer, err := m.ask(ctx, me, c, t.question)
		if err != nil {
			return nil, err
		}
		m.pace.take(ctx, t.takes)
		result = fmt.Sprintf("%s: done with %s", t.subject, answer)
	}
	m.t.say(name, green, "finishes", "%s", t.subject)
	return nil, c.Reply(ctx, &pb.Message{Type: typeResult, Subject: result})
}

// ask waits for the reviewer's answer, with the task in hand.
func (m *team) ask(ctx context.Context, me *client.Client, c *client.Claim, question string) (string, error) {
	name := me.Identity().Agent
	m.t.say(name, plain, "asks", "%s: %s", reviewer, question)
	answer, err := me.Messages().Ask(ctx, &pb.AskRequest{
		Message: &pb.Message{
			Target: &pb.Target{To: &pb.Target_Agent{Agent: reviewer}}, Type: typeQuestion, Subject: question,
			ThreadId: c.Message.GetThreadId(), TaskId: c.Message.GetTaskId(),
		},
		Wait: durationpb.New(askTime),
	})
	if err != nil {
		return "", err
	}
	if answer.GetReply() == nil {
		return "", fmt.Errorf("%s has not answered", reviewer)
	}
	m.t.say(name, plain, "hears", "%s: %s", reviewer, answer.GetReply().GetSubject())
	return answer.GetReply().GetSubject(), nil
}

// answer is the reviewer's part.
func (m *team) answer(ctx context.Context, me *client.Client, c *client.Claim) error {
	m.pace.take(ctx, 900*time.Millisecond)
	const verdict = "argon2id"
	m.t.say(reviewer, plain, "replies", "%s: %s", c.Message.GetSender(), verdict)
	return c.Reply(ctx, &pb.Message{Type: typeAnswer, Subject: verdict})
}

// watch follows the event log, as an overseer does, until so many agents have left.
func (m *team) watch(ctx context.Context, leaving int) error {
	for event, err := range m.broker.FollowEvents(ctx, client.EventOptions{After: m.read}) {
		if err != nil {
			return err
		}
		m.read = event.GetRevision()
		m.mu.Lock()
		m.counts[event.GetType()]++
		m.mu.Unlock()
		switch event.GetType() {
		case "message.retried", "agent.failed":
			m.t.say(overseer, yellow, "notes", "%s", event.GetSummary())
		case "message.dead":
			m.t.say(overseer, red, "notes", "%s", event.GetSummary())
			m.dead <- struct{}{}
		case "agent.deregistered":
			if leaving--; leaving == 0 {
				return nil
			}
		}
	}
	return nil
}

// pace is how long things take: 1 is worth watching, 0 is at once.
type pace float64

// take is the time that something takes. It ends early with the context.
func (p pace) take(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(p.scaled(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// scaled is a time at this pace.
func (p pace) scaled(d time.Duration) time.Duration {
	return max(time.Duration(float64(d)*float64(p)), time.Millisecond)
}

// wait waits for n signals, and returns false if the context ends first.
func wait(ctx context.Context, signals <-chan struct{}, n int) bool {
	for range n {
		select {
		case <-signals:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// taskOf finds the task that a message is about.
func taskOf(m *pb.Message) task {
	for _, t := range tasks {
		if t.subject == m.GetSubject() {
			return t
		}
	}
	return task{subject: m.GetSubject()}
}
