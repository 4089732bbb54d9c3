package validate

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PathFault says what is wrong with a relative path, in words that follow the name of a field, and
// returns an empty text for a path that is right. A path is wrong if it is empty or absolute, has an
// empty segment, "." or "..", a backslash, a control or an invisible character, or a dot or space at
// the end of a segment. A / at its end is allowed. Its length and encoding are not checked.
func PathFault(path string) string {
	switch {
	case path == "":
		return "is empty; a path relative to the session's root is required"
	case path[0] == '/':
		return fmt.Sprintf("is absolute: %q; paths are relative to the session's root", clip(path))
	}
	for i, r := range path {
		switch {
		case r == '\\':
			return fmt.Sprintf("has a backslash at byte %d; segments are separated by /", i)
		case unicode.IsControl(r):
			return fmt.Sprintf("has a control character (%U) at byte %d", r, i)
		case invisible(r):
			return fmt.Sprintf("has an invisible character (%U) at byte %d", r, i)
		}
	}
	for i, s := range strings.Split(strings.TrimSuffix(path, "/"), "/") {
		if what := segmentFault(s, i == 0); what != "" {
			return fmt.Sprintf("segment %d %s", i+1, what)
		}
	}
	return ""
}

// segmentFault says what is wrong with one segment.
func segmentFault(s string, first bool) string {
	switch {
	case s == "":
		return "is empty"
	case s == ".", s == "..":
		return fmt.Sprintf("is %q; write the path without it, relative to the session's root", s)
	case first && len(s) == 2 && s[1] == ':' && unicode.IsLetter(rune(s[0])):
		return fmt.Sprintf("is the drive %q: the path is absolute; paths are relative to the session's root", s)
	}
	if last, _ := utf8.DecodeLastRuneInString(s); last == '.' || unicode.IsSpace(last) {
		return fmt.Sprintf("ends in a dot or space: %q", clip(s))
	}
	return ""
}

// invisible reports whether a character has no width, or ends a line: paths that look the same must
// be the same.
func invisible(r rune) bool {
	return r >= 0x80 && unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}
