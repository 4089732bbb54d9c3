package top

import (
	"strings"

	"charm.land/lipgloss/v2"

	"brokerd/cmd/brokerctl/table"
)

// helpLines lists the keys.
func helpLines() []string {
	var lines []string
	for _, k := range keyHelp {
		lines = append(lines, k[0]+strings.Repeat(" ", max(30-table.Width(k[0]), 1))+k[1])
	}
	return lines
}

// box draws lines in a frame in the middle of the body. Lines that do not fit are left out.
func (m *Model) box(lines []string, width int) []string {
	lines = lines[:min(len(lines), max(m.bodyHeight()-2, 1))]
	box := lipgloss.NewStyle().Border(lipgloss.RoundedBorder()).Padding(0,
		1).Width(width).Render(strings.Join(lines, "\n"))
	return splitLines(lipgloss.Place(m.width, m.bodyHeight(), lipgloss.Center, lipgloss.Center, box))
}
