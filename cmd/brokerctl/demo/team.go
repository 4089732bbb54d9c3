package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"brokerd/internal/prompt"
)

// Names of the team.
const (
	leader   = "lead"
	builder1 = "builder-1"
	builder2 = "builder-2"
	reviewer = "reviewer"
	operator = "you"
)

// members are the agents and the operator, in the order of the board.
var members = []struct{ name, role, part, colour string }{
	{leader, "lead", "an agent that gives out tasks", purple},
	{builder1, "builder", "an agent that does tasks", cyan},
	{builder2, "builder", "another agent that does tasks", blue},
	{reviewer, "reviewer", "an agent that answers questions", yellow},
	{operator, "", "the operator, who watches the event log", dim},
}

func colourOf(member string) string {
	for _, m := range members {
		if m.name == member {
			return m.colour
		}
	}
	return plain
}

// A task is a piece of work, and what happens to it.
type task struct {
	subject  string
	priority int
	takes    time.Duration // at pace 1
	question string        // asked before it is done
	fails    string        // the error of the first attempt
	fatal    string        // the error of every attempt
}

var tasks = []task{
	{subject: "Add the login form", priority: 5, takes: 1800 * time.Millisecond},
	{subject: "Store passwords", priority: 7, takes: 1200 * time.Millisecond, question: "bcrypt or argon2id?"},
	{subject: "Write the migration", priority: 5, takes: 1400 * time.Millisecond, fails: "test database is locked"},
	{subject: "Fix the failing session test", priority: 10, takes: time.Second},
	{subject: "Port the old importer", priority: 5, takes: 900 * time.Millisecond, fatal: "no such repository: importer"},
}

// farewell ends the first act for the agents that receive it.
const farewell = "sign-in is complete, pull main"

// team runs the commands of its members. Its methods are called concurrently.
type team struct {
	program string
	dir     string // the working folder of the commands
	env     []string
	s       *screen
	pace    pace
	dead    chan struct{} // receives once for each dead letter in the event log
	failed  chan struct{} // receives when the event log says that an agent has failed
}

// newTeam returns a team whose commands have some variables.
func newTeam(program string, variables []string, dir string, s *screen, pace pace) *team {
	m := &team{program: program, dir: dir, s: s, pace: pace}
	m.env = slices.Concat(variables, []string{"BROKERD_ROOT=" + dir})
	m.dead, m.failed = make(chan struct{}, len(tasks)), make(chan struct{}, 1)
	return m
}

// play plays both acts. All commands have ended when it returns.
func (m *team) play(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	start := func(f func() error) <-chan struct{} {
		done := make(chan struct{})
		wg.Go(func() {
			defer close(done)
			if err := f(); err != nil {
				end(err)
			}
		})
		return done
	}
	m.s.begin("Act 1: tasks for a role, a question, a retry, a dead letter")
	for _, a := range members {
		if a.role == "" {
			continue
		}
		if _, err := m.run(ctx, a.name, "agent", "register", a.name, "--role", a.role); err != nil {
			return err
		}
	}
	start(func() error { return m.watch(ctx) })
	for _, done := range []<-chan struct{}{
		start(func() error { return m.lead(ctx) }),
		start(func() error { return m.work(ctx, builder1) }),
		start(func() error { return m.work(ctx, builder2) }),
		start(func() error { return m.work(ctx, reviewer) }),
	} {
		<-done
	}
	if ctx.Err() == nil {
		m.s.begin("Act 2: shared files, a crash, a token")
		if err := m.share(ctx); err != nil {
			return err
		}
		m.pace.take(ctx, time.Second)
	}
	return context.Cause(ctx)
}

// lead gives out the tasks, reads the results, and tells everyone when all tasks have ended.
func (m *team) lead(ctx context.Context) error {
	unsolved := 0
	for _, t := range tasks {
		m.pace.take(ctx, 300*time.Millisecond)
		_, err := m.run(ctx, leader, "send", "role:builder", t.subject, "--priority", strconv.Itoa(t.priority))
		if err != nil {
			return err
		}
		if t.fatal != "" {
			unsolved++
		}
	}
	for range len(tasks) - unsolved {
		if _, err := m.claim(ctx, leader); err != nil {
			return err
		}
		if _, err := m.run(ctx, leader, "ack"); err != nil {
			return err
		}
	}
	for range unsolved {
		select {
		case <-m.dead:
		case <-ctx.Done():
			return nil
		}
	}
	m.pace.take(ctx, 600*time.Millisecond)
	if err := m.tell(ctx, operator, plain, "dlq", "list"); err != nil {
		return err
	}
	m.pace.take(ctx, 600*time.Millisecond)
	_, err := m.run(ctx, leader, "send", "everyone", farewell)
	return err
}

// work is the loop of an agent: it claims messages and finishes them until the farewell.
func (m *team) work(ctx context.Context, name string) error {
	for {
		c, err := m.claim(ctx, name)
		if err != nil {
			return err
		}
		if c.Message.Subject == farewell {
			_, err := m.run(ctx, name, "ack")
			return err
		}
		if name == reviewer {
			m.pace.take(ctx, 900*time.Millisecond)
			_, err = m.run(ctx, name, "reply", "--ack", "argon2id")
		} else {
			err = m.build(ctx, name, taskOf(c.Message.Subject), c.Attempt)
		}
		if err != nil {
			return err
		}
	}
}

