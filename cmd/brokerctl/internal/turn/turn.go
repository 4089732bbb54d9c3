package turn

import (
	"context"
	"fmt"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// HolderVariable names the worker that lock run and token run hold by, so that commands within speak of the same owner.
const HolderVariable = "BROKERD_HOLDER"

// Options are what asking for locks and for a token have in common.
var Options = []command.Option{
	{Field: "wait", Usage: "wait up to this long, 24h at most (default: do not wait)"},
	{Field: "max_hold", Name: "for", Usage: "how long to hold it unless extended, 1s to 7d (default: 30m)"},
	{Field: "reason", Usage: "why, for agents that wait"},
}

// Acquired is the broker's answer to a request for locks or a token.
type Acquired = client.Grant

// Wait is client.Acquire, with a line on the terminal that says what it waits for.
func Wait[A Acquired](
	ctx context.Context, c *command.Caller, what string, wait time.Duration, ask func(wait time.Duration) (A, error),
) (A, error) {
	defer c.Progress(wait, what)()
	return client.Acquire(ctx, wait, ask)
}

// NotAcquired is the error that says which holders are in the way: busy, or the wait has ended.
func NotAcquired(c *command.Caller, answer Acquired, paths []string) error {
	text := InTheWay(c, answer.GetObstacles(), paths)
	if answer.GetOutcome() != pb.AcquireOutcome_ACQUIRE_OUTCOME_QUEUED {
		return problem.Failf(problem.ExitConflict, "%s", text)
	}
	if answer.GetTicket() > 0 {
		text += fmt.Sprintf("; place %d in the queue, ticket %d", answer.GetPosition(), answer.GetTicket())
	}
	return problem.Failf(problem.ExitNothing, "the wait has ended: %s", text)
}

// InTheWay says who is in the way of a request for paths, or for a token, which has no paths.
func InTheWay(c *command.Caller, obstacles []*pb.Obstacle, paths []string) string {
	return c.Voice().InTheWay(obstacles, paths, c.ForModel())
}

// TokenName names a token as commands take it.
func TokenName(kind, scope string) string {
	return prompt.ShellWord(prompt.Clean(kind)) + " " + prompt.ShellWord(prompt.Clean(scope))
}
