package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// nextOptions are the options of next.
type nextOptions struct {
	limit    int32
	wait     time.Duration
	claimFor time.Duration
}

// AddFlags adds the options.
func (o *nextOptions) AddFlags(f *pflag.FlagSet) {
	f.Int32Var(&o.limit, "limit", 1, "messages to hold, those already held included")
	durationVar(f, &o.wait, "wait", 0, "if there is none, wait up to this long, 1h at most")
	durationVar(f, &o.claimFor, "for", 30*time.Minute, "how long the claim on a new message lasts; extend prolongs it")
}

func newNextCommand(c *cli) *cobra.Command {
	o := &nextOptions{}
	cmd := &cobra.Command{
		Use:   "next",
		Short: "One call per turn: directives, claims, or new work",
		Long: `One call for an agent's turn. It prints, in this order, with what to do next:

  directives   nudge, halt, resume, terminate, shutdown_request
  losses       what the agent held when its lease ended, once
  notices      information from the broker, once
  open claims  what the agent holds, to continue after an interruption
  a new claim  the most urgent message, if the agent holds less than --limit
  a task       without a message: the task that the agent holds, or a new one
  open work    tasks, decisions, blockers, handoffs and votes of the agent

Exit code 4: there was nothing to do, or nothing came within --wait. Then next
prints only the open work that does not wait for the agent, such as its blocked
tasks.`,
		Example: `  brokerctl --agent builder-1 next --wait 90s -o prompt
  brokerctl --agent builder-1 ack`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(c, cmd) },
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func (o *nextOptions) run(c *cli, cmd *cobra.Command) error {
	broker, err := c.connect(cmd.Context())
	if err != nil {
		return err
	}
	alive, err := broker.Agents().Heartbeat(cmd.Context(), &pb.HeartbeatRequest{})
	if err != nil {
		return err
	}
	inbox, err := broker.Messages().GetInboxSummary(cmd.Context(), &pb.GetInboxSummaryRequest{})
	if err != nil {
		return err
	}
	if c.work, err = workOf(cmd.Context(), broker); err != nil {
		return err
	}
	wait := o.wait
	if len(inbox.GetDirectives())+len(alive.GetLosses()) > 0 {
		wait = 0
	}
	done := c.progress(wait, "work")
	answer, task, err := o.take(cmd.Context(), broker, wait, inbox.GetHalted())
	done()
	if err != nil {
		return err
	}
	t := newTurn(inbox, answer.GetClaims())
	t.losses, t.more, t.notices = alive.GetLosses(), alive.GetMoreLosses(), answer.GetNotices()
	t.task, t.work = task, c.work
	news := len(t.directives) + len(t.losses) + len(t.notices) + len(t.claims)
	if news == 0 && task.GetTask() == nil && (t.halted || len(owed(t.work)) == 0) {
		text := c.whyEmpty(answer, o.wait)
		if n := len(t.owed); n > 0 {
			text += fmt.Sprintf("; %s: %s", cond(n == 1, "an answer is owed", "answers are owed"), c.command("inbox --summary"))
		}
		if len(t.work) > 0 {
			if err := t.write(c, cmd); err != nil {
				return err
			}
		}
		return failf(exitNothing, "%s", text)
	}
	return t.write(c, cmd)
}

// take claims messages or, if there are none, a task. It waits for both at the same time; the first
// to come ends the wait. If both come at once, the agent holds both. A halted agent takes no task.
func (o *nextOptions) take(
	ctx context.Context, broker *client.Client, wait time.Duration, halted bool,
) (messages *pb.ClaimMessagesResponse, task *pb.ClaimTaskResponse, err error) {
	claimMessages := func(ctx context.Context, wait time.Duration) (*pb.ClaimMessagesResponse, error) {
		return broker.Messages().ClaimMessages(ctx, &pb.ClaimMessagesRequest{
			Max: o.limit, Wait: duration(wait), ClaimFor: always(o.claimFor), Notices: true,
		})
	}
	claimTask := func(ctx context.Context, wait time.Duration) (*pb.ClaimTaskResponse, error) {
		return broker.Tasks().ClaimTask(ctx, &pb.ClaimTaskRequest{Resume: true, Wait: duration(wait)})
	}
	if halted {
		messages, err = claimMessages(ctx, wait)
		return messages, nil, err
	}
	messages, err = claimMessages(ctx, 0)
	if err != nil || len(messages.GetClaims())+len(messages.GetNotices()) > 0 {
		return messages, nil, err
	}
	task, err = claimTask(ctx, 0)
	if err != nil || task.GetTask() != nil || wait <= 0 {
		return messages, task, err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	var offer sync.WaitGroup
	var failed error // of the offer
	offer.Go(func() {
		if task, failed = claimTask(waiting, wait); failed != nil || task.GetTask() != nil {
			stop()
		}
	})
	messages, err = claimMessages(waiting, wait)
	if err != nil || len(messages.GetClaims())+len(messages.GetNotices()) > 0 {
		stop()
	}
	offer.Wait()
	switch {
	case len(messages.GetClaims())+len(messages.GetNotices()) > 0, task.GetTask() != nil:
		return messages, task, nil
	case err == nil, status.Code(err) == codes.Canceled: // by stop, if the offer has failed
		err = cmp.Or(failed, err)
	}
	return messages, task, err
}

// turn is what an agent has to do.
type turn struct {
	directives []rendering
	losses     []*pb.Loss
	more       int32 // losses that are only in the log
	notices    []*pb.Notice
	claims     []rendering
	task       *pb.ClaimTaskResponse // nil or without a task: none
	work       []*pb.WorkItem        // that concerns the agent
	owed       []*pb.OpenQuestion    // to be answered by the agent, beside what it holds
	halted     bool
	inbox      *pb.GetInboxSummaryResponse
}

// rendering is a message with its claim, if the agent has one.
type rendering struct {
	message *pb.Message
	claim   *pb.ClaimedMessage
}

// newTurn puts together what came. A directive that was claimed as well is shown once.
func newTurn(inbox *pb.GetInboxSummaryResponse, claims []*pb.ClaimedMessage) turn {
	t := turn{inbox: inbox}
	held := map[string]*pb.ClaimedMessage{}
	for _, claim := range claims {
		held[claim.GetMessage().GetId()] = claim
	}
	told := map[string]bool{}
	for _, m := range inbox.GetDirectives() {
		told[m.GetId()] = true
		t.directives = append(t.directives, rendering{m, held[m.GetId()]})
	}
	for _, claim := range claims {
		switch m := claim.GetMessage(); {
		case told[m.GetId()]:
		case advice(m) != "": // it came meanwhile
			t.directives = append(t.directives, rendering{m, claim})
		default:
			t.claims = append(t.claims, rendering{m, claim})
		}
	}
	t.halted = inbox.GetHalted()
	for _, r := range t.directives { // the last one of the two decides
		switch r.message.GetType() {
		case "halt":
			t.halted = true
		case "resume":
			t.halted = false
		}
	}
	for _, q := range inbox.GetOwed() {
		if held[q.GetId()] == nil {
			t.owed = append(t.owed, q)
		}
	}
	return t
}

// write writes the turn in the format of the output.
func (t turn) write(c *cli, cmd *cobra.Command) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if format == formatJSON {
		return t.writeJSON(out)
	}
	t.print(c, out)
	return nil
}

// print writes all of it with what to do about each.
func (t turn) print(c *cli, w io.Writer) {
	first := true
	apart := func() {
		if !first && !isPrompt(w) {
			fmt.Fprintln(w)
		}
		first = false
	}
	show := func(r rendering) {
		apart()
		shown := rendered{message: r.message, facts: []string{"directive"}}
		if r.claim != nil {
			shown = c.claimed(r.claim)
		} else {
			shown.next = c.afterMail(r.message, &pb.Delivery{State: pb.DeliveryState_DELIVERY_STATE_PENDING})
		}
		if t.halted && advice(r.message) == "" {
			shown.next = "nothing until a resume; then " + shown.next
		}
		c.render(w, shown)
		if !isPrompt(w) {
			fmt.Fprintf(w, "\nnext: %s\n", shown.next)
		}
	}
	for _, r := range t.directives {
		show(r)
	}
	for _, l := range t.losses {
		apart()
		say(w, "Lost while you were away: %s. Stop working on it, or ask for it again.", lossName(w, l))
	}
	if t.more > 0 {
		apart()
		say(w, "Lost while you were away: %s", moreLosses(t.more))
	}
	if len(t.notices) > 0 {
		apart()
	}
	var notices []string
	for _, n := range t.notices {
		notices = append(notices, n.GetSubject())
	}
	printNotices(w, notices)
	for _, r := range t.claims {
		show(r)
	}
	if t.halted {
		if len(t.work) > 0 {
			say(w, "Halted: %s must wait for a resume", kindsOf(t.work))
		}
		return
	}
	if t.task.GetTask() != nil {
		apart()
		c.printClaimedTask(w, t.task)
	}
	c.printWork(w, slices.DeleteFunc(slices.Clone(t.work), t.shows))
	printQuestions(w, "the questions that follow", t.owed)
	for _, q := range t.owed {
		say(w, "An answer is owed to %s: %s", c.question(q, !isPrompt(w)), c.command("reply %d ANSWER", q.GetRevision()))
	}
}

// shows reports whether the turn shows a piece of work already: its task, or the message about it.
func (t turn) shows(i *pb.WorkItem) bool {
	about := func(r rendering) bool { return strings.Contains(r.message.GetPayload(), strconv.Quote(i.GetId())) }
	return i.GetKind() == "task" && i.GetId() == t.task.GetTask().GetId() ||
		slices.ContainsFunc(t.directives, about) || slices.ContainsFunc(t.claims, about)
}

// turnObject is a turn as JSON.
type turnObject struct {
	Directives []turnDirective   `json:"directives"`
	Losses     []json.RawMessage `json:"losses"`
	MoreLosses int32             `json:"more_losses"`
	Notices    []json.RawMessage `json:"notices"`
	Claims     []json.RawMessage `json:"claims"`
	Task       json.RawMessage   `json:"task"` // null if there is none
	Work       []json.RawMessage `json:"work"`
	Owed       []json.RawMessage `json:"owed"`
	Halted     bool              `json:"halted"`
	Unread     int64             `json:"unread"`
}

// turnDirective is a directive of a turn as JSON.
type turnDirective struct {
	ClaimID string          `json:"claim_id"` // empty if it is not claimed
	Todo    string          `json:"todo"`
	Message json.RawMessage `json:"message"`
}

// writeJSON writes one object; messages in it are as everywhere.
func (t turn) writeJSON(w io.Writer) error {
	object := turnObject{
		Directives: []turnDirective{}, Losses: []json.RawMessage{}, MoreLosses: t.more, Notices: []json.RawMessage{},
		Claims: []json.RawMessage{}, Work: []json.RawMessage{}, Owed: []json.RawMessage{},
		Halted: t.halted, Unread: t.inbox.GetUnread(),
	}
	var first error
	raw := func(m proto.Message) json.RawMessage {
		var b bytes.Buffer
		if err := writeJSON(&b, m); err != nil && first == nil {
			first = err
		}
		return b.Bytes()
	}
	for _, r := range t.directives {
		object.Directives = append(object.Directives, turnDirective{r.claim.GetClaimId(), advice(r.message), raw(r.message)})
	}
	for _, l := range t.losses {
		object.Losses = append(object.Losses, raw(l))
	}
	for _, n := range t.notices {
		object.Notices = append(object.Notices, raw(n))
	}
	for _, r := range t.claims {
		object.Claims = append(object.Claims, raw(r.claim))
	}
	if t.task.GetTask() != nil {
		object.Task = raw(t.task)
	}
	for _, i := range t.work {
		object.Work = append(object.Work, raw(i))
	}
	for _, q := range t.owed {
		object.Owed = append(object.Owed, raw(q))
	}
	if first != nil {
		return first
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(object)
}
