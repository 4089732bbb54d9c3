package prompt

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// IsNotice reports whether an item of an inbox is an unread notice.
func IsNotice(item *pb.InboxItem) bool {
	return item.GetDelivery().GetState() == pb.DeliveryState_DELIVERY_STATE_NOTICE
}

// Notices writes notices, one a line. A language model sees them in a frame, because they quote other
// agents.
func Notices(w io.Writer, subjects []string) {
	var text strings.Builder
	for _, subject := range subjects {
		fmt.Fprintf(&text, "Notice: %s\n", OneLine(subject))
	}
	if len(subjects) > 0 {
		Framed(w, Count(int64(len(subjects)), "notice")+" of the broker, which may quote other agents", text.String())
	}
}

// Mail writes what arrived in the agent's own mailbox: its notices, then a line about the messages, then each of
// them. The line is a format for their number, such as "%s came for you".
func (v Voice) Mail(w io.Writer, items []*pb.InboxItem, line string) {
	var notices []string
	var messages []*pb.InboxItem
	for _, item := range items {
		if IsNotice(item) {
			notices = append(notices, item.GetMessage().GetSubject())
		} else {
			messages = append(messages, item)
		}
	}
	Notices(w, notices)
	if len(messages) > 0 {
		Say(w, line, Count(int64(len(messages)), "message"))
	}
	for _, item := range messages {
		v.Message(w, v.Received(item))
	}
}

// Question says in one line who waits for what, and until when.
func (v Voice) Question(q *pb.OpenQuestion, subject bool) string {
	due := ""
	if q.GetDeadline() != nil {
		due = Either(q.GetOverdue(), ", was due ", ", due ") + v.When(q.GetDeadline())
	}
	return OneLine(fmt.Sprintf("%d from %s%s%s", q.GetRevision(), q.GetSender(),
		Either(subject && q.GetSubject() != "", ", "+Clip(q.GetSubject(), 80), ""), due))
}

// Questions shows a language model the subjects of questions, in a frame.
func Questions(w io.Writer, questions []*pb.OpenQuestion) {
	var text strings.Builder
	for _, q := range questions {
		if q.GetSubject() != "" {
			fmt.Fprintf(&text, "%d: %s\n", q.GetRevision(), Clip(q.GetSubject(), 80))
		}
	}
	if ForModel(w) && text.Len() > 0 {
		Framed(w, "the questions that follow", text.String())
	}
}

// Owed prints the questions that wait for an answer of the caller, with the command that gives it.
func (v Voice) Owed(w io.Writer, owed []*pb.OpenQuestion) {
	for _, q := range owed {
		Say(w, "owed: an answer to %s: %s", v.Question(q, !ForModel(w)), v.Answer(q))
	}
}

