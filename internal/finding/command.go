package finding

import "strings"

// A Command is the words of one of brokerctl, without that name and unquoted: dlq, redrive, 4711.
type Command []string

// defaultSession is the session that brokerctl means if none is named.
const defaultSession = "default"

// Line returns a command as it is typed into a shell, for a caller in the given session.
func (words Command) Line(session string) string {
	var b strings.Builder
	b.WriteString("brokerctl")
	if session != defaultSession {
		b.WriteString(" --session " + shellWord(session))
	}
	for _, word := range words {
		b.WriteString(" " + shellWord(word))
	}
	return b.String()
}

// shellWord quotes a word for a shell where it needs that.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
