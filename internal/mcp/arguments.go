package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An argumentError says what is wrong with the arguments of a call, for the model that made it.
type argumentError struct{ text string }

func (e *argumentError) Error() string { return e.text }

func argumentf(format string, args ...any) error {
	return &argumentError{fmt.Sprintf(format, args...)}
}

// given are the arguments of a call, as they were given.
type given map[string]any

// parse reads the arguments of a call. It refuses arguments that the tool does not have. It takes an
// object that is a text, as some models write it, and leaves out null, empty texts and empty lists.
func (t *tool) parse(raw json.RawMessage) (given, error) {
	args := given{}
	if s := ""; json.Unmarshal(raw, &s) == nil {
		raw = json.RawMessage(s)
	}
	if len(bytes.TrimSpace(raw)) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&args); err != nil {
			return nil, argumentf("the arguments of %s must be a JSON object: %v", t.name, err)
		}
		if args == nil { // null
			args = given{}
		}
	}
	for name, v := range args {
		if _, known := t.arg(name); !known {
			return nil, argumentf("%s has no argument %q; it has %s", t.name, name, strings.Join(t.names(), ", "))
		}
		if items, many := v.([]any); v == nil || v == "" || many && len(items) == 0 {
			delete(args, name)
		}
	}
	return args, nil
}

// wait returns an argument that is a number of seconds, at most mostWait. It returns false if the argument is not
// given.
func (g given) wait(name string) (time.Duration, bool, error) {
	v, ok := g[name]
	if !ok {
		return 0, false, nil
	}
	words, err := argument{name: name, kind: seconds}.values(v, false)
	if err != nil {
		return 0, true, err
	}
	d, err := time.ParseDuration(words[0])
	if err != nil || d < 0 {
		return 0, true, argumentf("%s must be a number of seconds, not %s", name, quote(v))
	}
	return min(d, mostWait), true, nil
}

// values are the arguments of a call as a row takes them.
type values map[string][]string

// row returns the row that carries out a call, and the values of its arguments.
func (t *tool) row(args given) (*row, values, error) {
	action, err := t.chosen(args)
	if err != nil {
		return nil, nil, err
	}
	args = args.without(t.action())
	var fault *misfit
	for _, r := range rows() {
		if r.tool != t.name || r.action != action {
			continue
		}
		taken, m := r.take(t, args)
		if m == nil {
			return &r, taken, nil
		}
		if fault == nil || m.distance() < fault.distance() {
			fault = m
		}
	}
	what := strings.TrimSpace(t.name + " " + action)
	return nil, nil, argumentf("%s %v", what, fault)
}

// chosen returns the action of a call.
func (t *tool) chosen(args given) (string, error) {
	name := t.action()
	if name == "" {
		return "", nil
	}
	a, _ := t.arg(name)
	v, ok := args[name]
	switch {
	case ok && slices.Contains(a.oneOf, fmt.Sprint(v)):
		return fmt.Sprint(v), nil
	case ok:
		return "", argumentf("%s %s is none of %s", name, quote(v), strings.Join(a.oneOf, ", "))
	case t.name == "team" && args["about"] != nil:
		return "explain", nil
	case t.name == "team":
		return "list", nil
	case t.name == "settle" && args["text"] == nil && args["data"] == nil:
		return "ack", nil
	case t.name == "settle":
		return "reply", nil
	}
	return "", argumentf("%s needs %s: %s", t.name, name, strings.Join(a.oneOf, ", "))
}

func (g given) without(name string) given {
	rest := given{}
	for k, v := range g {
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
		n += 1000
	}
	return n
}

// take returns the values of a call that the row takes.
func (r *row) take(t *tool, args given) (values, *misfit) {
	taken, used := values{}, map[string]bool{}
	m := &misfit{}
	_, parts := r.parts()
	for _, p := range parts {
		if p.arg == "" {
			continue
		}
		m.takes, used[p.arg] = append(m.takes, p.arg), true
		a, _ := t.arg(p.arg)
		v, ok := args[p.arg]
		switch {
		case ok:
		case p.required:
			m.missing = append(m.missing, p.arg)
			continue
		default:
			continue
		}
		words, err := a.values(v, p.many)
		if err != nil {
			m.wrong = append(m.wrong, err.Error())
			continue
		}
		for _, word := range words {
			if !p.fits(word) {
				m.foreign = m.foreign || p.arg == "id"
				m.wrong = append(m.wrong, fmt.Sprintf("cannot use %s %s", p.arg, quote(word))+p.allowed())
			}
		}
		taken[p.arg] = words
	}
	for _, name := range t.names() {
		if _, ok := args[name]; ok && !used[name] {
			m.unused = append(m.unused, name)
		}
	}
	if m.distance() > 0 {
		return nil, m
	}
	return taken, nil
}

// values turns a given argument into words.
func (a argument) values(v any, many bool) ([]string, error) {
	if items, ok := v.([]any); ok && a.kind != value && a.kind != object {
		if !many && len(items) > 1 {
			return nil, argumentf("takes one %s, not %s", a.name, quote(v))
		}
		var all []string
		for _, item := range items {
			word, err := a.word(item)
			if err != nil {
				return nil, err
			}
			all = append(all, word)
		}
		return all, nil
	}
	word, err := a.word(v)
	if err == nil && many && a.kind == text { // such as "task schema" for explain
		return strings.Fields(word), nil
	}
	return []string{word}, err
}

// word turns one value into a word.
func (a argument) word(v any) (string, error) {
	switch v := v.(type) {
	case string:
		if a.kind == seconds && a.name != "progress" && strings.Trim(v, "0123456789.") == "" {
			v += "s"
		}
		if a.kind == object && !json.Valid([]byte(v)) {
			return quote(v), nil
		}
		return v, nil
	case json.Number:
		if a.kind == seconds && a.name != "progress" || a.name == "for" {
			return v.String() + "s", nil
		}
		return v.String(), nil
	case bool:
		if a.kind == seconds {
			return map[bool]string{true: mostWait.String(), false: "0s"}[v], nil
		}
		return strconv.FormatBool(v), nil
	}
	if a.kind == value || a.kind == object || a.kind == text {
		return quote(v), nil
	}
	return "", argumentf("cannot use %s %s", a.name, quote(v))
}

// argumentOf returns the argument of the tool that sets a field of a request, such as text for the field body; ""
// if none does.
func (r *row) argumentOf(field string) string {
	name, _, _ := strings.Cut(field[strings.LastIndexByte(field, '.')+1:], "[")
	_, parts := r.parts()
	for _, p := range parts {
		said := p.field[strings.LastIndexByte(p.field, '.')+1:]
		if p.arg != "" && (said == name || p.arg == name || p.arg == "to" && strings.Contains("."+field, ".target.")) {
			return p.arg
		}
	}
	return ""
}
