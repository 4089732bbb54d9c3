package supervise

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// defaultHold is how long the broker lets a lock be held unless asked otherwise.
const defaultHold = 30 * time.Minute

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
			return o.runHolding(c, cmd, args[dash:], func() (*Hold, error) { return o.Lock(c, cmd, paths, turn.LockMode(shared)) })
		},
	}
	o.AddFlags(cmd)
	cmd.Flags().BoolVar(&shared, "shared", false, "shared, for reading: compatible with other shared locks")
	return cmd
}

// Lock takes the lock.
func (o *RunOptions) Lock(c *command.Caller, cmd *cobra.Command, paths []string, mode pb.LockMode) (*Hold, error) {
	broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
	if err != nil {
		return nil, err
	}
	lasts, holder := o.MaxHold, newHolder()
	if lasts == 0 {
		lasts = defaultHold
	}
	var began time.Time
	answer, err := turn.Wait(cmd.Context(), c, "the lock", o.Wait, func(wait time.Duration) (*pb.AcquireLocksResponse, error) {
		began = time.Now()
		return broker.Locks().AcquireLocks(cmd.Context(), &pb.AcquireLocksRequest{
			Paths: paths, Mode: mode, Wait: command.Duration(wait), MaxHold: durationpb.New(lasts), Holder: holder, Reason: o.Reason,
		})
	})
	free := unfenced(broker)
	h := &Hold{
		what: "the lock on " + prompt.Paths(paths), fence: answer.GetFence(), Lasts: lasts, broker: free,
		Env: [][2]string{
			{"BROKERD_FENCE", strconv.FormatInt(answer.GetFence(), 10)}, {turn.HolderVariable, holder}, {"BROKERD_LOCK_PATHS", strings.Join(paths, "\n")},
		},
		types: []string{"lock.released", "lock.expired", "lock.revoked"},
		Extend: func(ctx context.Context) error {
			_, err := free.Locks().ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: []int64{answer.GetFence()}})
			return err
		},
		release: func(ctx context.Context) error { // with what the command itself has locked as the same owner
			_, err := free.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Holder: holder, All: true})
			return err
		},
		held: func(ctx context.Context) (bool, error) {
			locks, err := command.Pages(0, func(size int32, token string) ([]*pb.Lock, string, error) {
				page, err := free.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: free.Identity().Agent, PageSize: size, PageToken: token})
				return page.GetLocks(), page.GetNextPageToken(), err
			})
			return slices.ContainsFunc(locks, func(l *pb.Lock) bool { return l.GetFence() == answer.GetFence() }), err
		},
	}
	if err == nil && answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		err = turn.NotAcquired(c, answer, paths)
	}
	if err != nil {
		if o.Wait > 0 { // nobody comes back for the place in the queue, and so nobody should wait behind it
			h.giveBack(c, cmd)
		}
		return nil, err
	}
	return h, h.count(cmd.Context(), began)
}

// unfenced returns a client whose calls depend on no lock: what a command around this one holds must not keep it from giving back.
func unfenced(broker *client.Client) *client.Client {
	id := broker.Identity()
	return broker.As(id.Agent).AtIncarnation(id.Incarnation)
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
			return o.runHolding(c, cmd, args[2:], func() (*Hold, error) { return o.Token(c, cmd, args[0], args[1]) })
		},
	}
	o.AddFlags(cmd)
	return cmd
}

// Token takes the token.
func (o *RunOptions) Token(c *command.Caller, cmd *cobra.Command, kind, scope string) (*Hold, error) {
	broker, err := c.Connect(cmd.Context(), c.RetryNotice(cmd))
	if err != nil {
		return nil, err
	}
	holder, free := newHolder(), unfenced(broker)
	var began time.Time
	answer, err := turn.Wait(cmd.Context(), c, "the token", o.Wait, func(wait time.Duration) (*pb.AcquireTokenResponse, error) {
		began = time.Now()
		return broker.Tokens().AcquireToken(cmd.Context(), &pb.AcquireTokenRequest{
			Type: kind, Scope: scope, Wait: command.Duration(wait), MaxHold: command.Duration(o.MaxHold), Holder: holder, Reason: o.Reason,
		})
	})
	h := &Hold{
		what: "the token " + turn.TokenName(kind, scope), fence: answer.GetFence(), Lasts: o.MaxHold, broker: free,
		Env: [][2]string{
			{"BROKERD_FENCE", strconv.FormatInt(answer.GetFence(), 10)}, {turn.HolderVariable, holder}, {"BROKERD_TOKEN_TYPE", kind}, {"BROKERD_TOKEN_SCOPE", scope},
		},
		types: []string{"token.released", "token.passed", "token.expired", "token.revoked"},
		Extend: func(ctx context.Context) error {
			_, err := free.Tokens().ExtendToken(ctx, &pb.ExtendTokenRequest{Type: kind, Scope: scope, Holder: holder})
			return err
		},
		release: func(ctx context.Context) error {
			_, err := free.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: kind, Scope: scope, Holder: holder})
			return err
		},
		held: func(ctx context.Context) (bool, error) {
			now, err := free.Tokens().GetToken(ctx, &pb.GetTokenRequest{Type: kind, Scope: scope})
			return now.GetToken().GetFence() == answer.GetFence() && now.GetToken().GetAgent() == free.Identity().Agent, err
		},
	}
	if err == nil && answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		err = turn.NotAcquired(c, answer, nil)
	}
	if err != nil {
		if o.Wait > 0 { // nobody comes back for the place in the queue, and so nobody should wait behind it
			h.giveBack(c, cmd)
		}
		return nil, err
	}
	if h.Lasts == 0 { // the broker has chosen
		h.Lasts = max(answer.GetHeldUntil().AsTime().Sub(c.Env.Now()), time.Second)
	}
	return h, h.count(cmd.Context(), began)
}
