package shared

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const lockLong = `Lock files, so that two agents do not write the same one at the same time. A PATH
is a file (src/a.go), a directory with all below it (src/), or a glob
('src/*.go', 'docs/**'). Locks are advisory: only agents that ask are kept out.

Paths are relative to the working folder, or absolute. The broker stores them
relative to the session's root: the top of the repository, the same in all its
worktrees, or BROKERD_ROOT. A number is a fence or a ticket; write a file named
4711 as ./4711.

A lock ends when it is released, when its time (--for) expires, or when its agent
fails or deregisters.`

// NewLockCommand returns the commands of brokerctl lock.
func NewLockCommand(c *command.Caller) *cobra.Command {
	return command.Group("lock", "Lock files and directories, and show who holds them", lockLong, "  brokerctl lock list",
		newLockAcquireCommand(c), newLockExtendCommand(c), newLockReleaseCommand(c),
		newLockGetCommand(c), newLockListCommand(c), newLockRevokeCommand(c))
}

func newLockAcquireCommand(c *command.Caller) *cobra.Command {
	o := &AcquireOptions{}
	var shared bool
	cmd := &cobra.Command{
		Use:   "acquire PATH...",
		Short: "Lock paths, all or none",
		Long: `Lock paths: all of them, or none. An agent that already holds them gets the same
fence. The fence proves that the lock is held: with BROKERD_FENCE set to it, the
broker refuses every call once the lock is lost.

Exit codes: 4: not granted within --wait; 5: another agent holds a path (without
--wait), or waiting would be a deadlock.`,
		Example: `  brokerctl --agent builder-1 lock acquire src/a.go b.go --wait 90s
  brokerctl --agent builder-1 lock acquire docs/ --shared --for 2h
  brokerctl --agent builder-1 lock acquire 'src/**/*.sql' --dry-run`,
		Args:              turn.LeastOne("the path"),
		ValidArgsFunction: command.CompleteFiles,
		RunE: func(cmd *cobra.Command, args []string) error {
			paths, err := turn.LockPaths(c, args)
			if err != nil {
				return err
			}
			holder, err := o.Holder(c, cmd)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := turn.Wait(cmd.Context(), c, "the lock", o.Wait, func(wait time.Duration) (*pb.AcquireLocksResponse, error) {
				return broker.Locks().AcquireLocks(cmd.Context(), &pb.AcquireLocksRequest{
					RequestId: o.requestID, Paths: paths, Mode: turn.LockMode(shared), Wait: command.Duration(wait), MaxHold: command.Duration(o.MaxHold),
					Holder: holder, DryRun: o.dryRun, Reason: o.Reason, KeepTicket: o.keep,
				})
			})
			if err != nil {
				return err
			}
			return ShowAcquired(c, cmd, answer, paths, o, func(w io.Writer) {
				prompt.Say(w, "%s %s, ends %s, fence %d", prompt.Either(answer.GetAlreadyHeld(), "held before:", "locked"), prompt.Paths(paths),
					c.When(answer.GetHeldUntil()), answer.GetFence())
				if prompt.ForModel(w) {
					prompt.Say(w, "Next: %s when done; %s for more time",
						c.Command("lock release %d", answer.GetFence()), c.Also("lock extend %d", answer.GetFence()))
				}
			})
		},
	}
	o.AddFlags(cmd)
	cmd.Flags().BoolVar(&shared, "shared", false, "shared, for reading: compatible with other shared locks")
	return cmd
}

