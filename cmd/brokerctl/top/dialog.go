package top

import (
	"context"
	"maps"
	"slices"
	"strconv"

	tea "charm.land/bubbletea/v2"

	"brokerd/client"
)

// An action is a change that the user can make, after a confirmation.
type action struct {
	label  string // what the menu shows
	effect string // what it does, in one sentence
	fields []field
	count  count // nil = nothing is counted
	run    effect
}

// An effect makes the calls of an action, and says what it did.
type effect func(ctx context.Context, broker *client.Client, v values) (string, error)

// A count says what an effect would do, and returns the values that limit the effect to that.
type count func(ctx context.Context, broker *client.Client, v values) (string, values, error)

// values are the contents of the fields, by name.
type values map[string]string

// A field is a line that the user fills in.
type field struct {
	name     string
	value    string // at first
	required bool
	options  []string // the only values; empty = any text
}

// stage is what a dialog waits for.
type stage int

const (
	closed     stage = iota
	choosing         // an action
	filling          // the fields
	counting         // the count
	confirming       // y
	running          // the result
)

// A dialog asks for an action, its fields and a confirmation.
type dialog struct {
	stage   stage
	number  int
	about   string // the rows that the actions concern
	actions []action
	chosen  int // index of actions
	field   int // index of the action's fields
	values  values
	text    string // what the action would do
	failure string // of the last attempt
}

func (d *dialog) action() action { return d.actions[d.chosen] }

// act opens the menu of the actions on the chosen rows.
func (m *Model) act() {
	if m.observer || m.frame == nil {
		return
	}
	rows := m.chosen()
	actions := views[m.current].actions(rows, m.options.Command)
	if len(actions) == 0 {
		m.notice = "there is no action for this"
		return
	}
	about := strconv.Itoa(len(rows)) + " marked rows"
	if len(rows) == 1 {
		about = rows[0].name()
	}
	m.dialogs++
	m.dialog = dialog{stage: choosing, number: m.dialogs, about: about, actions: actions}
}

// dialogKey handles a key while a dialog is open.
func (m *Model) dialogKey(k tea.KeyPressMsg) tea.Cmd {
	d, key := &m.dialog, k.String()
	if key == "esc" {
		m.dialog = dialog{}
		return nil
	}
	switch d.stage {
	case choosing:
		switch {
		case key == "up":
			d.chosen = max(d.chosen-1, 0)
		case key == "down":
			d.chosen = min(d.chosen+1, len(d.actions)-1)
		case key == "enter":
			return m.choose()
		case len(key) == 1 && "1" <= key && key <= "9" && int(key[0]-'1') < len(d.actions):
			d.chosen = int(key[0] - '1')
			return m.choose()
		}
	case filling:
		return m.fieldKey(k)
	case confirming:
		switch key {
		case "y":
			return m.perform()
		case "n":
			m.dialog = dialog{}
		}
	}
	return nil
}

// choose begins the chosen action.
func (m *Model) choose() tea.Cmd {
	d := &m.dialog
	d.values, d.field = values{}, 0
	for _, f := range d.action().fields {
		d.values[f.name] = f.value
		if f.value == "" && f.required && len(f.options) > 0 {
			d.values[f.name] = f.options[0]
		}
	}
	if len(d.values) > 0 {
		d.stage = filling
		return nil
	}
	return m.filled()
}

// fieldKey handles a key in a field.
func (m *Model) fieldKey(k tea.KeyPressMsg) tea.Cmd {
	d := &m.dialog
	fields := d.action().fields
	f := fields[d.field]
	switch k.String() {
	case "tab", "down":
		d.field = (d.field + 1) % len(fields)
	case "shift+tab", "up":
		d.field = (d.field + len(fields) - 1) % len(fields)
	case "enter":
		if d.field < len(fields)-1 {
			d.field++
			return nil
		}
		return m.filled()
	case "left", "right":
		if n := len(f.options); n > 0 {
			step := 1
			if k.String() == "left" {
				step = n - 1
			}
			d.set(f.name, f.options[(slices.Index(f.options, d.values[f.name])+step+n)%n])
		}
	default:
		if len(f.options) == 0 {
			s := d.values[f.name]
			edit(&s, k)
			d.set(f.name, s)
		}
	}
	return nil
}

// set fills in a field. The values of the state before stay as they are.
func (d *dialog) set(name, value string) {
	d.values, d.failure = maps.Clone(d.values), ""
	d.values[name] = value
}

// paste adds a text to the current field.
func (d *dialog) paste(s string) {
	if f := d.action().fields[d.field]; len(f.options) == 0 {
		d.set(f.name, d.values[f.name]+s)
	}
}

// filled asks for the confirmation, after the count if the action has one.
func (m *Model) filled() tea.Cmd {
	d := &m.dialog
	for i, f := range d.action().fields {
		if f.required && d.values[f.name] == "" {
			d.field, d.failure = i, f.name+" is required"
			return nil
		}
	}
	count := d.action().count
	if count == nil {
		d.stage, d.failure = confirming, ""
		return nil
	}
	d.stage, d.failure = counting, ""
	number, v := d.number, d.values
	return m.do(func(ctx context.Context, broker *client.Client) tea.Msg {
		said, counted, err := count(ctx, broker, v)
		return countedMsg{number, said, counted, err}
	})
}

// perform makes the calls of the chosen action.
func (m *Model) perform() tea.Cmd {
	d := &m.dialog
	d.stage, d.failure = running, ""
	number, v, run := d.number, d.values, d.action().run
	return m.do(func(ctx context.Context, broker *client.Client) tea.Msg {
		said, err := run(ctx, broker, v)
		return doneMsg{number, said, err}
	})
}

// counted shows what the action would do.
func (m *Model) counted(msg countedMsg) {
	d := &m.dialog
	if d.stage != counting || d.number != msg.dialog {
		return
	}
	if msg.err != nil {
		m.failed(msg.err)
		return
	}
	d.stage, d.text, d.values = confirming, msg.text, msg.values
}

// done closes the dialog, or shows why the action failed.
func (m *Model) done(msg doneMsg) {
	m.stale()
	d := &m.dialog
	switch open := d.stage == running && d.number == msg.dialog; {
	case open && msg.err != nil:
		m.failed(msg.err)
	case msg.err != nil: // the user has closed the dialog
		m.notice = "failed: " + m.options.Explain(msg.err)
	default:
		if open {
			m.dialog = dialog{}
		}
		m.notice = msg.text
		m.tabs[m.current].marked = nil
	}
}

// failed returns to the fields, or to the menu, with the error.
func (m *Model) failed(err error) {
	d := &m.dialog
	d.failure, d.stage = m.options.Explain(err), choosing
	if len(d.values) > 0 {
		d.stage = filling
	}
}