// build does a claimed task.
func (m *team) build(ctx context.Context, name string, t task, attempt int) error {
	result := "done"
	if t.question != "" {
		var asked struct {
			Reply struct{ Body string }
		}
		if err := m.decode(ctx, name, &asked, "ask", reviewer, t.question, "--wait", "30s"); err != nil {
			return err
		}
		m.s.result(name, plain, reviewer+" answers: "+asked.Reply.Body)
		result = "done with " + asked.Reply.Body
	}
	m.pace.take(ctx, t.takes)
	switch {
	case t.fatal != "":
		return m.tell(ctx, name, red, "nack", "--fatal", "--error", t.fatal)
	case t.fails != "" && attempt == 1:
		return m.tell(ctx, name, yellow, "nack", "--error", t.fails)
	}
	_, err := m.run(ctx, name, "reply", "--ack", result)
	return err
}

// A claim is the part of a claim that the demonstration shows.
type claim struct {
	ClaimID string `json:"claim_id"`
	Attempt int    `json:"attempt"`
	Message struct {
		Sender, Subject, Body string
	} `json:"message"`
}

// claim waits for the next message of an agent.
func (m *team) claim(ctx context.Context, name string) (claim, error) {
	var c claim
	if err := m.decode(ctx, name, &c, "claim", "--wait", "30s"); err != nil {
		return c, err
	}
	text := c.Message.Subject + prompt.Either(c.Message.Body != "", ": "+c.Message.Body, "") +
		prompt.Either(c.Attempt > 1, fmt.Sprintf(" (attempt %d)", c.Attempt), "")
	m.s.result(name, green, fmt.Sprintf("%s from %s: %s", c.ClaimID, c.Message.Sender, text))
	return c, nil
}

// watch follows the event log until ctx ends.
func (m *team) watch(ctx context.Context) error {
	args := []string{"event", "follow", "--after", "0", "--type", "message.retried", "--type", "message.dead", "--type", "agent.failed"}
	m.s.command(operator, commandLine(args))
	cmd := m.command(ctx, operator, append(args, "-o", "json"))
	// event follow waits for a broker that has ended. The shell stops it at the end of standard
	// input, even if the demo is killed.
	cmd.Args = append([]string{"sh", "-c", `"$@" & cat >/dev/null; kill $!`, "sh", m.program}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	in, reads := cmd.StdinPipe()
	out, writes := cmd.StdoutPipe()
	if err := errors.Join(reads, writes); err != nil {
		return err
	}
	cmd.Cancel = in.Close
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var event struct{ Type, Summary string }
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		m.s.result(operator, red, event.Summary)
		switch event.Type {
		case "message.dead":
			m.dead <- struct{}{}
		case "agent.failed":
			select {
			case m.failed <- struct{}{}:
			default:
			}
		}
	}
	_ = cmd.Wait() // ctx ended it
	return ctx.Err()
}

// run shows and runs a command of a member, and returns its output. Settings of the form
// BROKERD_NAME=VALUE may precede the command.
func (m *team) run(ctx context.Context, member string, args ...string) (string, error) {
	m.s.command(member, commandLine(args))
	return m.output(ctx, member, args)
}

// tell runs a command and shows its output as well.
func (m *team) tell(ctx context.Context, member, tone string, args ...string) error {
	out, err := m.run(ctx, member, args...)
	for line := range strings.Lines(out) {
		m.s.result(member, tone, strings.TrimSpace(line))
	}
	return err
}

// decode runs a command and decodes its JSON.
func (m *team) decode(ctx context.Context, member string, into any, args ...string) error {
	m.s.command(member, commandLine(args))
	out, err := m.output(ctx, member, append(args, "-o", "json"))
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	return err
}

// refuse runs a command that the broker refuses with the given exit code, and shows why.
func (m *team) refuse(ctx context.Context, member string, code int, args ...string) error {
	_, err := m.run(ctx, member, args...)
	if exit := (*exec.ExitError)(nil); ctx.Err() == nil && (!errors.As(err, &exit) || exit.ExitCode() != code) {
		return fmt.Errorf("%s was to end with exit code %d: %w", commandLine(args), code, err)
	}
	if err != nil {
		_, why, _ := strings.Cut(err.Error(), ": brokerctl: ")
		m.s.result(member, yellow, why)
	}
	return nil
}

func (m *team) output(ctx context.Context, member string, args []string) (string, error) {
	cmd := m.command(ctx, member, args)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s, as %s: %w: %s", commandLine(args), member, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (m *team) command(ctx context.Context, member string, args []string) *exec.Cmd {
	env := m.env
	for len(args) > 0 && strings.HasPrefix(args[0], "BROKERD_") {
		env, args = append(env[:len(env):len(env)], args[0]), args[1:]
	}
	if member != operator {
		env = append(env[:len(env):len(env)], "BROKERD_AGENT="+member)
	}
	if width := m.s.textWidth(); width > 0 { // the command's output goes to the terminal, through a pipe
		args = append([]string{"--relative"}, args...)
		env = append(env[:len(env):len(env)], "COLUMNS="+strconv.Itoa(width))
	}
	cmd := exec.CommandContext(ctx, m.program, args...)
	cmd.Dir, cmd.Env = m.dir, env
	return cmd
}

// commandLine returns a command as it is typed into a shell.
func commandLine(args []string) string {
	var words []string
	for _, arg := range args {
		if strings.ContainsAny(arg, " ?'") {
			arg = strconv.Quote(arg)
		}
		words = append(words, arg)
	}
	at := 0
	for strings.HasPrefix(words[at], "BROKERD_") {
		at++
	}
	return strings.Join(append(words[:at:at], append([]string{"brokerctl"}, words[at:]...)...), " ")
}

// pace is how long things take: 1 is a comfortable speed, 0 is no time.
type pace float64

// take waits for the time that something takes. It ends early with the context.
func (p pace) take(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(time.Duration(float64(d) * float64(p)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// taskOf returns the task with a subject.
func taskOf(subject string) task {
	for _, t := range tasks {
		if t.subject == subject {
			return t
		}
	}
	return task{subject: subject}
}
