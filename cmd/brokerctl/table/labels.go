package table

import (
	"io"
	"strings"
)

// Labels collects lines of a label and a value, and aligns the values.
type Labels struct {
	screen Screen
	lines  []label
}

type label struct {
	name, value string
	state       bool
}

// NewLabels returns an empty list.
func NewLabels(s Screen) *Labels { return &Labels{screen: s} }

// Add adds a line.
func (l *Labels) Add(name, value string) { l.lines = append(l.lines, label{name, value, false}) }

// AddState adds a line whose value is a state or a health, which has a colour.
func (l *Labels) AddState(name, value string) { l.lines = append(l.lines, label{name, value, true}) }

// Write writes the lines. A value that is too long for the screen takes more lines.
func (l *Labels) Write(w io.Writer) error {
	most := 0
	for _, line := range l.lines {
		most = max(most, Width(line.name))
	}
	indent := strings.Repeat(" ", most) + gap
	var b strings.Builder
	for _, line := range l.lines {
		parts := []string{line.value}
		if n := l.screen.Width - len(indent); n > 0 && !l.screen.Wide && Width(line.value) > n {
			parts = Wrap(line.value, n)
		}
		for i, part := range parts {
			before := indent
			if i == 0 {
				before = line.name + strings.Repeat(" ", most-Width(line.name)) + gap
			}
			if line.state && l.screen.Color {
				part = Paint(part)
			}
			b.WriteString(strings.TrimRight(before+part, " ") + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
