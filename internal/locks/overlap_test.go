package locks_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"brokerd/internal/locks"
)

func TestOverlaps_Examples(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"src/a.go", "src/a.go", true},
		{"src/a.go", "src/b.go", false},
		{"src/a.go", "src/a.go/x", false}, // no file is both
		{"src/a.go", "src/", true},
		{"src/a.go", "src/x/", false},
		{"src", "src/", false}, // what lies below src is not src
		{"srcs/a", "src/", false},
		{"src/", "src/x/", true},
		{"src/", "lib/", false},
		{"src/", "sr/", false},
		{"src/*", "src/a.go", true},
		{"src/*", "src/x/a.go", false},
		{"src/*", "src/", true},
		{"src/*", "src/x/", false},
		{"src/*/", "src/x/", true},
		{"src/*/", "src/a.go", false},
		{"src/*/", "src/x/y/a.go", true},
		{"src/**", "src/x/", true},
		{"src/**", "src/x/y/a.go", true},
		{"src/**", "src", false},
		{"src/**/", "src/a.go", true},
		{"**", "a", true},
		{"**", "a/b/c/", true},
		{"**/", "a", true},
		{"*", "a/b", false},
		{"**/a", "a", true},
		{"**/a", "x/y/a", true},
		{"**/a", "x/ya", false},
		{"**/a", "a/", true},
		{"x/**/a", "x/a", true},
		{"x/**/a", "xa", false},
		{"x/**/a", "x/y/z/a", true},
		{"**/x/**", "a/x/b", true},
		{"**/x/**", "x", false},
		{"src/*.go", "src/a.go", true},
		{"src/*.go", "src/a.goo", false},
		{"src/*.go", "src/.go", true},
		{"src/*.go", "src/*_test.go", true},
		{"src/*.go", "src/*.md", false},
		{"src/a*", "src/*b", true},
		{"src/a?", "src/a", false},
		{"src/a?", "src/?b", true},
		{"a?c", "ab", false},
		{"?", "é", true},
		{"??", "é", false},
		{"a**b", "axyb", true},
		{"a**b", "ax/yb", false},
		{"*a*b*c*", "*c*b*a*", true},
		{"src/**/test/*.go", "src/*/x/**", true},
		{"src/**/test/*.go", "src/test", false},
		{"**/*.go", "**/*.md", false},
		{"**/a/*", "b/**/c", true},
		{"[a]", "a", false},
		{"*", ".hidden", true},
	} {
		a, b := path(t, c.a), path(t, c.b)
		if locks.Overlaps(a, b) != c.want || locks.Overlaps(b, a) != c.want {
			t.Errorf("%s and %s: %v, %v; want %v", c.a, c.b, locks.Overlaps(a, b), locks.Overlaps(b, a), c.want)
		}
	}
}

// A world is all files of a few names up to some depth. What a path covers there is found out by trying every file, and all pairs of the
// paths that are made of parts have a common file there if they have one anywhere.
type world struct {
	names []string
	depth int
	parts []string
	most  int // parts of a path
}

// within is one segment: files and globs of up to 4 characters.
func within() world {
	return world{names: words([]string{"a", "b"}, 6), depth: 1, parts: words([]string{"a", "b", "*", "?"}, 4), most: 1}
}

// across is rows of short segments.
func across() world {
	return world{names: words([]string{"a", "b"}, 2), depth: 6, parts: []string{"a", "b", "ab", "*", "?", "**", "a*", "*b", "?b"}, most: 3}
}

// words are all words of 1 to most letters.
func words(letters []string, most int) []string {
	var all []string
	last := []string{""}
	for range most {
		var next []string
		for _, w := range last {
			for _, l := range letters {
				next = append(next, w+l)
			}
		}
		all = append(all, next...)
		last = next
	}
	return all
}

// files are all files, as the numbers of their names.
func (w world) files() [][]int {
	var all [][]int
	last := [][]int{nil}
	for range w.depth {
		var next [][]int
		for _, f := range last {
			for n := range w.names {
				next = append(next, append(f[:len(f):len(f)], n))
			}
		}
		all = append(all, next...)
		last = next
	}
	return all
}

// paths are all paths.
func (w world) paths() []string {
	var all []string
	last := []string{""}
	for range w.most {
		var next []string
		for _, p := range last {
			for _, part := range w.parts {
				next = append(next, p+part+"/")
			}
		}
		for _, p := range next {
			all = append(all, strings.TrimSuffix(p, "/"))
			if w.depth > 1 {
				all = append(all, p)
			}
		}
		last = next
	}
	return all
}

// covered tells, file by file, what a path covers.
func (w world) covered(raw string, files [][]int) []uint64 {
	segments := strings.Split(raw, "/")
	if last := len(segments) - 1; segments[last] == "" {
		segments[last] = "**"
	}
	fits := make([][]bool, len(segments))
	for i, s := range segments {
		fits[i] = make([]bool, len(w.names))
		for n, name := range w.names {
			fits[i][n] = matches(s, name)
		}
	}
	set := make([]uint64, len(files)/64+1)
	for i, f := range files {
		if covers(segments, fits, f) {
			set[i/64] |= 1 << (i % 64)
		}
	}
	return set
}

