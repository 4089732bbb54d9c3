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
	o := &RunOptions{}
	var shared bool
	cmd := &cobra.Command{
		Use:   "run PATH... [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command while paths are locked",
		Long:  lockRunLong,

		DisableFlagsInUseLine: true,
		Example:               "  brokerctl --agent builder-1 lock run src/ --wait 10m -- make generate",
		Args:                  commandAfterDash(1, 0, "the path"),
		ValidArgsFunction:     command.CompleteFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			paths, err := turn.LockPaths(c, args[:dash])
			if err != nil {
				return err
			}
			return o.runHolding(c, cmd, args[dash:], func() (*hold, error) { return o.lock(c, cmd, paths, turn.LockMode(shared)) })
		},
	}
	o.AddFlags(cmd)
	cmd.Flags().BoolVar(&shared, "shared", false, "shared, for reading: compatible with other shared locks")
	return cmd
}

// lock takes the lock.
func (o *RunOptions) lock(c *command.Caller, cmd *cobra.Command, paths []string, mode pb.LockMode) (*hold, error) {
	broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
	if err != nil {
		return nil, err
	}
	defer c.Progress(o.Wait, "the lock")()
	h := &hold{what: "the lock on " + prompt.Paths(paths)}
	request := &pb.AcquireLocksRequest{
		Paths: paths, Mode: mode, Wait: command.Duration(o.Wait), MaxHold: command.Duration(o.MaxHold), Holder: newHolder(),
		Reason: o.Reason,
	}
	if h.Hold, err = broker.HoldLocks(cmd.Context(), request, keeping(c, cmd, h.what)); err != nil {
		return nil, notTaken(c, paths, err)
	}
	h.env = [][2]string{
		{"BROKERD_FENCE", strconv.FormatInt(h.Fence(), 10)}, {turn.HolderVariable, request.GetHolder()},
		{"BROKERD_LOCK_PATHS", strings.Join(paths, "\n")},
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
	o := &RunOptions{}
	cmd := &cobra.Command{
		Use:   "run TYPE SCOPE [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command while holding a token",
		Long:  tokenRunLong,

		DisableFlagsInUseLine: true,
		Example:               "  brokerctl --agent builder-1 token run test_run ci --wait 1h -- make test",
		Args:                  commandAfterDash(2, 2, "the type", "the scope"),
		ValidArgsFunction:     words.CompleteTokens(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runHolding(c, cmd, args[2:], func() (*hold, error) { return o.token(c, cmd, args[0], args[1]) })
		},
	}
	o.AddFlags(cmd)
	return cmd
}

// token takes the token.
func (o *RunOptions) token(c *command.Caller, cmd *cobra.Command, kind, scope string) (*hold, error) {
	broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
	if err != nil {
		return nil, err
	}
	defer c.Progress(o.Wait, "the token")()
	h := &hold{what: "the token " + turn.TokenName(kind, scope)}
	request := &pb.AcquireTokenRequest{
		Type: kind, Scope: scope, Wait: command.Duration(o.Wait), MaxHold: command.Duration(o.MaxHold), Holder: newHolder(),
		Reason: o.Reason,
	}
	if h.Hold, err = broker.HoldToken(cmd.Context(), request, keeping(c, cmd, h.what)); err != nil {
		return nil, notTaken(c, nil, err)
	}
	h.env = [][2]string{
		{"BROKERD_FENCE", strconv.FormatInt(h.Fence(), 10)}, {turn.HolderVariable, request.GetHolder()},
		{"BROKERD_TOKEN_TYPE", kind}, {"BROKERD_TOKEN_SCOPE", scope},
	}
	return h, nil
}
