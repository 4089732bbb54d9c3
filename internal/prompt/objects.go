package prompt

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// Sent says in one line who receives a message, and in further lines who does not and who is asleep.
func (v Voice) Sent(w io.Writer, r *pb.SendResult) {
	var refused []string
	to := Count(int64(r.GetRecipientCount()), "recipient")
	for _, recipient := range r.GetRecipients() {
		if recipient.GetOutcome() == pb.RecipientOutcome_RECIPIENT_OUTCOME_REFUSED {
			refused = append(refused, recipient.GetMailbox())
		}
		if r.GetRecipientCount() == 1 {
			to = recipient.GetMailbox()
		}
	}
	again := Either(r.GetDuplicate(), " (had been sent before; nothing was done)", "")
	Say(w, "sent %d to %s%s", r.GetRevision(), Clean(to), again)
	if n := r.GetRefusedCount(); n > 0 {
		Say(w, "refused, mailbox full: %s", Names(refused, int(n)))
	}
	if a := r.GetAsleep(); a != nil {
		Say(w, "%s; it reads this when it runs again", v.Asleep(a))
	}
}

// Undelivered says that no recipient has a message, because their mailboxes are full; "" if one has it.
func Undelivered(r *pb.SendResult) string {
	n := r.GetRecipientCount()
	if n == 0 || r.GetRefusedCount() < n {
		return ""
	}
	return fmt.Sprintf("nobody got message %d: %s full; wait until there is room, or raise the session's mailbox limit",
		r.GetRevision(), Either(n == 1, "the mailbox is", "all mailboxes are"))
}

// Asleep says how long an agent has been asleep.
func (v Voice) Asleep(a *pb.Asleep) string {
	return fmt.Sprintf("%s has been asleep %s", Clean(a.GetAgent()), v.Since(a.GetSince()))
}

// NoReply says why no answer to a question can come any more, without the text of others in GetError.
func (v Voice) NoReply(answer *pb.AskResponse) string {
	none := answer.GetNoReply()
	reasons := map[pb.NoReplyReason]string{
		pb.NoReplyReason_NO_REPLY_REASON_DEAD:      "it is a dead letter of " + none.GetMailbox(),
		pb.NoReplyReason_NO_REPLY_REASON_EXPIRED:   "it has expired in the mailbox of " + none.GetMailbox(),
		pb.NoReplyReason_NO_REPLY_REASON_CANCELLED: "it was cancelled",
		pb.NoReplyReason_NO_REPLY_REASON_ACKED:     none.GetMailbox() + " has acknowledged it without an answer",
		pb.NoReplyReason_NO_REPLY_REASON_RESOLVED:  "its thread was resolved",
	}
	return fmt.Sprintf("no answer to %d comes any more, since %s (%s)", answer.GetRevision(),
		cmp.Or(reasons[none.GetReason()], "it has ended"), v.do(&pb.ExplainRequest{
			Subject: &pb.ExplainRequest_Message{Message: strconv.FormatInt(answer.GetRevision(), 10)},
		}))
}

// NoReplyYet says that no answer came within a wait, which is a text such as "90s". thread is the conversation in
// which one may come later.
func (v Voice) NoReplyYet(answer *pb.AskResponse, thread, wait string) string {
	asleep := ""
	if a := answer.GetAsleep(); a != nil {
		asleep = "; " + v.Asleep(a)
	}
	later := v.do(&pb.ReceiveRequest{
		Filter: &pb.MessageFilter{ThreadId: cmp.Or(thread, strconv.FormatInt(answer.GetRevision(), 10))},
		Wait:   durationpb.New(OutcomeWait),
	})
	return fmt.Sprintf("no answer to %d within %s%s; one that comes later is in the inbox: %s",
		answer.GetRevision(), wait, asleep, later)
}

// InTheWay says who is in the way of a request for paths, or for a token, which has no paths. For a language model, it
// names the agents and what the request names, and no path, holder or reason of others, because it stands in no frame.
func (v Voice) InTheWay(obstacles []*pb.Obstacle, paths []string, model bool) string {
	const most = 3
	var parts []string
	for _, o := range obstacles[:min(len(obstacles), most)] {
		resource, owner := o.GetResource(), Owner(o.GetAgent(), o.GetHolder())
		if model {
			owner = o.GetAgent()
			switch {
			case len(paths) == 0 || slices.Contains(paths, resource):
			case len(paths) == 1:
				resource = paths[0]
			default:
				resource = "what is wanted"
			}
		}
		what := Clip(ResourceName(resource, len(paths) == 0), 200)
		s := fmt.Sprintf("%s is %s by %s", what, Either(o.GetWaiting(), "wanted earlier", "held"), owner)
		if o.GetHeldUntil() != nil {
			s += ", ends " + v.When(o.GetHeldUntil())
		}
		if o.GetReason() != "" && !model {
			s += " (" + Clip(o.GetReason(), 100) + ")"
		}
		parts = append(parts, s)
	}
	if more := len(obstacles) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more in the way", more))
	}
	return cmp.Or(strings.Join(parts, "; "), "it is not your turn")
}

