package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/registration"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// How long a hook may take, and its exit code.
const (
	hookTimeout  = 10 * time.Second       // of all calls of a hook, except its waits
	hookLook     = 300 * time.Millisecond // of those of a hook that only looks, unless --within says otherwise
	hookFarewell = time.Second            // more than that, for the report that a session has ended
	ExitBlock    = 2                      // of a hook: what was going to be done must not be
)

const hookLong = `Connect a coding agent with the broker: claude-code, codex, gemini, cursor or
opencode (brokerctl setup configures it). The coding agent calls this command for
its hook events, with JSON on standard input. The events of Claude Code and Codex
are below; docs/hooks.md names those of the others.

  SessionStart registers the agent
  PreToolUse   before a tool writes a file: locks the file for --for; if
               another agent holds it, refuses the tool with exit code 2, and
               says on standard error who holds it, until when, and what to do
  PostToolUse  reports the file that was written, and passes new messages to the
               model in the middle of its turn
  Stop         prints new messages, directives first, so that the agent
               continues with them: the session's next event marks them as
               read. With --listen, it waits for the first one. A turn started
               this way ends without a check, or listens for --pause before it
               continues; --keep-going lifts this limit
  UserPromptSubmit  what Stop printed stays unread. Codex: adds new messages
  SessionEnd   reports that the agent has stopped

Every event reports whether the session is busy or idle. The agent is the one that
the environment, init in this session, --agent or .brokerd.yaml names, the first
of these (codex: first --agent). While another session has that name, this
one is NAME-2 and so on, also when it is resumed. If the broker cannot be asked,
tools run with a warning (--fail open) or are refused (--fail closed).`

// hookOptions are the options of a hook.
type hookOptions struct {
	vendor    hookVendor
	fail      string
	role      string
	maxHold   time.Duration
	wait      time.Duration
	keepGoing bool
	listen    time.Duration
	within    time.Duration
	pause     time.Duration
	tools     []string
	wake      bool
}

// NewCommand returns the command brokerctl hook.
func NewCommand(c *command.Caller) *cobra.Command {
	cmd := hook.Command(c)
	cmd.Args = oneHookVendor
	// A setting that is wrong must not have the exit code that refuses a tool; the root would look at the output format
	// here.
	cmd.PersistentPreRun = func(cmd *cobra.Command, args []string) {
		c.Global.Output = output.FormatPrompt // what it writes is for a language model
		c.Global.Yields = args[0] != "codex"  // whose hooks have the environment of its daemon, not of the session
		c.Global.Operator = cmd.Flags().Changed("agent") && c.Global.Agent == ""
	}
	return cmd
}

var hook = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "hook NAME",
		Short: "Handle a hook event of a coding agent",
		Long:  hookLong,
		Example: `  echo '{"hook_event_name":"Stop","session_id":"s"}' |
    brokerctl --agent builder-1 hook claude-code`,
	},
	Args: []command.Arg{{Kind: command.Kind{Fixed: vendorNames}}},
	Options: []command.Option{
		{Name: "fail", Type: "string", Value: "open", Kind: command.Kind{Name: "MODE", Fixed: []string{"open", "closed"}},
			Usage: "if the broker cannot be asked: open lets tools run, closed refuses them"},
		{Name: "role", Type: "string", Kind: words.Role, Usage: "role of the agent when it is registered"},
		{Name: "for", Type: "duration", Value: "15m",
			Usage: "how long a file stays locked after its last write, 1s to 7d"},
		{Name: "wait", Type: "duration", Usage: "wait up to this long for a locked file; less than the hook's timeout"},
		{Name: "keep-going", Type: "bool", Usage: "print new messages at the end of every turn"},
		{Name: "listen", Type: "duration",
			Usage: "at the end of a turn, wait up to this long for a message; less than the hook's timeout"},
		{Name: "within", Type: "duration", Value: prompt.Duration(hookLook),
			Usage: "how long a hook that only looks or reports waits for the broker"},
		{Name: "pause", Type: "duration", Value: "1m",
			Usage: "how long a turn started by a message listens before another message continues it"},
		{Name: "wake", Type: "bool", Usage: "in the background, wait for mail and wake the session"},
		{Name: "tool", Type: "strings", Kind: command.Name,
			Usage: "another tool that writes the file that its input names; repeatable"},
	},
	Run: func(g *command.Given, _ command.None) error {
		o := &hookOptions{
			vendor: Vendors[g.Args[0]], fail: g.Text("fail"), role: g.Text("role"), maxHold: g.Duration("for"),
			wait: g.Duration("wait"), keepGoing: g.On("keep-going"), listen: g.Duration("listen"),
			within: g.Duration("within"), pause: g.Duration("pause"), tools: g.Texts("tool"), wake: g.On("wake"),
		}
		return o.run(g.Caller, g.Cmd)
	},
}

