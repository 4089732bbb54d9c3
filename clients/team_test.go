// Package clients_test runs a team whose members are written in different languages.
package clients_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
)

const (
	messages = 300
	own      = 25 // of the messages, for each of the three members, at its start and when it is killed
	tasks    = 30
	patience = 10 * time.Minute
)

// TestTeam_FinishesEverythingOnceThoughItsMembersAndTheDaemonAreKilled kills each member with SIGKILL after it has
// acknowledged some of its messages, and the daemon after two thirds of all messages, once the members have
// returned. Each is restarted at once.
func TestTeam_FinishesEverythingOnceThoughItsMembersAndTheDaemonAreKilled(t *testing.T) {
	t.Parallel()
	readSources(t)
	members := []*member{python(t), typescript(t), bash(t)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	daemon := processtest.New(t, processtest.Build(t))
	if err := daemon.Start(ctx); err != nil {
		t.Fatal(err)
	}
	lead, err := client.Dial(ctx, client.WithAddress(daemon.Address()), client.WithAgent("lead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lead.Close)
	if _, err := lead.Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "lead"}); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		if _, err := lead.As(m.name).Agents().RegisterAgent(ctx, &pb.RegisterAgentRequest{Role: "worker"}); err != nil {
			t.Fatal(err)
		}
	}
	// The send rate of a session limits agents, not operators.
	operator, err := client.Dial(ctx, client.WithAddress(daemon.Address()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(operator.Close)
	sent := plan(ctx, t, operator, members)
	for _, m := range members {
		m.start(ctx, t, daemon.Dir())
	}

	seen := newLedger()
	killed := 0
	types := []string{"message.acked", "task.completed", "agent.registered"}
	events := client.EventOptions{Filter: &pb.EventFilter{Types: types}}
	for event, err := range lead.FollowEvents(ctx, events) {
		if err != nil {
			t.Fatal(err)
		}
		seen.add(t, event)
		for _, m := range members {
			if !m.killed && seen.acked[m.name] >= messages/20 {
				m.kill()
				m.killed = true
				sent = append(sent, send(ctx, t, operator, ownMessages(m)...)...)
				m.start(ctx, t, daemon.Dir())
				killed++
			}
		}
		if killed == len(members) && seen.claims() >= messages*2/3 && seen.returned(members) {
			daemon.Kill()
			if err := daemon.Start(ctx); err != nil {
				t.Fatal(err)
			}
			killed++
		}
		if seen.claims() >= messages && len(seen.tasks) >= tasks {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		t.Fatalf("%v: %d messages and %d tasks are finished, %d processes were killed",
			err, seen.claims(), len(seen.tasks), killed)
	}
	if killed != len(members)+1 {
		t.Errorf("%d processes were killed, not %d", killed, len(members)+1)
	}
	for _, m := range members {
		m.terminate(t)
	}
	verify(ctx, t, lead, sent, seen)
	if err := daemon.Terminate(); err != nil {
		t.Error(err)
	}
	if err := daemon.Check(ctx); err != nil {
		t.Error(err)
	}
}

// plan sends messages and creates the tasks. It returns the revisions of the messages. Some messages are for each
// member, so that each has work whatever the others do; the rest is for the role. Every third task begins a chain.
func plan(ctx context.Context, t *testing.T, operator *client.Client, members []*member) (sent []int64) {
	t.Helper()
	batch := addressed(messages/2, &pb.Target{To: &pb.Target_Role{Role: "worker"}})
	for _, m := range members {
		batch = append(batch, ownMessages(m)...)
	}
	sent = send(ctx, t, operator, batch...)
	var board []*pb.NewTask
	for i := range tasks {
		task := &pb.NewTask{Id: fmt.Sprintf("task-%d", i), Title: fmt.Sprintf("Task %d", i), Role: "worker"}
		if i%3 > 0 {
			task.DependsOn = []string{board[i-1].GetId()}
		}
		board = append(board, task)
	}
	if _, err := operator.Tasks().CreateTasks(ctx, &pb.CreateTasksRequest{Tasks: board}); err != nil {
		t.Fatal(err)
	}
	return sent
}

// ownMessages are the messages for a member that it receives at the start, and again when it is killed: it has work
// then, however far it was.
func ownMessages(m *member) []*pb.Message {
	return addressed(own, &pb.Target{To: &pb.Target_Agent{Agent: m.name}})
}

func addressed(count int, to *pb.Target) (batch []*pb.Message) {
	for i := range count {
		batch = append(batch, &pb.Message{Target: to, Subject: fmt.Sprintf("message %d", i+1)})
	}
	return batch
}

// send sends messages and returns their revisions.
func send(ctx context.Context, t *testing.T, operator *client.Client, batch ...*pb.Message) (sent []int64) {
	t.Helper()
	answer, err := operator.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: batch})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range answer.GetResults() {
		sent = append(sent, r.GetRevision())
	}
	return sent
}

// verify checks that the queue and the board agree with the log: each message was acknowledged once, and
// each task completed once.
func verify(ctx context.Context, t *testing.T, lead *client.Client, sent []int64, seen *ledger) {
	t.Helper()
	for _, revision := range sent {
		answer, err := lead.Messages().GetMessage(ctx, &pb.GetMessageRequest{Id: fmt.Sprint(revision)})
		if err != nil {
			t.Fatal(err)
		}
		if d := answer.GetDeliveries(); len(d) != 1 || d[0].GetState() != pb.DeliveryState_DELIVERY_STATE_ACKED {
			t.Errorf("message %d: %v", revision, d)
		}
		if n := seen.messages[fmt.Sprint(revision)]; n != 1 {
			t.Errorf("message %d was acknowledged %d times", revision, n)
		}
	}
	for i := range tasks {
		id := fmt.Sprintf("task-%d", i)
		answer, err := lead.Tasks().GetTask(ctx, &pb.GetTaskRequest{Id: id})
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetTask().GetState() != pb.TaskState_TASK_STATE_DONE || seen.tasks[id] != 1 {
			t.Errorf("%s: %v, completed %d times", id, answer.GetTask().GetState(), seen.tasks[id])
		}
	}
}

// A ledger has what the log says about the finished work.
type ledger struct {
	messages map[string]int // acknowledgements by revision
	tasks    map[string]int // completions by id
	acked    map[string]int // acknowledgements by agent
	starts   map[string]int // registrations by agent; the first is the lead's
	fresh    map[string]int // acknowledgements by agent since its last registration
}

func newLedger() *ledger {
	return &ledger{map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}}
}

