package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// rendered is a message with what is known beside it: how it stands with a delivery or a claim.
type rendered struct {
	message *pb.Message
	facts   []string // such as "claim 7.1", "attempt 1 of 3"
	closing string   // a last line for a model: what to do now
}

// claimed renders a claim.
func claimed(claim *pb.ClaimedMessage) rendered {
	r := rendered{message: claim.GetMessage()}
	r.facts = append(r.facts, "claim "+claim.GetClaimId(), fmt.Sprintf("attempt %d of %d", claim.GetAttempt(), claim.GetMaxAttempts()))
	if claim.GetExpiresIn() != nil {
		r.facts = append(r.facts, "yours for "+rough(claim.GetExpiresIn().AsDuration()))
	}
	if claim.GetResumed() {
		r.facts = append(r.facts, "held before")
	}
	id := claim.GetClaimId()
	r.closing = fmt.Sprintf("When done: brokerctl ack %s. Failed: brokerctl nack %s --error WHY. Not yours: brokerctl release %s.", id, id, id)
	return r
}

// received renders a message in a mailbox.
func received(item *pb.InboxItem) rendered {
	r := rendered{message: item.GetMessage()}
	if d := item.GetDelivery(); d != nil {
		r.facts = append(r.facts, strings.Join(marks(d), ", "))
	}
	return r
}

// marks says how a delivery stands: its state, and whether it was read.
func marks(d *pb.Delivery) []string {
	var m []string
	switch state := d.GetState(); {
	case state == pb.DeliveryState_DELIVERY_STATE_CLAIMED:
		m = append(m, "claimed "+d.GetClaimId())
	case state != pb.DeliveryState_DELIVERY_STATE_PENDING:
		m = append(m, strings.ToLower(enumOf(state)))
	case d.GetReadAt() == nil:
		m = append(m, "new")
	default:
		m = append(m, "read")
	}
	if d.GetAttempts() > 0 {
		m = append(m, fmt.Sprintf("failed %d of %d", d.GetAttempts(), d.GetMaxAttempts()))
	}
	return m
}

// print writes a message for people: a head of labelled lines, the text, the payload.
func (c *cli) print(w io.Writer, r rendered) {
	m := r.message
	fmt.Fprintf(w, "%d  %s  from %s to %s\n", m.GetRevision(), clean(m.GetType()), clean(sender(m)), clean(receiver(m.GetTarget())))
	for _, s := range []string{m.GetSubject(), strings.Join(r.facts, ", ")} {
		if s != "" {
			fmt.Fprintf(w, "  %s\n", clean(s))
		}
	}
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(w, "  %-12s %s\n", label, clean(value))
		}
	}
	line("id", m.GetId())
	line("sent", c.when(m.GetCreatedAt()))
	line("priority", strconv.Itoa(int(m.GetPriority())))
	if m.GetThreadId() != m.GetId() {
		line("thread", m.GetThreadId())
	}
	line("correlation", m.GetCorrelationId())
	line("answers", m.GetInReplyTo())
	line("task", m.GetTaskId())
	line("channel", m.GetChannel())
	line("labels", labels(m.GetLabels()))
	line("files", files(m.GetFiles()))
	line("artifacts", strings.Join(m.GetArtifacts(), ", "))
	line("expires", c.when(m.GetExpiresAt()))
	line("not before", c.when(m.GetNotBefore()))
	line("ordering", m.GetOrderingKey())
	if m.GetBody() != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimRight(clean(m.GetBody()), "\n"))
	}
	if m.GetPayload() != "" {
		fmt.Fprintf(w, "\n%s\n", clean(m.GetPayload()))
	}
}

// printPrompt writes a message for a language model: one line with what matters, the text, the payload. The
// lines around it carry a mark that no sender can know: text from outside cannot pretend to be another
// message, or the end of this one.
func (c *cli) printPrompt(w io.Writer, r rendered) {
	m := r.message
	head := []string{fmt.Sprintf("%s from %s to %s", m.GetType(), sender(m), receiver(m.GetTarget()))}
	if p := m.GetPriority(); p != 5 {
		head = append(head, fmt.Sprintf("priority %d", p))
	}
	head = append(head, "sent "+c.ago(m.GetCreatedAt()))
	add := func(label, value string) {
		if value != "" {
			head = append(head, label+" "+value)
		}
	}
	if m.GetThreadId() != m.GetId() {
		add("thread", m.GetThreadId())
	}
	add("correlation", m.GetCorrelationId())
	add("answers", m.GetInReplyTo())
	add("task", m.GetTaskId())
	head = append(head, r.facts...)
	fmt.Fprintf(w, "=== %s message %d: %s ===\n", c.env.Mark, m.GetRevision(), oneLine(strings.Join(head, ", ")))
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s: %s\n", label, clean(value))
		}
	}
	line("Subject", m.GetSubject())
	line("Labels", labels(m.GetLabels()))
	line("Files", files(m.GetFiles()))
	line("Artifacts", strings.Join(m.GetArtifacts(), ", "))
	if m.GetBody() != "" {
		fmt.Fprintln(w, strings.TrimRight(clean(m.GetBody()), "\n"))
	}
	line("Payload", m.GetPayload())
	fmt.Fprintf(w, "=== %s end ===\n", c.env.Mark)
	if r.closing != "" {
		fmt.Fprintln(w, r.closing)
	}
}

// sender says who sent a message, with the role.
func sender(m *pb.Message) string {
	if m.GetSenderRole() == "" {
		return m.GetSender()
	}
	return m.GetSender() + " (" + m.GetSenderRole() + ")"
}

// summary is a message's subject, or the beginning of what it says.
func summary(m *pb.Message) string {
	for _, s := range []string{m.GetSubject(), m.GetBody(), m.GetPayload()} {
		if s != "" {
			return clip(s, 60)
		}
	}
	return ""
}

// when says a time exactly and how long ago it was.
func (c *cli) when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format("2006-01-02 15:04:05") + " (" + c.ago(t) + ")"
}

func labels(m map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, k+"="+m[k])
	}
	return strings.Join(pairs, ", ")
}

func files(refs []*pb.FileReference) string {
	var s []string
	for _, f := range refs {
		if f.GetLine() > 0 {
			s = append(s, fmt.Sprintf("%s:%d", f.GetPath(), f.GetLine()))
		} else {
			s = append(s, f.GetPath())
		}
	}
	return strings.Join(s, ", ")
}
