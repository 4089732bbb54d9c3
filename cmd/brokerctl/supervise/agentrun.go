package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const (
	runLease   = 90 * time.Second // of agent run, which sends heartbeats
	reportWait = 5 * time.Second  // for what is still to be told when the command has ended

	heldMessages = 64 << 10 // bytes of messages that are held while a program has the terminal
)

const agentRunLong = `Register an agent and run its program. While the program runs, brokerctl renews
the agent's lease every third of --lease. When the program ends with code 0, or
after a signal that brokerctl passed on, the agent stops: what it holds is
released, and its mail waits for the next run. After another code, it reports
the status failed, and its lease ends. With --deregister, the registration ends
with the program, and unfinished mail becomes dead letters.

The program's environment has the variables of brokerctl help environment, so
that brokerctl and the clients act as this agent in it. The program's standard output
passes through, except for JSON lines of these types, which become calls (see
docs/agents-run.md):

  {"type":"status","status":"active","activity":"testing","progress":0.4}
  {"type":"artifact","path":"out/report.md","description":"test report"}
  {"type":"dependency","waiting_for":"builder-2","reason":"the schema"}
  {"type":"complete","summary":"Login works","to":"lead"}

With --pty, the program runs in a pseudo-terminal and can be used by hand. When
mail waits, its screen has been still for 2s and no line is being typed,
brokerctl types --wake-text and Enter, once until the mail is read, then every
10m. Reports on standard output are not read. With --wake, brokerctl runs a
shell command, at most once a minute while mail waits; then the program may be
left out, and brokerctl runs until a signal ends it.

brokerctl passes SIGINT, SIGTERM and SIGHUP on; a second SIGINT or SIGTERM kills
the program.

Exit codes: the program's own; 124: --timeout stopped it; 6: the agent was lost,
because its lease expired or it was registered elsewhere, and the program was
stopped (SIGTERM, 10 s later SIGKILL); 125 to 127: brokerctl help exit-codes.

The flags of brokerctl agent register describe the agent here too.`

// NewAgentRunCommand returns the command brokerctl agent run.
func NewAgentRunCommand(c *command.Caller) *cobra.Command {
	cmd := agentRun.Command(c)
	return commandOnly(cmd, func(_ *cobra.Command, args []string) error {
		return checkRun(&command.Given{Caller: c, Cmd: cmd, Args: args})
	})
}

var agentRun = command.Procedure[*pb.RegisterAgentRequest]{
	Page: command.Page{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a program as an agent",
		Long:  agentRunLong,
		Example: `  brokerctl agent run --agent builder-1 --role builder -- ./builder.py
  brokerctl agent run --agent ci-1 --role ci --lease 1m -- make test
  brokerctl agent run --agent builder-2 --pty -- codex
  brokerctl agent run --agent builder-3 --wake 'claude -p "run brokerctl next"'`,
	},
	FlagsOf: "agent register",
	Options: append([]command.Option{
		{Name: "deregister", Type: "bool",
			Usage: "deregister the agent when the program ends: its unfinished mail becomes dead letters"},
		{Name: "timeout", Type: "duration", Usage: "stop a program that runs longer (default: none)"},
		{Name: "pty", Type: "bool",
			Usage: "run the program in a pseudo-terminal, and type --wake-text into it when mail waits"},
		{Name: "wake-text", Type: "string", Value: "You have mail in the broker: run brokerctl next",
			Usage: "the line for --pty; Enter follows it"},
		{Name: "wake", Type: "string", Usage: "a shell command to run while mail waits, at most once a minute"},
	}, registration.Options(runLease)...),
	Says: true,
	Run:  runAgent,
}