func newLockExtendCommand(c *command.Caller) *cobra.Command {
	var holder HolderOption
	var maxHold time.Duration
	var requestID string
	cmd := &cobra.Command{
		Use:   "extend PATH|FENCE...",
		Short: "Hold locks for longer, counted from now",
		Long: `Hold locks for longer, counted from now: all of them, or none. A path stands for
the whole lock that it was acquired with. If the agent has lost one of them, the
exit code is 6.`,
		Example: `  brokerctl --agent builder-1 lock extend src/login.go --for 1h
  brokerctl --agent builder-1 lock extend 4711`,
		Args:              turn.LeastOne("the path or fence"),
		ValidArgsFunction: c.CompleteArgs(true, words.OwnLocks(c)),
		RunE: func(cmd *cobra.Command, args []string) error {
			fences, paths, err := lockTargets(c, args)
			if err != nil {
				return err
			}
			name, err := holder.Holder(c, cmd)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			what := append(numbers(fences), paths...)
			for _, path := range paths {
				fence, err := heldFence(cmd.Context(), broker, path, name)
				if err != nil {
					return err
				}
				fences = append(fences, fence)
			}
			answer, err := broker.Locks().ExtendLocks(cmd.Context(), &pb.ExtendLocksRequest{RequestId: requestID, Fences: fences, MaxHold: command.Duration(maxHold)})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				for i, t := range answer.GetHeldUntil() {
					prompt.Say(w, "extended %s, ends %s", what[i], c.When(t))
				}
			})
		},
	}
	command.DurationVar(cmd.Flags(), &maxHold, "for", 0, "how long from now on (default: as long as was acquired)")
	holder.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &requestID)
	return cmd
}

