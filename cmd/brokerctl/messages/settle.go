package messages

import (
	"io"
	"strings"

	"google.golang.org/protobuf/proto"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const settleLong = `
An ID is a claim id, a message's id or its revision; without IDs, the agent's
only open claim is meant.`

// Ack is brokerctl ack.
var Ack = command.Spec[*pb.AckMessagesRequest, *pb.AckMessagesResponse]{
	Page: command.Page{
		Use:   "ack [ID...]",
		Short: "Finish messages",
		Long: `Finish messages, also ones in the agent's own mailbox that no agent claimed.

Exit code 6: the claim expired and another consumer has claimed the message.
` + settleLong,
		Example: `  brokerctl --agent builder-1 ack
  brokerctl --agent builder-1 ack 4711.1`,
	},
	Args:    []command.Arg{{Field: "ids", Kind: claim}},
	Options: []command.Option{command.RequestID},
	Text: func(_ *command.Given, w io.Writer, _ *pb.AckMessagesRequest, a *pb.AckMessagesResponse) {
		prompt.Say(w, "acked %s", strings.Join(a.GetAcked(), ", "))
	},
}

var claim = command.Kind{Words: words.ClaimWords}

// Nack is brokerctl nack.
var Nack = command.Spec[*pb.NackMessagesRequest, *pb.NackMessagesResponse]{
	Page: command.Page{
		Use:   "nack [ID...]",
		Short: "Report that work on messages failed",
		Long: `Report that work on messages failed. This counts as an attempt; the broker
redelivers each message after a delay, and after the last attempt makes it a dead
letter (brokerctl dlq). Exit code 6: the claim is lost.
` + settleLong,
		Example: `  brokerctl --agent builder-1 nack --error "tests fail: TestLogin"
  brokerctl --agent builder-1 nack 4711.1 --fatal --error "no such repository"`,
	},
	Args: []command.Arg{{Kind: claim, Fields: []string{"nacks.claim_id"}}},
	Options: []command.Option{
		{Field: "nacks.error", Kind: command.Content,
			Usage: "what failed, for the history; @FILE reads a file, - standard input"},
		{Field: "nacks.fatal", Usage: "do not retry: make it a dead letter at once"},
		{Field: "nacks.delay", Zero: true,
			Usage: "wait this long before the next attempt (default: longer after each attempt)"},
		command.RequestID,
	},
	Apart: [][]string{{"fatal", "delay"}},
	Prepare: func(g *command.Given, q *pb.NackMessagesRequest) error {
		q.Nacks = forEach(g.Args, q.Nacks, func(n *pb.Nack, id string) { n.ClaimId = id })
		return nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.NackMessagesRequest, a *pb.NackMessagesResponse) {
		for _, outcome := range a.GetOutcomes() {
			state := prompt.Either(outcome.GetState() == pb.DeliveryState_DELIVERY_STATE_DEAD,
				"now a dead letter", prompt.Enum(outcome.GetState()))
			due := prompt.Either(outcome.GetDueAt() != nil, ", again "+g.When(outcome.GetDueAt()), "")
			prompt.Say(w, "nacked %s: %s%s", outcome.GetClaimId(), state, due)
		}
	},
}

// forEach returns what the options say, if anything, once for each id, or once for the only open claim.
func forEach[M proto.Message](ids []string, said []M, name func(M, string)) []M {
	var none M
	one := none.ProtoReflect().New().Interface().(M)
	if len(said) > 0 {
		one = said[0]
	}
	if len(ids) == 0 {
		return []M{one}
	}
	items := make([]M, len(ids))
	for i, id := range ids {
		items[i] = proto.CloneOf(one)
		name(items[i], id)
	}
	return items
}

// Extend is brokerctl extend.
var Extend = command.Spec[*pb.ExtendClaimsRequest, *pb.ExtendClaimsResponse]{
	Page: command.Page{
		Use:   "extend [ID...]",
		Short: "Prolong claims, counted from now",
		Long:  "Prolong claims, counted from now. Exit code 6: the claim is lost.\n" + settleLong,
		Example: `  brokerctl --agent builder-1 extend
  brokerctl --agent builder-1 extend 4711.1 --for 2h`,
	},
	Args: []command.Arg{{Kind: claim, Fields: []string{"extensions.claim_id"}}},
	Options: []command.Option{
		{Field: "extensions.claim_for", Name: "for", Usage: "how long from now on (default: as long as it was claimed for)"},
		command.RequestID,
	},
	Prepare: func(g *command.Given, q *pb.ExtendClaimsRequest) error {
		q.Extensions = forEach(g.Args, q.Extensions, func(e *pb.Extension, id string) { e.ClaimId = id })
		return nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.ExtendClaimsRequest, a *pb.ExtendClaimsResponse) {
		by := prompt.Either(g.Duration("for") > 0, " by "+prompt.Duration(g.Duration("for")), "")
		prompt.Say(w, "extended %s%s", strings.Join(a.GetClaimIds(), ", "), by)
	},
}

// Release is brokerctl release.
var Release = command.Spec[*pb.ReleaseClaimsRequest, *pb.ReleaseClaimsResponse]{
	Page: command.Page{
		Use:   "release [ID...]",
		Short: "Return claims without counting an attempt",
		Long: `Return claims without counting an attempt; each message keeps its place. Exit
code 6: the claim is lost.
` + settleLong,
		Example: `  brokerctl --agent builder-1 release 4711.1`,
	},
	Args:    []command.Arg{{Field: "ids", Kind: claim}},
	Options: []command.Option{command.RequestID},
	Text: func(_ *command.Given, w io.Writer, _ *pb.ReleaseClaimsRequest, a *pb.ReleaseClaimsResponse) {
		prompt.Say(w, "released %s", strings.Join(a.GetReleased(), ", "))
	},
}
