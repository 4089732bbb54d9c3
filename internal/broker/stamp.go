package broker

import (
	"slices"
	"strings"

	"brokerd/internal/content"
	"brokerd/internal/validate"
)

// replyPrefix begins the subject of a reply that has no subject from its sender.
const replyPrefix = "Re: "

// complete returns the draft with the fields that the broker fills in. A reply without a task gets
// the task of the message that it answers, and a reply without a subject gets that message's
// subject behind "Re: ". A message that requires a response gets its deadline. The given draft
// stays as it is, because the writer can run its function a second time.
func (s *SendTx) complete(d *Draft, a *answer) *Draft {
	if a == nil && !d.Response {
		return d
	}
	c := *d
	var f content.Added
	if a != nil && c.Task == "" {
		f.Task = content.Text(a.to.Content, content.Task)
		c.Task = f.Task
	}
	if a != nil && c.Subject == "" {
		f.Subject = replySubject(content.Text(a.to.Content, content.Subject))
		c.Subject = f.Subject
	}
	if c.Response && c.Deadline.IsZero() {
		within := c.Within
		if within == 0 {
			within = s.actor.Session.ResponseTime
		}
		f.Deadline = s.tx.Now().Add(within)
		c.Deadline = f.Deadline
	}
	c.Content = slices.Concat(d.Content, f.Marshal())
	return &c
}

// replySubject returns the subject of a reply to a message with the given subject. It is empty if
// the message has none.
func replySubject(subject string) string {
	if subject == "" || isReplySubject(subject) {
		return subject
	}
	return Clip(replyPrefix+subject, validate.MaxLine)
}

// isReplySubject reports whether a subject begins with "Re:", in any case.
func isReplySubject(subject string) bool {
	const prefix = "re:"
	return len(subject) >= len(prefix) && strings.EqualFold(subject[:len(prefix)], prefix)
}

// Title returns one line that says what a message is about: its subject or, if that is empty or
// begins with "Re:", the first line of its body that has text.
func Title(stored []byte) string {
	subject := content.Text(stored, content.Subject)
	if subject != "" && !isReplySubject(subject) {
		return subject
	}
	for line := range strings.Lines(content.Text(stored, content.Body)) {
		if line = strings.TrimSpace(line); line != "" {
			return Clip(line, validate.MaxLine)
		}
	}
	return subject
}

// Clip shortens a text to at most most bytes.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len("…")], "") + "…"
}
