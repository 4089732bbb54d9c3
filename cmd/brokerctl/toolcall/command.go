package toolcall

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An ArgumentError says what is wrong with the arguments of a call, for the model that made it.
type ArgumentError struct{ text string }

func (e *ArgumentError) Error() string { return e.text }

func argumentf(format string, args ...any) error {
	return &ArgumentError{fmt.Sprintf(format, args...)}
}

// Args are the arguments of a call, as they were given.
type Args map[string]any

// Parse reads the arguments of a call. It refuses arguments that the tool does not have. It takes an
// object that is a text, as some models write it, and leaves out null, empty texts and empty lists.
func Parse(tool string, raw json.RawMessage) (Args, error) {
	t, ok := find(tool)
	if !ok {
		return nil, argumentf("there is no tool %q", tool)
	}
	args := Args{}
	if s := ""; json.Unmarshal(raw, &s) == nil {
		raw = json.RawMessage(s)
	}
	if len(bytes.TrimSpace(raw)) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&args); err != nil {
			return nil, argumentf("the arguments of %s must be a JSON object: %v", tool, err)
		}
	}
	for name, given := range args {
		if _, known := t.arg(name); !known {
			return nil, argumentf("%s has no argument %q; it has %s", tool, name, strings.Join(t.names(), ", "))
		}
		if items, many := given.([]any); given == nil || given == "" || many && len(items) == 0 {
			delete(args, name)
		}
	}
	return args, nil
}

// Wait returns an argument that is a number of seconds, at most the given time. It returns false if
// the argument is not given.
func (a Args) Wait(name string, most time.Duration) (time.Duration, bool, error) {
	given, ok := a[name]
	if !ok {
		return 0, false, nil
	}
	words, err := Arg{Name: name, kind: seconds}.values(given, false)
	if err != nil {
		return 0, true, err
	}
	d, err := time.ParseDuration(words[0])
	if err != nil || d < 0 {
		return 0, true, argumentf("%s must be a number of seconds, not %s", name, quote(given))
	}
	return min(d, most), true, nil
}

// Command returns the words of the command line that carries out a call, without brokerctl. Its
// errors are of type *ArgumentError.
func Command(tool string, args Args) ([]string, error) {
	t, ok := find(tool)
	if !ok {
		return nil, argumentf("there is no tool %q", tool)
	}
	action, err := t.chosen(args)
	if err != nil {
		return nil, err
	}
	args = args.without(t.action())
	var fault *misfit
	for _, r := range rows {
		if r.tool != tool || r.action != action {
			continue
		}
		words, m := r.words(t, args)
		if m == nil {
			return words, nil
		}
		if fault == nil || m.distance() < fault.distance() {
			fault = m
		}
	}
	what := strings.TrimSpace(tool + " " + action)
	return nil, argumentf("%s %v", what, fault)
}

// chosen returns the action of a call.
func (t Tool) chosen(args Args) (string, error) {
	name := t.action()
	if name == "" {
		return "", nil
	}
	a, _ := t.arg(name)
	given, ok := args[name]
	switch {
	case ok && slices.Contains(a.oneOf, fmt.Sprint(given)):
		return fmt.Sprint(given), nil
	case ok:
		return "", argumentf("%s %s is none of %s", name, quote(given), strings.Join(a.oneOf, ", "))
	case t.Name == "team" && args["about"] != nil:
		return "explain", nil
	case t.Name == "team":
		return "list", nil
	case t.Name == "settle" && args["text"] == nil && args["data"] == nil:
		return "ack", nil
	case t.Name == "settle":
		return "reply", nil
	}
	return "", argumentf("%s needs %s: %s", t.Name, name, strings.Join(a.oneOf, ", "))
}

func (a Args) without(name string) Args {
	rest := Args{}
	for k, v := range a {
		if k != name {
			rest[k] = v
		}
	}
	return rest
}

// A misfit says why a row does not fit a call.
type misfit struct {
	missing []string // arguments that the row needs
	unused  []string // given arguments that the row does not take
	wrong   []string // what is wrong with values
	foreign bool     // the row is for other ids
	takes   []string
}

func (m *misfit) Error() string {
	takes := "; it takes no arguments"
	if len(m.takes) > 0 {
		takes = "; it takes " + strings.Join(m.takes, ", ")
	}
	switch {
	case len(m.wrong) > 0:
		return strings.Join(m.wrong, ", ")
	case len(m.missing) > 0:
		return "needs " + strings.Join(m.missing, ", ") + takes
	}
	return "does not take " + strings.Join(m.unused, ", ") + takes
}

