package locks

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"brokerd/internal/fault"
	"brokerd/internal/validate"
)

// PathKind says what a path stands for.
type PathKind int

// The kinds of path.
const (
	File PathKind = iota + 1 // one file, such as src/a.go
	Dir                      // all files below a directory, such as src/
	Glob                     // all files that match, such as src/*.go
)

// A Path is what a lock is about: a file, a directory or a glob, in the one form in which paths are compared. Two of them are the same
// if their strings are. It is immutable; the zero value is no path.
//
// In a glob ? stands for one character, * for any number of characters of one segment, also none, and ** for any number of segments, also none.
// ** is only special as a whole segment; within one, several * are one. A glob that ends in / or /** stands for all files below what comes before
// it. Nothing else is special: a bracket is a bracket, and files that begin with a dot are matched as any others. Characters are code points of NFC, and of the folded
// form if case is folded.
type Path struct {
	text   string
	kind   PathKind
	prefix int      // of text: the length of the literal directory prefix
	glob   *pattern // of a glob
}

// Parse reads a path as clients write it: relative to the session's root, with / between segments. Unicode is brought into NFC, and case is
// folded if fold says so. fault.Invalid for a path that is empty, longer than 1,024 bytes or not UTF-8, that is absolute or has an
// empty segment, "." or "..", a backslash, a control or an invisible character, or a dot or space at the end of a segment. Its message says what is wrong and where, and is made to
// follow the name of a field.
func Parse(raw string, fold bool) (Path, error) {
	if len(raw) > validate.MaxPath {
		return Path{}, invalid("has %d bytes; at most %d are allowed", len(raw), validate.MaxPath)
	}
	if !utf8.ValidString(raw) {
		return Path{}, invalid("is not valid UTF-8")
	}
	text := canonical(raw, fold)
	if len(text) > validate.MaxPath {
		return Path{}, invalid("has %d bytes in the form in which paths are compared; at most %d are allowed", len(text), validate.MaxPath)
	}
	if wrong := validate.PathFault(text); wrong != "" {
		return Path{}, invalid("%s", wrong)
	}
	p := Path{text: text, kind: File, prefix: strings.LastIndexByte(text, '/') + 1}
	if wild := strings.IndexAny(text, "*?"); wild >= 0 {
		p.kind, p.glob = Glob, compile(text)
		p.prefix = strings.LastIndexByte(text[:wild], '/') + 1
	} else if strings.HasSuffix(text, "/") {
		p.kind = Dir
	}
	return p, nil
}

// Limits of the paths that a request may name. Paths that are held or waited for since an older broker
// may exceed them.
const (
	maxSegments  = 64
	maxGlobBytes = 256
	maxPathBytes = 128 << 10 // of all paths of a call
)

// parseNew is Parse for a path that is to be locked.
func parseNew(raw string, fold bool) (Path, error) {
	p, err := Parse(raw, fold)
	switch n := strings.Count(strings.TrimSuffix(p.text, "/"), "/") + 1; {
	case err != nil:
	case n > maxSegments:
		err = invalid("has %d segments; at most %d are allowed: name a directory above", n, maxSegments)
	case p.kind == Glob && len(p.text) > maxGlobBytes:
		err = invalid("is a glob of %d bytes; at most %d are allowed: name a directory", len(p.text), maxGlobBytes)
	}
	return p, err
}

// String returns the path as it is compared.
func (p Path) String() string { return p.text }

// Kind returns what it stands for.
func (p Path) Kind() PathKind { return p.kind }

// Prefix returns the longest directory, ending in /, below which all lies that the path covers: src/ of src/a.go, of src/ and of src/*.go. It is
// empty for the root.
func (p Path) Prefix() string { return p.text[:p.prefix] }

// canonical is the form in which paths are compared. Folding comes between two normal forms, as Unicode has it for canonical caseless matching.
func canonical(raw string, fold bool) string {
	switch {
	case !fold:
		return norm.NFC.String(raw)
	case isASCII(raw):
		return strings.ToLower(raw)
	default:
		return norm.NFC.String(cases.Fold().String(norm.NFD.String(raw)))
	}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func invalid(format string, args ...any) error {
	return fault.New(fault.Invalid, "INVALID_ARGUMENT", format, args...)
}
