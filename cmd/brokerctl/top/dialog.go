package top

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	tea "charm.land/bubbletea/v2"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"
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

// key handles a key while the dialog is open. do makes a command of a call.
func (d *dialog) key(k tea.KeyPressMsg, do func(call) tea.Cmd) tea.Cmd {
	key := k.String()
	if key == "esc" {
		*d = dialog{}
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
			return d.choose(do)
		case len(key) == 1 && "1" <= key && key <= "9" && int(key[0]-'1') < len(d.actions):
			d.chosen = int(key[0] - '1')
			return d.choose(do)
		}
	case filling:
		return d.fieldKey(k, do)
	case confirming:
		switch key {
		case "y":
			return d.perform(do)
		case "n":
			*d = dialog{}
		}
	}
	return nil
}

// choose begins the chosen action.
func (d *dialog) choose(do func(call) tea.Cmd) tea.Cmd {
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
	return d.filled(do)
}

// fieldKey handles a key in a field.
func (d *dialog) fieldKey(k tea.KeyPressMsg, do func(call) tea.Cmd) tea.Cmd {
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
		return d.filled(do)
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
func (d *dialog) filled(do func(call) tea.Cmd) tea.Cmd {
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
	return do(func(ctx context.Context, broker *client.Client) tea.Msg {
		said, counted, err := count(ctx, broker, v)
		return countedMsg{number, said, counted, err}
	})
}

// perform makes the calls of the chosen action.
func (d *dialog) perform(do func(call) tea.Cmd) tea.Cmd {
	d.stage, d.failure = running, ""
	number, v, run := d.number, d.values, d.action().run
	return do(func(ctx context.Context, broker *client.Client) tea.Msg {
		said, err := run(ctx, broker, v)
		return doneMsg{number, said, err}
	})
}

// counted shows what the action would do. explain returns the text of an error.
func (d *dialog) counted(msg countedMsg, explain func(error) string) {
	if d.stage != counting || d.number != msg.dialog {
		return
	}
	if msg.err != nil {
		d.failed(explain(msg.err))
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
		d.failed(m.options.Explain(msg.err))
	case msg.err != nil: // the user has closed the dialog
		m.notice = "failed: " + m.options.Explain(msg.err)
	default:
		if open {
			*d = dialog{}
		}
		m.notice = msg.text
		m.tabs[m.current].marked = nil
	}
}

// failed returns to the fields, or to the menu, and shows why the action failed.
func (d *dialog) failed(why string) {
	d.failure, d.stage = why, choosing
	if len(d.values) > 0 {
		d.stage = filling
	}
}

// lines draws the dialog.
func (d *dialog) lines(width int, paint theme) []string {
	var lines []string
	add := func(s string) { lines = append(lines, table.Wrap(prompt.OneLine(s), width)...) }
	if d.stage == choosing {
		lines = append(lines, paint.heading(table.Clip(d.about, width)))
		for i, a := range d.actions {
			line := table.Clip(fmt.Sprintf("%s%d %s", map[bool]string{true: "> ", false: "  "}[i == d.chosen], i+1,
				prompt.OneLine(a.label)), width)
			if i == d.chosen {
				line = paint.chosen(line)
			}
			lines = append(lines, line)
		}
	} else {
		add(d.action().effect)
		for i, f := range d.action().fields {
			lines = append(lines, d.fieldLine(f, i == d.field && d.stage == filling, width, paint))
		}
	}
	switch d.stage {
	case counting:
		add("counting …")
	case confirming:
		if d.text != "" {
			add(d.text)
		}
		lines = append(lines, paint.heading("Do it? y/n"))
	case running:
		add("running …")
	}
	if d.failure != "" {
		for _, line := range table.Wrap(prompt.OneLine(d.failure), width) {
			lines = append(lines, paint.bad(line))
		}
	}
	return lines
}

// fieldLine draws a field. A long value shows its end.
func (d *dialog) fieldLine(f field, current bool, width int, paint theme) string {
	value := prompt.OneLine(d.values[f.name])
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
		return paint.heading(line)
	}
	return line
}
