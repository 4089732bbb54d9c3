package mcp

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"brokerd/internal/prompt"
)

// nextCall returns the tool call with the effect of a command line, such as settle {"id":"7.1"}. The
// words are those of the command line without brokerctl. It returns false if no tool has the effect.
func nextCall(words []string) (string, bool) {
	for _, r := range rows() {
		// Most rows are of another command, and need not be taken apart.
		if first, _, _ := strings.Cut(r.template, " "); len(words) > 0 && first != words[0] && !strings.Contains(first, "{") {
			continue
		}
		if given, ok := r.match(words); ok {
			return r.call(given), true
		}
	}
	return "", false
}

// toolCall is the tool call for a command line without brokerctl. If no tool does this, only a person with a shell can.
func toolCall(line string) string {
	if call, ok := nextCall(prompt.Split(line)); ok {
		return call
	}
	return "(in a shell) brokerctl " + line
}

// alternatives shortens calls that differ only in their last argument from the first one: of these,
// only the value stays, such as "reject".
func alternatives(calls []string) []string {
	short := slices.Clone(calls)
	for i := 1; i < len(calls); i++ {
		same := calls[0][:strings.LastIndexByte(calls[0], ':')+1]
		value, found := strings.CutPrefix(calls[i], same)
		if found && same != "" && !strings.Contains(value, ":") {
			short[i] = strings.TrimSuffix(value, "}")
		}
	}
	return short
}

// match returns the values of the arguments if the template fits a command line. A text may be an
// argument of the command where the template has a flag, as in reply ID TEXT.
func (r *row) match(words []string) (map[string][]string, bool) {
	parts := r.parts()
	given := map[string][]string{}
	seen := map[string]bool{}
	var rest []string
	for i := 0; i < len(words); i++ {
		name, v, attached := strings.Cut(words[i], "=")
		at := slices.IndexFunc(parts, func(p part) bool { return p.flag == name && p.flag != "" })
		switch {
		case !strings.HasPrefix(words[i], "--"):
			rest = append(rest, words[i])
			continue
		case at < 0:
			if !slices.ContainsFunc(parts, func(p part) bool { return p.prefix == "--" }) {
				return nil, false
			}
			rest = append(rest, words[i])
			continue
		}
		p := parts[at]
		seen[p.flag] = true
		if p.arg == "" {
			continue
		}
		if !attached && i+1 < len(words) {
			i++
			v = words[i]
		}
		given[p.arg] = append(given[p.arg], inputAsText(v))
	}
	for _, p := range parts {
		switch {
		case p.flag != "" && p.arg == "" && p.fixed == "" && !seen[p.flag]:
			return nil, false // what the flag says is missing
		case p.flag != "":
		case p.arg == "":
			if len(rest) == 0 || rest[0] != p.fixed {
				return nil, false
			}
			rest = rest[1:]
		default:
			n := 0
			for n < len(rest) && (n == 0 || p.many) && strings.HasPrefix(rest[n], p.prefix) &&
				p.fits(strings.TrimPrefix(rest[n], p.prefix)) {
				given[p.arg] = append(given[p.arg], strings.TrimPrefix(rest[n], p.prefix))
				n++
			}
			if n == 0 && p.required {
				return nil, false
			}
			rest = rest[n:]
		}
	}
	if len(rest) > 0 {
		const into = "text"
		if given[into] != nil || !slices.ContainsFunc(parts, func(p part) bool { return p.arg == into }) {
			return nil, false
		}
		given[into] = []string{strings.Join(rest, " ")}
	}
	for _, p := range parts {
		if p.required && given[p.arg] == nil {
			return nil, false
		}
	}
	return given, true
}

// inputAsText replaces the dash for standard input by a word for the text that the caller writes there.
func inputAsText(v string) string {
	if v == "-" {
		return "TEXT"
	}
	return v
}

// call writes the call of the row with the values.
func (r *row) call(given map[string][]string) string {
	t := find(r.tool)
	var fields []string
	for _, a := range t.args {
		values := given[a.name]
		switch {
		case a.name == t.action():
			if !r.byDefault(given) {
				fields = append(fields, quote(a.name)+":"+quote(r.action))
			}
		case len(values) > 0:
			fields = append(fields, quote(a.name)+":"+a.json(values, r.action != "answer"))
		}
	}
	return r.tool + " {" + strings.Join(fields, ",") + "}"
}

// byDefault reports whether the call needs no action.
func (r *row) byDefault(given map[string][]string) bool {
	switch r.tool + " " + r.action {
	case "settle reply":
		return given["text"] != nil
	case "settle ack":
		return true
	case "team list":
		return given["about"] == nil
	case "team explain":
		return given["about"] != nil
	}
	return false
}

// json writes values as the argument of a call. A wait is cut to what a call may take.
func (a argument) json(values []string, wait bool) string {
	switch a.kind {
	case seconds:
		if d, err := time.ParseDuration(values[0]); err == nil {
			n := d.Seconds()
			if wait {
				n = min(n, mostWait.Seconds())
			}
			return strconv.FormatFloat(n, 'f', -1, 64)
		}
		return values[0]
	case flag:
		return "true"
	case list:
		return quote(values)
	case text, object, value:
	}
	return quote(strings.Join(values, " "))
}