// checkRun checks the arguments, with the options that depend on them.
func checkRun(g *command.Given) error {
	line, wake := g.Text("wake-text"), g.Text("wake") != ""
	switch {
	case len(g.Args) == 0 && wake && (g.On("pty") || g.Duration("timeout") > 0):
		return problem.Usagef("--pty and --timeout need a program: give it behind --")
	case g.Cmd.Flags().Changed("wake-text") && !g.On("pty"):
		return problem.Usagef("--wake-text needs --pty: only a program in a pseudo-terminal gets the line")
	case strings.ContainsFunc(line, unicode.IsControl) || line == "":
		return problem.Usagef("--wake-text must be one line of text")
	case len(g.Args) == 0 && !wake:
		return problem.Usagef("the command is missing")
	}
	return nil
}

func runAgent(g *command.Given, q *pb.RegisterAgentRequest) error {
	c, cmd, args := g.Caller, g.Cmd, g.Args
	path, err := "", error(nil)
	if len(args) > 0 {
		addCommand(q, args)
		if path, err = c.Env.LookPath(args[0]); err != nil {
			return startFailure("run", err)
		}
	}
	broker, err := c.Connect(cmd.Context())
	if err != nil {
		return ownFailure(c, "run", err)
	}
	if broker.Identity().Agent == "" {
		return problem.Usagef("the agent's name is missing: give --agent NAME")
	}
	// Whatever incarnation the environment speaks of, this is a new one.
	broker = broker.As(broker.Identity().Agent)
	r := &Reporter{
		from: c.Env, Stderr: cmd.ErrOrStderr(), explain: c.Explain, wake: make(chan struct{}, 1), finish: make(chan struct{}),
	}
	registration.AsDescribed(c, q, broker.Identity().Agent)
	r.member, err = broker.Join(cmd.Context(), q, client.JoinOptions{
		Once:         true,
		OnRegistered: func(answer *pb.RegisterAgentResponse) { r.TellLosses(answer) },
		OnHeartbeat:  r.told,
		OnError: func(err error) {
			if !command.Away(err) {
				r.complain(err)
			}
		},
	})
	if err != nil {
		return ownFailure(c, "run", err)
	}
	defer r.member.Abandon()
	r.broker = r.member.Client()
	return attend(g, r, path)
}

// addCommand adds the label from which explain knows how to start the program again, unless the caller gives this label
// or the command is too long for it.
func addCommand(q *pb.RegisterAgentRequest, command []string) {
	const label, most = "command", 256
	words, err := json.Marshal(command)
	if _, given := q.GetLabels()[label]; given || err != nil || len(words) > most {
		return
	}
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	q.Labels[label] = string(words)
}

// attend runs the program, with a reporter and what wakes the agent beside it.
func attend(g *command.Given, r *Reporter, path string) error {
	c, cmd := g.Caller, g.Cmd
	s, err := c.Settings()
	if err != nil {
		return err
	}
	more := surroundings(c, cmd.Context(), r.broker)
	if s.OtherAgent { // what another agent holds is not this one's
		more = append(more, [2]string{"BROKERD_FENCE", ""}, [2]string{turn.HolderVariable, ""})
	}
	out := &lineReader{out: output.WithoutSIGPIPE(cmd.OutOrStdout()), report: r.take}
	p := &process{
		path: path, args: g.Args, env: forCommand(c.Env, r.broker, more), dir: c.Env.ChildDir(),
		stdin: cmd.InOrStdin(), stdout: out, stderr: r.Stderr,
		timeout: g.Duration("timeout"), grace: KillAfter, interrupted: cmd.Context(), hurry: c.Hurry,
	}
	w := &wakers{reporter: r}
	if g.On("pty") {
		disconnect, err := connect(g, r, p, w)
		if err != nil {
			return ownFailure(c, "run", err)
		}
		defer disconnect()
	}
	if wake := g.Text("wake"); wake != "" {
		w.useCommand(wake, c.Env, p.env, c.Hurry)
	}
	ctx, lose := context.WithCancelCause(context.WithoutCancel(cmd.Context()))
	var reporting sync.WaitGroup
	reporting.Go(func() { r.run(ctx, lose) })
	stopWakers := w.start(ctx)
	code, runErr := commandDone, error(nil)
	if path != "" {
		code, runErr = p.run(ctx)
	} else { // --wake alone
		select {
		case <-cmd.Context().Done():
		case <-ctx.Done():
		}
	}
	stopWakers()
	flushErr := out.flush()
	close(r.finish)
	enough := time.AfterFunc(reportWait, func() { lose(nil) })
	r.extend.Store(func() { enough.Reset(reportWait) })
	reporting.Wait()
	enough.Stop()
	if cause := context.Cause(ctx); errors.Is(cause, client.ErrAgentLost) {
		s, _ := problem.Status(cause)
		return c.Lost("the agent was lost, and the program was stopped", s.Message())
	}
	ended(g, r, code)
	switch {
	case p.notStarted:
		return startFailure("run", runErr)
	case code != commandDone:
		return &problem.Failure{Code: code}
	}
	return flushErr
}

