package work

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/mail"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// Next is brokerctl next.
var Next = command.Procedure[*pb.ClaimMessagesRequest]{
	Page: command.Page{
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
	},
	Options: []command.Option{
		{Field: "max", Name: "limit", Value: "1", Usage: "messages to hold, those already held included"},
		{Field: "wait", Usage: "if there is none, wait up to this long, 1h at most"},
		{Field: "claim_for", Name: "for", Value: "30m", Zero: true,
			Usage: "how long the claim on a new message lasts; extend prolongs it"},
	},
	Run: func(g *command.Given, q *pb.ClaimMessagesRequest) error {
		c, cmd, wait := g.Caller, g.Cmd, q.GetWait().AsDuration()
		broker, err := c.Connect(cmd.Context())
		if err != nil {
			return err
		}
		done := c.Progress(wait, "work")
		t, answer, err := mcp.TakeTurn(cmd.Context(), broker.Conn(), mcp.TurnRequest{
			Limit: q.GetMax(), Wait: wait, ClaimFor: q.GetClaimFor().AsDuration(), Offer: shellOffer(c),
		})
		done()
		if err != nil {
			return err
		}
		c.Work = t.Work
		if !t.Empty() {
			return writeTurn(c, cmd, t)
		}
		if len(t.Work) > 0 {
			if err := writeTurn(c, cmd, t); err != nil {
				return err
			}
		}
		v := c.Voice()
		why := v.WhyNoMessage(answer, prompt.Either(wait > 0, prompt.Duration(wait), ""))
		return problem.Failf(problem.ExitNothing, "%s", v.Why(t, why))
	},
}

// writeTurn writes a turn in the format of the output.
func writeTurn(c *command.Caller, cmd *cobra.Command, t *prompt.Turn) error {
	format, err := c.Format()
	if err != nil {
		return err
	}
	if format == output.FormatJSON {
		return WriteTurnJSON(cmd.OutOrStdout(), t)
	}
	PrintTurn(c, cmd.OutOrStdout(), t)
	return nil
}

// PrintTurn writes a turn with what to do about each part.
func PrintTurn(c *command.Caller, w io.Writer, t *prompt.Turn) {
	if prompt.ForModel(w) {
		c.Voice().Turn(w, t, nil, nil, nil)
		return
	}
	first := true
	c.Voice().Turn(w, t, func(r prompt.Rendered) {
		mail.Print(c, w, r)
		fmt.Fprintf(w, "\nnext: %s\n", r.Next)
	}, func() { printClaimedTask(c, w, t.Task) }, func() {
		if !first {
			fmt.Fprintln(w)
		}
		first = false
	})
}

// TurnObject is a turn as JSON.
type TurnObject struct {
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

// WriteTurnJSON writes one object; messages in it are as everywhere.
func WriteTurnJSON(w io.Writer, t *prompt.Turn) error {
	object := TurnObject{
		Directives: []turnDirective{}, Losses: []json.RawMessage{}, MoreLosses: t.MoreLosses, Notices: []json.RawMessage{},
		Claims: []json.RawMessage{}, Work: []json.RawMessage{}, Owed: []json.RawMessage{},
		Halted: t.Halted, Unread: t.Inbox.GetUnread(),
	}
	var first error
	raw := func(m proto.Message) json.RawMessage {
		var b bytes.Buffer
		if err := output.WriteJSON(&b, m); err != nil && first == nil {
			first = err
		}
		return b.Bytes()
	}
	for _, r := range t.Directives {
		directive := turnDirective{r.Claim.GetClaimId(), prompt.Advice(r.Message), raw(r.Message)}
		object.Directives = append(object.Directives, directive)
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

// shellOffer says to whom notices are offered that this command prints for the model of a coding agent whose
// hooks report what becomes of them; nil if there is none, and printing them reads them.
func shellOffer(c *command.Caller) *pb.NoticeOffer {
	all := c.Sessions()
	if all == nil || !all.Any() {
		return nil
	}
	one, known := all.Of(c.HookSession())
	if !known {
		if one, known = all.In(c.Ancestors()); !known || one.ID == "" {
			return nil
		}
	}
	if one.Program != "claude-code" && one.Program != "codex" {
		return nil // the files of their conversations say which output of a command the model has got
	}
	mark := c.Env.Mark()
	if c.Prompt != nil {
		mark = c.Prompt.Mark()
	}
	return &pb.NoticeOffer{Way: pb.OfferWay_OFFER_WAY_SHELL, Harness: prompt.Clip(prompt.OneLine(one.ID), 128), Mark: mark}
}
