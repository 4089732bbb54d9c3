package demo

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestTranscript_StaysWithinTheTerminal(t *testing.T) {
	var out strings.Builder
	at := time.Unix(0, 0)
	tr := newTranscript(&out, func() time.Time { at = at.Add(time.Second); return at }, Style{Width: 60})
	tr.say(builder1, red, "fails", "%s", strings.Repeat("größer ", 20))
	tr.line("%s", strings.Repeat("x", 200))
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 60 || !strings.HasSuffix(line, "…\n") {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestTranscript_ColoursEachOfTheTeamOnATerminal(t *testing.T) {
	var out strings.Builder
	tr := newTranscript(&out, time.Now, Style{Colour: true})
	for _, a := range members {
		tr.say(a.name, plain, "joins", "as %s", a.role)
	}
	for _, a := range members {
		if !strings.Contains(out.String(), "\x1b["+colourOf[a.name]+"m"+a.name) {
			t.Errorf("%s has no colour: %q", a.name, out.String())
		}
	}
}
