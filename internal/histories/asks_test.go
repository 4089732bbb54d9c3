package histories_test

import (
	"hash/maphash"
	"slices"
	"strings"

	pb "brokerd/gen/brokerd/v1"
)

// An ask is something that clients ask for: paths in a mode, or a token.
type ask struct {
	paths []string
	mode  pb.LockMode
	token string // its scope
}

// A menu is all that the clients of a history may ask for, and what of it cannot be held together.
type menu struct {
	asks      []ask
	conflicts [][]bool // by the numbers of two asks
	overlaps  [][]bool // the same, whatever the mode
	passes    bool     // tokens may be passed on even if calls can be cut off
	seed      maphash.Seed
}

func locksOnly() *menu {
	var m menu
	for _, paths := range [][]string{
		{"src/a.go"}, {"src/b.go"}, {"src/"}, {"src/lib/"}, {"src/lib/a.go"}, {"src/*.go"}, {"src/*/a.go"}, {"src/**/b.go"}, {"**/x"},
		{"doc/x"}, {"doc/"}, {"doc/*", "src/b.go"}, {"doc/x", "src/lib/x"}, {"?oc/y"}, {"src/**"},
	} {
		m.asks = append(m.asks, ask{paths: paths, mode: pb.LockMode_LOCK_MODE_EXCLUSIVE}, ask{paths: paths, mode: pb.LockMode_LOCK_MODE_SHARED})
	}
	return m.complete()
}

func oneToken() *menu {
	m := menu{asks: []ask{{token: "one"}}, passes: true}
	return m.complete()
}

func locksAndTokens() *menu {
	m := menu{asks: []ask{{token: "one"}, {token: "two"}}}
	for _, path := range []string{"src/a.go", "src/", "src/*.go", "doc/x"} {
		m.asks = append(m.asks, ask{paths: []string{path}, mode: pb.LockMode_LOCK_MODE_EXCLUSIVE})
	}
	m.asks = append(m.asks, ask{paths: []string{"src/"}, mode: pb.LockMode_LOCK_MODE_SHARED}, ask{paths: []string{"src/a.go"}, mode: pb.LockMode_LOCK_MODE_SHARED})
	return m.complete()
}

// complete finds out by brute force what overlaps: two asks do if some file of a small world is covered by both.
func (m *menu) complete() *menu {
	m.seed = maphash.MakeSeed()
	world := files()
	covered := make([]map[string]bool, len(m.asks))
	for i, a := range m.asks {
		covered[i] = map[string]bool{}
		for _, file := range world {
			if slices.ContainsFunc(a.paths, func(p string) bool { return covers(p, file) }) {
				covered[i][file] = true
			}
		}
	}
	for i, a := range m.asks {
		overlaps, conflicts := make([]bool, len(m.asks)), make([]bool, len(m.asks))
		for j, b := range m.asks {
			overlaps[j] = a.token != "" && a.token == b.token
			for file := range covered[i] {
				overlaps[j] = overlaps[j] || covered[j][file]
			}
			shared := a.mode == pb.LockMode_LOCK_MODE_SHARED && b.mode == pb.LockMode_LOCK_MODE_SHARED
			conflicts[j] = overlaps[j] && !shared
		}
		m.overlaps, m.conflicts = append(m.overlaps, overlaps), append(m.conflicts, conflicts)
	}
	return m
}

// find returns the number of the ask for paths in a mode, -1 if there is none.
func (m *menu) find(paths []string, mode pb.LockMode) int {
	want := slices.Sorted(slices.Values(paths))
	return slices.IndexFunc(m.asks, func(a ask) bool {
		return a.mode == mode && a.token == "" && slices.Equal(slices.Sorted(slices.Values(a.paths)), want)
	})
}

func (a ask) String() string {
	if a.token != "" {
		return "token " + a.token
	}
	return strings.ToLower(strings.TrimPrefix(a.mode.String(), "LOCK_MODE_")) + " " + strings.Join(a.paths, " ")
}

// files returns a world of files that has one for every overlap on the menus.
func files() []string {
	names := []string{"src", "doc", "lib", "a.go", "b.go", "x", "y", "zoc"}
	var all []string
	level := []string{""}
	for range 4 {
		var next []string
		for _, at := range level {
			for _, name := range names {
				next = append(next, at+name+"/")
				all = append(all, at+name)
			}
		}
		level = next
	}
	return all
}

// covers reports whether a path, directory or glob covers a file: by trying everything.
func covers(path, file string) bool {
	if dir, is := strings.CutSuffix(path, "/"); is {
		return file == dir || strings.HasPrefix(file, path)
	}
	return segments(strings.Split(path, "/"), strings.Split(file, "/"))
}

func segments(pattern, file []string) bool {
	switch {
	case len(pattern) == 0:
		return len(file) == 0
	case pattern[0] == "**":
		return segments(pattern[1:], file) || len(file) > 0 && segments(pattern, file[1:])
	default:
		return len(file) > 0 && letters(pattern[0], file[0]) && segments(pattern[1:], file[1:])
	}
}

func letters(pattern, name string) bool {
	switch {
	case pattern == "":
		return name == ""
	case pattern[0] == '*':
		return letters(pattern[1:], name) || name != "" && letters(pattern, name[1:])
	default:
		return name != "" && (pattern[0] == '?' || pattern[0] == name[0]) && letters(pattern[1:], name[1:])
	}
}
