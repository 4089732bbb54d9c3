package supervise

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	pb "brokerd/gen/brokerd/v1"
)

// longestClaim is the longest that the broker extends a claim.
const longestClaim = 12 * time.Hour

const workLong = `Claim messages one by one and run a command for each. The command reads the
message as JSON from standard input; work extends the claim while it runs. The
command's exit code decides about the message:

  0      finished: it is acknowledged
  75     released: it returns to the mailbox, no attempt is counted
  65     fatal: it becomes a dead letter at once
  other  a failed attempt, recorded with the end of the command's standard
         error; the broker redelivers the message later

The command's environment has the variables of brokerctl help environment, so
that brokerctl works inside it, and BROKERD_MESSAGE_ID, BROKERD_REVISION, BROKERD_CLAIM_ID, BROKERD_ATTEMPT,
BROKERD_MAX_ATTEMPTS, BROKERD_MAILBOX, BROKERD_TYPE, BROKERD_TYPE_AS_SENT, BROKERD_SENDER,
BROKERD_SUBJECT, BROKERD_THREAD_ID and BROKERD_TASK_ID.

work passes SIGINT, SIGTERM and SIGHUP on to the commands and ends after them;
unfinished messages return to the mailbox without a counted attempt. A second
SIGINT or SIGTERM kills the commands. A command whose claim is lost receives
SIGTERM and, 10 s later, SIGKILL.

Exit codes: 0 after a clean end; with --once the command's own, 124 if --timeout
stopped it, and 6 if its claim was lost; 4: no message came within --wait; 125 to
127: brokerctl help exit-codes.`

// NewWorkCommand returns the command brokerctl work.
func NewWorkCommand(c *command.Caller) *cobra.Command {
	return commandOnly(work.Command(c), needsCommand)
}

var work = command.Procedure[*pb.ClaimMessagesRequest]{
	Page: command.Page{
		Use:   "work [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command for each message",
		Long:  workLong,
		Example: `  brokerctl --agent builder-1 work -- ./handle.sh
  brokerctl --agent builder-1 work --role builder --concurrency 4 -- make test
  brokerctl --agent builder-1 work --once --wait 1m -- sh -c 'jq -r .body'`,
	},
	Options: slices.Concat(mail.Taking, workerOptions("message"), []command.Option{
		{Field: "consumer", Kind: command.Name,
			Usage: "name of this worker; restarted with it, the worker resumes its open claims (default: random)"},
		{Name: "for", Type: "duration", Value: "1m", Usage: "how long a claim lasts after its worker crashes"},
	}),
	Apart: workerApart,
	Run: func(g *command.Given, q *pb.ClaimMessagesRequest) error {
		mail.AddQueue(g, q)
		ctx, stop := context.WithCancel(g.Cmd.Context())
		defer stop()
		w, err := newWorker(g, ctx, stop)
		if err != nil {
			return err
		}
		w.idle()
		defer w.busy()
		err = w.broker.Work(ctx, client.WorkOptions{
			Consumer: cmp.Or(q.GetConsumer(), "work-"+uuid.NewString()), Mailboxes: q.GetMailboxes(), Types: q.GetTypes(),
			LowestPriority: int(q.GetLowestPriority()), Concurrency: w.concurrency, ClaimFor: g.Duration("for"),
			MaxTotal:     longestClaim,
			DrainTimeout: longestClaim, // the second signal bounds the time that a command takes to end
			OnLost:       func(claim *client.Claim, err error) { w.lost(messageJob(claim), err) },
		}, func(ctx context.Context, claim *client.Claim) error { return w.handle(ctx, messageJob(claim)) })
		if err != nil {
			return ownFailure(g.Caller, "work", err)
		}
		return w.outcome()
	},
}

// messageJob is the job of a claimed message.
func messageJob(claim *client.Claim) job {
	m := claim.Message
	return job{
		name: fmt.Sprintf("message %d", m.GetRevision()), claim: "the claim " + claim.ID, fatal: "is a dead letter",
		input: m, attempt: claim.Attempt, most: claim.MaxAttempts,
		env: [][2]string{
			{"BROKERD_MESSAGE_ID", m.GetId()},
			{"BROKERD_REVISION", fmt.Sprint(m.GetRevision())},
			{"BROKERD_CLAIM_ID", claim.ID},
			{"BROKERD_ATTEMPT", fmt.Sprint(claim.Attempt)},
			{"BROKERD_MAX_ATTEMPTS", fmt.Sprint(claim.MaxAttempts)},
			{"BROKERD_MAILBOX", claim.Mailbox},
			{"BROKERD_TYPE", m.GetType()},
			{"BROKERD_TYPE_AS_SENT", m.GetTypeAsSent()},
			{"BROKERD_SENDER", m.GetSender()},
			{"BROKERD_SUBJECT", m.GetSubject()},
			{"BROKERD_THREAD_ID", m.GetThreadId()},
			{"BROKERD_TASK_ID", m.GetTaskId()},
			{"TRACEPARENT", claim.TraceParent},
		},
	}
}
