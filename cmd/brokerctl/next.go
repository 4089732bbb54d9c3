package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
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
	done := c.progress(o.wait, "work")
	t, answer, err := mcp.TakeTurn(cmd.Context(), broker.Conn(), mcp.TurnRequest{
		Limit: o.limit, Wait: o.wait, ClaimFor: o.claimFor, Offer: c.shellOffer(),
	})
	done()
	if err != nil {
		return err
	}
	c.work = t.Work
	if !t.Empty() {
		return c.writeTurn(cmd, t)
	}
	if len(t.Work) > 0 {
		if err := c.writeTurn(cmd, t); err != nil {
			return err
		}
	}
	v := c.voice()
	return failf(exitNothing, "%s", v.Why(t, v.WhyNoMessage(answer, waited(o.wait))))
}

// waited writes the time of a wait for a text; "" for none.
func waited(wait time.Duration) string { return prompt.Either(wait > 0, prompt.Duration(wait), "") }

// writeTurn writes a turn in the format of the output.
func (c *cli) writeTurn(cmd *cobra.Command, t *prompt.Turn) error {
	format, err := c.format()
	if err != nil {
		return err
	}
	if format == formatJSON {
		return writeTurnJSON(cmd.OutOrStdout(), t)
	}
	c.printTurn(cmd.OutOrStdout(), t)
	return nil
}

// printTurn writes a turn with what to do about each part.
func (c *cli) printTurn(w io.Writer, t *prompt.Turn) {
	if prompt.ForModel(w) {
		c.voice().Turn(w, t, nil, nil, nil)
		return
	}
	first := true
	c.voice().Turn(w, t, func(r prompt.Rendered) {
		c.print(w, r)
		fmt.Fprintf(w, "\nnext: %s\n", r.Next)
	}, func() { c.printClaimedTask(w, t.Task) }, func() {
		if !first {
			fmt.Fprintln(w)
		}
		first = false
	})
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

// writeTurnJSON writes one object; messages in it are as everywhere.
func writeTurnJSON(w io.Writer, t *prompt.Turn) error {
	object := turnObject{
		Directives: []turnDirective{}, Losses: []json.RawMessage{}, MoreLosses: t.MoreLosses, Notices: []json.RawMessage{},
		Claims: []json.RawMessage{}, Work: []json.RawMessage{}, Owed: []json.RawMessage{},
		Halted: t.Halted, Unread: t.Inbox.GetUnread(),
	}
	var first error
	raw := func(m proto.Message) json.RawMessage {
		var b bytes.Buffer
		if err := writeJSON(&b, m); err != nil && first == nil {
			first = err
		}
		return b.Bytes()
	}
	for _, r := range t.Directives {
		object.Directives = append(object.Directives, turnDirective{r.Claim.GetClaimId(), prompt.Advice(r.Message), raw(r.Message)})
	}
	for _, l := range t.Losses {
		object.Losses = append(object.Losses, raw(l))
	}
	for _, n := range t.Notices {
		object.Notices = append(object.Notices, raw(n))
	}
	for _, r := range t.Claims {
		object.Claims = append(object.Claims, raw(r.Claim))
	}
	if t.Task.GetTask() != nil {
		object.Task = raw(t.Task)
	}
	for _, i := range t.Work {
		object.Work = append(object.Work, raw(i))
	}
	for _, q := range t.Owed {
		object.Owed = append(object.Owed, raw(q))
	}
	if first != nil {
		return first
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(object)
}