// writes reports whether the tool writes its file.
func (o *hookOptions) writes(tool string) bool {
	last := tool
	if rest, ok := strings.CutPrefix(tool, "mcp__"); ok {
		_, last, _ = strings.Cut(rest, "__")
	}
	return slices.Contains(o.vendor.Tools, last) || slices.Contains(anyServersTools, last) ||
		slices.Contains(o.tools, tool)
}

func (o *hookOptions) run(c *command.Caller, cmd *cobra.Command) error {
	parent := os.Getppid() // before the coding agent can have ended
	if o.fail != "open" && o.fail != "closed" {
		return problem.Usagef("--fail %q is neither open nor closed", o.fail)
	}
	in, err := o.vendor.read(cmd.InOrStdin())
	if err != nil {
		return o.failed(c, cmd, in, fmt.Errorf("read what the hook is about from standard input: %w", err))
	}
	c.Hooked = harness.Session{ID: in.SessionID, Program: cmd.Flags().Arg(0)}
	if above := c.Ancestors(); len(above) > 0 {
		c.Hooked.Process = above[0].Process
	}
	if c.Hooked.Program == "codex" {
		if home, err := codexFolder(c.Env); err == nil {
			c.Hooked.Lock = codexLock(home, in.SessionID)
		}
	}
	h := &Hook{hookOptions: o, C: c, In: in, parent: parent, mark: prompt.NewMark(), until: c.Env.Now().Add(o.within)}
	if o.wake {
		return h.wakeUp(cmd.Context(), cmd.ErrOrStderr())
	}
	limit := hookTimeout + o.wait
	if in.Event == "Stop" {
		limit += o.listen
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	h.settle(ctx)
	switch in.Event {
	case "PostToolUse", "UserPromptSubmit":
		if len(in.quoted()) == 0 { // otherwise the listener has woken the session
			h.awake()
		}
	case "SessionEnd":
		h.sleep()
	}
	switch in.Event {
	case "SessionStart":
		err = h.briefly(ctx, func(ctx context.Context) error {
			state := pb.HarnessState_HARNESS_STATE_IDLE
			if in.Source == "compact" { // in the middle of a turn
				state = pb.HarnessState_HARNESS_STATE_BUSY
			}
			return h.beat(ctx, &pb.HeartbeatRequest{Harness: h.presence(state)})
		})
	case "UserPromptSubmit":
		if err = h.briefly(ctx, h.busy); err == nil && h.vendor.prompt && len(in.quoted()) == 0 {
			err = h.briefly(ctx, func(ctx context.Context) error {
				return h.context(ctx, cmd.OutOrStdout(), pb.OfferWay_OFFER_WAY_PROMPT)
			})
		}
	case Accepted: // a request to the model is under way
		err = h.briefly(ctx, h.busy)
	case "PreToolUse":
		if err = h.lock(ctx); err == nil {
			_ = h.briefly(ctx, h.busy) // the end of the tool says it too
		}
	case "PostToolUse":
		err = h.briefly(ctx, h.told)
		if err == nil {
			err = h.briefly(ctx, func(ctx context.Context) error {
				return h.context(ctx, cmd.OutOrStdout(), pb.OfferWay_OFFER_WAY_TOOL_CALL)
			})
		}
	case harness.CheckEvent:
		err = h.answers(ctx)
	case "Stop":
		err = h.deliver(ctx, cmd.OutOrStdout())
		if _, interrupted := problem.SignalOf(ctx); interrupted {
			return ctx.Err()
		}
	case "SessionEnd":
		h.until = h.until.Add(hookFarewell)
		err = h.briefly(ctx, h.leave)
	}
	if block := (*blocked)(nil); errors.As(err, &block) {
		return o.refuse(cmd, block.why)
	}
	if err != nil {
		return o.failed(c, cmd, in, err)
	}
	return nil
}

// blocked is the error of a tool that must not run.
type blocked struct{ why string }

func (b *blocked) Error() string { return b.why }

// failed ends a hook that could not ask the broker. Only what is about to write can be refused.
func (o *hookOptions) failed(c *command.Caller, cmd *cobra.Command, in Input, err error) error {
	_, text := c.Explain(err)
	if o.fail == "closed" && (in.Event == "" || in.Event == "PreToolUse" && o.writes(in.Tool)) {
		return o.refuse(cmd,
			"the broker cannot be asked whether the file is free, and without it nothing is written here: "+text)
	}
	warning := "brokerctl hook: " + prompt.OneLine(text) +
		prompt.Either(in.Event == "PreToolUse", "; the file is not locked", "")
	fmt.Fprintln(cmd.ErrOrStderr(), warning)
	return o.vendor.write(cmd.OutOrStdout(), hookAnswer{SystemMessage: warning})
}

// refuse refuses the tool: with its exit code, or with an answer if the vendor passes only that to the
// model.
func (o *hookOptions) refuse(cmd *cobra.Command, why string) error {
	if o.vendor.answer != nil {
		return o.vendor.write(cmd.OutOrStdout(), hookAnswer{refusal: why})
	}
	return problem.Failf(ExitBlock, "%s", why)
}

// Hook is one call of a hook.
type Hook struct {
	*hookOptions
	C       *command.Caller
	In      Input
	broker  *client.Client
	parent  int       // the process that has started the hook
	mark    string    // of what it offers
	until   time.Time // when brief calls end
	offered bool      // the broker was asked for mail
	quiet   bool      // the agent does not want to hear of queues and of open work: see Attention
}

// errNoAgent is why a hook does nothing.
var errNoAgent = errors.New("this session has no agent: " +
	"call brokerctl init --agent NAME --role ROLE in the project's folder, or set BROKERD_AGENT")

// as makes a call in the agent's name, and registers it first if it is not.
func (h *Hook) as(ctx context.Context, call func(*client.Client) error) error {
	broker, err := h.C.Connect(ctx, client.WithPatience(0)) // an agent waits for its hooks
	if err != nil {
		return err
	}
	h.broker = broker
	s, err := h.C.Settings()
	if err != nil {
		return err
	}
	if s.File != "" && s.Agent.From != s.File && strings.HasPrefix(s.Agent.From, s.File) {
		h.C.Global.Agent = s.Agent.Value // for suggested commands: the model's shell may not know the session
	}
	err = call(broker)
	switch client.Reason(err) {
	case "AGENT_REQUIRED":
		return errNoAgent
	case "STALE_INCARNATION":
		return &blocked{status.Convert(err).Message() + ": somebody else acts as this agent now; stop working"}
	case "AGENT_NOT_REGISTERED":
		request := &pb.RegisterAgentRequest{
			Role: h.role, Worktree: h.In.Cwd, Lease: durationpb.New(registration.ShellLease), Harness: h.session(),
		}
		setting.AsDescribed(request, s.Content.Agents[s.BaseOf()])
		if _, err = broker.Agents().RegisterAgent(ctx, request); err == nil {
			err = call(broker)
		}
	}
	return err
}

// files returns the files of the repository that the tool writes, as paths of locks.
func (h *Hook) files() ([]string, error) {
	if !h.writes(h.In.Tool) {
		return nil, nil
	}
	var files []string
	for _, name := range h.In.files() {
		file, inside, err := turn.LockPathIn(h.C, h.In.Cwd, name)
		if err != nil {
			return nil, err
		}
		if inside && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	return files, nil
}

// lock locks the files that a tool is about to write, except those that the agent has locked.
func (h *Hook) lock(ctx context.Context) error {
	files, err := h.files()
	if err != nil || len(files) == 0 {
		return err
	}
	var free []string
	var answer *pb.AcquireLocksResponse
	err = h.as(ctx, func(broker *client.Client) (err error) {
		if free, err = notLockedByAgent(ctx, broker, files); err != nil || len(free) == 0 {
			return err
		}
		answer, err = broker.Locks().AcquireLocks(ctx, &pb.AcquireLocksRequest{
			Paths: free, Wait: command.Duration(h.wait), MaxHold: durationpb.New(h.maxHold),
			Holder: h.In.SessionID, Reason: "writes it (" + prompt.Clip(h.In.Tool, 64) + ")",
		})
		if err == nil && answer.GetAlreadyHeld() {
			_, err = broker.Locks().ExtendLocks(ctx, &pb.ExtendLocksRequest{
				Fences: []int64{answer.GetFence()}, MaxHold: durationpb.New(h.maxHold),
			})
		}
		return err
	})
	switch {
	case status.Code(err) == codes.Aborted:
		return &blocked{"Waiting for this file would be a deadlock. Do not write it now: continue with something else."}
	case err != nil:
		return err
	case len(free) == 0 || answer.GetOutcome() == pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED:
		return nil
	}
	quoted := each.Of(free, prompt.ShellWord)
	who := ""
	if o := answer.GetObstacles(); len(o) > 0 {
		who = fmt.Sprintf(", or ask: %s send %s TEXT", h.C.Global.Again(), prompt.ShellWord(o[0].GetAgent()))
	}
	return &blocked{fmt.Sprintf("%s. Do not modify it, with any tool. Continue with something else, or wait for it: "+
		"%s lock acquire %s --holder %s --for %s --wait 90s%s",
		turn.InTheWay(h.C, answer.GetObstacles(), free), h.C.Global.Again(), strings.Join(quoted, " "),
		prompt.ShellWord(h.In.SessionID), prompt.Duration(h.maxHold), who)}
}

// notLockedByAgent returns the files that the agent has not locked for writing itself, under no
// holder, such as with the tool lock. It extends the locks on the others.
func notLockedByAgent(ctx context.Context, broker *client.Client, files []string) ([]string, error) {
	var rest []string
	var fences []int64
	for _, file := range files {
		held, err := broker.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: broker.Identity().Agent, Path: file})
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(held.GetLocks(), func(l *pb.Lock) bool {
			return l.GetAgent() == broker.Identity().Agent && l.GetHolder() == "" &&
				l.GetMode() == pb.LockMode_LOCK_MODE_EXCLUSIVE
		})
		if i < 0 {
			rest = append(rest, file)
		} else if fence := held.GetLocks()[i].GetFence(); !slices.Contains(fences, fence) {
			fences = append(fences, fence)
		}
	}
	if len(fences) == 0 {
		return rest, nil
	}
	_, err := broker.Locks().ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: fences})
	return rest, err
}

