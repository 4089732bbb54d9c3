package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"regexp"
	"slices"

	"brokerd/client"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

const (
	hookMail       = 10       // messages that a hook offers at once
	hookBytes      = 8 << 10  // of their contents: about 2,000 tokens. The first message may exceed it
	mostTranscript = 64 << 20 // bytes of a conversation that a hook searches for its marks
)

// begins are the ways in which hooks offer messages that begin or continue a turn.
var begins = []pb.OfferWay{pb.OfferWay_OFFER_WAY_TURN_END, pb.OfferWay_OFFER_WAY_PROMPT}

// inTurn are the ways in which hooks in a turn and at its end offer messages.
var inTurn = append(slices.Clone(begins), pb.OfferWay_OFFER_WAY_TOOL_CALL)

// byHooks are the ways that end with the next prompt of the user. Messages in the other ways may be on their way then.
var byHooks = append(slices.Clone(inTurn), pb.OfferWay_OFFER_WAY_WAKE, pb.OfferWay_OFFER_WAY_SHELL)

// offer offers unread messages to the session, and accepts earlier offers of which the conversation has evidence.
func (h *hook) offer(ctx context.Context, broker *client.Client, way pb.OfferWay) ([]*pb.InboxItem, int32, error) {
	h.offered = true
	out, err := broker.Messages().OfferMessages(ctx, &pb.OfferMessagesRequest{
		Way: way, Harness: h.session(), Mark: h.mark, Limit: hookMail, MaxBytes: hookBytes,
	})
	h.quiet = out.GetAttention() > pb.Attention_ATTENTION_OPEN
	var marks []string
	for _, o := range out.GetUnsettled() {
		if h.in.answered(o.GetMark()) {
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

// answered reports whether the model has called the tool of this event, or ended its turn, after it got the text
// with a mark: the file of the conversation has the mark before the call, or before the last answer of the model
// (Claude Code). A call of the same answer as the one before is no evidence: the file contains that call before
// the mark.
func (in *hookInput) answered(mark string) bool {
	if in.Transcript == "" || in.ToolUseID == "" && in.Event != "Stop" {
		return false
	}
	info, err := os.Stat(in.Transcript)
	if err != nil || !info.Mode().IsRegular() || info.Size() > mostTranscript {
		return false
	}
	text, err := os.ReadFile(in.Transcript)
	at := bytes.Index(text, []byte(mark))
	if err != nil || at < 0 {
		return false
	}
	if in.ToolUseID == "" {
		return bytes.LastIndex(text, []byte(`"role":"assistant"`)) > at
	}
	return bytes.Index(text, []byte(in.ToolUseID)) > at
}

// context passes to the model, in the middle of a turn or at its beginning, what has arrived. A subagent gets
// nothing: it is not the agent that the messages are for.
func (h *hook) context(ctx context.Context, out io.Writer, way pb.OfferWay) error {
	if !h.vendor.context || h.in.AgentID != "" {
		return nil
	}
	var n news
	err := h.as(ctx, func(broker *client.Client) (err error) {
		n.mail, n.more, err = h.offer(ctx, broker, way)
		return err
	})
	return h.pass(ctx, n, err, func(text string) error {
		return h.vendor.write(out, hookAnswer{Specific: &hookContext{h.in.named, text}})
	})
}

// pass writes news to the coding agent. If that fails, or err is why it is not tried, it gives back what was offered.
func (h *hook) pass(ctx context.Context, n news, err error, write func(text string) error) error {
	if err == nil && !n.empty() {
		err = write(h.reason(n))
	}
	if err != nil && h.offered { // also when only the answer of the broker is missing
		h.giveBack(ctx)
	}
	return err
}

// session is the session of the coding agent, to which messages are offered.
func (h *hook) session() string {
	return prompt.Clip(prompt.OneLine(cmp.Or(h.in.SessionID, "unknown")), 128)
}

// settle tells the broker what the event says about the messages that this session was offered before. Without an
// answer, the offers return by themselves. A tool of a subagent shows nothing about the conversation.
func (h *hook) settle(ctx context.Context) {
	quoted, request := h.in.quoted(), h.outcome()
	if h.vendor.plugin && h.in.Event != hookAccepted {
		quoted = nil
	}
	if request == nil && len(quoted) == 0 || h.in.AgentID != "" {
		return
	}
	_ = h.briefly(ctx, func(ctx context.Context) error {
		broker, err := h.c.connect(ctx)
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
func (h *hook) outcome() *pb.SettleOffersRequest {
	accepted := func(ways []pb.OfferWay) *pb.SettleOffersRequest {
		return &pb.SettleOffersRequest{Ways: ways, Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true}}
	}
	returned := func(why string) *pb.SettleOffersRequest {
		return &pb.SettleOffersRequest{Outcome: &pb.SettleOffersRequest_Returned{Returned: why}}
	}
	switch h.in.Event {
	case "SessionEnd":
		return returned("the session has ended")
	case hookReturned:
		r := returned("the plugin could not pass it on")
		if r.Marks = h.in.quoted(); len(r.Marks) > 0 {
			return r
		}
	}
	if h.vendor.plugin {
		return nil
	}
	switch h.in.Event {
	case "SessionStart":
		if h.in.Source == "startup" || h.in.Source == "resume" {
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
func (in *hookInput) quoted() (marks []string) {
	for _, m := range aMark.FindAllStringSubmatch(in.Prompt, -1) {
		if !slices.Contains(marks, m[1]) && len(marks) < 10 {
			marks = append(marks, m[1])
		}
	}
	return marks
}

// giveBack returns what this hook has offered and could not pass on.
func (h *hook) giveBack(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.within)
	defer cancel()
	_, _ = h.broker.Messages().SettleOffers(ctx, &pb.SettleOffersRequest{ // otherwise it returns by itself
		Marks:   []string{h.mark},
		Outcome: &pb.SettleOffersRequest_Returned{Returned: "the hook failed before the coding agent had it"},
	})
}
