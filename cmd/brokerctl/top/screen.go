package top

import (
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
)

// A theme paints texts. Without colour it changes nothing.
type theme struct{ color bool }

func (t theme) paint(s string, style lipgloss.Style) string {
	if !t.color || s == "" {
		return s
	}
	return style.Render(s)
}

func (t theme) heading(s string) string { return t.paint(s, lipgloss.NewStyle().Bold(true)) }
func (t theme) dim(s string) string     { return t.paint(s, lipgloss.NewStyle().Faint(true)) }
func (t theme) chosen(s string) string  { return t.paint(s, lipgloss.NewStyle().Reverse(true)) }
func (t theme) bad(s string) string     { return t.paint(s, lipgloss.NewStyle().Foreground(lipgloss.Red)) }
func (t theme) good(s string) string {
	return t.paint(s, lipgloss.NewStyle().Foreground(lipgloss.Green))
}

func (m *Model) theme() theme { return theme{m.options.Color} }

// The lines of the screen around the body: totals, views, the state of the view; and the keys.
const (
	headLines = 3
	footLines = 1
)

// The smallest terminal on which anything is drawn.
const (
	leastWidth  = 40
	leastHeight = 10
)

func (m *Model) bodyHeight() int { return max(m.height-headLines-footLines, 1) }

// View draws the screen.
func (m Model) View() tea.View {
	var v tea.View
	v.SetContent(m.Screen())
	v.AltScreen = true
	v.WindowTitle = "brokerctl top"
	return v
}

