package locks_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"brokerd/internal/fault"
	"brokerd/internal/locks"
)

// path parses what is known to be a path.
func path(t testing.TB, raw string) locks.Path {
	t.Helper()
	p, err := locks.Parse(raw, false)
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return p
}

func TestParse_KindAndPrefix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		raw    string
		kind   locks.PathKind
		prefix string
	}{
		{"a.go", locks.File, ""},
		{"src/a.go", locks.File, "src/"},
		{".github/x", locks.File, ".github/"},
		{"a b/[c]{d}", locks.File, "a b/"},
		{"C:x", locks.File, ""},
		{"src/", locks.Dir, "src/"},
		{"src/x/", locks.Dir, "src/x/"},
		{"*", locks.Glob, ""},
		{"**", locks.Glob, ""},
		{"src/*.go", locks.Glob, "src/"},
		{"src/**/x.go", locks.Glob, "src/"},
		{"src/a?/b/*", locks.Glob, "src/"},
		{"src/x/*/", locks.Glob, "src/x/"},
	} {
		p := path(t, c.raw)
		if p.String() != c.raw || p.Kind() != c.kind || p.Prefix() != c.prefix {
			t.Errorf("%q: %q, kind %d, prefix %q", c.raw, p, p.Kind(), p.Prefix())
		}
	}
}

func TestParse_OneFormForOneName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ raw, exact, folded string }{
		{"e\u0301.go", "\u00e9.go", "\u00e9.go"},
		{"Src/A.go", "Src/A.go", "src/a.go"},
		{"\u212a", "K", "k"},
		{"Straße", "Straße", "strasse"},
		{"\u00c9t\u00c9/*", "ÉtÉ/*", "été/*"},
		{"E\u0301", "É", "é"},
	} {
		for fold, want := range map[bool]string{false: c.exact, true: c.folded} {
			p, err := locks.Parse(c.raw, fold)
			if err != nil || p.String() != want {
				t.Errorf("%q, fold %v: %q, %v; want %q", c.raw, fold, p, err, want)
			}
		}
	}
}

func TestParse_RefusedWithWhatIsWrongAndWhere(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"":                         "is empty",
		"/etc/passwd":              `is absolute: "/etc/passwd"`,
		"C:/x":                     `segment 1 is the drive "C:"`,
		"..":                       `segment 1 is ".."`,
		"src/../x":                 `segment 2 is ".."`,
		"./x":                      `segment 1 is "."`,
		"src/.":                    `segment 2 is "."`,
		"src//x":                   "segment 2 is empty",
		"src/x//":                  "segment 3 is empty",
		`src\x`:                    "has a backslash at byte 3",
		"a\x00b":                   "has a control character (U+0000) at byte 1",
		"a\nb":                     "has a control character (U+000A) at byte 1",
		"a\u0085b":                 "has a control character (U+0085) at byte 1",
		"a\u200bb":                 "has an invisible character (U+200B) at byte 1",
		"\ufeffa":                  "has an invisible character (U+FEFF) at byte 0",
		"a\u00adb":                 "has an invisible character (U+00AD) at byte 1",
		"a\u202eb":                 "has an invisible character (U+202E) at byte 1",
		"a\u2028b":                 "has an invisible character (U+2028) at byte 1",
		"a\ufe0fb":                 "has an invisible character (U+FE0F) at byte 1",
		"a\u3164":                  "has an invisible character (U+3164) at byte 1",
		"a.":                       `segment 1 ends in a dot or space: "a."`,
		"src /x":                   `segment 1 ends in a dot or space: "src "`,
		"src/x.../":                `segment 2 ends in a dot or space: "x..."`,
		"src/x\u00a0":              "segment 2 ends in a dot or space",
		"src/*.":                   `segment 2 ends in a dot or space: "*."`,
		"a\xff":                    "is not valid UTF-8",
		strings.Repeat("a", 1025):  "has 1025 bytes; at most 1024 are allowed",
		strings.Repeat("ŉ", 512):   "", // as long as it may be, until it is folded
		strings.Repeat("a/", 513):  "has 1026 bytes",
		strings.Repeat("ab/", 341): "",
	} {
		_, err := locks.Parse(raw, false)
		if want == "" {
			if err != nil {
				t.Errorf("%q: %v", raw, err)
			}
			continue
		}
		if fault.KindOf(err) != fault.Invalid || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v; want %s", raw, err, want)
		}
	}
	if _, err := locks.Parse(strings.Repeat("ŉ", 512), true); err == nil || !strings.Contains(err.Error(), "in the form in which paths are compared") {
		t.Errorf("longer once it is folded: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "src/a.go", "src/", "src/*.go", "**/x", "a/**/b/", "/etc", "..", "a//b", `a\b`, "a.", "e\u0301", "ß", "K", "a\u200b", "*?**", "\xff", "ͅα", "a/\u0338",
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, raw string, fold bool) {
		p, err := locks.Parse(raw, fold)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid || err.Error() == "" || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		s := p.String()
		if s == "" || len(s) > 1024 || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || strings.ContainsAny(s, "\\\u200b\u200d\ufeff") ||
			!strings.HasPrefix(s, p.Prefix()) || strings.ContainsAny(p.Prefix(), "*?") {
			t.Fatalf("%q is taken as %q below %q", raw, s, p.Prefix())
		}
		for _, segment := range strings.Split(strings.TrimSuffix(s, "/"), "/") {
			if segment == "" || strings.HasSuffix(segment, ".") || strings.HasSuffix(segment, " ") {
				t.Fatalf("%q is taken as %q", raw, s)
			}
		}
		again, err := locks.Parse(s, fold)
		if err != nil || again.String() != s || again.Kind() != p.Kind() {
			t.Fatalf("%q is taken as %q, and that as %q: %v", raw, s, again, err)
		}
		if !locks.Overlaps(p, again) {
			t.Fatalf("%q does not overlap itself", s)
		}
		if below := path(t, "**"); !locks.Overlaps(p, below) || !locks.Overlaps(below, p) {
			t.Fatalf("%q does not overlap everything", s)
		}
	})
}
