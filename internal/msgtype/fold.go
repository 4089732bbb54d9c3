package msgtype

import "strings"

// Fold returns a name in snake_case: upper case and PascalCase, dots and hyphens become lower case
// and single underscores. Other characters stay. Folding a folded name changes nothing. The result
// may be longer than the name, at most twice as long.
func Fold(name string) string {
	if isFolded(name) {
		return name
	}
	folded := make([]byte, 0, len(name)+8)
	for i := range len(name) {
		switch c := name[i]; {
		case c == '.' || c == '-' || c == '_':
			folded = separated(folded)
		case isUpper(c):
			if beginsWord(name, i) {
				folded = separated(folded)
			}
			folded = append(folded, c+'a'-'A')
		default:
			folded = append(folded, c)
		}
	}
	return strings.TrimSuffix(string(folded), "_")
}

// separated ends a word, unless there is none to end.
func separated(folded []byte) []byte {
	if n := len(folded); n == 0 || folded[n-1] == '_' {
		return folded
	}
	return append(folded, '_')
}

// beginsWord reports whether the upper-case letter at i begins a word: it follows a lower-case
// letter or digit, or it is the last capital before a lower-case letter, as the R in HTTPRequest.
func beginsWord(name string, i int) bool {
	if i == 0 {
		return false
	}
	switch before := name[i-1]; {
	case isLower(before), '0' <= before && before <= '9':
		return true
	case isUpper(before):
		return i+1 < len(name) && isLower(name[i+1])
	}
	return false
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }

// isFolded reports whether Fold leaves a name as it is.
func isFolded(name string) bool {
	before := byte('_')
	for i := range len(name) {
		c := name[i]
		if c == '.' || c == '-' || isUpper(c) || c == '_' && before == '_' {
			return false
		}
		before = c
	}
	return name == "" || before != '_'
}
