package setup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"brokerd/internal/prompt"

	"github.com/tailscale/hujson"
)

// An entry is a piece of JSON that setup adds to a file, on one line.
//
// Whitespace shows who wrote an object or array, so that remove restores every byte without a record:
// a container that setup creates has whitespace after its opening brace, and setup puts its entry
// directly behind the brace of a container that was empty before.
type entry struct {
	path   []string // the keys that lead to it
	value  string   // one line of JSON
	append bool     // value is an element of the array at path; otherwise path names value itself

	// mark is a text in every element that serves the same purpose as value. The user may have
	// written a different one; setup keeps it.
	mark string
	// earlier are other values that setup gives it, with other options, or gave it in an earlier version; apart
	// from the name of an agent.
	earlier []string
	// with names the member that setup must have created for this one to follow it: a member that the
	// vendor wants in a new file, and that is none of setup's business in another one. remove removes
	// it only behind that member, and together with it.
	with string
	// absent is set for a value that setup adds with other options only: add and remove remove it.
	absent bool
}

func (e entry) name() string { return strings.Join(e.path, ".") }

// addJSON adds the entries that the text does not have. conflicts lists those that have another value.
func addJSON(text string, exists bool, entries []entry) (_ string, conflicts []string, err error) {
	bom, text := cutBOM(text)
	created := map[string]bool{} // the members of the root that this call adds
	for _, e := range entries {
		if e.absent {
			if text, _, _, err = removeJSON(text, []entry{e}); err != nil {
				return "", nil, err
			}
			continue
		}
		root, blank, err := parseJSON(text)
		if err != nil {
			return "", nil, err
		}
		present := !blank && hasMember(&root, e.path[0])
		if e.with != "" && (present || !created[e.with]) {
			continue
		}
		w := newWriter(text)
		created[e.path[0]] = created[e.path[0]] || !present
		if blank {
			end := prompt.Either(!exists, "\n", "")
			text += w.nested(e.path, e, "", true) + end
			exists = true
			continue
		}
		var conflict string
		text, conflict = w.add(&root, e)
		if conflict != "" {
			conflicts = append(conflicts, conflict)
		}
	}
	return bom + text, conflicts, nil
}

// removeJSON removes the entries. kept lists those that have another value than setup gives them.
// deleted reports that setup created the file and that nothing else is in it.
func removeJSON(text string, entries []entry) (_ string, kept []string, deleted bool, err error) {
	bom, text := cutBOM(text)
	for i := len(entries) - 1; i >= 0; i-- {
		e := entries[i]
		root, blank, err := parseJSON(text)
		if err != nil {
			return "", nil, false, err
		}
		if blank {
			return bom + text, kept, false, nil
		}
		chain, _, conflict := find(&root, e)
		if conflict != "" {
			kept = append(kept, conflict)
		}
		if chain == nil || e.with != "" && !leavesWith(text, chain, e, entries[:i]) {
			continue
		}
		before, after, all := cut(text, chain)
		if text = before + after; all {
			return bom + text, kept, bom+before == "" && after == "\n", nil
		}
	}
	return bom + text, kept, false, nil
}

// leavesWith reports whether the member e.with precedes e and disappears with the other entries.
func leavesWith(text string, chain []step, e entry, others []entry) bool {
	at := chain[0]
	if at.index == 0 || at.container.items[at.index-1].name != e.with {
		return false
	}
	rest, _, _, err := removeJSON(text, others)
	if err != nil {
		return false
	}
	root, blank, err := parseJSON(rest)
	return err == nil && (blank || !hasMember(&root, e.with))
}

// hasMember reports whether a value is an object that has a member with the name.
func hasMember(v *hujson.Value, name string) bool {
	_, ok := v.Value.(*hujson.Object)
	return ok && indexOf(containerOf(v).items, name) >= 0
}

// parseJSON parses a text that may have comments and trailing commas. blank reports that it has
// whitespace and comments only.
func parseJSON(text string) (root hujson.Value, blank bool, err error) {
	root, err = hujson.Parse([]byte(text))
	if err == nil {
		return root, false, nil
	}
	if _, e := hujson.Parse([]byte(text + "{}")); e == nil {
		return root, true, nil
	}
	return root, false, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "hujson: "))
}

// a container is an object or an array of a text.
type container struct {
	open, end int // offsets of its braces
	items     []item
}

// an item is a member of an object or an element of an array.
type item struct {
	name       string // of a member
	start, end int    // offsets
	value      *hujson.Value
}

