package mail

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"brokerd/cmd/brokerctl/internal/command"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// Render writes a message for the reader of w, a person or a language model.
func Render(c *command.Caller, w io.Writer, r prompt.Rendered) {
	if prompt.ForModel(w) {
		c.Voice().Message(w, r)
	} else {
		Print(c, w, r)
	}
}

// Print writes a message for people: a head of labelled lines, the text, the payload.
func Print(c *command.Caller, w io.Writer, r prompt.Rendered) {
	m := r.Message
	fmt.Fprintf(w, "%d  %s  from %s to %s\n", m.GetRevision(), prompt.TypeOf(m, prompt.Clean), prompt.Clean(Sender(m)),
		prompt.Clean(prompt.Receiver(m.GetTarget())))
	for _, s := range []string{m.GetSubject(), strings.Join(r.Facts, ", ")} {
		if s != "" {
			fmt.Fprintf(w, "  %s\n", prompt.Clean(s))
		}
	}
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(w, "  %-12s %s\n", label, prompt.Clean(value))
		}
	}
	line("id", prompt.Either(c.Global.Wide, m.GetId(), ""))
	line("sent", c.When(m.GetCreatedAt()))
	line("priority", strconv.Itoa(int(m.GetPriority())))
	if m.GetThreadId() != m.GetId() {
		line("thread", c.ShortID(m.GetThreadId(), m.GetRevision()))
	}
	line("correlation", c.ShortID(m.GetCorrelationId(), m.GetRevision()))
	line("answers", c.ShortID(m.GetInReplyTo(), m.GetRevision()))
	if m.GetRequiresResponse() {
		line("answer due", c.When(m.GetResponseDeadline()))
	}
	line("task", m.GetTaskId())
	line("channel", m.GetChannel())
	line("labels", prompt.Labels(m.GetLabels()))
	line("files", prompt.Files(m.GetFiles()))
	if some := m.GetArtifacts(); len(some) > 0 {
		line("artifacts", strings.Join(some, ", ")+"  (brokerctl artifact download NAME)")
	}
	line("expires", c.When(m.GetExpiresAt()))
	line("not before", c.When(m.GetNotBefore()))
	line("ordering", m.GetOrderingKey())
	if m.GetBody() != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimRight(prompt.Clean(m.GetBody()), "\n"))
	}
	if m.GetPayload() != "" {
		fmt.Fprintf(w, "\n%s\n", prompt.Clean(m.GetPayload()))
	}
}

// Sender says who sent a message, with the role.
func Sender(m *pb.Message) string {
	if m.GetSenderRole() == "" {
		return m.GetSender()
	}
	return m.GetSender() + " (" + m.GetSenderRole() + ")"
}
