package shared

import (
	"context"
	"io"
	"slices"
	"strconv"
	"strings"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// lockGet reads all pages of the locks that conflict with the path, or of all, and keeps what concerns a fence.
var lockGet = command.Spec[*pb.ListLocksRequest, *pb.ListLocksResponse]{
	Page: command.Page{
		Use:   "get PATH|FENCE|TICKET",
		Short: "Show who holds a path or lock, and which requests wait for it",
		Long: `Show the locks that conflict with an exclusive lock on a path, or the lock with a
fence, and the requests that wait for them. Exit code 3: there is none.`,
		Example: `  brokerctl lock get src/login.go
  brokerctl lock get 4711 -o json`,
	},
	Narrow: true,
	Call: func(g *command.Given, broker *client.Client, q *pb.ListLocksRequest) (*pb.ListLocksResponse, error) {
		answer, err := listLocks(g.Cmd.Context(), broker, q)
		if err != nil {
			return nil, err
		}
		if r, err := strconv.ParseInt(g.Args[0], 10, 64); err == nil && q.GetPath() == "" {
			answer.Locks = slices.DeleteFunc(answer.Locks, func(l *pb.Lock) bool { return l.GetFence() != r })
			answer.Tickets = slices.DeleteFunc(answer.Tickets, func(t *pb.LockTicket) bool {
				isObstacle := func(o *pb.Obstacle) bool { return o.GetRevision() == r }
				return t.GetTicket() != r && !slices.ContainsFunc(t.GetObstacles(), isObstacle)
			})
		}
		if len(answer.GetLocks())+len(answer.GetTickets()) == 0 {
			return nil, problem.Failf(problem.ExitNotFound, "there is no lock on %s (%s)", g.Args[0], g.Command("lock list"))
		}
		return answer, nil
	},
	Args: []command.Arg{{Name: "the path or fence", Kind: anyLock}},
	Prepare: func(g *command.Given, q *pb.ListLocksRequest) error {
		_, paths, err := lockTargets(g.Caller, g.Args)
		q.Path = strings.Join(paths, "")
		return err
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.ListLocksRequest, a *pb.ListLocksResponse) {
		printLocks(g.Caller, w, a)
	},
}

// printLocks shows all that is known of some locks, and the requests that wait for them.
func printLocks(c *command.Caller, w io.Writer, answer *pb.ListLocksResponse) {
	for i, l := range answer.GetLocks() {
		if i > 0 {
			output.Apart(w)
		}
		t := c.NewLabels(w)
		t.Line("lock", prompt.Paths(l.GetPaths()))
		t.Line("fence", strconv.FormatInt(l.GetFence(), 10))
		t.State("state", holding(l.GetWaiting(), l.GetUncollected())+", "+prompt.Enum(l.GetMode()))
		t.Line("owner", prompt.Owner(l.GetAgent(), l.GetHolder()))
		t.Line("reason", l.GetReason())
		t.Line("granted", c.When(l.GetGrantedAt()))
		t.Line("ends", c.When(l.GetHeldUntil()))
		t.Flush()
	}
	if len(answer.GetTickets()) == 0 {
		return
	}
	if len(answer.GetLocks()) > 0 {
		output.Apart(w)
	}
	v := LockView(c)
	t := c.NewTable(w, v.Columns...)
	for _, k := range answer.GetTickets() {
		t.Row(v.Row(k)...)
	}
	_ = t.Flush() // to the command's own output: an error cannot be reported anywhere
}

// listLocks returns all locks and waiting requests that a request chooses.
func listLocks(
	ctx context.Context, broker *client.Client, request *pb.ListLocksRequest,
) (*pb.ListLocksResponse, error) {
	all := &pb.ListLocksResponse{}
	_, err := command.Pages(0, func(size int32, token string) ([]struct{}, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := broker.Locks().ListLocks(ctx, request)
		all.Locks, all.Tickets = append(all.Locks, page.GetLocks()...), append(all.Tickets, page.GetTickets()...)
		all.Revision = page.GetRevision()
		return nil, page.GetNextPageToken(), err
	})
	return all, err
}

// heldFence returns the fence of the lock by which the agent holds a path, as that holder.
func heldFence(ctx context.Context, broker *client.Client, path, holder string) (int64, error) {
	agent := broker.Identity().Agent
	held, err := listLocks(ctx, broker, &pb.ListLocksRequest{Agent: agent, Path: path})
	if err != nil {
		return 0, err
	}
	for _, l := range held.GetLocks() {
		if l.GetHolder() == holder && slices.Contains(l.GetPaths(), path) {
			return l.GetFence(), nil
		}
	}
	return 0, problem.Failf(problem.ExitLost, "%s does not hold %s", prompt.Owner(agent, holder), path)
}

// noSuchLock is the error of a release that found nothing: it names a lock that covers what the
// request names, if there is one.
func noSuchLock(c *command.Caller, ctx context.Context, broker *client.Client, request *pb.ReleaseLocksRequest) error {
	for _, path := range request.GetPaths() {
		found, err := listLocks(ctx, broker, &pb.ListLocksRequest{Path: path})
		if err != nil {
			return err
		}
		var other *pb.Lock
		for _, l := range found.GetLocks() {
			if l.GetAgent() == broker.Identity().Agent && l.GetHolder() == request.GetHolder() {
				return problem.Failf(problem.ExitLost, "%s is not locked under this name; %s holds it with %s (fence %d): %s",
					prompt.ShellWord(prompt.Clean(path)), prompt.Owner(l.GetAgent(), l.GetHolder()), prompt.Paths(l.GetPaths()), l.GetFence(),
					c.Command("lock release %d", l.GetFence()))
			}
			other = l
		}
		if other != nil {
			if c.ForModel() { // the paths are texts of others
				return problem.Failf(problem.ExitLost, "%s is held by %s", prompt.ShellWord(prompt.Clean(path)), other.GetAgent())
			}
			return problem.Failf(problem.ExitLost, "%s is held by %s", prompt.Paths(other.GetPaths()), prompt.Owner(other.GetAgent(), other.GetHolder()))
		}
	}
	return notReleased(broker, "such a lock")
}

// lockTargets tells the fences and tickets in arguments from the paths: a whole number is no path
// unless it is written ./4711.
func lockTargets(c *command.Caller, args []string) (revisions []int64, paths []string, err error) {
	var files []string
	for _, arg := range args {
		if n, err := strconv.ParseInt(arg, 10, 64); err == nil && n > 0 {
			revisions = append(revisions, n)
		} else {
			files = append(files, arg)
		}
	}
	paths, err = turn.LockPaths(c, files)
	return revisions, paths, err
}

// numbers writes revisions.
func numbers(revisions []int64) []string {
	words := each.Of(revisions, func(r int64) string { return strconv.FormatInt(r, 10) })
	return words
}
