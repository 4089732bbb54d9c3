package supervise

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const lockRunLong = `Lock paths for a separate owner, so that two runs exclude each other even under
one agent's name, and run a command.

The command's environment has the variables of brokerctl help environment, so
that brokerctl works inside it, with BROKERD_FENCE and BROKERD_HOLDER of the
lock, and BROKERD_LOCK_PATHS, one path per line. brokerctl extends the lock while
the command runs, and releases it afterwards.

If the lock is lost, the command receives SIGTERM and, 10 s later, SIGKILL
(earlier if --for is short). If the broker is unreachable, brokerctl waits for it
until shortly before the hold expires. It passes SIGINT, SIGTERM and SIGHUP on; a
second SIGINT or SIGTERM kills the command.

Exit codes: the command's own; 124: --timeout stopped it; 4: not granted within
--wait; 5: another agent holds it, or waiting would be a deadlock; 6: the lock
was lost, and the command was stopped; 125 to 127: brokerctl help exit-codes.`

// NewLockRunCommand returns the command brokerctl lock run.
func NewLockRunCommand(c *command.Caller) *cobra.Command {
	return running(lockRun.Command(c), commandAfterDash(1, 0, "the path"))
}

var lockRun = command.Procedure[*pb.AcquireLocksRequest]{
	Page: command.Page{
		Use:     "run PATH... [flags] -- COMMAND [ARGUMENT...]",
		Short:   "Run a command while paths are locked",
		Long:    lockRunLong,
		Example: "  brokerctl --agent builder-1 lock run src/ --wait 10m -- make generate",
	},
	Args: []command.Arg{{Kind: command.Kind{Files: true}}},
	Options: append([]command.Option{
		{Name: "shared", Type: "bool", Usage: "shared, for reading: compatible with other shared locks"},
	}, runOptions...),
	Run: func(g *command.Given, q *pb.AcquireLocksRequest) (err error) {
		if q.Paths, err = turn.LockPaths(g.Caller, g.Args[:g.Cmd.ArgsLenAtDash()]); err != nil {
			return err
		}
		q.Mode, q.Holder = turn.LockMode(g.On("shared")), newHolder()
		return runHolding(g, func() (*hold, error) { return lock(g, q) })
	},
}

// lock takes the lock.
func lock(g *command.Given, q *pb.AcquireLocksRequest) (*hold, error) {
	broker, err := g.Connect(g.Cmd.Context(), g.RetryNotice(g.Cmd))
	if err != nil {
		return nil, err
	}
	defer g.Progress(g.Duration("wait"), "the lock")()
	h := &hold{what: "the lock on " + prompt.Paths(q.GetPaths())}
	if h.Hold, err = broker.HoldLocks(g.Cmd.Context(), q, keeping(g.Caller, g.Cmd, h.what)); err != nil {
		return nil, notTaken(g.Caller, q.GetPaths(), err)
	}
	h.env = [][2]string{
		{"BROKERD_FENCE", strconv.FormatInt(h.Fence(), 10)}, {turn.HolderVariable, q.GetHolder()},
		{"BROKERD_LOCK_PATHS", strings.Join(q.GetPaths(), "\n")},
	}
	return h, nil
}

const tokenRunLong = `Acquire a token for a separate owner, so that two runs exclude each other even
under one agent's name, and run a command. If the command passes the token on, it
continues without it.

Everything else is as in brokerctl lock run, with BROKERD_TOKEN_TYPE and
BROKERD_TOKEN_SCOPE in the command's environment.`

// NewTokenRunCommand returns the command brokerctl token run.
func NewTokenRunCommand(c *command.Caller) *cobra.Command {
	return running(tokenRun.Command(c), commandAfterDash(2, 2, "the type", "the scope"))
}

var tokenRun = command.Procedure[*pb.AcquireTokenRequest]{
	Page: command.Page{
		Use:     "run TYPE SCOPE [flags] -- COMMAND [ARGUMENT...]",
		Short:   "Run a command while holding a token",
		Long:    tokenRunLong,
		Example: "  brokerctl --agent builder-1 token run test_run ci --wait 1h -- make test",
	},
	Args:    words.OneToken,
	Options: runOptions,
	Run: func(g *command.Given, q *pb.AcquireTokenRequest) error {
		q.Holder = newHolder()
		return runHolding(g, func() (*hold, error) { return token(g, q) })
	},
}

// token takes the token.
func token(g *command.Given, q *pb.AcquireTokenRequest) (*hold, error) {
	broker, err := g.Connect(g.Cmd.Context(), g.RetryNotice(g.Cmd))
	if err != nil {
		return nil, err
	}
	defer g.Progress(g.Duration("wait"), "the token")()
	h := &hold{what: "the token " + turn.TokenName(q.GetType(), q.GetScope())}
	if h.Hold, err = broker.HoldToken(g.Cmd.Context(), q, keeping(g.Caller, g.Cmd, h.what)); err != nil {
		return nil, notTaken(g.Caller, nil, err)
	}
	h.env = [][2]string{
		{"BROKERD_FENCE", strconv.FormatInt(h.Fence(), 10)}, {turn.HolderVariable, q.GetHolder()},
		{"BROKERD_TOKEN_TYPE", q.GetType()}, {"BROKERD_TOKEN_SCOPE", q.GetScope()},
	}
	return h, nil
}
