package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/client"
)

// Exit codes by which a command says what becomes of its message; every other one is a failed attempt.
const (
	commandDone    = 0
	commandFatal   = 65 // EX_DATAERR: trying again is of no use
	commandRelease = 75 // EX_TEMPFAIL: not now, or not me
)

// longestClaim is the longest that the broker extends a claim.
const longestClaim = 12 * time.Hour

// workOptions are the options of work.
type workOptions struct {
	takeOptions
	once        bool
	limit       int
	concurrency int
	claimFor    time.Duration
	timeout     time.Duration
	wait        time.Duration
}

// AddFlags adds the options.
func (o *workOptions) AddFlags(f *pflag.FlagSet) {
	o.takeOptions.AddFlags(f)
	f.StringVar(&o.consumer, "consumer", "", "name of this worker; restarted with it, the worker resumes its open claims (default: random)")
	f.BoolVar(&o.once, "once", false, "end after one message, with the command's exit code")
	f.IntVar(&o.limit, "limit", 0, "end after this many messages; 0: no limit")
	f.IntVar(&o.concurrency, "concurrency", 1, "commands that run at the same time, 1 to 1000")
	durationVar(f, &o.claimFor, "for", time.Minute, "how long a claim lasts after its worker crashes")
	durationVar(f, &o.timeout, "timeout", 0, "stop a command that runs longer, as a failed attempt (default: none)")
	durationVar(f, &o.wait, "wait", 0, "end when no message came for this long (default: never)")
}

const workLong = `Claim messages one by one and run a command for each. The command reads the
message as JSON from standard input; work extends the claim while it runs. The
command's exit code decides about the message:

  0      finished: it is acknowledged
  75     released: it returns to the mailbox, no attempt is counted
  65     fatal: it becomes a dead letter at once
  other  a failed attempt, recorded with the end of the command's standard
         error; the broker redelivers the message later

The command's environment has the variables of brokerctl help environment, so
that brokerctl works inside it, and BROKERD_MESSAGE_ID, BROKERD_REVISION, BROKERD_CLAIM_ID, BROKERD_ATTEMPT,
BROKERD_MAX_ATTEMPTS, BROKERD_MAILBOX, BROKERD_TYPE, BROKERD_SENDER,
BROKERD_SUBJECT, BROKERD_THREAD_ID and BROKERD_TASK_ID.

work passes SIGINT, SIGTERM and SIGHUP on to the commands and ends after them;
unfinished messages return to the mailbox without a counted attempt. A second
SIGINT or SIGTERM kills the commands. A command whose claim is lost receives
SIGTERM and, 10 s later, SIGKILL.

Exit codes: 0 after a clean end; with --once the command's own, 124 if --timeout
stopped it, and 6 if its claim was lost; 4: no message came within --wait; 125 to
127: brokerctl help exit-codes.`