// covers says what is meant, in the plainest way.
func covers(segments []string, fits [][]bool, file []int) bool {
	switch {
	case len(segments) == 0:
		return len(file) == 0
	case segments[0] != "**":
		return len(file) > 0 && fits[0][file[0]] && covers(segments[1:], fits[1:], file[1:])
	case len(segments) == 1:
		return len(file) > 0
	}
	for n := range len(file) + 1 {
		if covers(segments[1:], fits[1:], file[n:]) {
			return true
		}
	}
	return false
}

func matches(glob, name string) bool {
	switch {
	case glob == "":
		return name == ""
	case glob[0] == '*':
		return matches(glob[1:], name) || name != "" && matches(glob, name[1:])
	}
	return name != "" && (glob[0] == '?' || glob[0] == name[0]) && matches(glob[1:], name[1:])
}

// TestOverlaps_AgreesWithTryingEveryFile compares 20,000 pairs, or GLOB_PAIRS. Pairs behind a long common directory are compared as well, where sets of places are longer
// than one word.
func TestOverlaps_AgreesWithTryingEveryFile(t *testing.T) {
	t.Parallel()
	pairs, sample := 20_000, 200
	if n, err := strconv.Atoi(os.Getenv("GLOB_PAIRS")); err == nil {
		pairs, sample = n, n
	}
	for _, w := range []world{within(), across()} {
		files, all := w.files(), w.paths()
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:min(len(all), sample)]
		paths, sets := make([]locks.Path, len(all)), make([][]uint64, len(all))
		for i, raw := range all {
			paths[i], sets[i] = path(t, raw), w.covered(raw, files)
		}
		overlapping := 0
		for range pairs / 2 {
			i, j := rand.IntN(len(all)), rand.IntN(len(all))
			want := false
			for k := range sets[i] {
				want = want || sets[i][k]&sets[j][k] != 0
			}
			if want {
				overlapping++
			}
			if locks.Overlaps(paths[i], paths[j]) != want || locks.Overlaps(paths[j], paths[i]) != want {
				t.Fatalf("%s and %s: want %v", all[i], all[j], want)
			}
			if far := strings.Repeat("x", 1+rand.IntN(150)) + "/"; locks.Overlaps(path(t, far+all[i]), path(t, far+all[j])) != want {
				t.Fatalf("%s and %s: want %v", far+all[i], far+all[j], want)
			}
		}
		t.Logf("%d pairs of %d paths, of which %d overlap, over %d files", pairs/2, len(all), overlapping, len(files))
	}
}

// TestOverlaps_LongGlobsThatMeetLate has globs with thousands of ways to match: one that tried them one by one would not end.
func TestOverlaps_LongGlobsThatMeetLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{strings.Repeat("*a", 500) + "*c*", strings.Repeat("*b", 500) + "*", true},
		{strings.Repeat("*a", 500) + "c", strings.Repeat("a", 1000) + "b", false},
		{strings.Repeat("*a", 500) + "*", strings.Repeat("a", 1000), true},
		{strings.Repeat("*a", 500) + "*", strings.Repeat("a", 499), false},
		{strings.Repeat("?*", 500), strings.Repeat("*?", 500), true},
		{strings.Repeat("**/a/", 200) + "x", strings.Repeat("a/", 500) + "y", false},
		{strings.Repeat("**/a/", 200) + "x", strings.Repeat("a/", 500) + "x", true},
		{strings.Repeat("**/a/", 200) + "x", strings.Repeat("a/**/b/", 140) + "?", false},
		{strings.Repeat("**/a/", 200) + "x", strings.Repeat("a/**/b/", 140) + "**", true},
		{strings.Repeat("**/?/", 200) + "xy", strings.Repeat("*/**/", 200) + "*", true},
		{strings.Repeat("**/a*/", 160) + "x", strings.Repeat("**/*b/", 160) + "?y", false},
		{strings.Repeat("a/", 500) + "**", strings.Repeat("*/", 499) + "b", false},
		{strings.Repeat("é*", 300), strings.Repeat("*é", 300), true},
	} {
		a, b := path(t, c.a), path(t, c.b)
		if locks.Overlaps(a, b) != c.want || locks.Overlaps(b, a) != c.want {
			t.Errorf("%.20s… and %.20s…: %v, %v; want %v", c.a, c.b, locks.Overlaps(a, b), locks.Overlaps(b, a), c.want)
		}
	}
}

func BenchmarkOverlaps(b *testing.B) {
	for _, c := range []struct{ name, path, glob string }{
		{"usual", "internal/locks/overlap.go", "internal/**/*_test.go"},
		{"globs", "internal/*/overlap*.go", "**/lo*/*_test.go"},
		{"worst file", strings.Repeat("a", 1000) + "c", strings.Repeat("*a", 500) + "?"},
		{"worst globs", strings.Repeat("*a", 500) + "?", strings.Repeat("a*", 500) + "b?"},
	} {
		b.Run(c.name, func(b *testing.B) {
			path, glob := path(b, c.path), path(b, c.glob)
			for b.Loop() {
				locks.Overlaps(path, glob)
			}
		})
	}
}
