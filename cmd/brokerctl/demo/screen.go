package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"brokerd/internal/prompt"
)

// Style is how the demonstration appears. The zero value is plain text, one line per step.
type Style struct {
	Colour bool
	Width  int // columns of the terminal; 0 = unlimited
	Height int // rows of the terminal; 0 = no terminal
	JSON   bool
}

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

// mostLaneRows limits the rows of a lane on a high terminal.
const mostLaneRows = 8

// A screen shows the steps of the team: on a terminal as a board with a lane for each member, else
// one line per step, or as JSON. It is safe for concurrent use.
type screen struct {
	style Style
	now   func() time.Time
	start time.Time
	rows  int // of a lane below its head; 0 = no board

	mu    sync.Mutex
	out   io.Writer
	act   string
	lanes map[string][]string // the last rows of each member
	drawn bool                // the board is on the terminal, and the cursor below it
}

func newScreen(out io.Writer, now func() time.Time, style Style) *screen {
	s := &screen{style: style, now: now, start: now(), out: out, lanes: map[string][]string{}}
	// A row for the title, a head for each lane, and a row for the cursor.
	if rows := (style.Height-2)/len(members) - 1; rows >= 2 && !style.JSON && style.Width > 0 {
		s.rows = min(rows, mostLaneRows)
	}
	return s
}

// introduce explains who takes part and how to read the rest.
func (s *screen) introduce(here bool) {
	if s.style.JSON || s.rows > 0 { // the heads of the lanes explain the board
		return
	}
	where := prompt.Either(here, "A team in a separate session.", "A team and a separate broker, in a temporary folder.")
	s.line(where + " Ctrl-C ends it.")
	for _, m := range members {
		s.line(fmt.Sprintf("  %s  %s", s.paint(m.colour, fmt.Sprintf("%-9s", m.name)), m.part))
	}
	s.line("A line with $ is a command of the agent before it (export BROKERD_AGENT=NAME).")
}

// begin starts an act.
func (s *screen) begin(act string) {
	if s.rows == 0 {
		s.title(act)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.act = act
	s.draw()
}

// command shows a command that a member runs.
func (s *screen) command(member, command string) { s.step(member, bold, "$ "+command, command, "") }

// result shows what happened to a member, usually the output of its command.
func (s *screen) result(member, tone, text string) { s.step(member, tone, "  "+text, "", text) }

func (s *screen) step(member, tone, row, command, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := s.now().Sub(s.start).Seconds()
	switch {
	case s.style.JSON:
		step, err := json.Marshal(struct {
			Seconds float64 `json:"seconds"`
			Agent   string  `json:"agent"`
			Command string  `json:"command"`
			Text    string  `json:"text"`
		}{float64(int(took*100)) / 100, member, command, text})
		if err == nil { // a struct of strings and a number always has a form
			_, _ = s.out.Write(append(step, '\n')) // the outlet reports the error
		}
	case s.rows > 0:
		s.lanes[member] = append(s.lanes[member], s.paint(tone, clip(row, s.style.Width-1)))
		s.lanes[member] = s.lanes[member][max(0, len(s.lanes[member])-s.rows):]
		s.draw()
	default:
		if s.style.Width > 0 {
			row = clip(row, s.textWidth()+len("  "))
		}
		fmt.Fprintf(s.out, "%s  %s  %s\n", s.paint(dim, fmt.Sprintf("%5.2fs", took)),
			s.paint(colourOf(member), fmt.Sprintf("%-9s", member)), s.paint(tone, row))
	}
}

// textWidth is the width of the text of a result; 0 = unlimited.
func (s *screen) textWidth() int {
	switch {
	case s.style.Width <= 0 || s.style.JSON:
		return 0
	case s.rows > 0:
		return s.style.Width - 1 - len("  ")
	}
	return max(s.style.Width-20, 10) - len("  ")
}

// draw writes the board over the previous one, in one write. mu is held.
func (s *screen) draw() {
	var b bytes.Buffer
	if s.drawn {
		fmt.Fprintf(&b, "\x1b[%dA", 1+len(members)*(1+s.rows))
	}
	row := func(text string) { fmt.Fprintf(&b, "\r%s\x1b[K\n", text) }
	row(s.paint(bold, clip(s.act+" (Ctrl-C ends it)", s.style.Width-1)))
	for _, m := range members {
		head := clip("── "+m.name+" ── "+m.part+" "+strings.Repeat("─", s.style.Width), s.style.Width-1)
		row(s.paint(m.colour, strings.TrimSuffix(head, "…")))
		for i := range s.rows {
			if lane := s.lanes[m.name]; i < len(lane) {
				row(lane[i])
			} else {
				row("")
			}
		}
	}
	s.drawn = true
	_, _ = s.out.Write(b.Bytes()) // the outlet reports the error
}

// title writes a heading with an empty line before it.
func (s *screen) title(text string) {
	if s.style.JSON {
		return
	}
	s.line("")
	s.line(s.paint(bold, text))
}

// line writes a line of no member.
func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.style.Width > 0 && !strings.Contains(text, "\x1b") {
		text = clip(text, max(s.style.Width-1, 10))
	}
	fmt.Fprintln(s.out, text)
}

func (s *screen) paint(colour, text string) string {
	return prompt.Either(!s.style.Colour || colour == plain, text, "\x1b["+colour+"m"+text+"\x1b[0m")
}

// clip shortens a text to n runes.
func clip(text string, n int) string {
	r := []rune(text)
	if len(r) <= n {
		return text
	}
	return strings.TrimRight(string(r[:n-1]), " ") + "…"
}
