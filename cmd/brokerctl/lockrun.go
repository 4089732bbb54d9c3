package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
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

func newLockRunCommand(c *cli) *cobra.Command {
	o := &runOptions{}
	var shared bool
	cmd := &cobra.Command{
		Use:   "run PATH... [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command while paths are locked",
		Long:  lockRunLong,

		DisableFlagsInUseLine: true,
		Example:               "  brokerctl --agent builder-1 lock run src/ --wait 10m -- make generate",
		Args:                  commandAfterDash(1, 0, "the path"),
		ValidArgsFunction:     completeFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			paths, err := c.lockPaths(args[:dash])
			if err != nil {
				return err
			}
			return o.runHolding(c, cmd, args[dash:], func() (*hold, error) { return o.lock(c, cmd, paths, lockMode(shared)) })
		},
	}
	o.AddFlags(cmd)
	cmd.Flags().BoolVar(&shared, "shared", false, "shared, for reading: compatible with other shared locks")
	return cmd
}

// lock takes the lock.
func (o *runOptions) lock(c *cli, cmd *cobra.Command, paths []string, mode pb.LockMode) (*hold, error) {
	broker, err := c.connect(cmd.Context(), c.retryNotice(cmd))
	if err != nil {
		return nil, err
	}
	lasts, holder := o.maxHold, newHolder()
	if lasts == 0 {
		lasts = defaultHold
	}
	var began time.Time
	answer, err := waitForTurn(cmd.Context(), c, "the lock", o.wait, func(wait time.Duration) (*pb.AcquireLocksResponse, error) {
		began = time.Now()
		return broker.Locks().AcquireLocks(cmd.Context(), &pb.AcquireLocksRequest{
			Paths: paths, Mode: mode, Wait: duration(wait), MaxHold: durationpb.New(lasts), Holder: holder, Reason: o.reason,
		})
	})
	free := unfenced(broker)
	h := &hold{
		what: "the lock on " + prompt.Paths(paths), fence: answer.GetFence(), lasts: lasts, broker: free,
		env: [][2]string{
			{"BROKERD_FENCE", strconv.FormatInt(answer.GetFence(), 10)}, {holderVariable, holder}, {"BROKERD_LOCK_PATHS", strings.Join(paths, "\n")},
		},
		types: []string{"lock.released", "lock.expired", "lock.revoked"},
		extend: func(ctx context.Context) error {
			_, err := free.Locks().ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: []int64{answer.GetFence()}})
			return err
		},
		release: func(ctx context.Context) error { // with what the command itself has locked as the same owner
			_, err := free.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Holder: holder, All: true})
			return err
		},
		held: func(ctx context.Context) (bool, error) {
			locks, err := pages(0, func(size int32, token string) ([]*pb.Lock, string, error) {
				page, err := free.Locks().ListLocks(ctx, &pb.ListLocksRequest{Agent: free.Identity().Agent, PageSize: size, PageToken: token})
				return page.GetLocks(), page.GetNextPageToken(), err
			})
			return slices.ContainsFunc(locks, func(l *pb.Lock) bool { return l.GetFence() == answer.GetFence() }), err
		},
	}
	if err == nil && answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_GRANTED {
		err = c.notAcquired(answer, paths)
	}
	if err != nil {
		if o.wait > 0 { // nobody comes back for the place in the queue, and so nobody should wait behind it
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
