package brokerd_test

import (
	"os"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"brokerd"
)

func TestVersion_IsThatOfTheNewestSectionOfTheChangelog(t *testing.T) {
	file, err := os.ReadFile("VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+\n$`).Match(file) {
		t.Errorf("VERSION is %q, want one line such as 1.2.3", file)
	}
	version := brokerd.ThisBuild().Version
	if version+"\n" != string(file) {
		t.Errorf("the build has version %q, the file VERSION %q", version, file)
	}
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## .*$`).FindString(string(changelog))
	want := regexp.MustCompile(`^## \[` + regexp.QuoteMeta(version) + `\] - (unreleased|\d{4}-\d{2}-\d{2})$`)
	if !want.MatchString(newest) {
		t.Errorf("the first section of CHANGELOG.md is %q, want %s", newest, want)
	}
}

func TestReadme_NamesTheVersionOfGo(t *testing.T) {
	module, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	need := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	if need == nil || !strings.Contains(string(readme), "you need Go "+string(need[1])+" or newer") {
		t.Errorf("README.md does not name the version of Go in go.mod: %s", need)
	}
}

func TestBuildOf_HasTheCommitThatGoRecorded(t *testing.T) {
	version := brokerd.ThisBuild().Version
	const commit = "3c584ca0f1d2b3c4d5e6f7a8b9c0d1e2f3a4b5c6"
	for name, c := range map[string]struct {
		settings []debug.BuildSetting
		want     string
	}{
		"nothing recorded": {nil, version},
		"a commit":         {[]debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: "false"}}, version + " (3c584ca0f1d2)"},
		"changed files":    {[]debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.modified", Value: "true"}}, version + " (3c584ca0f1d2-dirty)"},
	} {
		if got := brokerd.BuildOf(&debug.BuildInfo{Settings: c.settings}).String(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
