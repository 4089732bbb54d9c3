package shared

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/client"
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
		lockAcquire.Command(c), lockExtend.Command(c), lockRelease.Command(c), lockGet.Command(c), lockList.Command(c),
		lockRevoke.Command(c))
}

// Locks, and the names of files that paths of locks are made of.
var (
	files   = command.Kind{Files: true, Read: readLockPaths}
	anyLock = command.Kind{Read: readLockPaths, Find: func(g *command.Given, _ string) command.WordList {
		return words.AllLocks(g.Caller)
	}}
	ownLock = command.Kind{Find: func(g *command.Given, _ string) command.WordList { return words.OwnLocks(g.Caller) }}
)

func readLockPaths(g *command.Given, to command.Target, texts []string) error {
	paths, err := turn.LockPaths(g.Caller, texts)
	for _, path := range paths {
		to.Set(protoreflect.ValueOfString(path))
	}
	return err
}

var lockAcquire = command.Spec[*pb.AcquireLocksRequest, *pb.AcquireLocksResponse]{
	Page: command.Page{
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
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.AcquireLocksRequest,
	) (*pb.AcquireLocksResponse, error) {
		ask := func(wait time.Duration) (*pb.AcquireLocksResponse, error) {
			q.Wait = command.Duration(wait)
			return broker.Locks().AcquireLocks(g.Cmd.Context(), q)
		}
		return turn.Wait(g.Cmd.Context(), g.Caller, "the lock", g.Duration("wait"), ask)
	},
	Args: []command.Arg{{Field: "paths", Name: "the path", Kind: files}},
	Options: append([]command.Option{
		{Name: "shared", Type: "bool", Usage: "shared, for reading: compatible with other shared locks"},
	}, acquireFlags...),
	Apart: acquireApart,
	Prepare: func(g *command.Given, q *pb.AcquireLocksRequest) (err error) {
		q.Mode = turn.LockMode(g.On("shared"))
		q.Holder, err = HolderOf(g)
		return err
	},
	After: func(
		g *command.Given, _ *client.Client, q *pb.AcquireLocksRequest, a *pb.AcquireLocksResponse,
	) (bool, error) {
		o := &AcquireOptions{keep: q.GetKeepTicket(), dryRun: q.GetDryRun()}
		return true, ShowAcquired(g.Caller, g.Cmd, a, q.GetPaths(), o, func(w io.Writer) {
			prompt.Say(w, "%s %s, ends %s, fence %d", prompt.Either(a.GetAlreadyHeld(), "held before:", "locked"),
				prompt.Paths(q.GetPaths()), g.When(a.GetHeldUntil()), a.GetFence())
			if prompt.ForModel(w) {
				prompt.Say(w, "Next: %s when done; %s for more time",
					g.Command("lock release %d", a.GetFence()), fmt.Sprintf("lock extend %d", a.GetFence()))
			}
		})
	},
}

// lockExtend first asks for the fences of the locks that are named by their paths.
var lockExtend = command.Spec[*pb.ExtendLocksRequest, *pb.ExtendLocksResponse]{
	Page: command.Page{
		Use:   "extend PATH|FENCE...",
		Short: "Hold locks for longer, counted from now",
		Long: `Hold locks for longer, counted from now: all of them, or none. A path stands for
the whole lock that it was acquired with. If the agent has lost one of them, the
exit code is 6.`,
		Example: `  brokerctl --agent builder-1 lock extend src/login.go --for 1h
  brokerctl --agent builder-1 lock extend 4711`,
	},
	Call: func(
		g *command.Given, broker *client.Client, q *pb.ExtendLocksRequest,
	) (*pb.ExtendLocksResponse, error) {
		_, paths, err := lockTargets(g.Caller, g.Args)
		if err != nil {
			return nil, err
		}
		name, err := HolderOf(g)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			fence, err := heldFence(g.Cmd.Context(), broker, path, name)
			if err != nil {
				return nil, err
			}
			q.Fences = append(q.Fences, fence)
		}
		return broker.Locks().ExtendLocks(g.Cmd.Context(), q)
	},
	Args: []command.Arg{{Name: "the path or fence", Kind: ownLock}},
	Options: []command.Option{
		{Field: "max_hold", Name: "for", Usage: "how long from now on (default: as long as was acquired)"},
		holderFlag, command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.ExtendLocksRequest) (err error) {
		q.Fences, _, err = lockTargets(g.Caller, g.Args)
		return err
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.ExtendLocksRequest, a *pb.ExtendLocksResponse) {
		fences, paths, _ := lockTargets(g.Caller, g.Args) // the call has read them
		what := append(numbers(fences), paths...)
		for i, t := range a.GetHeldUntil() {
			prompt.Say(w, "extended %s, ends %s", what[i], g.When(t))
		}
	},
}