// Screen returns the lines of the screen, as many as the terminal has.
func (m Model) Screen() string {
	if m.width == 0 || m.height == 0 { // before the first message
		return ""
	}
	lines := make([]string, m.height)
	if m.width < leastWidth || m.height < leastHeight {
		lines[0] = table.Clip("This terminal is too small.", m.width)
		return strings.Join(lines, "\n")
	}
	var body []string
	switch {
	case m.help:
		body = m.box(helpLines(), min(m.width-4, 80))
	case m.dialog.stage != closed:
		width := min(m.width-4, 100)
		body = m.box(m.dialog.lines(width-4, m.theme()), width)
	case m.picker.open:
		body = m.pickerLines()
	case m.panel.open:
		lines := m.panelLines()
		body = lines[min(m.panel.scroll, max(len(lines)-1, 0)):]
	default:
		body = m.rowLines()
	}
	copy(lines, []string{m.totalsLine(), m.tabsLine(), m.stateLine()})
	copy(lines[headLines:m.height-footLines], body)
	lines[m.height-1] = m.footLine()
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// totalsLine has the totals of the session, and the state of the connection.
func (m *Model) totalsLine() string {
	state, paint := "live", m.theme().good
	switch {
	case m.lost != nil && m.frame == nil:
		state, paint = "NOT CONNECTED, trying again", m.theme().bad
	case m.lost != nil:
		state, paint = "NOT CONNECTED, frame of "+prompt.Relative(m.framed.Sub(m.options.Now())), m.theme().bad
	case m.frame == nil:
		return "connecting …"
	case m.frame.GetClosed():
		state = "closed"
	}
	totals := "brokerd"
	if m.frame != nil {
		t := m.frame.GetTotals()
		totals = prompt.OneLine(m.frame.GetSession()) + "  " + prompt.Count(int64(t.GetAgents()), "agent")
		totals += table.Absent(t.GetLateAgents(), t.GetFailedAgents(), t.GetStoppedAgents())
		totals += fmt.Sprintf("  %d waiting, %d claimed, %d dead", t.GetWaiting(), t.GetClaimed(), t.GetDead())
		if n := t.GetOperatorMail(); n > 0 {
			totals += fmt.Sprintf(", %d for operators", n)
		}
	}
	state = table.Clip(state, m.width)
	free := max(m.width-table.Width(state)-2, 0)
	if t := m.frame.GetTotals(); t != nil {
		rates := fmt.Sprintf("  %.1f sent/s, %.1f done/s", t.GetSentRate(), t.GetProcessedRate())
		if table.Width(totals+rates) <= free {
			totals += rates
		}
	}
	totals = table.Clip(totals, free)
	return m.theme().heading(totals) + strings.Repeat(" ", max(m.width-table.Width(totals)-table.Width(state), 0)) +
		paint(state)
}

// tabsLine names the views.
func (m *Model) tabsLine() string {
	names := make([]string, len(views))
	width := 0
	for i, v := range views {
		names[i] = fmt.Sprintf("%d %s", i+1, v.title)
		width += len(names[i]) + 2
	}
	if width > m.width {
		for i, v := range views {
			names[i] = fmt.Sprintf("%d %s", i+1, v.short)
		}
	}
	var b strings.Builder
	left := m.width
	for i, name := range names {
		name = " " + name + " "
		if i == m.current {
			name = "[" + name[1:len(name)-1] + "]"
		}
		name = table.Clip(name, left)
		left -= table.Width(name)
		if i == m.current {
			name = m.theme().chosen(name)
		}
		b.WriteString(name)
	}
	return b.String()
}

// stateLine has the question of the view, or how its rows are chosen.
func (m *Model) stateLine() string {
	t, v := &m.tabs[m.current], views[m.current]
	var parts []string
	switch {
	case m.panel.open:
		parts = append(parts, m.panel.row.name())
	case t.err != nil:
		return m.theme().bad(table.Clip(m.explain(t.err), m.width))
	}
	if m.typing || t.filter != "" {
		parts = append(parts, "filter: "+prompt.OneLine(t.filter)+map[bool]string{true: "▏"}[m.typing])
	}
	if t.sort > 0 {
		parts = append(parts, "by "+strings.ToLower(v.columns[t.sort-1].Name))
	}
	if t.reverse {
		parts = append(parts, "reversed")
	}
	if t.held != nil {
		parts = append(parts, "held: new rows are not shown")
	}
	if len(parts) == 0 {
		parts = []string{v.question}
	}
	return m.theme().dim(table.Clip(strings.Join(parts, ", "), m.width))
}

// footLine has the result of the last action, or the keys.
func (m *Model) footLine() string {
	keys := []string{"Enter open", "a act", "/ filter", "s sort", "Space hold", "? keys", "q quit"}
	switch {
	case m.notice != "":
		return table.Clip(prompt.OneLine(m.notice), m.width)
	case m.picker.open:
		keys = []string{"↑↓ choose", "Enter show the session", "Esc cancel"}
	case m.typing:
		keys = []string{"Enter keep the filter", "Esc remove it"}
	case m.dialog.stage == choosing:
		keys = []string{"↑↓ choose", "Enter continue", "Esc cancel"}
	case m.dialog.stage == filling:
		keys = []string{"Tab next field", "←→ choose a value", "Enter continue", "Esc cancel"}
	case m.dialog.stage != closed:
		keys = []string{"y do it", "n cancel"}
	case m.panel.open:
		keys = []string{"↑↓ scroll", "a act", "Esc close", "? keys", "q quit"}
	}
	if m.observer {
		keys = slices.DeleteFunc(keys, func(s string) bool { return s == "a act" })
		keys = append(keys, "(observer)")
	}
	return m.theme().dim(table.Clip(strings.Join(keys, "  "), m.width))
}

// rowLines draws the table of the visible view around the selected row.
func (m *Model) rowLines() []string {
	t, v, rows := &m.tabs[m.current], views[m.current], m.rows()
	if len(rows) == 0 {
		switch {
		case m.frame == nil || v.load != nil && t.data == nil && t.err == nil:
			return []string{"loading …"}
		case t.filter != "":
			return []string{"no row has this text"}
		}
		return []string{v.none}
	}
	columns := slices.Clone(v.columns)
	if t.sort > 0 {
		columns[t.sort-1].Name += map[bool]string{false: "↑", true: "↓"}[t.reverse]
	}
	draw := func(color bool) []string {
		all := table.New(table.Screen{Width: m.width - 2, Color: color}, columns...)
		for _, r := range rows {
			cells := each.Of(r.cells, func(c cell) string { return c.text })
			all.Row(cells...)
		}
		var b strings.Builder
		_ = all.Write(&b) // a strings.Builder takes everything
		return splitLines(b.String())
	}
	lines := draw(m.options.Color)
	head, lines := "  "+lines[0], lines[1:]
	chosen := table.Clip(draw(false)[1+t.index], m.width-2)
	lines[t.index] = chosen + strings.Repeat(" ", m.width-2-table.Width(chosen))
	for i, r := range rows {
		mark := prompt.Either(t.marked[r.key], "*", " ")
		if i == t.index {
			lines[i] = m.theme().chosen(">" + mark + lines[i])
		} else {
			lines[i] = " " + mark + lines[i]
		}
	}
	shown := m.bodyHeight() - 1
	first := max(min(t.index-shown/2, len(lines)-shown), 0)
	return append([]string{m.theme().heading(head)}, lines[first:min(first+shown, len(lines))]...)
}

func (m *Model) explain(err error) string { return prompt.OneLine(m.options.Explain(err)) }

// splitLines returns the lines of a text without their ends.
func splitLines(s string) []string {
	if s = strings.TrimSuffix(s, "\n"); s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}
