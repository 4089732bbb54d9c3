package content

import (
	"strings"

	"brokerd/internal/validate"
)

// replyPrefix begins the subject of a reply that has no subject from its sender.
const replyPrefix = "Re: "

// ReplySubject returns the subject of a reply to a message with the given subject. It is empty if
// the message has none.
func ReplySubject(subject string) string {
	if subject == "" || isReply(subject) {
		return subject
	}
	return Clip(replyPrefix+subject, validate.MaxLine)
}

// isReply reports whether a subject begins with "Re:", in any case.
func isReply(subject string) bool {
	const prefix = "re:"
	return len(subject) >= len(prefix) && strings.EqualFold(subject[:len(prefix)], prefix)
}

// Title returns one line that says what a message is about: its subject or, if that is empty or
// begins with "Re:", the first line of its body that has text.
func Title(stored []byte) string {
	subject := Text(stored, Subject)
	if subject != "" && !isReply(subject) {
		return subject
	}
	for line := range strings.Lines(Text(stored, Body)) {
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