// Summary counts what the agent has before it, and lists directives and open questions.
func (v Voice) Summary(w io.Writer, s *pb.GetInboxSummaryResponse) {
	Say(w, "%s unfinished, %s of them unread; %s to claim, %s claimed%s",
		UpTo1000(s.GetTotal()), UpTo1000(s.GetUnread()), UpTo1000(s.GetClaimable()), UpTo1000(s.GetClaimed()),
		Either(s.GetOldestAt() != nil, "; the oldest was sent "+v.When(s.GetOldestAt()), ""))
	var parts []string
	for _, p := range s.GetByPriority() {
		parts = append(parts, fmt.Sprintf("%d of priority %d", p.GetCount(), p.GetPriority()))
	}
	for _, t := range s.GetByType() {
		parts = append(parts, fmt.Sprintf("%d %s", t.GetCount(), OneLine(t.GetType())))
	}
	if len(parts) > 0 {
		Say(w, "%s", Names(parts, len(parts)))
	}
	if n := s.GetNotices(); n > 0 {
		inbox := v.do(&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
		Say(w, "%s: %s shows and finishes them", Count(n, "notice"), inbox)
	}
	if ForModel(w) {
		var text strings.Builder
		for _, m := range s.GetDirectives() {
			if Summary(m) != "" {
				fmt.Fprintf(&text, "%d: %s\n", m.GetRevision(), Summary(m))
			}
		}
		if text.Len() > 0 {
			Framed(w, "the directives that follow", text.String())
		}
	}
	for _, m := range s.GetDirectives() {
		next := "To say that you have seen it: " + v.seen(strconv.FormatInt(m.GetRevision(), 10))
		if i := v.ItemOf(m); i != nil {
			next = "To answer it: " + v.AfterItem(i)
		}
		Say(w, "directive %d from %s: %s%s. %s", m.GetRevision(), OneLine(m.GetSender()), TypeOf(m, OneLine),
			Either(Summary(m) != "" && !ForModel(w), ", "+Clean(Summary(m)), ""), next)
	}
	if s.GetHalted() {
		Say(w, "halted: nothing but directives is handed out until a resume")
	}
	if t := s.GetBreakerOpenUntil(); t != nil {
		Say(w, "failed too often in a row: the next message is handed out %s", v.When(t))
	}
	Questions(w, slices.Concat(s.GetOwed(), s.GetAsked()))
	v.Owed(w, s.GetOwed())
	for _, q := range s.GetAsked() {
		Say(w, "asked: no answer yet to %s", strings.TrimSpace(v.Question(q, !ForModel(w))))
	}
}

// Thread says how a conversation stands, whose id may be shown as another text.
func (v Voice) Thread(w io.Writer, s *pb.ThreadSummary, id string) {
	fmt.Fprintf(w, "%s: %s, %s, begun %s\n", strings.TrimSpace("thread "+Clean(id)), Count(s.GetMessages(), "message"),
		Names(s.GetParticipants(), len(s.GetParticipants())), v.When(s.GetFirstAt()))
	for _, q := range s.GetOpenQuestions() {
		fmt.Fprintf(w, "open: %s\n", v.Question(q, true))
	}
	if s.GetOutcome() != "" {
		fmt.Fprintf(w, "resolved %s by %s: %s\n",
			v.When(s.GetResolvedAt()), Clean(s.GetResolvedBy()), OneLine(s.GetOutcome()))
	}
}

// A Loser is an answer that tells what an agent has lost.
type Loser interface {
	GetLosses() []*pb.Loss
	GetMoreLosses() int32
}

// Losses says what an agent has lost while it was thought dead.
func Losses(w io.Writer, from Loser) {
	for _, l := range from.GetLosses() {
		Say(w, "lost: %s", LossName(w, l))
	}
	if more := from.GetMoreLosses(); more > 0 {
		Say(w, "lost: %s", MoreLosses(more))
	}
}

// LossName names a loss. For a language model, it leaves out the name of a path or scope that another
// agent may have chosen to be read as a text.
func LossName(w io.Writer, l *pb.Loss) string {
	kind, name := Enum(l.GetKind()), OneLine(l.GetName())
	if ForModel(w) && !Word(name) {
		return kind
	}
	return kind + " " + name
}

// MoreLosses says how many losses are not told one by one.
func MoreLosses(n int32) string {
	return fmt.Sprintf("%d more, which only the log tells of: brokerctl event list", n)
}

// WhyNoMessage says why there was no message to claim within a wait, which is a text such as "90s" or "".
func (v Voice) WhyNoMessage(answer *pb.ClaimMessagesResponse, wait string) string {
	s := "nothing to claim" + Either(wait != "", " within "+wait, "")
	switch answer.GetEmptyReason() {
	case pb.EmptyReason_EMPTY_REASON_DELAYED:
		s += ": what waits is delayed"
	case pb.EmptyReason_EMPTY_REASON_BLOCKED_BY_ORDER:
		s += ": what waits follows an unfinished message of its ordering key"
	case pb.EmptyReason_EMPTY_REASON_BREAKER_OPEN:
		s += ": the agent failed too often in a row, and gets nothing for a while"
	case pb.EmptyReason_EMPTY_REASON_HALTED:
		s += ": the agent is halted until a resume"
	case pb.EmptyReason_EMPTY_REASON_DRAINING:
		s += ": an operator drains the broker, which delivers no new work"
	}
	if due := answer.GetNextDue(); due != nil {
		s += "; the next is due " + v.When(due)
	}
	return s
}

// WhyNoTask says why there was no task to claim within a wait, which is a text such as "90s" or "".
func (v Voice) WhyNoTask(answer *pb.ClaimTaskResponse, wait string) string {
	s := "no task to claim" + Either(wait != "", " within "+wait, "")
	switch answer.GetEmptyReason() {
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_NO_MATCH:
		s += ": the ready tasks are for other roles, agents or capabilities"
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_DELAYED:
		s += ": the ready tasks wait for their next attempt"
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_HALTED:
		s += ": the agent is halted until a resume"
	case pb.TaskEmptyReason_TASK_EMPTY_REASON_DRAINING:
		s += ": an operator drains the broker, which delivers no new work"
	}
	if due := answer.GetNextDue(); due != nil {
		s += "; the next is due " + v.When(due)
	}
	return s
}

// A Turn is what an agent has to do.
type Turn struct {
	Directives []Mailed
	Losses     []*pb.Loss
	MoreLosses int32 // that are only in the log
	Notices    []*pb.Notice
	Claims     []Mailed
	Task       *pb.ClaimTaskResponse // nil or without a task: none
	Work       []*pb.WorkItem        // that concerns the agent
	Owed       []*pb.OpenQuestion    // to be answered by the agent, beside what it holds
	Halted     bool
	Inbox      *pb.GetInboxSummaryResponse
}

// Mailed is a message with its claim, if the agent has one.
type Mailed struct {
	Message *pb.Message
	Claim   *pb.ClaimedMessage
}

// NewTurn puts together the directives of a mailbox and claims. A directive that was claimed as well is shown once.
func NewTurn(inbox *pb.GetInboxSummaryResponse, claims []*pb.ClaimedMessage) Turn {
	t := Turn{Inbox: inbox}
	held := map[string]*pb.ClaimedMessage{}
	for _, claim := range claims {
		held[claim.GetMessage().GetId()] = claim
	}
	told := map[string]bool{}
	for _, m := range inbox.GetDirectives() {
		told[m.GetId()] = true
		t.Directives = append(t.Directives, Mailed{m, held[m.GetId()]})
	}
	for _, claim := range claims {
		switch m := claim.GetMessage(); {
		case told[m.GetId()]:
		case Advice(m) != "": // it came meanwhile
			t.Directives = append(t.Directives, Mailed{m, claim})
		default:
			t.Claims = append(t.Claims, Mailed{m, claim})
		}
	}
	t.Halted = inbox.GetHalted()
	for _, r := range t.Directives { // the last one of the two decides
		switch r.Message.GetType() {
		case "halt":
			t.Halted = true
		case "resume":
			t.Halted = false
		}
	}
	for _, q := range inbox.GetOwed() {
		if held[q.GetId()] == nil {
			t.Owed = append(t.Owed, q)
		}
	}
	return t
}

// Empty reports whether there is nothing for the agent to do.
func (t *Turn) Empty() bool {
	news := len(t.Directives) + len(t.Losses) + int(t.MoreLosses) + len(t.Notices) + len(t.Claims)
	return news == 0 && t.Task.GetTask() == nil && (t.Halted || len(Owed(t.Work)) == 0)
}

// Why adds the answers that are owed to why a turn is empty.
func (v Voice) Why(t *Turn, why string) string {
	if n := len(t.Owed); n > 0 {
		why += fmt.Sprintf("; %s: %s", Either(n == 1, "an answer is owed", "answers are owed"),
			v.do(&pb.GetInboxSummaryRequest{}))
	}
	return why
}

// Turn writes a turn with what to do about each part. message and task write those parts; if they are nil, they are
// written for a language model. apart separates two parts.
func (v Voice) Turn(w io.Writer, t *Turn, message func(Rendered), task func(), apart func()) {
	if message == nil {
		message = func(r Rendered) { v.Message(w, r) }
		task = func() { v.Task(w, t.Task) }
		apart = func() {}
	}
	show := func(r Mailed) {
		apart()
		shown := Rendered{Message: r.Message, Facts: []string{"directive"}}
		if r.Claim != nil {
			shown = v.Claimed(r.Claim)
		} else {
			shown.Next = v.AfterMail(r.Message, &pb.Delivery{State: pb.DeliveryState_DELIVERY_STATE_PENDING})
		}
		if t.Halted && Advice(r.Message) == "" {
			shown.Next = "nothing until a resume; then " + shown.Next
		}
		message(shown)
	}
	for _, r := range t.Directives {
		show(r)
	}
	for _, l := range t.Losses {
		apart()
		Say(w, "Lost while you were away: %s. Stop working on it, or ask for it again.", LossName(w, l))
	}
	if t.MoreLosses > 0 {
		apart()
		Say(w, "Lost while you were away: %s", MoreLosses(t.MoreLosses))
	}
	if len(t.Notices) > 0 {
		apart()
	}
	var notices []string
	for _, n := range t.Notices {
		notices = append(notices, n.GetSubject())
	}
	Notices(w, notices)
	for _, r := range t.Claims {
		show(r)
	}
	if t.Halted {
		if len(t.Work) > 0 {
			Say(w, "Halted: %s must wait for a resume", KindsOf(t.Work))
		}
		return
	}
	if t.Task.GetTask() != nil {
		apart()
		task()
	}
	v.Items(w, slices.DeleteFunc(slices.Clone(t.Work), t.shows))
	Questions(w, t.Owed)
	for _, q := range t.Owed {
		Say(w, "An answer is owed to %s: %s", v.Question(q, !ForModel(w)), v.Answer(q))
	}
}

// shows reports whether the turn shows a piece of work already: its task, or the message about it.
func (t *Turn) shows(i *pb.WorkItem) bool {
	about := func(r Mailed) bool { return strings.Contains(r.Message.GetPayload(), strconv.Quote(i.GetId())) }
	return i.GetKind() == "task" && i.GetId() == t.Task.GetTask().GetId() ||
		slices.ContainsFunc(t.Directives, about) || slices.ContainsFunc(t.Claims, about)
}