var lockRelease = command.Spec[*pb.ReleaseLocksRequest, *pb.ReleaseLocksResponse]{
	Page: command.Page{
		Use:   "release [PATH|FENCE|TICKET...]",
		Short: "Release locks, or leave their queues",
		Long: `Release locks, or leave their queues: by path as it was acquired, by fence, by
ticket, or all. Exit code 6: the agent neither holds such a lock nor waits for it.`,
		Example: `  brokerctl --agent builder-1 lock release src/login.go
  brokerctl --agent builder-1 lock release 4711
  brokerctl --agent builder-1 lock release --all`,
	},
	Args: []command.Arg{{Kind: ownLock, Fields: []string{"fences", "tickets", "paths"}}},
	Options: []command.Option{
		{Field: "all", Usage: "all that the owner holds and waits for"}, holderFlag, command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.ReleaseLocksRequest) (err error) {
		if q.Fences, q.Paths, err = lockTargets(g.Caller, g.Args); err != nil {
			return err
		}
		if len(g.Args) == 0 && !q.GetAll() {
			return problem.Usagef("the lock is missing: give a path, a fence, a ticket, or --all")
		}
		q.Tickets = q.GetFences() // each number is one of both
		q.Holder, err = HolderOf(g)
		return err
	},
	After: func(
		g *command.Given, broker *client.Client, q *pb.ReleaseLocksRequest, a *pb.ReleaseLocksResponse,
	) (bool, error) {
		if a.GetReleased()+a.GetCancelled() == 0 && !q.GetAll() {
			return true, noSuchLock(g.Caller, g.Cmd.Context(), broker, q)
		}
		return false, nil
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.ReleaseLocksRequest, a *pb.ReleaseLocksResponse) {
		switch {
		case a.GetReleased()+a.GetCancelled() == 0:
			prompt.Say(w, "nothing was held")
		case a.GetReleased() == 0:
			prompt.Say(w, "cancelled %s", prompt.Count(a.GetCancelled(), "request"))
		default:
			prompt.Say(w, "released %s%s", prompt.Count(a.GetReleased(), "path"),
				prompt.Either(a.GetCancelled() > 0, ", cancelled "+prompt.Count(a.GetCancelled(), "request"), ""))
		}
	},
}

var lockList = command.Listing[*pb.ListLocksRequest, *pb.ListLocksResponse, proto.Message]{
	Page: command.Page{
		Use:   "list [PATH]",
		Short: "List locks and waiting requests",
		Long: `List locks and waiting requests; with PATH, only those that conflict with an
exclusive lock on it.`,
		Example: `  brokerctl lock list src/login.go
  brokerctl lock list --owner builder-1
  brokerctl lock list --waiting`,
	},
	Items: func(page *pb.ListLocksResponse) (items []proto.Message) {
		for _, l := range page.GetLocks() {
			items = append(items, l)
		}
		for _, t := range page.GetTickets() {
			items = append(items, t)
		}
		return items
	},
	Args: []command.Arg{{Field: "path", Name: "the path", Kind: anyLock}},
	Options: []command.Option{
		{Field: "agent", Name: "owner", Kind: words.Agent, Usage: "only what this agent holds or waits for"},
		{Field: "waiting", Usage: "only requests that wait"},
	},
	View: func(g *command.Given) output.View[proto.Message] { return LockView(g.Caller) },
}