func newWorkCommand(c *cli) *cobra.Command {
	o := &workOptions{}
	cmd := &cobra.Command{
		Use:   "work [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command for each message",
		Long:  workLong,

		DisableFlagsInUseLine: true,
		Example: `  brokerctl --agent builder-1 work -- ./handle.sh
  brokerctl --agent builder-1 work --role builder --concurrency 4 -- make test
  brokerctl --agent builder-1 work --once --wait 1m -- sh -c 'jq -r .body'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("the command is missing: brokerctl work [flags] -- COMMAND [ARGUMENT...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(c, cmd, args) },
	}
	o.AddFlags(cmd.Flags())
	cmd.Flags().SetInterspersed(false) // what follows the command's name is the command's
	cmd.MarkFlagsMutuallyExclusive("once", "limit")
	return cmd
}

// run works until it is told to stop, and returns an error that carries the exit code.
func (o *workOptions) run(c *cli, cmd *cobra.Command, args []string) error {
	lowest, err := parsePriority("lowest-priority", o.lowestPriority)
	if err != nil {
		return err
	}
	if o.concurrency < 1 || o.concurrency > 1000 {
		return usagef("--concurrency %d: 1 to 1000 is allowed", o.concurrency)
	}
	if o.limit < 0 {
		return usagef("--limit must not be negative")
	}
	if o.once {
		o.limit = 1
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return startFailure("work", err)
	}
	broker, err := c.connect(cmd.Context(), c.retryNotice(cmd))
	if err != nil {
		return ownFailure(c, "work", err)
	}
	consumer := o.consumer
	if consumer == "" {
		consumer = "work-" + uuid.NewString()
	}

	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	w := &worker{
		broker: broker, env: surroundings(ctx, broker), path: path, args: args,
		timeout: o.timeout, max: o.limit, concurrency: o.concurrency, wait: o.wait,
		interrupted: cmd.Context(), hurry: c.hurry, stop: stop,
		stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
	}
	w.idle()
	defer w.busy()
	err = broker.Work(ctx, client.WorkOptions{
		Consumer: consumer, Mailboxes: o.from(), Types: o.types, LowestPriority: int(lowest),
		Concurrency: o.concurrency, ClaimFor: o.claimFor, MaxTotal: longestClaim,
		DrainTimeout: longestClaim, // how long a command may take to end is the second signal's matter
		OnLost:       w.lost,
	}, w.handle)
	if err != nil {
		return ownFailure(c, "work", err)
	}
	return w.outcome(o.once)
}

// worker runs a command for every message. Its handle is called concurrently.
type worker struct {
	broker      *client.Client
	env         [][2]string // for every command
	path        string
	args        []string
	timeout     time.Duration   // 0 = none
	max         int             // messages to handle; 0 = no bound
	concurrency int             // commands that may run at the same time
	wait        time.Duration   // without work, until the end; 0 = no bound
	interrupted context.Context // ends with the first signal
	hurry       <-chan struct{} // closed by the second
	stop        context.CancelFunc
	stdout      io.Writer
	stderr      io.Writer

	mu      sync.Mutex
	begun   int         // messages whose command was started
	running int         // commands that run
	timer   *time.Timer // ends the work when nothing came; nil without wait
	starved bool        // it did
	last    int         // exit code of the command that ended last
	failed  error       // why the command could not be started
}

// handle runs the command for one message. What it returns decides what becomes of the message, as client.Handler says.
func (w *worker) handle(ctx context.Context, claim *client.Claim) error {
	if !w.begin() {
		return client.Release(nil)
	}
	var input bytes.Buffer
	p := &process{
		path: w.path, args: w.args, env: w.environment(claim), stdin: &input, stdout: w.stdout, stderr: w.stderr, keepErrors: true,
		timeout: w.timeout, grace: killAfter, interrupted: w.interrupted, hurry: w.hurry,
	}
	code, err := exitOwnFailure, writeJSON(&input, claim.Message)
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
		fmt.Fprintf(w.stderr, "brokerctl: the claim %s was lost; the command was stopped\n", claim.ID)
		w.note(exitLost)
		return err
	case code == commandFatal:
		w.say(claim, "is a dead letter", err)
		return client.Fatal(err)
	case code == commandRelease, w.interrupted.Err() != nil && code != exitTimedOut:
		return client.Release(err)
	}
	w.say(claim, fmt.Sprintf("failed, attempt %d of %d", claim.Attempt, claim.MaxAttempts), err)
	return err
}

// say tells on standard error what became of a message.
func (w *worker) say(claim *client.Claim, what string, err error) {
	first, _, _ := strings.Cut(err.Error(), "\n")
	fmt.Fprintf(w.stderr, "brokerctl: message %d %s: %s\n", claim.Message.GetRevision(), what, clean(first))
}

// lost tells that a message was finished in vain.
func (w *worker) lost(claim *client.Claim, err error) {
	w.note(exitLost)
	fmt.Fprintf(w.stderr, "brokerctl: message %d was not settled: %s\n", claim.Message.GetRevision(), oneLine(err.Error()))
}

// begin counts a message, and returns false if there were enough.
func (w *worker) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil || w.max > 0 && w.begun == w.max {
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

// stopIfEnough winds the work up when a message more would be claimed that must not be. Not earlier: while the
// stream stands, the broker says at once when a claim is lost. mu is held.
func (w *worker) stopIfEnough() {
	if w.max > 0 && w.begun == w.max && w.running < w.concurrency {
		w.stop()
	}
}

// end notes how a command ended.
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

// idle starts the wait for a first message.
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

// outcome is the error with which the work ends.
func (w *worker) outcome(once bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return startFailure("work", w.failed)
	case w.begun == 0 && w.starved:
		return failf(exitNothing, "nothing came within %s", short(w.wait))
	case once && w.begun > 0 && w.last != commandDone:
		return &failure{code: w.last}
	}
	return nil
}

// environment is what the command finds in its environment.
func (w *worker) environment(claim *client.Claim) []string {
	m := claim.Message
	return commandEnvironment(w.broker, append(slices.Clip(w.env), [][2]string{
		{"BROKERD_MESSAGE_ID", m.GetId()},
		{"BROKERD_REVISION", fmt.Sprint(m.GetRevision())},
		{"BROKERD_CLAIM_ID", claim.ID},
		{"BROKERD_ATTEMPT", fmt.Sprint(claim.Attempt)},
		{"BROKERD_MAX_ATTEMPTS", fmt.Sprint(claim.MaxAttempts)},
		{"BROKERD_MAILBOX", claim.Mailbox},
		{"BROKERD_TYPE", m.GetType()},
		{"BROKERD_SENDER", m.GetSender()},
		{"BROKERD_SUBJECT", m.GetSubject()},
		{"BROKERD_THREAD_ID", m.GetThreadId()},
		{"BROKERD_TASK_ID", m.GetTaskId()},
	}...))
}