// connect gives the program a pseudo-terminal into which w types. The returned function restores
// brokerctl's own terminal, which shows no messages of brokerctl before that.
func connect(g *command.Given, r *Reporter, p *process, w *wakers) (disconnect func(), err error) {
	w.typist = &Typist{line: g.Text("wake-text"), check: w.check, changed: make(chan struct{}, 1), active: time.Now()}
	terminal, err := OpenPseudoTerminal(p.stdin, output.WithoutSIGPIPE(g.Cmd.OutOrStdout()), w.typist)
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	p.terminal = terminal.Inner
	terminal.connect()
	own := r.Stderr
	if !output.IsTerminal(own) {
		return terminal.Close, nil
	}
	held := &output.LockedWriter{W: &tail{to: io.Discard, limit: heldMessages}}
	r.mu.Lock()
	r.Stderr = held
	r.mu.Unlock()
	return func() {
		terminal.Close()
		held.Mu.Lock()
		defer held.Mu.Unlock()
		_, _ = io.WriteString(own, held.W.(*tail).String())
	}, nil
}

// ended tells the broker that the program has ended, and how. If the broker is away the lease ends by itself.
func ended(g *command.Given, r *Reporter, code int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.Cmd.Context()), reportWait)
	defer cancel()
	how := fmt.Sprintf("its program has ended with code %d", code)
	report := &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_FAILED, StatusReason: &how}
	if _, interrupted := problem.SignalOf(g.Cmd.Context()); interrupted || code == commandDone {
		report = &pb.HeartbeatRequest{Status: pb.AgentStatus_AGENT_STATUS_STOPPED}
	}
	var err error
	if g.On("deregister") {
		err = r.member.Deregister(ctx, how)
	} else {
		err = r.member.Leave(ctx, report)
	}
	if err != nil {
		r.sayf("the broker was not told that the program has ended, and the agent's lease ends by itself: %s",
			status.Convert(err).Message())
	}
}

// Reporter tells the broker what the program of an agent reports. Calls are made in order; a broker that is away
// is waited for.
type Reporter struct {
	from    setting.Environment
	member  *client.Member
	broker  *client.Client // of the member
	explain func(error) (int, string)
	wake    chan struct{}
	finish  chan struct{} // closed when the program has ended

	mu         sync.Mutex // guards stderr, queue and directives
	Stderr     io.Writer
	queue      []ownReport
	directives []string // that were mentioned last

	extend atomic.Value // a func() that extends the time for the last reports; not set before the program has ended

	blockers map[string]string // the blockers raised for the program, by the awaited agent; of run alone
}