// LockView lists locks and tickets.
func LockView(c *command.Caller) output.View[proto.Message] {
	return output.View[proto.Message]{
		Columns: []table.Column{
			{Name: "ID"}, {Name: "STATE", Min: 18, State: true}, {Name: "MODE", Rank: 3}, {Name: "OWNER", Min: 12},
			{Name: "SINCE", Rank: 2}, {Name: "ENDS"}, {Name: "PATHS", Min: 24}, {Name: "REASON", Rank: 1, Min: 16},
		},
		Row: func(m proto.Message) []string {
			if t, ok := m.(*pb.LockTicket); ok {
				return []string{
					strconv.FormatInt(t.GetTicket(), 10), waiting(c, t.GetPosition(), t.GetKept(), t.GetObstacles()),
					prompt.Enum(t.GetMode()), prompt.Owner(t.GetAgent(), t.GetHolder()), c.When(t.GetCreatedAt()), "",
					prompt.Paths(t.GetPaths()), t.GetReason(),
				}
			}
			l := m.(*pb.Lock)
			return []string{
				strconv.FormatInt(l.GetFence(), 10), holding(l.GetWaiting(), l.GetUncollected()), prompt.Enum(l.GetMode()),
				prompt.Owner(l.GetAgent(), l.GetHolder()), c.When(l.GetGrantedAt()), c.When(l.GetHeldUntil()),
				prompt.Paths(l.GetPaths()), l.GetReason(),
			}
		},
		None: "no locks",
	}
}

// holding says how a grant stands.
func holding(waiting int32, uncollected bool) string {
	return prompt.Either(uncollected, "granted, not collected", "held") +
		prompt.Either(waiting > 0, fmt.Sprintf(", %d waiting", waiting), "")
}

// waiting says how a ticket stands.
func waiting(c *command.Caller, position int32, kept bool, obstacles []*pb.Obstacle) string {
	s := fmt.Sprintf("place %d", position)
	if len(obstacles) > 0 {
		s += " behind " + prompt.Owner(obstacles[0].GetAgent(), obstacles[0].GetHolder())
	}
	return s + prompt.Either(kept, ", kept", "")
}

var lockRevoke = command.Spec[*pb.ForceReleaseLocksRequest, *pb.ForceReleaseLocksResponse]{
	Page: command.Page{
		Use:   "revoke [PATH|FENCE|TICKET...]",
		Short: "Take locks from their owners, with a reason (operators)",
		Long: `Take locks from their owners and give them the reason: every lock that conflicts
with one of these paths, the lock or waiting request with this number, or all
that an agent holds and waits for. The next request in the queue is granted at
once.`,
		Example: `  brokerctl lock revoke src/login.go --reason "builder-1 hangs"
  brokerctl lock revoke 4711 --reason "taken by mistake"
  brokerctl lock revoke --owner builder-1 --reason "builder-1 hangs"`,
	},
	Args: []command.Arg{{Kind: anyLock, Fields: []string{"revisions", "paths"}}},
	Options: []command.Option{
		{Field: "agent", Name: "owner", Kind: words.Agent, Usage: "all that this agent holds and waits for"},
		{Field: "reason", Usage: "why, for the owners; required"},
		command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.ForceReleaseLocksRequest) (err error) {
		q.Revisions, q.Paths, err = lockTargets(g.Caller, g.Args)
		switch {
		case err != nil:
			return err
		case len(g.Args) == 0 && q.GetAgent() == "":
			return problem.Usagef("the lock is missing: give a path, a fence, a ticket, or --owner")
		case q.GetReason() == "":
			return command.MissingFlag("reason", "the owners receive it")
		}
		return nil
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.ForceReleaseLocksRequest, a *pb.ForceReleaseLocksResponse) {
		if len(a.GetReleased()) == 0 {
			prompt.Say(w, "nothing was held")
		}
		for _, l := range a.GetReleased() {
			owner := prompt.Clean(prompt.Owner(l.GetAgent(), l.GetHolder()))
			fmt.Fprintf(w, "took %s from %s, fence %d\n", prompt.Paths(l.GetPaths()), owner, l.GetFence())
		}
	},
}
