package proto

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The lines of a definition that a comment describes.
var (
	opens  = regexp.MustCompile(`^(?:message|enum|service|oneof) (\w+) {(})?$`)
	called = regexp.MustCompile(`^rpc (\w+)\(`)
	field  = regexp.MustCompile(`^(?:[\w.<>, ]+ )?(\w+) = \d+[ ;]`)
)

// Comments returns the comments of the API's definitions, by the full name of what they describe. It
// reads the subset of the language that buf's formatter writes and the API uses: one declaration per
// line, and comments above it. An oneof is no part of the names of its fields.
func Comments() (map[protoreflect.FullName]string, error) {
	all := map[protoreflect.FullName]string{}
	files, err := fs.Glob(Files, "brokerd/v1/*.proto")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		text, err := fs.ReadFile(Files, name)
		if err != nil {
			return nil, fmt.Errorf("read comments: %w", err)
		}
		read(string(text), all)
	}
	return all, nil
}

// read adds the comments of one file.
func read(text string, all map[protoreflect.FullName]string) {
	scope := []string{"brokerd.v1"}
	var above []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		comment, isComment := strings.CutPrefix(line, "//")
		switch {
		case isComment:
			above = append(above, strings.TrimPrefix(comment, " "))
			continue
		case line == "}" && len(scope) > 1:
			scope = scope[:len(scope)-1]
		case opens.MatchString(line):
			found := opens.FindStringSubmatch(line)
			inner := scope[len(scope)-1] + "." + found[1]
			if strings.HasPrefix(line, "oneof ") {
				inner = scope[len(scope)-1]
			} else {
				note(all, inner, above)
			}
			if found[2] == "" {
				scope = append(scope, inner)
			}
		case called.MatchString(line):
			note(all, scope[len(scope)-1]+"."+called.FindStringSubmatch(line)[1], above)
		case len(scope) > 1 && field.MatchString(line):
			note(all, scope[len(scope)-1]+"."+field.FindStringSubmatch(line)[1], above)
		}
		above = nil
	}
}

// note keeps the lines of a comment as text. An empty line ends a paragraph.
func note(all map[protoreflect.FullName]string, name string, lines []string) {
	var b strings.Builder
	for i, line := range lines {
		switch {
		case i == 0:
		case line == "" || lines[i-1] == "" || strings.HasPrefix(line, "- "):
			b.WriteByte('\n')
		default:
			b.WriteByte(' ')
		}
		b.WriteString(line)
	}
	if b.Len() > 0 {
		all[protoreflect.FullName(name)] = b.String()
	}
}