// ResourceName names a path, or a token as commands take it.
func ResourceName(resource string, token bool) string {
	if kind, scope, ok := strings.Cut(resource, "/"); ok && token {
		return ShellWord(Clean(kind)) + " " + ShellWord(Clean(scope))
	}
	return resource
}

// Owner names an owner: the agent, and which worker of it.
func Owner(agent, holder string) string {
	if holder == "" {
		return agent
	}
	return agent + " (" + Clip(holder, 24) + ")"
}

// Paths writes paths as a shell would take them, at most 20.
func Paths(paths []string) string {
	const most = 20
	var words []string
	for _, p := range paths[:min(len(paths), most)] {
		words = append(words, ShellWord(Clean(p)))
	}
	if more := len(paths) - most; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, " ")
}

// State writes a key with its value, or a document as Markdown. The head says how the key stands.
func (v Voice) State(w io.Writer, answer *pb.GetStateResponse, head bool) {
	e := answer.GetEntry()
	text := ValueText(e.GetValue())
	if e.GetType() == pb.StateType_STATE_TYPE_DOCUMENT {
		text = strings.TrimRight(answer.GetMarkdown(), "\n")
	}
	if head {
		fmt.Fprintf(w, "%s, %s\n", KeyName(e), v.StateFacts(e))
	}
	fmt.Fprintln(w, Clean(text))
}

// StateLine is a key with its value in one line.
func (v Voice) StateLine(e *pb.StateEntry) string {
	return fmt.Sprintf("%s = %s (%s)", KeyName(e), OneLine(StateSummary(e)), v.StateFacts(e))
}

// StateFacts says how a key stands, in one line.
func (v Voice) StateFacts(e *pb.StateEntry) string {
	facts := []string{
		Enum(e.GetType()), fmt.Sprintf("version %d", e.GetVersion()), fmt.Sprintf("revision %d", e.GetRevision()),
	}
	if by := e.GetContributors(); len(by) > 0 {
		facts = append(facts, Count(int64(e.GetEntries()), "entry")+" by "+Names(by, len(by)))
	} else {
		facts = append(facts, "by "+Clean(e.GetAuthor()))
	}
	facts = append(facts, v.When(e.GetChangedAt()))
	if e.GetOwner() != "" {
		facts = append(facts, "owned by "+Clean(e.GetOwner()))
	}
	if e.GetTaskId() != "" {
		facts = append(facts, "task "+Clean(e.GetTaskId()))
	}
	if e.GetExpiresAt() != nil {
		facts = append(facts, "expires "+v.When(e.GetExpiresAt()))
	}
	return strings.Join(facts, ", ")
}

// StateSummary says what a version of a key is, in one line.
func StateSummary(e *pb.StateEntry) string {
	const most = 500
	switch {
	case e.GetDeleted() && e.GetAuthor() == "system":
		return "(expired or deleted)"
	case e.GetDeleted():
		return "(deleted)"
	case e.GetAppended() != nil:
		return fmt.Sprintf("entry %d: %s", e.GetAppended().GetNumber(), Clip(e.GetAppended().GetText(), most))
	case e.GetType() == pb.StateType_STATE_TYPE_DOCUMENT:
		return "(document of " + Count(int64(e.GetEntries()), "entry") + ")"
	}
	return Clip(ValueText(e.GetValue()), most)
}

// KeyName says which key it is; the namespace only where it is not the default.
func KeyName(e *pb.StateEntry) string {
	if e.GetNamespace() == "" || e.GetNamespace() == "default" {
		return OneLine(e.GetKey())
	}
	return OneLine(e.GetNamespace() + ":" + e.GetKey())
}

// ValueText writes a value as text.
func ValueText(v *pb.StateValue) string {
	switch v := v.GetValue().(type) {
	case *pb.StateValue_StringValue:
		return v.StringValue
	case *pb.StateValue_IntegerValue:
		return strconv.FormatInt(v.IntegerValue, 10)
	case *pb.StateValue_BooleanValue:
		return strconv.FormatBool(v.BooleanValue)
	case *pb.StateValue_JsonValue:
		return v.JsonValue
	}
	return ""
}

// Decision writes how a decision stands in a line, with the feedback of its newest verdict, and what comes next.
func (v Voice) Decision(w io.Writer, d *pb.Decision) {
	fmt.Fprintln(w, OneLine(DecisionLine(d)))
	if verdict := NewestVerdict(d); verdict != nil && d.GetState() != pb.DecisionState_DECISION_STATE_OPEN {
		v.Feedback(w, verdict)
	}
	v.AfterDecision(w, d)
}