// told tells the broker which file the agent has written.
func (h *Hook) told(ctx context.Context) error {
	if !h.writes(h.In.Tool) {
		return h.busy(ctx)
	}
	beat := &pb.HeartbeatRequest{
		Status: pb.AgentStatus_AGENT_STATUS_ACTIVE, LastTool: command.Clipped(&h.In.Tool, 256),
		Harness: h.presence(pb.HarnessState_HARNESS_STATE_BUSY),
	}
	if files, err := h.files(); err == nil && len(files) > 0 {
		beat.LastFile = command.Clipped(&files[0], 1024)
	}
	return h.beat(ctx, beat)
}

// busy reports that a turn runs. What a subagent does is part of a turn that is known to run.
func (h *Hook) busy(ctx context.Context) error {
	if h.In.AgentID != "" {
		return nil
	}
	return h.beat(ctx, &pb.HeartbeatRequest{Harness: h.presence(pb.HarnessState_HARNESS_STATE_BUSY)})
}

// presence is what the session does; unspecified says only that nothing wakes it.
func (h *Hook) presence(state pb.HarnessState) *pb.Harness {
	p := &pb.Harness{Session: h.session(), Program: h.C.Hooked.Program, State: state}
	if tool := command.Clipped(&h.In.Tool, 256); tool != nil && state == pb.HarnessState_HARNESS_STATE_BUSY {
		p.Tool = *tool
	}
	return p
}