func (l *ledger) claims() int { return len(l.messages) }

// returned reports whether each member has worked since its restart.
func (l *ledger) returned(members []*member) bool {
	for _, m := range members {
		if l.starts[m.name] < 3 || l.fresh[m.name] == 0 {
			return false
		}
	}
	return true
}

func (l *ledger) add(t *testing.T, event *pb.Event) {
	t.Helper()
	var details struct {
		Claims []string `json:"claims"`
		Task   string   `json:"task_id"`
	}
	if err := json.Unmarshal([]byte(event.GetDetails()), &details); err != nil {
		t.Fatalf("%v: %v", event, err)
	}
	switch event.GetType() {
	case "task.completed":
		l.tasks[details.Task]++
		return
	case "agent.registered":
		l.starts[event.GetSource()]++
		l.fresh[event.GetSource()] = 0
		return
	}
	for _, claim := range details.Claims {
		revision, _, _ := strings.Cut(claim, ".")
		l.messages[revision]++
		l.acked[event.GetSource()]++
		l.fresh[event.GetSource()]++
	}
}

// A member is an agent of the team, in its own process group.
type member struct {
	name    string
	command []string
	env     []string
	killed  bool

	process *exec.Cmd
	output  *bytes.Buffer
}

func (m *member) start(ctx context.Context, t *testing.T, data string) {
	t.Helper()
	m.process = exec.CommandContext(ctx, m.command[0], m.command[1:]...)
	m.process.Env = append(processtest.Environment(t), "BROKERD_DATA="+data, "BROKERD_AGENT="+m.name)
	m.process.Env = append(m.process.Env, m.env...)
	m.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	m.output = &bytes.Buffer{}
	m.process.Stdout, m.process.Stderr = m.output, m.output
	if err := m.process.Start(); err != nil {
		t.Fatal(err)
	}
	group := -m.process.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(group, syscall.SIGKILL) })
}

func (m *member) kill() {
	_ = syscall.Kill(-m.process.Process.Pid, syscall.SIGKILL)
	_ = m.process.Wait()
}

// terminate stops the member as a service manager does.
func (m *member) terminate(t *testing.T) {
	t.Helper()
	if err := m.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("%s has ended: %v\n%s", m.name, err, m.output)
	}
	if err := m.process.Wait(); err != nil {
		t.Errorf("%s: %v\n%s", m.name, err, m.output)
	}
}

// readSources reads every file of the members and their packages: a changed file then invalidates the cached
// result of the test.
func readSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.Name() == "node_modules" || entry.Name() == "dist" || entry.Name() == "__pycache__":
			return fs.SkipDir
		case entry.Type().IsRegular():
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func python(t *testing.T) *member {
	t.Helper()
	for _, program := range []string{"/usr/bin/python3", "python3"} {
		if exec.CommandContext(t.Context(), program, "-c", "import grpc, google.protobuf").Run() == nil {
			return &member{
				name: "python", command: []string{program, "testdata/team/member.py"},
				env: []string{"PYTHONPATH=python", "PYTHONDONTWRITEBYTECODE=1"},
			}
		}
	}
	t.Skip("there is no Python with gRPC (Debian: python3-grpcio)")
	return nil
}

// typescript compiles the package into a project whose node_modules has it and its dependencies.
func typescript(t *testing.T) *member {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "node", "-p", "process.versions.node").Output()
	major, _, _ := strings.Cut(string(out), ".")
	if n, _ := strconv.Atoi(major); err != nil || n < 20 {
		t.Skip("Node 20 or newer is missing")
	}
	installed, err := filepath.Abs("typescript/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	compiler := filepath.Join(installed, "typescript", "bin", "tsc")
	if _, err := os.Stat(compiler); err != nil {
		t.Skip("node_modules is missing: `npm ci` in clients/typescript installs it")
	}
	project := t.TempDir()
	modules := filepath.Join(project, "node_modules")
	compiled := filepath.Join(modules, "@brokerd", "client")
	compile := exec.CommandContext(t.Context(),
		"node", compiler, "-p", "typescript", "--outDir", filepath.Join(compiled, "dist"))
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile the TypeScript package: %v\n%s", err, out)
	}
	copyFile(t, "typescript/package.json", filepath.Join(compiled, "package.json"))
	copyFile(t, "testdata/team/member.mjs", filepath.Join(project, "member.mjs"))
	for _, scope := range []string{"@bufbuild", "@connectrpc"} {
		if err := os.Symlink(filepath.Join(installed, scope), filepath.Join(modules, scope)); err != nil {
			t.Fatal(err)
		}
	}
	return &member{name: "typescript", command: []string{"node", filepath.Join(project, "member.mjs")}}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func bash(t *testing.T) *member {
	t.Helper()
	programs := filepath.Dir(processtest.Build(t))
	return &member{
		name: "bash", command: []string{"bash", "testdata/team/member.sh"},
		env: []string{"PATH=" + programs + ":" + os.Getenv("PATH")},
	}
}
