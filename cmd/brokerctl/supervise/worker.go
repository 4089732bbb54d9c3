package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/prompt"
)

// Exit codes by which a command decides about its message or task; every other one is a failed attempt.
const (
	commandDone    = 0
	commandFatal   = 65 // EX_DATAERR: another attempt is useless
	commandRelease = 75 // EX_TEMPFAIL: not now, or not by this agent
)

// workerOptions are the options that work and task work share. noun is what the worker takes, such as "message".
func workerOptions(noun string) []command.Option {
	return []command.Option{
		{Name: "once", Type: "bool", Usage: "end after one " + noun + ", with the command's exit code"},
		{Name: "limit", Type: "int", Usage: "end after this many " + noun + "s; 0: no limit"},
		{Name: "concurrency", Type: "int", Value: "1", Usage: "commands that run at the same time, 1 to 1000"},
		{Name: "timeout", Type: "duration", Usage: "stop a command that runs longer, as a failed attempt (default: none)"},
		{Name: "wait", Type: "duration", Usage: "end when no " + noun + " came for this long (default: never)"},
	}
}

// workerApart are those of them that exclude each other.
var workerApart = [][]string{{"once", "limit"}}

// commandOnly makes a command of one whose arguments are the command that it runs, as rule says.
func commandOnly(cmd *cobra.Command, rule cobra.PositionalArgs) *cobra.Command {
	cmd.ValidArgsFunction = command.CompleteFiles
	cmd.Flags().SetInterspersed(false) // the flags after the command's name belong to the command
	return running(cmd, rule)
}

func needsCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return problem.Usagef("the command is missing: %s", cmd.UseLine())
	}
	return nil
}

// newWorker returns the worker that the options describe. stop ends it.
func newWorker(g *command.Given, ctx context.Context, stop context.CancelFunc) (*worker, error) {
	c, cmd := g.Caller, g.Cmd
	w := &worker{
		once: g.On("once"), limit: g.Int("limit"), concurrency: g.Int("concurrency"), timeout: g.Duration("timeout"),
		wait: g.Duration("wait"), from: c.Env, args: g.Args, interrupted: cmd.Context(), hurry: c.Hurry, stop: stop,
		stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
	}
	switch {
	case w.concurrency < 1 || w.concurrency > 1000:
		return nil, problem.Usagef("--concurrency %d: 1 to 1000 is allowed", w.concurrency)
	case w.limit < 0:
		return nil, problem.Usagef("--limit must not be negative")
	case w.once:
		w.limit = 1
	}
	var err error
	if w.path, err = c.Env.LookPath(g.Args[0]); err != nil {
		return nil, startFailure("work", err)
	}
	if w.broker, err = c.Connect(cmd.Context(), c.RetryNotice(cmd)); err != nil {
		return nil, ownFailure(c, "work", err)
	}
	w.env = surroundings(c, ctx, w.broker)
	return w, nil
}

// worker runs a command for every job. Its handle is called concurrently.
type worker struct {
	once        bool
	limit       int // of jobs; 0: none
	concurrency int
	timeout     time.Duration // of a command; 0: none
	wait        time.Duration // for a job; 0: without an end
	broker      *client.Client
	from        setting.Environment
	env         [][2]string // for every command
	path        string
	args        []string
	interrupted context.Context // ends with the first signal
	hurry       <-chan struct{} // closed by the second
	stop        context.CancelFunc
	stdout      io.Writer
	stderr      io.Writer

	mu      sync.Mutex  // guards the fields below
	begun   int         // jobs whose command was started
	running int         // commands that run
	timer   *time.Timer // ends the worker when no job came; nil without wait
	starved bool        // the timer has ended the worker
	last    int         // exit code of the command that ended last
	failed  error       // why the command could not be started
}