// containerOf returns the object or array that v is, or nil.
func containerOf(v *hujson.Value) *container {
	c := &container{open: v.StartOffset, end: v.EndOffset - 1}
	switch t := v.Value.(type) {
	case *hujson.Object:
		for i := range t.Members {
			m := &t.Members[i]
			name, _ := m.Name.Value.(hujson.Literal)
			c.items = append(c.items, item{name.String(), m.Name.StartOffset, m.Value.EndOffset, &m.Value})
		}
	case *hujson.Array:
		for i := range t.Elements {
			v := &t.Elements[i]
			c.items = append(c.items, item{"", v.StartOffset, v.EndOffset, v})
		}
	default:
		return nil
	}
	return c
}

// indexOf returns the index of the member that counts for a parser: the last one with the name.
func indexOf(items []item, name string) int {
	for i := len(items) - 1; i >= 0; i-- {
		if items[i].name == name {
			return i
		}
	}
	return -1
}

// a step is one level of the way from the root to an entry.
type step struct {
	container *container
	index     int
}

// find returns the way to the entry with a value that setup gives it, or nil. current reports that it is
// that of e. conflict says what has another value.
func find(root *hujson.Value, e entry) (chain []step, current bool, conflict string) {
	v := root
	for _, key := range e.path {
		if _, ok := v.Value.(*hujson.Object); !ok {
			return nil, false, ""
		}
		c := containerOf(v)
		i := indexOf(c.items, key)
		if i < 0 {
			return nil, false, ""
		}
		chain = append(chain, step{c, i})
		v = c.items[i].value
	}
	if !e.append {
		own, current := e.is(v)
		if !own {
			return nil, false, fmt.Sprintf("%s is %s", e.name(), short(v))
		}
		return chain, current, ""
	}
	if _, ok := v.Value.(*hujson.Array); !ok {
		return nil, false, ""
	}
	c := containerOf(v)
	for i, it := range c.items {
		if own, current := e.is(it.value); own {
			return append(chain, step{c, i}), current, ""
		}
		if strings.Contains(it.value.String(), e.mark) {
			conflict = fmt.Sprintf("%s has %s", e.name(), short(it.value))
		}
	}
	return nil, false, conflict
}

// is reports whether setup gives the entry this value, apart from its formatting, and whether it is the value of e.
func (e entry) is(v *hujson.Value) (own, current bool) {
	found := standard(v)
	if reflect.DeepEqual(found, decoded(e.value)) {
		return true, true
	}
	found = nameless(found)
	for _, value := range append(e.earlier, e.value) {
		if reflect.DeepEqual(found, nameless(decoded(value))) {
			return true, false
		}
	}
	return false, false
}

// standard returns a value as encoding/json decodes it, without comments and trailing commas.
func standard(v *hujson.Value) any {
	c := v.Clone()
	c.Standardize()
	return decoded(string(c.Pack()))
}

// decoded returns the value of a JSON text that a parser has accepted.
func decoded(text string) (v any) {
	_ = json.Unmarshal([]byte(text), &v) // what fails here equals no other value
	return v
}

// short returns a value in at most 120 bytes of one line, for a message.
func short(v *hujson.Value) string {
	c := v.Clone()
	c.Minimize()
	s := string(bytes.ToValidUTF8(c.Pack(), nil))
	if len(s) > 120 {
		s = strings.ToValidUTF8(s[:117], "") + "…"
	}
	return s
}

// a writer adds entries to a text in the text's own style.
type writer struct {
	text    string
	newline string
	indent  string // of one level
	oneLine bool   // the document has members, all on one line
	space   string // between the items of one line
}

func newWriter(text string) *writer {
	w := &writer{text: text, newline: newlineOf(text), indent: "  "}
	root, blank, err := parseJSON(text)
	if blank || err != nil {
		return w
	}
	body := text[root.StartOffset:root.EndOffset]
	if c := containerOf(&root); c != nil && len(c.items) > 0 {
		w.oneLine = !strings.Contains(body, "\n")
		if before := text[c.open+1 : c.items[0].start]; strings.Contains(before, "\n") {
			if at := before[strings.LastIndex(before, "\n")+1:]; at != "" && strings.Trim(at, " \t") == "" {
				w.indent = at
			}
		}
	}
	if !w.oneLine || strings.Contains(body, `": `) || strings.Contains(body, ", ") {
		w.space = " "
	}
	return w
}

// add returns the text with the entry, or a conflict.
func (w *writer) add(root *hujson.Value, e entry) (text, conflict string) {
	chain, current, conflict := find(root, e)
	switch {
	case chain != nil && !current:
		at := chain[len(chain)-1]
		old := at.container.items[at.index].value
		return w.text[:old.StartOffset] + e.value + w.text[old.EndOffset:], ""
	case chain != nil || conflict != "":
		return w.text, conflict
	}
	v := root
	for i, key := range e.path {
		if _, ok := v.Value.(*hujson.Object); !ok {
			return w.text, fmt.Sprintf("%s is no object", place(e.path[:i]))
		}
		c := containerOf(v)
		at := indexOf(c.items, key)
		if at < 0 {
			return w.insert(c, func(indent string, lines bool) string {
				return quote(key) + ":" + w.space + w.nested(e.path[i+1:], e, indent, lines)
			}), ""
		}
		v = c.items[at].value
	}
	if _, ok := v.Value.(*hujson.Array); !ok {
		return w.text, fmt.Sprintf("%s is no array", place(e.path))
	}
	return w.insert(containerOf(v), func(string, bool) string { return e.value }), ""
}

