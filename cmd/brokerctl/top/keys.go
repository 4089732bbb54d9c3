package top

import (
	"maps"
	"unicode/utf8"

	"brokerd/internal/prompt"

	tea "charm.land/bubbletea/v2"
)

// keyHelp lists the keys, for the help.
var keyHelp = [][2]string{
	{"1 … 8, Tab, ←, →", "choose a view"},
	{"c", "choose a session"},
	{"↑, ↓, PgUp, PgDn, Home, End", "choose a row, or scroll"},
	{"Enter", "open the row"},
	{"a", "actions on the row, or on the marked rows"},
	{"x", "mark the row (dead letters)"},
	{"/", "filter the rows by a text"},
	{"s, S", "sort by the next column; reverse the order"},
	{"Space", "hold the rows; again: show the newest"},
	{"Esc", "close; else remove marks, hold and filter"},
	{"q, Ctrl-C", "quit"},
}

// key handles a key.
func (m Model) key(k tea.KeyPressMsg) (Model, tea.Cmd) {
	if k.String() == "ctrl+c" {
		return m, tea.Quit
	}
	m.notice = ""
	switch {
	case m.help:
		m.help = false
		return m, nil
	case m.dialog.stage != closed:
		cmd := m.dialog.key(k, m.do)
		return m, cmd
	case m.picker.open:
		cmd := m.pickerKey(k.String())
		return m, cmd
	case m.typing:
		m.filterKey(k)
		return m, nil
	}
	switch s := k.String(); s {
	case "q":
		return m, tea.Quit
	case "?":
		m.help = true
	case "a":
		m.act()
	case "c":
		cmd := m.pick()
		return m, cmd
	case "tab", "right":
		m.showView((m.current + 1) % len(views))
	case "shift+tab", "left":
		m.showView((m.current + len(views) - 1) % len(views))
	case "1", "2", "3", "4", "5", "6", "7", "8":
		m.showView(int(s[0] - '1'))
	default:
		if m.panel.open {
			m.panelKey(s)
		} else {
			m.rowKey(s)
		}
	}
	return m, nil
}

// showView makes a view visible.
func (m *Model) showView(n int) { m.current, m.panel = n, panel{} }

// rowKey handles a key that concerns the rows.
func (m *Model) rowKey(key string) {
	t := &m.tabs[m.current]
	page := max(m.bodyHeight()-1, 1)
	switch key {
	case "up", "k":
		m.move(t.index - 1)
	case "down", "j":
		m.move(t.index + 1)
	case "pgup":
		m.move(t.index - page)
	case "pgdown":
		m.move(t.index + page)
	case "home", "g":
		m.move(0)
	case "end", "G":
		m.move(len(m.rows()) - 1)
	case "enter":
		if r, ok := m.selected(); ok {
			m.panel = panel{open: true, row: r}
		}
	case "/":
		m.typing = true
	case "s":
		t.sort = (t.sort + 1) % (len(views[m.current].columns) + 1)
	case "S":
		t.reverse = !t.reverse
	case "space":
		if t.held != nil {
			t.held = nil
		} else {
			t.held = append([]row{}, m.newest()...)
		}
	case "x":
		if r, ok := m.selected(); ok && views[m.current].marks && !m.observer {
			t.marked = maps.Clone(t.marked)
			if t.marked == nil {
				t.marked = map[string]bool{}
			}
			t.marked[r.key] = !t.marked[r.key]
			m.move(t.index + 1)
		}
	case "esc":
		t.marked, t.held, t.filter = nil, nil, ""
	}
}

// panelKey handles a key while an item is open.
func (m *Model) panelKey(key string) {
	p, page := &m.panel, max(m.bodyHeight()-1, 1)
	last := max(len(m.panelLines())-m.bodyHeight(), 0)
	switch key {
	case "esc", "enter", "backspace":
		m.panel = panel{}
		return
	case "up", "k":
		p.scroll--
	case "down", "j":
		p.scroll++
	case "pgup":
		p.scroll -= page
	case "pgdown", "space":
		p.scroll += page
	case "home", "g":
		p.scroll = 0
	case "end", "G":
		p.scroll = last
	}
	p.scroll = max(min(p.scroll, last), 0)
}

// filterKey handles a key while the user types a filter.
func (m *Model) filterKey(k tea.KeyPressMsg) {
	t := &m.tabs[m.current]
	switch k.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, t.filter = false, ""
	default:
		edit(&t.filter, k)
	}
}

// typed handles pasted text.
func (m *Model) typed(s string) {
	s = prompt.OneLine(s)
	switch {
	case m.dialog.stage == filling:
		m.dialog.paste(s)
	case m.typing:
		m.tabs[m.current].filter += s
	}
}

// edit changes a line of text by a key.
func edit(line *string, k tea.KeyPressMsg) {
	switch k.String() {
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(*line)
		*line = (*line)[:len(*line)-n]
	case "ctrl+u":
		*line = ""
	default:
		*line += k.Text
	}
}
