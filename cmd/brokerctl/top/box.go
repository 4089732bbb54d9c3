package top

import (
	"fmt"
	"strings"

	"charm.land/lipgloss/v2"

	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// dialogLines draws the dialog in a box.
func (m *Model) dialogLines() []string {
	d, width := &m.dialog, min(m.width-4, 100)
	var lines []string
	add := func(s string) { lines = append(lines, table.Wrap(prompt.OneLine(s), width-4)...) }
	if d.stage == choosing {
		lines = append(lines, m.theme().heading(table.Clip(d.about, width-4)))
		for i, a := range d.actions {
			line := table.Clip(fmt.Sprintf("%s%d %s", map[bool]string{true: "> ", false: "  "}[i == d.chosen], i+1,
				prompt.OneLine(a.label)), width-4)
			if i == d.chosen {
				line = m.theme().chosen(line)
			}
			lines = append(lines, line)
		}
	} else {
		add(d.action().effect)
		for i, f := range d.action().fields {
			lines = append(lines, m.fieldLine(f, i == d.field && d.stage == filling, width-4))
		}
	}
	switch d.stage {
	case counting:
		add("counting …")
	case confirming:
		if d.text != "" {
			add(d.text)
		}
		lines = append(lines, m.theme().heading("Do it? y/n"))
	case running:
		add("running …")
	}
	if d.failure != "" {
		for _, line := range table.Wrap(prompt.OneLine(d.failure), width-4) {
			lines = append(lines, m.theme().bad(line))
		}
	}
	return m.box(lines, width)
}

// fieldLine draws a field. A long value shows its end.
func (m *Model) fieldLine(f field, current bool, width int) string {
	value := prompt.OneLine(m.dialog.values[f.name])
	name := f.name + map[bool]string{true: " (required)"}[f.required] + ": "
	if len(f.options) > 0 {
		value = "◂ " + value + " ▸"
	} else if current {
		value += "▏"
	}
	free := max(width-2-table.Width(name), 8)
	for r := []rune(value); table.Width(value) > free; value = string(r) {
		r = r[1:]
	}
	line := table.Clip(map[bool]string{true: "> ", false: "  "}[current]+name+value, width)
	if current {
		return m.theme().heading(line)
	}
	return line
}

// helpLines lists the keys.
func (m *Model) helpLines() []string {
	var lines []string
	for _, k := range keyHelp {
		lines = append(lines, k[0]+strings.Repeat(" ", max(30-table.Width(k[0]), 1))+k[1])
	}
	return m.box(lines, min(m.width-4, 80))
}

// box draws lines in a frame in the middle of the body. Lines that do not fit are left out.
func (m *Model) box(lines []string, width int) []string {
	lines = lines[:min(len(lines), max(m.bodyHeight()-2, 1))]
	box := lipgloss.NewStyle().Border(lipgloss.RoundedBorder()).Padding(0,
		1).Width(width).Render(strings.Join(lines, "\n"))
	return splitLines(lipgloss.Place(m.width, m.bodyHeight(), lipgloss.Center, lipgloss.Center, box))
}