func place(path []string) string {
	if len(path) == 0 {
		return "the file"
	}
	return strings.Join(path, ".")
}

// nested returns the value of the entry inside new containers for the rest of its path.
func (w *writer) nested(rest []string, e entry, indent string, lines bool) string {
	inner, pad, end := indent+w.indent, " ", " "
	if lines {
		pad, end = w.newline+inner, w.newline+indent
	}
	switch {
	case len(rest) > 0:
		return "{" + pad + quote(rest[0]) + ": " + w.nested(rest[1:], e, inner, lines) + end + "}"
	case e.append:
		return "[" + pad + e.value + end + "]"
	}
	return e.value
}

func quote(key string) string {
	b, _ := json.Marshal(key) // a string has no error
	return string(b)
}

// insert adds an item at the end of a container. It moves no byte of the text.
func (w *writer) insert(c *container, render func(indent string, lines bool) string) string {
	inside := w.text[c.open:c.end]
	if len(c.items) == 0 {
		return w.text[:c.open+1] + render(w.lineIndent(c.open)+w.indent, !w.oneLine) + w.text[c.open+1:]
	}
	lines := strings.Contains(inside, "\n")
	indent := w.lineIndent(c.open) + w.indent
	for _, it := range c.items {
		if before := w.text[c.open+1 : it.start]; strings.HasSuffix(strings.TrimRight(before, " \t"), "\n") {
			indent = before[strings.LastIndex(before, "\n")+1:]
		}
	}
	last := c.items[len(c.items)-1].end
	tail := w.text[last:c.end]
	at := last + len(strings.TrimRight(tail, space))
	pad := w.space
	if lines {
		pad = w.newline + indent // also ends a line comment before it
	}
	new := pad + render(indent, lines)
	if comma := skipExtra(w.text, last); comma < c.end {
		return w.text[:at] + new + "," + w.text[at:]
	}
	return w.text[:last] + "," + w.text[last:at] + new + w.text[at:]
}

// lineIndent returns the whitespace at the start of the line of an offset.
func (w *writer) lineIndent(at int) string {
	line := w.text[strings.LastIndex(w.text[:at], "\n")+1 : at]
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

const space = " \t\r\n"

// cut returns what is before and after the last step of the chain, without the commas and the
// containers that setup wrote with it. all reports that this is the whole document.
func cut(text string, chain []step) (before, after string, all bool) {
	s := chain[len(chain)-1]
	c, it := s.container, s.container.items[s.index]
	start, end := len(strings.TrimRight(text[:it.start], space)), it.end
	comma := skipExtra(text, end)
	hasComma := comma < c.end && text[comma] == ','
	switch {
	case len(c.items) > 1 && s.index == len(c.items)-1 && !hasComma:
		previous := skipExtra(text, c.items[s.index-1].end)
		return text[:previous] + text[previous+1:start], text[end:], false
	case hasComma:
		end = comma + 1
	}
	created := it.start > start && start == c.open+1 && strings.Trim(text[end:c.end], space) == ""
	if len(c.items) > 1 || !created {
		return text[:start], text[end:], false
	}
	if len(chain) == 1 {
		return text[:c.open], text[c.end+1:], true
	}
	return cut(text, chain[:len(chain)-1])
}

// skipExtra returns the offset of the first byte at or after i that is neither whitespace nor part of
// a comment.
func skipExtra(text string, i int) int {
	for i < len(text) {
		switch {
		case strings.IndexByte(space, text[i]) >= 0:
			i++
		case strings.HasPrefix(text[i:], "//"):
			i += strings.IndexByte(text[i:]+"\n", '\n')
		case strings.HasPrefix(text[i:], "/*"):
			i += 2 + strings.Index(text[i+2:], "*/") + 2
		default:
			return i
		}
	}
	return i
}

// cutBOM separates a byte order mark, which no parser here accepts, from the text.
func cutBOM(text string) (bom, rest string) {
	const mark = "\ufeff"
	if rest, ok := strings.CutPrefix(text, mark); ok {
		return mark, rest
	}
	return "", text
}

// newlineOf returns the line ending that a text uses first.
func newlineOf(text string) string {
	if i := strings.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}
