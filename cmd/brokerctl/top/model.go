package top

import (
	"cmp"
	"context"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// A Model is the state of the screen.
type Model struct {
	options  Options
	observer bool // no actions
	call     func(call) tea.Cmd
	watch    func(session string) tea.Cmd // requests the frames of a session

	width, height int
	session       string                    // the shown one; empty before the first frame
	frame         *pb.WatchOverviewResponse // the newest one; nil before the first
	framed        time.Time                 // when it arrived
	lost          error                     // why the connection is broken; nil = it is not
	err           error                     // ends the program

	current int // index of views
	tabs    [8]tab
	panel   panel
	dialog  dialog
	dialogs int // how many were opened: results of earlier ones are ignored
	picker  picker
	help    bool
	typing  bool   // keys go to the filter
	notice  string // one line about the last action
}

// A tab is the state of one view.
type tab struct {
	loader
	data    any // what its view has loaded
	filter  string
	sort    int  // the column that orders the rows, from 1; 0 = the view's own order
	reverse bool // the other way round
	index   int  // of the selected row
	key     string
	marked  map[string]bool // keys of rows; never changed in place
	held    []row           // shown in place of the newest rows; nil = not held
}

// A panel shows one item with its details.
type panel struct {
	loader
	open     bool
	row      row
	sections []section
	scroll   int
}

// A loader says when data that is not in the frames is loaded again.
type loader struct {
	loading  bool
	at       time.Time // of the last start; zero = never
	revision int64     // of the frame at that time; 0 = load again
	err      error     // of the last load
}

// loadInterval is the least time between two loads of the same data.
const loadInterval = time.Second

// due reports whether to load, and notes that.
func (l *loader) due(now time.Time, revision int64) bool {
	if l.loading || l.revision == revision || now.Sub(l.at) < loadInterval {
		return false
	}
	l.loading, l.at, l.revision = true, now, revision
	return true
}

// The messages of the program.
type (
	frameMsg struct{ frame *pb.WatchOverviewResponse }
	lostMsg  struct{ err error }
	endMsg   struct{ err error }
	tickMsg  struct{}
	// answerMsg has the message of a call in a session.
	answerMsg struct {
		session string
		msg     tea.Msg
	}
	// loadedMsg has the data of a view.
	loadedMsg struct {
		view int
		data any
		err  error
	}
	// openedMsg has the details of a row.
	openedMsg struct {
		key      string
		sections []section
		err      error
	}
	// countedMsg says what an action would do with these values, doneMsg what it did.
	countedMsg struct {
		dialog int
		text   string
		values values
		err    error
	}
	doneMsg struct {
		dialog int
		text   string
		err    error
	}
)

// New returns the screen before its first frame. do makes a command of a call. watch makes a command
// that requests the frames of another session.
func New(o Options, observer bool, do func(call) tea.Cmd, watch func(session string) tea.Cmd) Model {
	return Model{options: o, observer: observer, call: do, watch: watch}
}

// do makes a command of a call in the shown session.
func (m *Model) do(do call) tea.Cmd {
	session := m.session
	return m.call(func(ctx context.Context, broker *client.Client) tea.Msg {
		if session != "" {
			broker = broker.In(session)
		}
		return answerMsg{session, do(ctx, broker)}
	})
}

// Init starts the tick, with which ages on the screen grow.
func (m Model) Init() tea.Cmd { return tick() }

func tick() tea.Cmd { return tea.Tick(time.Second, func(time.Time) tea.Msg { return tickMsg{} }) }

// Update returns the state after a message, and the commands to run.
func (m Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		m, cmd = m.key(msg)
	case tea.PasteMsg:
		m.typed(msg.Content)
	case tickMsg:
		cmd = tick()
	case answerMsg:
		if _, done := msg.msg.(doneMsg); done || msg.session == m.session {
			return m.Update(msg.msg)
		}
	case frameMsg:
		if m.session == "" {
			m.session = msg.frame.GetSession()
		}
		if m.session == msg.frame.GetSession() {
			m.frame, m.framed, m.lost = msg.frame, m.options.Now(), nil
		}
	case sessionsMsg:
		m.picked(msg)
	case lostMsg:
		m.lost = msg.err
	case endMsg:
		m.err = msg.err
		return m, tea.Quit
	case loadedMsg:
		t := &m.tabs[msg.view]
		t.loading, t.err = false, msg.err
		if msg.err == nil {
			t.data = msg.data
		}
	case openedMsg:
		if m.panel.open && msg.key == m.panel.row.key {
			m.panel.loading, m.panel.err = false, msg.err
			if msg.err == nil {
				m.panel.sections = msg.sections
			}
		}
	case countedMsg:
		m.dialog.counted(msg, m.options.Explain)
	case doneMsg:
		m.done(msg)
	}
	m.follow()
	load := m.load()
	return m, tea.Batch(cmd, load)
}

