package observe

import (
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// drainCall is how long one call of admin drain waits, the longest that the broker accepts.
const drainCall = time.Hour

var adminDrain = command.Procedure[*pb.DrainRequest]{
	Page: command.Page{
		Use:   "drain",
		Short: "Deliver no new work, and wait until nothing is claimed",
		Long: `Have the broker deliver no new messages and tasks in all sessions, and wait until
nothing is claimed. Directives are still delivered; everything else works as usual.
The drain survives a restart; --resume ends it. Exit code 4: the wait ended first,
and the drain stays.`,
		Example: `  brokerctl admin drain --wait 10m
  brokerctl admin drain --resume`,
	},
	Options: []command.Option{
		{Name: "wait", Type: "duration", Usage: "wait at most this long (default: until nothing is claimed)"},
		{Field: "resume", Usage: "end the drain"},
	},
	Apart: [][]string{{"wait", "resume"}},
	Says:  true,
	Run: func(g *command.Given, q *pb.DrainRequest) error {
		c, cmd, wait := g.Caller, g.Cmd, g.Duration("wait")
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		if q.GetResume() {
			answer, err := broker.Admin().Drain(cmd.Context(), q)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { prompt.Say(w, "the broker delivers work") })
		}
		forever := !cmd.Flags().Changed("wait")
		done := c.Progress(wait, "the open claims")
		answer := &pb.DrainResponse{}
		for began := time.Now(); ; {
			left := max(0, wait-time.Since(began))
			if forever {
				left = drainCall
			}
			q.Wait = durationpb.New(min(left, drainCall))
			answer, err = broker.Admin().Drain(cmd.Context(), q)
			if err != nil || claimed(answer) == 0 || left <= drainCall && !forever {
				break
			}
		}
		done()
		if err != nil {
			return err
		}
		if err := c.Show(cmd, answer, func(w io.Writer) { printDrain(c, w, answer) }); err != nil {
			return err
		}
		if n := claimed(answer); n > 0 {
			return problem.Failf(problem.ExitNothing, "%s not ended within %s; the drain stays: %s ends it",
				prompt.Either(n == 1, "1 claim has", fmt.Sprintf("%d claims have", n)), prompt.Duration(wait),
				c.Command("admin drain --resume"))
		}
		return nil
	},
}

// claimed counts all claims.
func claimed(r *pb.DrainResponse) int64 { return r.GetMessages() + r.GetTasks() }

// printDrain writes what is claimed, and by which agents.
func printDrain(c *command.Caller, w io.Writer, r *pb.DrainResponse) {
	since := c.When(r.GetDrainingSince())
	if claimed(r) == 0 {
		prompt.Say(w, "nothing is claimed; the broker delivers no new work (since %s) until %s",
			since, c.Command("admin drain --resume"))
		return
	}
	prompt.Say(w, "claimed: %s and %s; the broker delivers no new work (since %s)",
		prompt.Count(r.GetMessages(), "message"), prompt.Count(r.GetTasks(), "task"), since)
	for _, h := range r.GetHolders() {
		prompt.Say(w, "%s in session %s: %s and %s, the oldest claimed %s",
			prompt.Brief(h.GetAgent()), prompt.Brief(h.GetSession()), prompt.Count(h.GetMessages(), "message"), prompt.Count(h.GetTasks(), "task"), c.When(h.GetSince()))
	}
}