// distance is smaller for a row that the caller more likely meant.
func (m *misfit) distance() int {
	n := len(m.missing) + len(m.unused) + len(m.wrong)
	if m.foreign {
		n += len(rows)
	}
	return n
}

// words fills in the template. Flags come first, and the arguments of the command after --, so that
// a value that begins with a dash is no flag.
func (r row) words(t Tool, args Args) ([]string, *misfit) {
	var command, flags, rest []string
	m := &misfit{}
	used := map[string]bool{}
	for _, p := range r.parts() {
		if p.arg == "" {
			switch {
			case p.flag == "":
				command = append(command, p.fixed)
			case p.fixed == "":
				flags = append(flags, p.flag)
			default:
				flags = append(flags, p.flag+"="+p.fixed)
			}
			continue
		}
		m.takes, used[p.arg] = append(m.takes, p.arg), true
		a, _ := t.arg(p.arg)
		given, ok := args[p.arg]
		switch {
		case ok:
		case p.required:
			m.missing = append(m.missing, p.arg)
			continue
		case p.absent != "":
			flags = append(flags, p.flag+"="+p.absent)
			continue
		default:
			continue
		}
		values, err := a.values(given, p.many)
		if err != nil {
			m.wrong = append(m.wrong, err.Error())
			continue
		}
		for _, v := range values {
			switch {
			case !p.fits(v):
				m.foreign = m.foreign || p.arg == "id"
				m.wrong = append(m.wrong, fmt.Sprintf("cannot use %s %s", p.arg, quote(v))+p.allowed())
			case p.word:
				command = append(command, p.prefix+v)
			case p.flag != "":
				flags = append(flags, p.flag+"="+v)
			default:
				rest = append(rest, v)
			}
		}
	}
	for _, name := range t.names() {
		if _, ok := args[name]; ok && !used[name] {
			m.unused = append(m.unused, name)
		}
	}
	if m.distance() > 0 {
		return nil, m
	}
	if r.action == "put" {
		flags = append(flags, "--type="+typeOf(args["value"]))
	}
	return slices.Concat(command, flags, []string{"--"}, rest), nil
}

// typeOf returns the type of a state's value.
func typeOf(v any) string {
	switch v := v.(type) {
	case string:
		return "string"
	case bool:
		return "boolean"
	case json.Number:
		if _, err := v.Int64(); err == nil {
			return "integer"
		}
	}
	return "json"
}

// values turns a given argument into words.
func (a Arg) values(given any, many bool) ([]string, error) {
	if items, ok := given.([]any); ok && a.kind != value && a.kind != object {
		if !many && len(items) > 1 {
			return nil, argumentf("takes one %s, not %s", a.Name, quote(given))
		}
		var all []string
		for _, item := range items {
			v, err := a.value(item)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		return all, nil
	}
	v, err := a.value(given)
	if err == nil && many && a.kind == text { // such as "task schema" for explain
		return strings.Fields(v), nil
	}
	return []string{v}, err
}

// value turns one value into a word.
func (a Arg) value(given any) (string, error) {
	switch v := given.(type) {
	case string:
		if a.kind == seconds && a.Name != "progress" && strings.Trim(v, "0123456789.") == "" {
			v += "s"
		}
		if a.kind == object && !json.Valid([]byte(v)) {
			return quote(v), nil
		}
		return v, nil
	case json.Number:
		if a.kind == seconds && a.Name != "progress" || a.Name == "for" {
			return v.String() + "s", nil
		}
		return v.String(), nil
	case bool:
		if a.kind == seconds {
			return map[bool]string{true: "50s", false: "0s"}[v], nil
		}
		return strconv.FormatBool(v), nil
	}
	if a.kind == value || a.kind == object || a.kind == text {
		return quote(given), nil
	}
	return "", argumentf("cannot use %s %s", a.Name, quote(given))
}

// Explain replaces the flags in a text about a command line by the tool's arguments.
func Explain(tool, text string) string {
	for _, r := range rows {
		if r.tool != tool {
			continue
		}
		for _, p := range r.parts() {
			if p.flag != "" && p.arg != "" {
				text = regexp.MustCompile(regexp.QuoteMeta(p.flag)+`\b`).ReplaceAllLiteralString(text, p.arg)
			}
		}
	}
	return text
}
