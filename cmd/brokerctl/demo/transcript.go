package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Style is how the transcript is written. The zero value is plain text without a bound on its lines.
type Style struct {
	Colour bool
	Width  int // columns of the terminal; 0 = lines may be as long as they are
}

// columns returns how many columns of the width fit, 1 to most.
func (s Style) columns(width, most int) int {
	if s.Width == 0 {
		return most
	}
	return min(max(s.Width/width, 1), most)
}

// The widths of the columns before the text: when, who, does.
const (
	whenWidth = 6
	whoWidth  = 9
	doesWidth = 9
	textAt    = whenWidth + 2 + whoWidth + 2 + doesWidth + 2
)

// Colours of a terminal (SGR).
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
	purple = "35"
	cyan   = "36"
)

// colourOf gives each of the team a colour of its own.
var colourOf = map[string]string{leader: purple, builder1: cyan, builder2: blue, reviewer: yellow, overseer: dim}

// transcript writes what happens, one line each, as it happens. It is safe for concurrent use.
type transcript struct {
	style Style
	now   func() time.Time
	start time.Time

	mu  sync.Mutex
	out io.Writer
}

func newTranscript(out io.Writer, now func() time.Time, style Style) *transcript {
	return &transcript{style: style, now: now, start: now(), out: out}
}

// say writes a line of the transcript: who does what. tone colours what is done.
func (t *transcript) say(who, tone, does, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if t.style.Width > 0 {
		text = clip(text, max(t.style.Width-textAt, 10))
	}
	fmt.Fprintf(t.out, "%s  %s  %s  %s\n",
		t.paint(dim, fmt.Sprintf("%*.2fs", whenWidth-1, t.now().Sub(t.start).Seconds())),
		t.paint(colourOf[who], fmt.Sprintf("%-*s", whoWidth, who)),
		t.paint(tone, fmt.Sprintf("%-*s", doesWidth, does)), text)
}

// title writes a heading with an empty line before it.
func (t *transcript) title(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "\n%s\n", t.paint(bold, text))
}

// line writes a line that belongs to nobody.
func (t *transcript) line(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if t.style.Width > 0 {
		text = clip(text, max(t.style.Width-1, 10))
	}
	fmt.Fprintln(t.out, text)
}

func (t *transcript) paint(colour, text string) string {
	if !t.style.Colour || colour == plain {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// clip shortens a text to n runes.
func clip(text string, n int) string {
	r := []rune(text)
	if len(r) <= n {
		return text
	}
	return strings.TrimRight(string(r[:n-1]), " ") + "…"
}
