package top

import (
	"context"

	tea "charm.land/bubbletea/v2"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A picker lists the sessions of the broker, of which the user chooses one to show.
type picker struct {
	open     bool
	sessions []*pb.Session // nil until they are loaded
	index    int           // of the selected one
	err      error         // of the load
}

// sessionsMsg has the sessions of the broker.
type sessionsMsg struct {
	sessions []*pb.Session
	err      error
}

// pick opens the picker.
func (m *Model) pick() tea.Cmd {
	m.picker = picker{open: true}
	return m.do(func(ctx context.Context, broker *client.Client) tea.Msg {
		page, err := broker.Sessions().ListSessions(ctx, &pb.ListSessionsRequest{PageSize: 1000})
		return sessionsMsg{page.GetSessions(), err}
	})
}

// picked shows the sessions. The shown one is selected.
func (m *Model) picked(msg sessionsMsg) {
	p := &m.picker
	p.sessions, p.err = msg.sessions, msg.err
	for i, s := range p.sessions {
		if s.GetName() == m.session {
			p.index = i
		}
	}
}

// pickerKey handles a key while the picker is open.
func (m *Model) pickerKey(key string) tea.Cmd {
	p, page := &m.picker, max(m.bodyHeight()-3, 1)
	switch key {
	case "esc":
		m.picker = picker{}
	case "up", "k":
		p.index--
	case "down", "j":
		p.index++
	case "pgup":
		p.index -= page
	case "pgdown":
		p.index += page
	case "home", "g":
		p.index = 0
	case "end", "G":
		p.index = len(p.sessions) - 1
	case "enter":
		if len(p.sessions) > 0 {
			return m.showSession(p.sessions[p.index].GetName())
		}
	}
	p.index = max(min(p.index, len(p.sessions)-1), 0)
	return nil
}

// showSession shows another session. The views keep their order; nothing else of the session before remains.
func (m *Model) showSession(session string) tea.Cmd {
	m.picker = picker{}
	if session == m.session {
		return nil
	}
	m.session, m.frame, m.panel = session, nil, panel{}
	for i, t := range m.tabs {
		m.tabs[i] = tab{sort: t.sort, reverse: t.reverse}
	}
	return m.watch(session)
}

// pickerLines draws the picker in a box.
func (m *Model) pickerLines() []string {
	p, width := &m.picker, min(m.width-4, 60)
	lines := []string{m.theme().heading("Show the session")}
	switch {
	case p.err != nil:
		return m.box(append(lines, table.Wrap(m.explain(p.err), width-4)...), width)
	case p.sessions == nil:
		return m.box(append(lines, "loading …"), width)
	}
	shown := max(m.bodyHeight()-3, 1) // the box and its title take three lines
	first := max(min(p.index-shown/2, len(p.sessions)-shown), 0)
	for i, s := range p.sessions[first:min(first+shown, len(p.sessions))] {
		name := prompt.OneLine(s.GetName())
		name += prompt.Either(s.GetState() == pb.SessionState_SESSION_STATE_CLOSED, " (closed)", "")
		line := table.Clip(map[bool]string{true: "> ", false: "  "}[first+i == p.index]+name, width-4)
		if first+i == p.index {
			line = m.theme().chosen(line)
		}
		lines = append(lines, line)
	}
	return m.box(lines, width)
}
