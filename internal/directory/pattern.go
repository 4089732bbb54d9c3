package directory

import (
	"path"
	"strings"
)

// between returns bounds of the names that match a pattern, both included. No name has a character above z.
func between(pattern string) (low, high string) {
	if i := strings.IndexAny(pattern, "*?"); i >= 0 {
		pattern = pattern[:i]
	}
	return pattern, pattern + "~"
}

// Matches reports whether a name matches a pattern, in which only * and ? are special; an empty one matches all.
func Matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	found, err := path.Match(strings.ReplaceAll(pattern, "[", `\[`), name)
	return found && err == nil
}
