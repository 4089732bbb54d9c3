package admin

import (
	"strings"

	"brokerd/internal/fault"
	"brokerd/internal/finding"
	"brokerd/internal/store"
)

// mostFindings bounds an answer.
const mostFindings = 100

// An Explainer finds what is stuck in one feature, and why.
type Explainer interface {
	// Explain returns what the feature knows of the question; nothing if that is no matter of its own, or if it knows nothing.
	// It reads by index alone, and a bounded number of rows. Errors: fault.NotFound for what does not exist, fault.Invalid for what
	// cannot.
	Explain(q store.Querier, about finding.Question) ([]finding.Finding, error)
}

// explain asks all features, and returns the worst first, then the oldest, at most mostFindings. Errors: fault.NotFound if none of them knows
// of what is asked.
func explain(q store.Querier, all []Explainer, about finding.Question) ([]finding.Finding, error) {
	var found []finding.Finding
	for _, e := range all {
		some, err := e.Explain(q, about)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	if len(found) == 0 && about.Kind != finding.Everything {
		noun := [...]string{finding.Message: "message", finding.Lock: "lock", finding.Token: "token", finding.Agent: "agent", finding.Role: "role"}[about.Kind]
		return nil, fault.Missing(noun, about.Name, "there is no %s %q in this session", noun, about.Name)
	}
	finding.Sort(found)
	return found[:min(len(found), mostFindings)], nil
}

// defaultSession is the session that brokerctl means if none is named.
const defaultSession = "default"

// line writes a command as it is typed into a shell.
func line(session string, words finding.Command) string {
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