func newLockReleaseCommand(c *command.Caller) *cobra.Command {
	request := &pb.ReleaseLocksRequest{}
	var holder HolderOption
	cmd := &cobra.Command{
		Use:   "release [PATH|FENCE|TICKET...]",
		Short: "Release locks, or leave their queues",
		Long: `Release locks, or leave their queues: by path as it was acquired, by fence, by
ticket, or all. Exit code 6: the agent neither holds such a lock nor waits for it.`,
		Example: `  brokerctl --agent builder-1 lock release src/login.go
  brokerctl --agent builder-1 lock release 4711
  brokerctl --agent builder-1 lock release --all`,
		ValidArgsFunction: c.CompleteArgs(true, words.OwnLocks(c)),
		RunE: func(cmd *cobra.Command, args []string) error {
			revisions, paths, err := lockTargets(c, args)
			if err != nil {
				return err
			}
			if len(args) == 0 && !request.GetAll() {
				return problem.Usagef("the lock is missing: give a path, a fence, a ticket, or --all")
			}
			request.Paths, request.Fences, request.Tickets = paths, revisions, revisions // each is one of both
			if request.Holder, err = holder.Holder(c, cmd); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Locks().ReleaseLocks(cmd.Context(), request)
			if err != nil {
				return err
			}
			if answer.GetReleased()+answer.GetCancelled() == 0 && !request.GetAll() {
				return noSuchLock(c, cmd.Context(), broker, request)
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				switch {
				case answer.GetReleased()+answer.GetCancelled() == 0:
					prompt.Say(w, "nothing was held")
				case answer.GetReleased() == 0:
					prompt.Say(w, "cancelled %s", prompt.Count(answer.GetCancelled(), "request"))
				default:
					prompt.Say(w, "released %s%s", prompt.Count(answer.GetReleased(), "path"),
						prompt.Either(answer.GetCancelled() > 0, ", cancelled "+prompt.Count(answer.GetCancelled(), "request"), ""))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&request.All, "all", false, "all that the owner holds and waits for")
	holder.AddFlags(cmd.Flags())
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newLockListCommand(c *command.Caller) *cobra.Command {
	filter := &pb.ListLocksRequest{}
	var limit int
	cmd := &cobra.Command{
		Use:   "list [PATH]",
		Short: "List locks and waiting requests",
		Long: `List locks and waiting requests; with PATH, only those that conflict with an
exclusive lock on it.`,
		Example: `  brokerctl lock list src/login.go
  brokerctl lock list --owner builder-1
  brokerctl lock list --waiting`,
		Args:              command.Between(0, "the path"),
		ValidArgsFunction: c.CompleteArgs(false, words.AllLocks(c)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &pb.ListLocksRequest{Agent: filter.GetAgent(), Waiting: filter.GetWaiting()}
			if len(args) > 0 {
				paths, err := turn.LockPaths(c, args)
				if err != nil {
					return err
				}
				request.Path = paths[0]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			items, err := command.Pages(limit, func(size int32, token string) ([]proto.Message, string, error) {
				request.PageSize, request.PageToken = size, token
				page, err := broker.Locks().ListLocks(cmd.Context(), request)
				var items []proto.Message
				for _, l := range page.GetLocks() {
					items = append(items, l)
				}
				for _, t := range page.GetTickets() {
					items = append(items, t)
				}
				return items, page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, items, LockView(c))
		},
	}
	cmd.Flags().StringVar(&filter.Agent, "owner", "", "only what this agent holds or waits for")
	cmd.Flags().BoolVar(&filter.Waiting, "waiting", false, "only requests that wait")
	command.LimitVar(cmd.Flags(), &limit, 0)
	return cmd
}

// LockView lists locks and tickets.
func LockView(c *command.Caller) output.View[proto.Message] {
	return output.View[proto.Message]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", Min: 18, State: true}, {Name: "MODE", Rank: 3}, {Name: "OWNER", Min: 12}, {Name: "SINCE", Rank: 2}, {Name: "ENDS"},
			{Name: "PATHS", Min: 24}, {Name: "REASON", Rank: 1, Min: 16},
		},
		Row: func(m proto.Message) []string {
			if t, ok := m.(*pb.LockTicket); ok {
				return []string{strconv.FormatInt(t.GetTicket(), 10), waiting(c, t.GetPosition(), t.GetKept(), t.GetObstacles()), prompt.Enum(t.GetMode()),
					prompt.Owner(t.GetAgent(), t.GetHolder()), c.When(t.GetCreatedAt()), "", prompt.Paths(t.GetPaths()), t.GetReason()}
			}
			l := m.(*pb.Lock)
			return []string{strconv.FormatInt(l.GetFence(), 10), holding(l.GetWaiting(), l.GetUncollected()), prompt.Enum(l.GetMode()),
				prompt.Owner(l.GetAgent(), l.GetHolder()), c.When(l.GetGrantedAt()), c.When(l.GetHeldUntil()), prompt.Paths(l.GetPaths()), l.GetReason()}
		},
		None: "no locks",
	}
}

// holding says how a grant stands.
func holding(waiting int32, uncollected bool) string {
	return prompt.Either(uncollected, "granted, not collected", "held") + prompt.Either(waiting > 0, fmt.Sprintf(", %d waiting", waiting), "")
}

// waiting says how a ticket stands.
func waiting(c *command.Caller, position int32, kept bool, obstacles []*pb.Obstacle) string {
	s := fmt.Sprintf("place %d", position)
	if len(obstacles) > 0 {
		s += " behind " + prompt.Owner(obstacles[0].GetAgent(), obstacles[0].GetHolder())
	}
	return s + prompt.Either(kept, ", kept", "")
}

func newLockRevokeCommand(c *command.Caller) *cobra.Command {
	request := &pb.ForceReleaseLocksRequest{}
	cmd := &cobra.Command{
		Use:   "revoke [PATH|FENCE|TICKET...]",
		Short: "Take locks from their owners, with a reason (operators)",
		Long: `Take locks from their owners and give them the reason: every lock that conflicts
with one of these paths, the lock or waiting request with this number, or all
that an agent holds and waits for. The next request in the queue is granted at
once.`,
		Example: `  brokerctl lock revoke src/login.go --reason "builder-1 hangs"
  brokerctl lock revoke 4711 --reason "taken by mistake"
  brokerctl lock revoke --owner builder-1 --reason "builder-1 hangs"`,
		ValidArgsFunction: c.CompleteArgs(true, words.AllLocks(c)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if request.Revisions, request.Paths, err = lockTargets(c, args); err != nil {
				return err
			}
			if len(args) == 0 && request.GetAgent() == "" {
				return problem.Usagef("the lock is missing: give a path, a fence, a ticket, or --owner")
			}
			if request.GetReason() == "" {
				return problem.Usagef("--reason is missing: the owners receive it")
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Locks().ForceReleaseLocks(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				if len(answer.GetReleased()) == 0 {
					prompt.Say(w, "nothing was held")
				}
				for _, l := range answer.GetReleased() {
					fmt.Fprintf(w, "took %s from %s, fence %d\n", prompt.Paths(l.GetPaths()), prompt.Clean(prompt.Owner(l.GetAgent(), l.GetHolder())), l.GetFence())
				}
			})
		},
	}
	cmd.Flags().StringVar(&request.Agent, "owner", "", "all that this agent holds and waits for")
	cmd.Flags().StringVar(&request.Reason, "reason", "", "why, for the owners; required")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}
