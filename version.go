// Package brokerd holds the version of both programs: the content of the file VERSION, and the
// commit that Go records in a program.
package brokerd

import (
	_ "embed"
	"runtime/debug"
	"strings"
)

//go:embed VERSION
var version string

// commitDigits is how many digits of a commit a Build shows.
const commitDigits = 12

// A Build describes the source of a program.
type Build struct {
	Version string `json:"version"` // the content of the file VERSION, such as 0.4.0
	Commit  string `json:"commit"`  // the first 12 digits, with -dirty if files differed from it; empty if unknown
	Go      string `json:"go"`      // such as go1.26.8
}

// BuildOf returns the build that Go's record of a program describes. The record has no commit if
// the program was built outside of a git work tree or by go test.
func BuildOf(info *debug.BuildInfo) Build {
	b := Build{Version: strings.TrimSpace(version), Go: info.GoVersion}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value[:min(len(s.Value), commitDigits)]
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && b.Commit != "" {
		b.Commit += "-dirty"
	}
	return b
}

// ThisBuild returns the build of the running program.
func ThisBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return BuildOf(info)
}

// String returns the version with the commit, such as "0.4.0 (3c584ca0f1d2)".
func (b Build) String() string {
	if b.Commit == "" {
		return b.Version
	}
	return b.Version + " (" + b.Commit + ")"
}
