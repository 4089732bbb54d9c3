package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"brokerd/cmd/brokerctl/toolcall"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// printPrompt writes a message for a language model: a frame with what matters in its first line, the text and the
// payload, and outside of it what to do next. All that is not the message's own text stays under 200 tokens.
func (c *cli) printPrompt(w io.Writer, r rendered) {
	m := r.message
	from := brief(m.GetSender())
	if role := m.GetSenderRole(); role != "" {
		from += " (" + brief(role) + ")"
	}
	head := []string{
		fmt.Sprintf("%s from %s to %s", brief(m.GetType()), from, brief(receiver(m.GetTarget()))),
		fmt.Sprintf("priority %d", m.GetPriority()), "sent " + c.when(m.GetCreatedAt()),
	}
	var text strings.Builder
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%s: %s\n", label, clean(value))
		}
	}
	add := func(label, value string) {
		switch {
		case prompt.Word(value):
			head = append(head, label+" "+brief(value))
		case value != "": // the sender has chosen it
			line(strings.ToUpper(label[:1])+label[1:], value)
		}
	}
	if m.GetThreadId() != m.GetId() {
		add("thread", c.shortID(m.GetThreadId(), m.GetRevision()))
	}
	add("correlation", c.shortID(m.GetCorrelationId(), m.GetRevision()))
	add("answers", c.shortID(m.GetInReplyTo(), m.GetRevision()))
	add("task", m.GetTaskId())
	if m.GetRequiresResponse() {
		head = append(head, "an answer is due "+c.when(m.GetResponseDeadline()))
	}
	head = append(head, r.facts...)
	line("Subject", m.GetSubject())
	line("Labels", labels(m.GetLabels()))
	line("Files", files(m.GetFiles()))
	line("Artifacts ("+c.downloadHint()+")", strings.Join(m.GetArtifacts(), ", "))
	if m.GetBody() != "" {
		fmt.Fprintln(&text, strings.TrimRight(clean(m.GetBody()), "\n"))
	}
	line("Payload", m.GetPayload())
	line("Error", r.fault)
	framed(w, fmt.Sprintf("message %d: %s", m.GetRevision(), strings.Join(head, ", ")), text.String())
	if r.next != "" {
		say(w, "Next: %s", r.next)
	}
}

// brief shortens a name or an id to at most 36 bytes, the length of a UUID: they may be long, and the line they
// are in must not be.
func brief(s string) string {
	const most = 36
	if s = strings.Join(strings.Fields(s), " "); len(s) <= most {
		return s
	}
	cut := most - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// again is how a suggested command begins: with the flags by which this run was told where and as whom it acts.
func (c *cli) again() string {
	s := "brokerctl" + cond(c.global.noConfig, " --no-config", "") + cond(c.global.operator, " --agent ''", "")
	for _, f := range [][2]string{{"--addr", c.global.addr}, {"--session", c.global.session}, {"--agent", c.global.agent}} {
		if f[1] != "" {
			s += " " + f[0] + " " + shellWord(f[1])
		}
	}
	return s
}

// command is a suggested command line, with the flags by which this run was told where and as whom
// it acts. For an MCP client, it is the tool call with the same effect.
func (c *cli) command(format string, args ...any) string {
	if c.tools {
		return toolCall(fmt.Sprintf(format, args...))
	}
	return c.again() + " " + fmt.Sprintf(format, args...)
}

// also is a command that follows another one in a sentence: a shell's needs no flags again.
func (c *cli) also(format string, args ...any) string {
	if c.tools {
		return c.command(format, args...)
	}
	return fmt.Sprintf(format, args...)
}

// toolCall is the tool call for a command line. If no tool does this, only a person with a shell can.
func toolCall(line string) string {
	if call, ok := toolcall.Call(toolcall.Split(line)); ok {
		return call
	}
	return "(in a shell) brokerctl " + line
}

// shellWord quotes an argument for a shell, where it needs that.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// directives are the types of messages that tell an agent how to go on, with what it is to do.
var directives = []struct{ kind, short, advice string }{
	{"nudge", "Ask agents to read their messages", "look at what waits for you and go on"},
	{"halt", "Stop agents: they receive only directives until a resume", "stop working now; nothing but directives comes until a resume"},
	{"resume", "Let halted agents continue", "go on working"},
	{"terminate", "Tell agents to end", "end now: release what you hold, deregister with agent deregister, and stop"},
	{"shutdown_request", "", "finish or release what you hold, deregister, and stop"},
}

// advice says what a directive wants; "" for other messages.
func advice(m *pb.Message) string {
	for _, d := range directives {
		if d.kind == m.GetType() {
			return d.advice
		}
	}
	return ""
}

// todo is the advice with the command that it names.
func (c *cli) todo(m *pb.Message) string {
	return strings.Replace(advice(m), "agent deregister", c.also("agent deregister"), 1)
}

// afterClaim says what to do with a claim.
func (c *cli) afterClaim(m *pb.Message, id string) string {
	finish := "ack " + id
	if i := c.itemOf(m); i != nil {
		return c.afterItem(i)
	}
	switch todo := c.todo(m); {
	case todo != "":
		return fmt.Sprintf("%s. To say that you have seen it: %s", todo, c.command("ack %s", id))
	case m.GetRequiresResponse():
		finish = fmt.Sprintf("reply %s ANSWER --ack", id)
	case wantsReport(m):
		finish = fmt.Sprintf("reply %s RESULT --ack", id)
	}
	return fmt.Sprintf("%s when done; %s if it failed; %s to return it", c.command("%s", finish),
		c.also("nack %s --error WHY", id), c.also("release %s", id))
}

// wantsReport reports whether the sender of a message should receive the result: an agent that sent
// it to one agent or to a role. A reply needs no further reply.
func wantsReport(m *pb.Message) bool {
	switch m.GetTarget().GetTo().(type) {
	case *pb.Target_Agent, *pb.Target_Role:
		return m.GetInReplyTo() == "" && m.GetSender() != "" && m.GetSender() != "system"
	}
	return false
}

// afterMail says what to do with a message in the own mailbox.
func (c *cli) afterMail(m *pb.Message, d *pb.Delivery) string {
	switch state := d.GetState(); {
	case state == pb.DeliveryState_DELIVERY_STATE_CLAIMED:
		return c.afterClaim(m, d.GetClaimId())
	case state != pb.DeliveryState_DELIVERY_STATE_PENDING:
		return ""
	case isQueue(d.GetMailbox()):
		return c.command("claim %d", m.GetRevision()) + " to take it"
	}
	if i := c.itemOf(m); i != nil {
		return c.afterItem(i)
	}
	if advice(m) != "" {
		return fmt.Sprintf("%s. To say that you have seen it: %s", c.todo(m), c.command("ack %d", m.GetRevision()))
	}
	return fmt.Sprintf("%s when dealt with; %s to answer",
		c.command("ack %d", m.GetRevision()), c.also("reply %d ANSWER", m.GetRevision()))
}