// take queues the calls for a line, if it is a report.
func (r *Reporter) take(line []byte) bool {
	reports, err := parseReport(line)
	if err != nil {
		if !errors.Is(err, errNoReport) {
			r.sayf("a report is not understood, and passed through: %v", err)
		}
		return false
	}
	r.mu.Lock()
	for _, next := range reports {
		// The first may be on its way. What is reported faster than it can be told is told together.
		if last := len(r.queue) - 1; last > 0 && next.heartbeat != nil && r.queue[last].heartbeat != nil {
			proto.Merge(r.queue[last].heartbeat, next.heartbeat)
		} else {
			r.queue = append(r.queue, next)
		}
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return true
}

// next returns the call that is due first.
func (r *Reporter) next() (ownReport, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 {
		return ownReport{}, false
	}
	return r.queue[0], true
}

func (r *Reporter) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = r.queue[1:]
}

// run makes the calls until ctx ends, or the program has ended and nothing is left to tell. It also ends when the agent
// is lost, and reports that to lose.
func (r *Reporter) run(ctx context.Context, lose context.CancelCauseFunc) {
	finish := r.finish
	for finishing := false; ; {
		due, some := r.next()
		if !some {
			if finishing {
				return
			}
			select {
			case <-r.wake:
			case <-finish:
				finishing, finish = true, nil
			case <-r.member.Lost():
				lose(r.member.Err())
				return
			case <-ctx.Done():
				return
			}
			continue
		}
		err := r.member.Do(ctx, func(*client.Client) error { return r.make(ctx, due) })
		switch {
		case err == nil:
		case errors.Is(err, client.ErrAgentLost):
			lose(err)
			return
		case command.Away(err):
			r.pause(ctx)
			if ctx.Err() != nil {
				return
			}
			continue // the same again
		default:
			r.complain(err)
		}
		r.done()
	}
}

// pause waits before another try.
func (r *Reporter) pause(ctx context.Context) {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// make makes one call.
func (r *Reporter) make(ctx context.Context, due ownReport) error {
	call, cancel := context.WithTimeout(ctx, command.CallTimeout)
	defer cancel()
	var err error
	switch {
	case due.upload != nil:
		err = r.upload(ctx, due.upload)
	case due.raise != nil:
		err = r.raise(call, due.raise)
	case due.resolve != "":
		err = r.resolve(call, due.resolve)
	case due.checkpoint != nil:
		_, err = r.broker.Agents().SaveCheckpoint(call, due.checkpoint)
	case due.heartbeat != nil:
		var answer *pb.HeartbeatResponse
		if answer, err = r.broker.Agents().Heartbeat(call, due.heartbeat); err == nil {
			r.told(answer)
		}
	case due.event != nil:
		_, err = r.broker.Events().PublishEvent(call, due.event)
	case due.message != nil:
		_, err = r.broker.Messages().SendMessages(call, due.message)
	}
	return err
}

// TellLosses says what the agent has lost.
func (r *Reporter) TellLosses(from prompt.Loser) {
	for _, l := range from.GetLosses() {
		r.sayf("lost while the agent was away: %s %s", prompt.Enum(l.GetKind()), l.GetName())
	}
	if more := from.GetMoreLosses(); more > 0 {
		r.sayf("lost while the agent was away: %s", prompt.MoreLosses(more))
	}
}

// told says what the agent has lost, and what orders wait, once for as long as they are the same.
func (r *Reporter) told(answer *pb.HeartbeatResponse) {
	r.TellLosses(answer)
	directives := answer.GetDirectives()
	r.mu.Lock()
	same := slices.Equal(directives, r.directives)
	r.directives = directives
	r.mu.Unlock()
	if len(directives) > 0 && !same {
		r.sayf("directives wait: %s; brokerctl next shows them", prompt.Names(directives, len(directives)))
	}
}

func (r *Reporter) complain(err error) {
	_, text := r.explain(err)
	r.sayf("%s", text)
}

func (r *Reporter) sayf(format string, args ...any) {
	r.mu.Lock()
	out := r.Stderr
	r.mu.Unlock()
	fmt.Fprintf(out, "brokerctl: %s\n", prompt.OneLine(fmt.Sprintf(format, args...)))
}
