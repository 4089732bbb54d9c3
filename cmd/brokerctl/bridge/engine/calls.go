package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// An act is what the bridge does with a file instead of sending a message: the verdict of a decision, the answer to a
// handoff, a plan or a handoff. The session's state keeps it from before the call, so that a bridge that is killed
// repeats the same one, and after the call, so that a copy of the file does not repeat it.
type act struct {
	Do      string    `json:"do"` // a case of calls.do
	ID      string    `json:"id,omitempty"`
	Round   int32     `json:"round,omitempty"`
	Verdict string    `json:"verdict,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	Content string    `json:"content,omitempty"` // contentOf the message; "" = an earlier version has kept the act
	Done    bool      `json:"done,omitempty"`
}

// keepAct is how long the state keeps an act. A file is handled again after a kill, when the bridge starts, or if the
// folder has a copy of it.
const keepAct = 72 * time.Hour

// deferFor is how long an answer without a time defers a decision.
const deferFor = 10 * time.Minute

// An answerType is what a type of messages says about the answer.
type answerType struct {
	kind    pb.DecisionKind // 0 = any
	handoff bool            // to a handoff; false = to a decision, or with kind 0 to either
	verdict string          // a word; "" = the fields or the text have it
	types   string          // as mailfile.Letters returns them
}

// answerTypes returns the table of types of answers.
func answerTypes() []answerType {
	const shutdown, plan = pb.DecisionKind_DECISION_KIND_SHUTDOWN, pb.DecisionKind_DECISION_KIND_PLAN
	const review = pb.DecisionKind_DECISION_KIND_REVIEW
	return []answerType{
		{0, false, "", "response reply answer"},
		{shutdown, false, "", "shutdownresponse"},
		{shutdown, false, "accept", "shutdownaccepted shutdownapproved"},
		{shutdown, false, "defer", "shutdowndeferred"},
		{shutdown, false, "reject", "shutdownrejected"},
		{plan, false, "", "planapproval planapprovalresponse"},
		{plan, false, "approve", "planapproved approveplan"},
		{plan, false, "reject", "planrejected planrejection rejectplan"},
		{review, false, "approve", "reviewapproved reviewapproval reviewaccepted approvereview"},
		{review, false, "revise", "revisionrequested changesrequested requestchanges requestrevision"},
		{review, false, "reject", "reviewrejected reviewrejection rejectreview"},
		{0, true, "accept", "handoffaccepted handoffaccept accepthandoff"},
		{0, true, "reject", "handoffrejected handoffreject rejecthandoff handoffdeclined"},
	}
}

// answerTypeOf returns the entry of answerTypes for a message.
func answerTypeOf(m *pb.Message) (t answerType, found bool) {
	word := mailfile.Letters(m.GetType())
	for _, t := range answerTypes() {
		if slices.Contains(strings.Fields(t.types), word) {
			return t, true
		}
	}
	return answerType{}, false
}

// calls makes the calls of the broker that messages of the folder mean.
type calls struct {
	broker *client.Client
	folder *Folder
	id     string // of the folder
	state  *State
	roster *Roster
	log    func(line string)
}

// act does with a message of a file what its sender means by it, instead of sending it. It reports false for an
// ordinary message.
func (c *calls) act(
	ctx context.Context, key uuid.UUID, as *client.Client, sender string, m *pb.Message,
) (bool, error) {
	facts := mailfile.Facts(m)
	_, answers := answerTypeOf(m)
	names := []string{facts["decision_id"], facts["handoff_id"], m.GetThreadId()}
	named := slices.ContainsFunc(names, itemName.MatchString)
	if !answers && !named && !offers(m) {
		return false, nil
	}
	entry := c.id + "/acts/" + key.String()
	found, err := c.state.List(ctx, entry)
	if err != nil {
		return false, err
	}
	var a *act
	if text, begun := found[entry]; begun {
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			return false, fmt.Errorf("the state %s: %w", entry, err)
		}
		if a.Content != "" && a.Content != contentOf(m) {
			return false, mailfile.Refusalf("another message of %s has its id, and it was taken as a call: %s", sender, a.Do)
		}
		if a.Done {
			return true, nil
		}
	} else if a, err = c.meant(ctx, sender, m, facts); err != nil || a == nil {
		return false, err
	} else {
		a.Content = contentOf(m)
		if err := c.noteAct(ctx, entry, a); err != nil {
			return false, err
		}
	}
	err = c.do(ctx, key, as, m, a, facts)
	if err == nil || client.Reason(err) == "REQUEST_ID_REUSED" {
		a.Done = true
		return true, c.noteAct(ctx, entry, a)
	}
	if !mailfile.Rejected(Refused(err)) && !Ended(err) {
		return false, err
	}
	if len(found) > 0 { // perhaps before a kill
		if done, err2 := c.done(ctx, sender, a); err2 != nil || done {
			return done, err2
		}
	}
	c.log(fmt.Sprintf("sends a message of %s as mail, because the broker refuses to %s %s: %v", sender, a.Do, a.ID, err))
	return false, nil
}

// contentOf returns a hash of what a message says. Copies of a file have the same one.
func contentOf(m *pb.Message) string {
	labels, _, payload := mailfile.Kept(m)
	delete(labels, "original_timestamp")
	delete(labels, "in_reply_to") // the bridge adds it
	parts := []string{mailfile.Letters(m.GetType()), m.GetSubject(), m.GetBody(), mailfile.Compact(payload)}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, name, labels[name])
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// noteAct keeps an act in the session's state.
func (c *calls) noteAct(ctx context.Context, entry string, a *act) error {
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	change := PutChange(entry, string(text))
	change.GetPut().Ttl = durationpb.New(keepAct)
	return c.state.Change(ctx, []*pb.StateChange{change})
}

// meant returns what the sender of a message means by it; nil for an ordinary message.
func (c *calls) meant(ctx context.Context, sender string, m *pb.Message, facts map[string]string) (*act, error) {
	if offers(m) {
		return c.offer(ctx, sender, m)
	}
	names, question := []string{facts["decision_id"], facts["handoff_id"]}, (*pb.Message)(nil)
	if id := m.GetInReplyTo(); id != "" {
		out, err := Message(ctx, c.broker, id)
		if err != nil {
			return nil, err
		}
		question = out.GetMessage()
		asked := mailfile.Facts(question)
		names = append(names, asked["decision_id"], asked["handoff_id"])
	}
	if itemName.MatchString(m.GetThreadId()) {
		names = append(names, m.GetThreadId())
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	// open: the message neither answers another one nor is in a thread of others.
	own := []string{"", facts["original_id"], facts["message_id"]}
	open := question == nil && slices.Contains(own, m.GetThreadId())
	d, err := c.owedDecision(ctx, sender, m, names, open)
	if err != nil {
		return nil, err
	}
	if d != nil {
		a := &act{Do: "decide", ID: d.GetId(), Round: d.GetRound(), Verdict: verdictOf(m, facts, d.GetVerdicts())}
		if a.Verdict == "defer" {
			a.Until = laterTime(facts["until"])
		}
		return c.readable(a, a.Verdict, sender, d.GetVerdicts()), nil
	}
	h, err := c.offeredHandoff(ctx, sender, m, names, open)
	if err != nil || h == nil {
		return nil, err
	}
	verdicts := []string{"accept", "reject"}
	a := &act{Do: verdictOf(m, facts, verdicts), ID: h.GetId()}
	return c.readable(a, a.Do, sender, verdicts), nil
}

// readable returns an act, or nil if the answer has no verdict.
func (c *calls) readable(a *act, verdict, sender string, possible []string) *act {
	if verdict != "" {
		return a
	}
	c.log(fmt.Sprintf("sends an answer of %s to %s as mail: its verdict cannot be read; use one of %s",
		sender, a.ID, strings.Join(possible, ", ")))
	return nil
}

// itemName is the form of the name of a decision or handoff. It is the default thread of its messages.
var itemName = regexp.MustCompile(`^[dh]-[0-9]+$`)

// owedDecision returns the decision that a message answers: the one that it names, the one of its thread, or, for a
// open message whose type says the kind, the only one that its recipient has opened. nil if there is none.
func (c *calls) owedDecision(
	ctx context.Context, sender string, m *pb.Message, names []string, open bool,
) (*pb.Decision, error) {
	word := mailfile.Letters(m.GetType())
	t, known := answerTypeOf(m)
	if t.handoff {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	out, err := c.broker.Decisions().ListDecisions(ctx, &pb.ListDecisionsRequest{OwedBy: sender, PageSize: 1000,
		States: []pb.DecisionState{pb.DecisionState_DECISION_STATE_OPEN, pb.DecisionState_DECISION_STATE_ESCALATED}})
	if err != nil {
		return nil, err
	}
	owed := slices.DeleteFunc(out.GetDecisions(), func(d *pb.Decision) bool {
		return mailfile.Letters(d.GetOutcomeType()) != word && (!known || t.kind != 0 && t.kind != d.GetKind())
	})
	if len(names) > 0 {
		return only(owed, func(d *pb.Decision) bool { return slices.Contains(names, d.GetId()) }), nil
	}
	if d := only(owed, func(d *pb.Decision) bool { return d.GetThreadId() == m.GetThreadId() }); d != nil || !open {
		return d, nil
	}
	return only(owed, func(d *pb.Decision) bool { return t.kind != 0 && d.GetOpener() == m.GetTarget().GetAgent() }), nil
}

// offeredHandoff is owedDecision for handoffs.
func (c *calls) offeredHandoff(
	ctx context.Context, sender string, m *pb.Message, names []string, open bool,
) (*pb.Handoff, error) {
	t, known := answerTypeOf(m)
	if !known || t.kind != 0 || len(names) == 0 && (!t.handoff || !open) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	out, err := c.broker.Handoffs().ListHandoffs(ctx, &pb.ListHandoffsRequest{ToAgent: sender, PageSize: 1000,
		States: []pb.HandoffState{pb.HandoffState_HANDOFF_STATE_PENDING}})
	if err != nil {
		return nil, err
	}
	return only(out.GetHandoffs(), func(h *pb.Handoff) bool {
		if len(names) > 0 {
			return slices.Contains(names, h.GetId())
		}
		return h.GetFrom() == m.GetTarget().GetAgent()
	}), nil
}

// only returns the item that matches; nil if none or several do.
func only[T any](items []*T, matches func(*T) bool) (found *T) {
	for _, item := range items {
		if !matches(item) {
			continue
		}
		if found != nil {
			return nil
		}
		found = item
	}
	return found
}

// verdictWords are the words for verdicts. "yes" is the favourable one of a decision: approve or accept.
var verdictWords = map[string]string{
	"accept": "yes", "accepted": "yes", "approve": "yes", "approved": "yes", "true": "yes", "yes": "yes",
	"reject": "reject", "rejected": "reject", "decline": "reject", "declined": "reject", "refused": "reject",
	"denied": "reject", "false": "reject", "no": "reject",
	"defer": "defer", "deferred": "defer", "postponed": "defer",
	"revise": "revise", "revision_requested": "revise", "changes_requested": "revise", "modification_requested": "revise",
}

// verdictOf returns the verdict of an answer, one of the possible ones: that of the first field that has one, that of
// the type, or the first word of the text. It returns "" if it finds none.
func verdictOf(m *pb.Message, facts map[string]string, possible []string) string {
	words := []string{facts["verdict"]}
	if facts["deferred"] == "true" {
		words = append(words, "defer")
	}
	t, _ := answerTypeOf(m)
	words = append(words, facts["status"], facts["accepted"], facts["approved"], t.verdict)
	first, _, _ := strings.Cut(strings.TrimSpace(cmp.Or(m.GetBody(), m.GetSubject())), " ")
	first, _, _ = strings.Cut(first, "\n")
	words = append(words, strings.Trim(first, ".,:;!"))
	for _, word := range words {
		word = strings.ToLower(strings.TrimSpace(word))
		meanings := []string{word, verdictWords[word]}
		if verdictWords[word] == "yes" {
			meanings = append(meanings, "approve", "accept")
		}
		for _, verdict := range meanings {
			if verdict != "" && slices.Contains(possible, verdict) {
				return verdict
			}
		}
	}
	return ""
}

// laterTime returns the time in a text if it is in the future, and otherwise the time after deferFor.
func laterTime(text string) time.Time {
	now := time.Now()
	if t, err := time.Parse(time.RFC3339, text); err == nil && t.After(now) {
		return t
	}
	return now.Add(deferFor)
}

// reasonOf returns what an answer says beside its verdict.
func reasonOf(m *pb.Message, facts map[string]string) string {
	text := m.GetBody()
	if verdictWords[strings.ToLower(strings.Trim(text, " \n.!"))] != "" {
		text = ""
	}
	return cmp.Or(facts["reason"], facts["notes"], facts["feedback"], facts["rationale"], text)
}

// do makes the call of an act, with the key of the file as its request id.
func (c *calls) do(
	ctx context.Context, key uuid.UUID, as *client.Client, m *pb.Message, a *act, facts map[string]string,
) error {
	id, reason := key.String(), reasonOf(m, facts)
	var offer *pb.CreateHandoffRequest
	var err error
	if a.Do == "hand over" {
		if offer, err = c.handoffOf(ctx, id, m, facts); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout) // without the uploads, which may last
	defer cancel()
	switch a.Do {
	case "decide":
		in := &pb.DecideRequest{RequestId: id, Id: a.ID, Round: a.Round, Verdict: a.Verdict, Reason: reason}
		if !a.Until.IsZero() {
			in.Until = timestamppb.New(a.Until)
		}
		_, err = as.Decisions().Decide(ctx, in)
	case "accept":
		_, err = as.Handoffs().AcceptHandoff(ctx, &pb.AcceptHandoffRequest{RequestId: id, Id: a.ID, Notes: reason})
	case "reject":
		in := &pb.RejectHandoffRequest{RequestId: id, Id: a.ID, Notes: cmp.Or(reason, "rejected")}
		_, err = as.Handoffs().RejectHandoff(ctx, in)
	case "submit":
		_, err = as.Decisions().OpenDecision(ctx, planOf(id, m))
	case "resubmit":
		p := planOf(id, m)
		in := &pb.ResubmitDecisionRequest{RequestId: id, Id: a.ID, Title: p.Title, Content: p.Content}
		_, err = as.Decisions().ResubmitDecision(ctx, in)
	case "hand over":
		_, err = as.Handoffs().CreateHandoff(ctx, offer)
	}
	return err
}

// done reports whether the sender of a message has done an act already.
func (c *calls) done(ctx context.Context, sender string, a *act) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	switch a.Do {
	case "decide", "resubmit":
		out, err := c.broker.Decisions().GetDecision(ctx, &pb.GetDecisionRequest{Id: a.ID})
		if a.Do == "resubmit" {
			return out.GetDecision().GetRound() > a.Round, ignoreMissing(err)
		}
		return slices.ContainsFunc(out.GetDecision().GetRounds(), func(v *pb.Verdict) bool {
			return v.GetRound() == a.Round && v.GetDecidedBy() == sender
		}), ignoreMissing(err)
	case "accept", "reject":
		out, err := c.broker.Handoffs().GetHandoff(ctx, &pb.GetHandoffRequest{Id: a.ID})
		return out.GetHandoff().GetSettledBy() == sender, ignoreMissing(err)
	}
	return false, nil
}
