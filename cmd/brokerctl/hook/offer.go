package hook

import (
	"cmp"
	"context"
	"io"
	"regexp"
	"slices"

	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

const (
	hookMail  = 10      // messages that a hook offers at once
	hookBytes = 8 << 10 // of their contents: about 2,000 tokens. The first message may exceed it
)

// begins are the ways in which hooks offer messages that begin or continue a turn.
var begins = []pb.OfferWay{pb.OfferWay_OFFER_WAY_TURN_END, pb.OfferWay_OFFER_WAY_PROMPT}

// inTurn are the ways in which hooks in a turn and at its end offer messages.
var inTurn = append(slices.Clone(begins), pb.OfferWay_OFFER_WAY_TOOL_CALL)

// byHooks are the ways that end with the next prompt of the user. Messages in the other ways may be on their way then.
var byHooks = append(slices.Clone(inTurn), pb.OfferWay_OFFER_WAY_WAKE, pb.OfferWay_OFFER_WAY_SHELL)

// offer offers unread messages to the session, and accepts earlier offers of which the conversation has evidence.
func (h *Hook) offer(ctx context.Context, broker *client.Client, way pb.OfferWay) ([]*pb.InboxItem, int32, error) {
	h.offered = true
	out, err := broker.Messages().OfferMessages(ctx, &pb.OfferMessagesRequest{
		Way: way, Harness: h.session(), Mark: h.mark, Limit: hookMail, MaxBytes: hookBytes,
	})
	h.quiet = out.GetAttention() > pb.Attention_ATTENTION_OPEN
	var marks []string
	goesOn := h.In.ToolUseID != "" || h.In.Event == "Stop"
	for _, o := range out.GetUnsettled() {
		if goesOn && harness.Answered(h.In.Transcript, h.In.ToolUseID, o.GetMark()) {
			marks = append(marks, o.GetMark())
		}
	}
	if len(marks) > 0 { // otherwise the end of the turn accepts them
		_, _ = broker.Messages().SettleOffers(ctx, &pb.SettleOffersRequest{
			Marks: marks, Harness: h.session(), Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true},
		})
	}
	return out.GetItems(), out.GetMore(), err
}

// context passes to the model, in the middle of a turn or at its beginning, what has arrived. A subagent gets
// nothing: it is not the agent that the messages are for.
func (h *Hook) context(ctx context.Context, out io.Writer, way pb.OfferWay) error {
	if !h.vendor.Context || h.In.AgentID != "" {
		return nil
	}
	var n news
	err := h.as(ctx, func(broker *client.Client) (err error) {
		n.mail, n.more, err = h.offer(ctx, broker, way)
		return err
	})
	return h.pass(ctx, n, err, func(text string) error {
		return h.vendor.write(out, hookAnswer{Specific: &hookContext{h.In.named, text}})
	})
}

// pass writes news to the coding agent. If that fails, or err is why it is not tried, it gives back what was offered.
func (h *Hook) pass(ctx context.Context, n news, err error, write func(text string) error) error {
	if err == nil && !n.empty() {
		err = write(h.reason(n))
	}
	if err != nil && h.offered { // also when only the answer of the broker is missing
		h.giveBack(ctx)
	}
	return err
}

// session is the session of the coding agent, to which messages are offered.
func (h *Hook) session() string {
	return prompt.Clip(prompt.OneLine(cmp.Or(h.In.SessionID, "unknown")), 128)
}

// settle tells the broker what the event says about the messages that this session was offered before. Without an
// answer, the offers return by themselves. A tool of a subagent shows nothing about the conversation.
func (h *Hook) settle(ctx context.Context) {
	quoted, request := h.In.quoted(), h.outcome()
	if h.vendor.plugin && h.In.Event != Accepted {
		quoted = nil
	}
	if request == nil && len(quoted) == 0 || h.In.AgentID != "" {
		return
	}
	_ = h.briefly(ctx, func(ctx context.Context) error {
		broker, err := h.C.Connect(ctx, client.WithPatience(0))
		if err != nil || broker.Identity().Agent == "" {
			return err
		}
		if len(quoted) > 0 {
			_, err = broker.Messages().SettleOffers(ctx, &pb.SettleOffersRequest{
				Marks: quoted, Harness: h.session(), Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true},
			})
		}
		if err == nil && request != nil {
			request.Harness = h.session()
			_, err = broker.Messages().SettleOffers(ctx, request)
		}
		return err
	})
}

// outcome returns what became of the session's open offers by this event; nil if the event says nothing. The end of a
// turn shows that the model got what hooks passed to it in this turn, and any event in a turn that it got what the
// user's prompt or the end of the turn before passed to it. A prompt shows it if it quotes the mark, as Gemini CLI's
// does when a hook continues a turn; another prompt may come after Esc. A plugin knows better which messages were in a
// request.
func (h *Hook) outcome() *pb.SettleOffersRequest {
	accepted := func(ways []pb.OfferWay) *pb.SettleOffersRequest {
		return &pb.SettleOffersRequest{Ways: ways, Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true}}
	}
	returned := func(why string) *pb.SettleOffersRequest {
		return &pb.SettleOffersRequest{Outcome: &pb.SettleOffersRequest_Returned{Returned: why}}
	}
	switch h.In.Event {
	case "SessionEnd":
		return returned("the session has ended")
	case Returned:
		r := returned("the plugin could not pass it on")
		if r.Marks = h.In.quoted(); len(r.Marks) > 0 {
			return r
		}
	}
	if h.vendor.plugin {
		return nil
	}
	switch h.In.Event {
	case "SessionStart":
		if h.In.Source == "startup" || h.In.Source == "resume" {
			return returned("the program of the session was started again")
		}
	case "PreToolUse", "PostToolUse":
		return accepted(begins)
	case "Stop":
		return accepted(inTurn)
	case "UserPromptSubmit":
		r := returned("the user's next prompt came before another event")
		r.Ways = byHooks
		return r
	}
	return nil
}

// aMark matches a mark of prompt.NewMark at the beginning of a frame.
var aMark = regexp.MustCompile(`(?m)^=== ([0-9a-f]{16}) `)

// quoted returns the marks in a prompt, at most 10.
func (in *Input) quoted() (marks []string) {
	for _, m := range aMark.FindAllStringSubmatch(in.Prompt, -1) {
		if !slices.Contains(marks, m[1]) && len(marks) < 10 {
			marks = append(marks, m[1])
		}
	}
	return marks
}

// giveBack returns what this hook has offered and could not pass on.
func (h *Hook) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.within)
	defer cancel()
	_, _ = h.broker.Messages().SettleOffers(ctx, &pb.SettleOffersRequest{ // otherwise it returns by itself
		Marks:   []string{h.mark},
		Outcome: &pb.SettleOffersRequest_Returned{Returned: "the hook failed before the coding agent had it"},
	})
}
