package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var escapes = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)

// fill runs more steps than a lane has rows.
func fill(s *screen) {
	s.introduce(false)
	s.begin("Act 1")
	for i := range 20 {
		for _, m := range members {
			s.command(m.name, fmt.Sprintf("brokerctl send role:builder %q --priority %d", strings.Repeat("größer ", 20), i))
			s.result(m.name, red, fmt.Sprintf("%s step %d", m.name, i))
		}
	}
}

func TestScreen_TheBoardFitsTheTerminalAndKeepsItsPlace(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 60}} {
		var out strings.Builder
		s := newScreen(&out, time.Now, Style{Width: size[0], Height: size[1], Colour: true})
		fill(s)
		rows := 1 + len(members)*(1+s.rows)
		frames := strings.Split(out.String(), fmt.Sprintf("\x1b[%dA", rows))
		if len(frames) != 1+2*20*len(members) || rows >= size[1] {
			t.Fatalf("%v: %d frames of %d rows", size, len(frames), rows)
		}
		for _, frame := range frames {
			if n := strings.Count(frame, "\n"); n != rows {
				t.Fatalf("%v: a frame has %d rows, not %d", size, n, rows)
			}
		}
		last := escapes.ReplaceAllString(frames[len(frames)-1], "")
		for line := range strings.Lines(last) {
			if n := utf8.RuneCountInString(strings.Trim(line, "\r\n")); n >= size[0] {
				t.Errorf("%v: %d columns: %q", size, n, line)
			}
		}
		for _, m := range members {
			if !strings.Contains(last, "── "+m.name+" ── "+m.part) || !strings.Contains(last, m.name+" step 19") ||
				strings.Contains(last, m.name+" step 1\n") {
				t.Errorf("%v: the lane of %s:\n%s", size, m.name, last)
			}
			if !strings.Contains(out.String(), "\x1b["+m.colour+"m── "+m.name) {
				t.Errorf("%s has no colour", m.name)
			}
		}
	}
}

func TestScreen_ALowTerminalAndAPipeGetLines(t *testing.T) {
	for _, style := range []Style{{}, {Width: 60, Height: 10}} {
		var out strings.Builder
		fill(newScreen(&out, time.Now, style))
		if strings.Contains(out.String(), "\x1b") || strings.Count(out.String(), "\n") < 2*20*len(members) {
			t.Errorf("%+v:\n%s", style, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); style.Width > 0 && n > style.Width {
				t.Errorf("%d columns: %q", n, line)
			}
		}
	}
}

func TestScreen_JSONIsOneObjectPerStep(t *testing.T) {
	var out strings.Builder
	fill(newScreen(&out, time.Now, Style{JSON: true, Width: 80, Height: 24}))
	d := json.NewDecoder(strings.NewReader(out.String()))
	d.DisallowUnknownFields()
	steps := 0
	for ; ; steps++ {
		var step struct {
			Seconds              float64
			Agent, Command, Text string
		}
		err := d.Decode(&step)
		if err == io.EOF {
			break
		}
		if err != nil || step.Agent == "" || (step.Command == "") == (step.Text == "") {
			t.Fatalf("%+v: %v", step, err)
		}
	}
	if steps != 2*20*len(members) {
		t.Errorf("%d steps", steps)
	}
}

func TestTeam_CommandsWriteForTheTerminalOfTheDemo(t *testing.T) {
	for _, test := range []struct {
		style Style
		want  string // arguments and COLUMNS
	}{
		{Style{Width: 80, Height: 24}, "brokerctl --relative dlq list COLUMNS=77"},
		{Style{Width: 80}, "brokerctl --relative dlq list COLUMNS=58"},
		{Style{}, "brokerctl dlq list"},
		{Style{JSON: true, Width: 80, Height: 24}, "brokerctl dlq list"},
	} {
		m := newTeam("brokerctl", nil, t.TempDir(), newScreen(io.Discard, time.Now, test.style), 0)
		cmd := m.command(t.Context(), operator, []string{"dlq", "list"})
		got := strings.Join(cmd.Args, " ")
		if last := cmd.Env[len(cmd.Env)-1]; strings.HasPrefix(last, "COLUMNS=") {
			got += " " + last
		}
		if got != test.want {
			t.Errorf("%+v: %q, want %q", test.style, got, test.want)
		}
	}
}