// load starts the loads that are due: of the visible view, and of the opened item.
func (m *Model) load() tea.Cmd {
	if m.frame == nil || m.lost != nil {
		return nil
	}
	now, revision, n := m.options.Now(), m.frame.GetRevision(), m.current
	var cmds []tea.Cmd
	if t, load := &m.tabs[n], views[n].load; load != nil && t.due(now, revision) {
		cmds = append(cmds, m.do(func(ctx context.Context, broker *client.Client) tea.Msg {
			data, err := load(ctx, broker)
			return loadedMsg{n, data, err}
		}))
	}
	if p, open := &m.panel, views[n].open; p.open && open != nil && p.due(now, revision) {
		r, observer := p.row, m.observer
		cmds = append(cmds, m.do(func(ctx context.Context, broker *client.Client) tea.Msg {
			sections, err := open(ctx, opening{broker, observer, m.options.Command}, r)
			return openedMsg{r.key, sections, err}
		}))
	}
	return tea.Batch(cmds...)
}

// stale makes the next load of the visible data due at once.
func (m *Model) stale() {
	t := &m.tabs[m.current]
	t.revision, t.at = 0, time.Time{}
	m.panel.revision, m.panel.at = 0, time.Time{}
}

// now is the time by the broker's clock: ages count from the time of the frame.
func (m *Model) now() time.Time {
	now := m.options.Now()
	if m.frame == nil {
		return now
	}
	return m.frame.GetTime().AsTime().Add(now.Sub(m.framed))
}

// rows returns the rows of the visible view: filtered, sorted, each with those below it.
func (m *Model) rows() []row {
	t := &m.tabs[m.current]
	if t.held != nil {
		return flatten(order(match(t.held, t.filter), t.sort, t.reverse), 0)
	}
	return flatten(order(match(m.newest(), t.filter), t.sort, t.reverse), 0)
}

// newest returns the newest rows of the visible view.
func (m *Model) newest() []row {
	if m.frame == nil {
		return nil
	}
	return views[m.current].rows(snapshot{m.frame, m.tabs[m.current].data, m.now(), m.options.Command})
}

// selected returns the selected row.
func (m *Model) selected() (row, bool) {
	if m.panel.open {
		return m.panel.row, true
	}
	rows := m.rows()
	if t := m.tabs[m.current]; t.index < len(rows) {
		return rows[t.index], true
	}
	return row{}, false
}

// follow keeps the selected row selected when rows before it come or go, and the panel's row the newest.
func (m *Model) follow() {
	t := &m.tabs[m.current]
	rows := m.rows()
	for i := range rows {
		if t.key != "" && rows[i].key == t.key {
			t.index = i
		}
		if m.panel.open && rows[i].key == m.panel.row.key {
			m.panel.row = rows[i]
		}
	}
	t.index = max(min(t.index, len(rows)-1), 0)
}

// move selects another row. The first row stays selected whatever it is: the newest, or the worst.
func (m *Model) move(to int) {
	t := &m.tabs[m.current]
	rows := m.rows()
	t.index, t.key = max(min(to, len(rows)-1), 0), ""
	if t.index > 0 {
		t.key = rows[t.index].key
	}
}

// chosen returns the marked rows, or else the selected one.
func (m *Model) chosen() []row {
	if m.panel.open {
		return []row{m.panel.row}
	}
	var marked []row
	for _, r := range m.rows() {
		if m.tabs[m.current].marked[r.key] {
			marked = append(marked, r)
		}
	}
	if len(marked) > 0 {
		return marked
	}
	if r, ok := m.selected(); ok {
		return []row{r}
	}
	return nil
}

// A snapshot is what a view makes rows of.
type snapshot struct {
	frame   *pb.WatchOverviewResponse
	data    any // nil until it is loaded
	now     time.Time
	command func(*pb.Call) string
}

// ago is a cell with the time since t; an absent one comes last.
func (s snapshot) ago(t *timestamppb.Timestamp) cell {
	if t == nil {
		return cell{"", never}
	}
	return cell{relative(s.now, t), cmp.Or(t.AsTime().UnixNano(), 1)}
}
