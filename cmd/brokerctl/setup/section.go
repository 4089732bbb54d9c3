package setup

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// A marker is the pair of lines around a section that setup adds to a file.
type marker struct{ begin, end string }

var (
	markdownMarker = marker{"<!-- brokerctl setup: begin -->", "<!-- brokerctl setup: end -->"}
	hashMarker     = marker{"# brokerctl setup: begin", "# brokerctl setup: end"}
)

// A section is the part of a text between markers.
type section struct {
	start, end int // offsets of the first marker and of the end of the last one
	newline    string
}

// find returns the section of the text, or nil.
func (m marker) find(text string) (*section, error) {
	s := &section{start: -1, end: -1, newline: "\n"}
	at := 0
	for i, line := range strings.SplitAfter(text, "\n") {
		content := strings.TrimRight(line, "\r\n")
		switch {
		case content == m.begin && s.start < 0:
			s.start = at
			if strings.HasSuffix(line, "\r\n") {
				s.newline = "\r\n"
			}
		case content == m.end && s.start >= 0 && s.end < 0:
			s.end = at + len(content)
		case content == m.begin || content == m.end:
			return nil, fmt.Errorf("line %d: %q does not belong to a pair", i+1, content)
		}
		at += len(line)
	}
	switch {
	case s.start < 0:
		return nil, nil
	case s.end < 0:
		return nil, fmt.Errorf("line %d: %q has no end", 1+strings.Count(text[:s.start], "\n"), m.begin)
	}
	return s, nil
}

// add appends the section with an empty line before it, unless the text has it. The line ending after
// the section shows remove what was before: the section ends the file with a line ending if the file
// did so before, or did not exist.
func (m marker) add(text string, exists bool, body string) (_, conflict string, err error) {
	s, err := m.find(text)
	if err != nil {
		return "", "", err
	}
	block := m.begin + "\n" + body + m.end
	if s != nil {
		if strings.ReplaceAll(text[s.start:s.end], "\r\n", "\n") != block {
			conflict = "the section of setup has another text"
		}
		return text, conflict, nil
	}
	newline := newlineOf(text)
	block = strings.ReplaceAll(block, "\n", newline)
	switch {
	case text == "" && !exists:
		return block + newline, "", nil
	case text == "":
		return block, "", nil
	case strings.HasSuffix(text, "\n"):
		return text + newline + block + newline, "", nil
	}
	return text + newline + newline + block, "", nil
}

// replace replaces the text of the section.
func (m marker) replace(text, body string) (_, conflict string, err error) {
	s, err := m.find(text)
	if err != nil || s == nil {
		return text, "it has another name, and does not stand in the section of setup", err
	}
	block := strings.ReplaceAll(m.begin+"\n"+body+m.end, "\n", s.newline)
	return text[:s.start] + block + text[s.end:], "", nil
}

// remove removes the section. deleted reports that setup created the file and that nothing else is in
// it.
func (m marker) remove(text string) (_ string, deleted bool, err error) {
	s, err := m.find(text)
	if s == nil || err != nil {
		return text, false, err
	}
	before, after, ended := text[:s.start], "", false
	if after, ended = strings.CutPrefix(text[s.end:], s.newline); before == "" {
		return after, ended && after == "", nil
	}
	if line := strings.TrimSuffix(before, s.newline); line == "" || strings.HasSuffix(line, "\n") {
		before = line // the empty line
		if !ended {
			before = strings.TrimSuffix(before, s.newline)
		}
	}
	return before + after, false, nil
}

// A tomlTable is a table that setup adds to a TOML file between markers. The markers make the removal
// exact, and a parser checks what the text means: tables can be written in many ways.
type tomlTable struct {
	path   []string
	values []string // the lines of the table
}

// body returns the lines of the table with its header.
func (t tomlTable) body() string {
	return "[" + strings.Join(t.path, ".") + "]\n" + strings.Join(t.values, "\n") + "\n"
}

// inline returns the table as a member of an inline table of its parent.
func (t tomlTable) inline() string {
	return t.path[len(t.path)-1] + " = { " + strings.Join(t.values, ", ") + " }"
}

// add adds the table, unless the file has one with its name.
func (t tomlTable) add(text string, exists bool) (_, conflict string, err error) {
	before, err := parseTOML(text)
	if err != nil {
		return "", "", err
	}
	wanted, err := parseTOML(t.body())
	if err != nil {
		return "", "", err
	}
	value, found := lookup(before, t.path)
	if found {
		want, _ := lookup(wanted, t.path)
		if reflect.DeepEqual(value, want) {
			return text, "", nil
		}
		if reflect.DeepEqual(nameless(value), nameless(want)) {
			return hashMarker.replace(text, t.body())
		}
		return text, fmt.Sprintf("%s has other values", strings.Join(t.path, ".")), nil
	}
	after, conflict, err := hashMarker.add(text, exists, t.body())
	if err != nil || conflict != "" {
		return text, conflict, err
	}
	if _, err := parseTOML(after); err != nil {
		return text, fmt.Sprintf("%s is no table that setup can add to; add to it by hand: %s", t.path[0], t.inline()), nil
	}
	return after, "", nil
}

// parseTOML returns the content of a TOML text. Its error names the line.
func parseTOML(text string) (map[string]any, error) {
	var content map[string]any
	err := toml.Unmarshal([]byte(text), &content)
	if broken := (*toml.DecodeError)(nil); errors.As(err, &broken) {
		line, column := broken.Position()
		return nil, fmt.Errorf("line %d, column %d: %s", line, column, strings.TrimPrefix(broken.Error(), "toml: "))
	}
	return content, err
}

func lookup(content map[string]any, path []string) (value any, found bool) {
	value = content
	for _, key := range path {
		table, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value, found = table[key]; !found {
			return nil, false
		}
	}
	return value, true
}

// lines returns the lines of a text without their endings, for messages and comparisons.
func lines(text string) []string {
	return slices.Collect(strings.Lines(text))
}