// A job is a message or a task that a command works on.
type job struct {
	name   string        // such as "message 4711"
	claim  string        // such as "the claim 4711.1"
	fatal  string        // what a fatal failure makes of it, such as "is a dead letter"
	input  proto.Message // the command's standard input
	env    [][2]string   // for its command
	output io.Writer     // receives a copy of the command's standard output; may be nil

	attempt, most int
}

// handle runs the command for one job. The result decides what becomes of the job, as for
// client.Handler.
func (w *worker) handle(ctx context.Context, j job) error {
	if !w.begin() {
		return client.Release(nil)
	}
	var input bytes.Buffer
	p := &process{
		path: w.path, args: w.args, env: forCommand(w.from, w.broker, append(slices.Clip(w.env), j.env...)),
		dir:   w.from.ChildDir(),
		stdin: &input, stdout: w.stdout, stderr: w.stderr, keepErrors: true,
		timeout: w.timeout, grace: KillAfter, interrupted: w.interrupted, hurry: w.hurry,
	}
	if j.output != nil {
		p.stdout = io.MultiWriter(j.output, w.stdout)
	}
	code, err := problem.ExitOwnFailure, output.WriteJSON(&input, j.input)
	if err == nil {
		code, err = p.run(ctx)
	}
	w.end(code)
	switch {
	case p.notStarted:
		w.mu.Lock()
		w.failed = err
		w.mu.Unlock()
		w.stop()
		return client.Release(err)
	case code == commandDone:
		return nil
	case errors.Is(context.Cause(ctx), client.ErrClaimLost):
		fmt.Fprintf(w.stderr, "brokerctl: %s was lost; the command was stopped\n", j.claim)
		w.note(problem.ExitLost)
		return err
	case code == commandFatal:
		w.say(j, j.fatal, err)
		return client.Fatal(err)
	case code == commandRelease, w.interrupted.Err() != nil && code != problem.ExitTimedOut:
		return client.Release(err)
	}
	w.say(j, fmt.Sprintf("failed, attempt %d of %d", j.attempt, j.most), err)
	return err
}

// say reports on standard error what became of a job.
func (w *worker) say(j job, what string, err error) {
	first, _, _ := strings.Cut(err.Error(), "\n")
	fmt.Fprintf(w.stderr, "brokerctl: %s %s: %s\n", j.name, what, prompt.Clean(first))
}

// lost reports that the broker did not accept the outcome of a job.
func (w *worker) lost(j job, err error) {
	w.note(problem.ExitLost)
	fmt.Fprintf(w.stderr, "brokerctl: %s was not settled: %s\n", j.name, prompt.OneLine(err.Error()))
}

// begin counts a job, and returns false if there were enough.
func (w *worker) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil || w.limit > 0 && w.begun == w.limit {
		return false
	}
	w.begun++
	w.running++
	if w.timer != nil {
		w.timer.Stop()
	}
	w.stopIfEnough()
	return true
}

// stopIfEnough stops the worker when it would claim a job beyond its limit. It does not stop earlier:
// while its stream is open, the broker reports the loss of a claim at once. mu is held.
func (w *worker) stopIfEnough() {
	if w.limit > 0 && w.begun == w.limit && w.running < w.concurrency {
		w.stop()
	}
}

// end records the end of a command.
func (w *worker) end(code int) {
	w.note(code)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.stopIfEnough()
	if w.running == 0 && w.timer != nil {
		w.timer.Reset(w.wait)
	}
}

func (w *worker) note(code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = code
}

// idle starts the wait for a first job.
func (w *worker) idle() {
	if w.wait <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.wait, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.running == 0 {
			w.starved = true
			w.stop()
		}
	})
}

// busy ends the wait.
func (w *worker) busy() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
}

// outcome is the error with which the worker ends.
func (w *worker) outcome() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return startFailure("work", w.failed)
	case w.begun == 0 && w.starved:
		return problem.Failf(problem.ExitNothing, "nothing came within %s", prompt.Duration(w.wait))
	case w.once && w.begun > 0 && w.last != commandDone:
		return &problem.Failure{Code: w.last}
	}
	return nil
}
