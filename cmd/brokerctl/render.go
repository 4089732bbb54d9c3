package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

// rendered is a message with what is known beside it: how it stands with a delivery or a claim.
type rendered struct {
	message *pb.Message
	facts   []string // such as "claim 7.1", "attempt 1 of 3"
	fault   string   // why the last attempt failed, as its agent says
	next    string   // what to do with it, as a command
}

// claimed renders a claim.
func (c *cli) claimed(claim *pb.ClaimedMessage) rendered {
	r := rendered{message: claim.GetMessage()}
	r.facts = append(r.facts, "claim "+claim.GetClaimId(), fmt.Sprintf("attempt %d of %d", claim.GetAttempt(), claim.GetMaxAttempts()))
	if claim.GetExpiresIn() != nil {
		r.facts = append(r.facts, "yours for "+table.Rough(claim.GetExpiresIn().AsDuration()))
	}
	if claim.GetResumed() {
		r.facts = append(r.facts, "held before")
	}
	r.next = c.afterClaim(claim.GetMessage(), claim.GetClaimId())
	return r
}

// received renders a message in a mailbox.
func (c *cli) received(item *pb.InboxItem) rendered {
	r := rendered{message: item.GetMessage()}
	if d := item.GetDelivery(); d != nil {
		r.next = c.afterMail(item.GetMessage(), d)
		r.facts = append(r.facts, standing(d))
	}
	return r
}

// standing returns the state of a delivery, and whether it was read; "" for a message without one.
func standing(d *pb.Delivery) string {
	if d == nil {
		return ""
	}
	var m []string
	switch state := d.GetState(); {
	case state == pb.DeliveryState_DELIVERY_STATE_CLAIMED:
		m = append(m, "claimed "+d.GetClaimId())
	case state != pb.DeliveryState_DELIVERY_STATE_PENDING:
		m = append(m, enumOf(state))
	case isQueue(d.GetMailbox()):
		m = append(m, "waiting")
	case d.GetReadAt() == nil && len(d.GetOffers()) > 0:
		m = append(m, "offered")
	case d.GetReadAt() == nil:
		m = append(m, "new")
	default:
		m = append(m, "read")
	}
	if isQueue(d.GetMailbox()) {
		m = append(m, "in "+d.GetMailbox())
	}
	if d.GetAttempts() > 0 {
		m = append(m, fmt.Sprintf("failed %d of %d", d.GetAttempts(), d.GetMaxAttempts()))
	}
	return strings.Join(m, ", ")
}

// render writes a message for whoever reads w.
func (c *cli) render(w io.Writer, r rendered) {
	if isPrompt(w) {
		c.printPrompt(w, r)
	} else {
		c.print(w, r)
	}
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
	line("id", cond(c.global.wide, m.GetId(), ""))
	line("sent", c.when(m.GetCreatedAt()))
	line("priority", strconv.Itoa(int(m.GetPriority())))
	if m.GetThreadId() != m.GetId() {
		line("thread", c.shortID(m.GetThreadId(), m.GetRevision()))
	}
	line("correlation", c.shortID(m.GetCorrelationId(), m.GetRevision()))
	line("answers", c.shortID(m.GetInReplyTo(), m.GetRevision()))
	if m.GetRequiresResponse() {
		line("answer due", c.when(m.GetResponseDeadline()))
	}
	line("task", m.GetTaskId())
	line("channel", m.GetChannel())
	line("labels", labels(m.GetLabels()))
	line("files", files(m.GetFiles()))
	if some := m.GetArtifacts(); len(some) > 0 {
		line("artifacts", strings.Join(some, ", ")+"  ("+c.downloadHint()+")")
	}
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

// shortID writes the id of a message as its number, which the last 48 bits of the id are. newest is
// the highest number that it can have. Another UUID is only shown with --wide; a name is shown as
// it is.
func (c *cli) shortID(id string, newest int64) string {
	u, err := uuid.Parse(id)
	if err != nil || len(id) != len(uuid.Nil.String()) {
		return id
	}
	if n := int64(binary.BigEndian.Uint64(u[8:]) & (1<<48 - 1)); u.Version() == 7 && 0 < n && n <= newest {
		return strconv.FormatInt(n, 10)
	}
	if format, _ := c.format(); c.global.wide && format != formatPrompt {
		return id
	}
	return ""
}

// sender says who sent a message, with the role.
func sender(m *pb.Message) string {
	if m.GetSenderRole() == "" {
		return m.GetSender()
	}
	return m.GetSender() + " (" + m.GetSenderRole() + ")"
}

// summary is one line for lists: the subject, or the first line of the body where the subject is
// empty or begins with "Re:".
func summary(m *pb.Message) string {
	for _, s := range []string{ownSubject(m), firstLine(m.GetBody()), m.GetSubject(), m.GetPayload()} {
		if s != "" {
			return clip(s, mostText)
		}
	}
	return ""
}

// ownSubject is a message's subject, or "" if it begins with "Re:" and so repeats that of another
// message.
func ownSubject(m *pb.Message) string {
	const prefix = "re:"
	s := m.GetSubject()
	if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return ""
	}
	return s
}

// firstLine is the first line of a text that is not blank.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// downloadHint says how to read the artifacts of a message.
func (c *cli) downloadHint() string {
	const line = "artifact download NAME"
	if c.tools {
		return toolCall(line)
	}
	return "brokerctl " + line
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