// AfterDecision tells a language model what the opener does after a verdict, and how it waits for one.
func (v Voice) AfterDecision(w io.Writer, d *pb.Decision) {
	if !ForModel(w) {
		return
	}
	switch d.GetState() {
	case pb.DecisionState_DECISION_STATE_OPEN, pb.DecisionState_DECISION_STATE_ESCALATED:
		wait := v.do(&pb.GetDecisionRequest{Id: d.GetId(), Wait: durationpb.New(OutcomeWait)})
		Say(w, "Next: %s to wait for the verdict", wait)
	case pb.DecisionState_DECISION_STATE_REVISING:
		Say(w, "Next: the opener submits the next round: %s",
			v.also(&pb.ResubmitDecisionRequest{Id: d.GetId()}, "content.body"))
	}
}

// DecisionLine says how a decision stands.
func DecisionLine(d *pb.Decision) string {
	what := Enum(d.GetKind())
	if d.GetScope() != "" {
		what += " " + d.GetScope()
	}
	head := fmt.Sprintf("%s %s, round %d of %d: ", d.GetId(), what, d.GetRound(), max(d.GetMaxRounds(), d.GetRound()))
	v := NewestVerdict(d)
	switch d.GetState() {
	case pb.DecisionState_DECISION_STATE_OPEN:
		return head + "submitted by " + d.GetOpener() + ", waits for " + Addressee(d)
	case pb.DecisionState_DECISION_STATE_ESCALATED:
		return head + "escalated, " + Either(d.GetEscalatedTo() == "", "an operator", "role:"+d.GetEscalatedTo()) +
			" decides: " + d.GetNote()
	case pb.DecisionState_DECISION_STATE_REVISING:
		return head + "to be revised, says " + v.GetDecidedBy() + Either(v.GetReason() != "", ": "+v.GetReason(), "")
	case pb.DecisionState_DECISION_STATE_CANCELLED:
		return head + "cancelled" + Either(d.GetNote() != "", ": "+d.GetNote(), "")
	}
	verdict := map[string]string{"approve": "approved", "reject": "rejected", "accept": "accepted", "defer": "deferred"}[d.GetVerdict()]
	return head + Either(verdict == "", d.GetVerdict(), verdict) + " by " + v.GetDecidedBy() + Either(v.GetReason() != "", ": "+v.GetReason(), "")
}

// Addressee is the agent or role that decides.
func Addressee(d *pb.Decision) string {
	if d.GetRole() != "" {
		return "role:" + d.GetRole()
	}
	return d.GetAgent()
}

// NewestVerdict is the verdict of the last round that has one; nil if none has.
func NewestVerdict(d *pb.Decision) *pb.Verdict {
	if n := len(d.GetRounds()); n > 0 {
		return d.GetRounds()[n-1]
	}
	return nil
}

// Feedback lists the feedback of a verdict, as compilers print it.
func (v Voice) Feedback(w io.Writer, verdict *pb.Verdict) {
	for _, f := range verdict.GetFeedback() {
		place := f.GetFile()
		if f.GetLine() > 0 {
			place += fmt.Sprintf(":%d", f.GetLine())
		}
		fmt.Fprintf(w, "  %s: %s%s\n",
			Enum(f.GetSeverity()), Either(place == "", "", OneLine(place)+": "), Clean(f.GetText()))
	}
	if verdict.GetUntil() != nil {
		fmt.Fprintf(w, "  until %s\n", v.When(verdict.GetUntil()))
	}
}

// Tally writes the ballots per option in the order of the opener.
func Tally(v *pb.Vote) string {
	parts := make([]string, len(v.GetTally()))
	for i, t := range v.GetTally() {
		parts[i] = fmt.Sprintf("%s %d", OneLine(t.GetOption()), t.GetBallots())
	}
	return strings.Join(parts, ", ")
}

// VoteOutcome says the outcome of a vote in a few words; it is empty while the vote is open. In a line of the program
// for a language model, it leaves out a winner that is no single word.
func VoteOutcome(w io.Writer, v *pb.Vote) string {
	outcome := strings.ReplaceAll(Enum(v.GetOutcome()), "_", " ")
	if v.GetOutcome() != pb.VoteOutcome_VOTE_OUTCOME_WINNER || ForModel(w) && !Word(v.GetWinner()) {
		return outcome
	}
	return OneLine(v.GetWinner()) + " wins"
}

// Finding writes a finding for a language model.
func (v Voice) Finding(w io.Writer, f *pb.Finding) {
	since := ""
	if f.GetSince() != nil {
		since = ", " + v.Since(f.GetSince())
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s%s: %s\n",
		strings.ToUpper(Enum(f.GetSeverity())), OneLine(f.GetSubject()), since, OneLine(f.GetSummary()))
	for _, reason := range f.GetReasons() {
		fmt.Fprintf(&text, "Because: %s\n", OneLine(reason))
	}
	Framed(w, "a finding of the broker, which may quote other agents", text.String())
	for _, call := range f.GetCalls() {
		Say(w, "Run: %s", v.Proposed(call))
	}
}