func (h *Hook) beat(ctx context.Context, beat *pb.HeartbeatRequest) error {
	return h.as(ctx, func(broker *client.Client) error {
		_, err := broker.Agents().Heartbeat(ctx, beat)
		return err
	})
}

// briefly makes calls of a hook that only looks or reports. All of them together have the time of --within.
func (h *Hook) briefly(ctx context.Context, calls func(context.Context) error) error {
	brief, cancel := context.WithDeadline(ctx, h.until)
	defer cancel()
	err := calls(brief)
	if err != nil && brief.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the broker did not answer within %s (--within sets this time)", prompt.Duration(h.within))
	}
	return err
}

// answers checks that the hook has an agent's name and reaches the broker. The agent need not be registered.
func (h *Hook) answers(ctx context.Context) error {
	err := h.as(ctx, func(broker *client.Client) error {
		if broker.Identity().Agent == "" {
			return errNoAgent
		}
		_, err := broker.As("").Agents().GetAgent(ctx, &pb.GetAgentRequest{Name: broker.Identity().Agent})
		return err
	})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// leave reports at the end of a session that the agent has stopped, unless the program continues with another
// session, or another session of the agent holds locks: then it releases those of this session alone.
func (h *Hook) leave(ctx context.Context) error {
	return h.as(ctx, func(broker *client.Client) error {
		held, err := broker.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: broker.Identity().Agent})
		if err != nil {
			return err
		}
		others := slices.ContainsFunc(held.GetLocks(), func(l *pb.Lock) bool {
			return l.GetHolder() != "" && l.GetHolder() != h.In.SessionID
		})
		if others || h.In.Reason == "clear" || h.In.Reason == "resume" {
			_, err = broker.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Holder: h.In.SessionID, All: true})
			return err
		}
		if all := h.C.Sessions(); all != nil {
			all.End(h.In.SessionID)
		}
		_, err = broker.Agents().Heartbeat(ctx, &pb.HeartbeatRequest{
			Status: pb.AgentStatus_AGENT_STATUS_STOPPED, Harness: h.presence(pb.HarnessState_HARNESS_STATE_ENDED),
		})
		return err
	})
}
