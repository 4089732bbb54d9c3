package observe

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewAdminCommand returns the commands of brokerctl admin.
func NewAdminCommand(c *command.Caller) *cobra.Command {
	return command.Group("admin", "Check, back up, prune and drain the broker, and move misdirected mail (operators)",
		"", "  brokerctl admin backup brokerd.tar",
		adminBackup.Command(c), adminCheck.Command(c), adminDrain.Command(c), adminMove.Command(c),
		adminPrune.Command(c))
}

var adminCheck = command.Spec[*pb.CheckDatabaseRequest, *pb.CheckDatabaseResponse]{
	Page: command.Page{
		Use:   "check",
		Short: "Check the database and the broker's invariants",
		Long: `Check the database for damage, and the broker's invariants in all sessions, while
the broker runs. Exit code 1: something was found.`,
		Example: "  brokerctl admin check",
	},
	After: showCheck,
}

// showCheck shows what a check has found, and fails if there are problems.
func showCheck(
	g *command.Given, _ *client.Client, _ *pb.CheckDatabaseRequest, a *pb.CheckDatabaseResponse,
) (done bool, err error) {
	err = g.Show(g.Cmd, a, func(w io.Writer) { printCheck(w, a) })
	if n := len(a.GetProblems()); err == nil && n > 0 {
		err = problem.Failf(problem.ExitError, "the check found %s", problems(n))
	}
	return true, err
}

func printCheck(w io.Writer, a *pb.CheckDatabaseResponse) {
	for _, p := range a.GetProblems() {
		fmt.Fprintln(w, prompt.OneLine(p))
	}
	prompt.Say(w, "checked %s, %s and %s up to revision %d: %s",
		prompt.Count(a.GetMessages(), "message"), prompt.Count(a.GetDeliveries(), "delivery"),
		prompt.Count(a.GetEvents(), "event"), a.GetRevision(), problems(len(a.GetProblems())))
}

func problems(n int) string {
	return prompt.Either(n == 0, "all is well", prompt.Count(n, "problem"))
}

var adminMove = command.Spec[*pb.MoveMessagesRequest, *pb.MoveMessagesResponse]{
	Page: command.Page{
		Use:   "move FROM TO",
		Short: "Move messages that wait in one mailbox to another",
		Long: `Move the messages that wait in one mailbox to another: mail for a role that no agent has, or for an agent that will
not return. A mailbox is an agent's name, role:NAME or channel:NAME. Messages keep their ids, their order and their
failed attempts. Claimed and finished messages stay, and so do directives.`,
		Example: `  brokerctl admin move role:bulider role:builder
  brokerctl admin move builder-1 builder-2 --id 4711`,
	},
	Call: move,
	Args: []command.Arg{
		{Field: "from", Name: "the mailbox that the messages wait in", Kind: words.Mailbox},
		{Field: "to", Name: "the mailbox that they go to", Kind: words.Mailbox},
	},
	Options: []command.Option{
		{Field: "ids", Name: "id", Comma: true, Kind: words.MessageID,
			Usage: "move only the message with this id or revision; repeatable"},
		{Field: "reason", Usage: "why; for the log"},
		command.RequestID,
	},
	Prepare: func(_ *command.Given, q *pb.MoveMessagesRequest) error {
		if len(q.GetIds()) == 0 && q.GetRequestId() != "" {
			return problem.Usagef("--request-id needs --id: a whole mailbox can take several requests")
		}
		return nil
	},
	Text: func(_ *command.Given, w io.Writer, q *pb.MoveMessagesRequest, a *pb.MoveMessagesResponse) {
		prompt.Say(w, "moved %s to %s%s", prompt.Count(a.GetMoved(), "message"), q.GetTo(),
			prompt.Either(a.GetLeft() > 0, fmt.Sprintf("; %d still in %s", a.GetLeft(), q.GetFrom()), ""))
	},
}

// move repeats the call until a whole mailbox has moved.
func move(g *command.Given, broker *client.Client, q *pb.MoveMessagesRequest) (*pb.MoveMessagesResponse, error) {
	for moved := int32(0); ; {
		a, err := broker.Admin().MoveMessages(g.Cmd.Context(), q)
		if err != nil {
			return nil, err
		}
		moved += a.GetMoved()
		if len(q.GetIds()) > 0 || a.GetMoved() < command.MaxPage {
			a.Moved = moved
			return a, nil
		}
	}
}
