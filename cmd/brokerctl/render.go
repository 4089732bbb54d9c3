package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// render writes a message for whoever reads w.
func (c *cli) render(w io.Writer, r prompt.Rendered) {
	if prompt.ForModel(w) {
		c.printPrompt(w, r)
	} else {
		c.print(w, r)
	}
}

// print writes a message for people: a head of labelled lines, the text, the payload.
func (c *cli) print(w io.Writer, r prompt.Rendered) {
	m := r.Message
	fmt.Fprintf(w, "%d  %s  from %s to %s\n", m.GetRevision(), prompt.TypeOf(m, prompt.Clean), prompt.Clean(sender(m)),
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
	line("id", prompt.Either(c.global.wide, m.GetId(), ""))
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
	line("labels", prompt.Labels(m.GetLabels()))
	line("files", prompt.Files(m.GetFiles()))
	if some := m.GetArtifacts(); len(some) > 0 {
		line("artifacts", strings.Join(some, ", ")+"  (brokerctl artifact download NAME)")
	}
	line("expires", c.when(m.GetExpiresAt()))
	line("not before", c.when(m.GetNotBefore()))
	line("ordering", m.GetOrderingKey())
	if m.GetBody() != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimRight(prompt.Clean(m.GetBody()), "\n"))
	}
	if m.GetPayload() != "" {
		fmt.Fprintf(w, "\n%s\n", prompt.Clean(m.GetPayload()))
	}
}

// shortID writes the id of a message as its number. Another UUID is only shown with --wide; a name is shown as it is.
// newest is the highest number that it can have.
func (c *cli) shortID(id string, newest int64) string {
	short := prompt.ShortID(id, newest)
	if format, _ := c.format(); short == "" && c.global.wide && format != formatPrompt {
		return id
	}
	return short
}

// sender says who sent a message, with the role.
func sender(m *pb.Message) string {
	if m.GetSenderRole() == "" {
		return m.GetSender()
	}
	return m.GetSender() + " (" + m.GetSenderRole() + ")"
}
