package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are the manual: README and the like, docs, and the examples' own pages.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*.md", "examples/*/*.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			texts[file] = read(t, file)
		}
	}
	return texts
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	fence   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unslug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the places of a page that a link may name, as GitHub makes them of headings.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found[strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return found
}

func TestLinks_LeadSomewhere(t *testing.T) {
	t.Chdir("..")
	all := pages(t)
	headings, linked := map[string]map[string]bool{}, map[string]bool{}
	for page, text := range all {
		headings[page] = anchors(text)
	}
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			linked[file] = true
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			} else if anchor != "" && !headings[file][anchor] {
				t.Errorf("%s links to %s, which has no such heading", page, m[1])
			}
		}
	}
	for page := range all {
		if filepath.Dir(page) == "docs" && !linked[page] {
			t.Errorf("nothing links to %s", page)
		}
	}
}

// What the guides show is cut from the examples, which have tests of their own.
func TestGuides_ShowWhatRuns(t *testing.T) {
	t.Parallel()
	for _, guide := range []struct{ page, language, folder string }{
		{"agents-bash.md", "sh", "bash"},
		{"agents-go.md", "go", "go"},
		{"agents-python.md", "python", "../clients/python/examples"},
	} {
		files, err := filepath.Glob(filepath.Join("../examples", guide.folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		blocks := fence.FindAllStringSubmatch(read(t, guide.page), -1)
		if len(blocks) == 0 {
			t.Errorf("%s shows nothing", guide.page)
		}
		for _, block := range blocks {
			if block[1] != guide.language {
				t.Errorf("%s: a block of %q is tested by nobody:\n%s", guide.page, block[1], block[2])
				continue
			}
			real := false
			for _, file := range files {
				real = real || strings.Contains("\n"+read(t, file), "\n"+block[2])
			}
			if !real {
				t.Errorf("%s: no file of %s has this:\n%s", guide.page, guide.folder, block[2])
			}
		}
	}
}

// The tests that the table of guarantees names exist.
func TestGuarantees_NameTestsThatExist(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, folder := range []string{"../internal", "../cmd"} {
		err := filepath.WalkDir(folder, func(file string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(file, "_test.go") {
				for _, m := range declaration.FindAllStringSubmatch(read(t, file), -1) {
					declared[m[1]] = true
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	for line := range strings.Lines(read(t, "guarantees.md")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[3], "`Test") {
			continue
		}
		rows++
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cells[3], -1) {
			if !declared[m[1]] {
				t.Errorf("docs/guarantees.md names %s, and there is no such test", m[1])
			}
		}
	}
	if rows < 10 {
		t.Errorf("the table has %d rows", rows)
	}
}

// Every type of event that the broker appends is in the list, and every name of the list is one of them.
func TestAPI_NamesEveryService(t *testing.T) {
	t.Chdir("..")
	files, err := filepath.Glob("proto/brokerd/v1/*.proto")
	if err != nil {
		t.Fatal(err)
	}
	page, service := read(t, "docs/api.md"), regexp.MustCompile(`(?m)^service (\w+) \{`)
	services := 0
	for _, file := range files {
		for _, m := range service.FindAllStringSubmatch(read(t, file), -1) {
			services++
			if !strings.Contains(page, "`"+m[1]+"`") {
				t.Errorf("docs/api.md does not name %s", m[1])
			}
		}
	}
	if services == 0 {
		t.Error("no proto declares a service")
	}
}

func TestEvents_AreAllListed(t *testing.T) {
	t.Parallel()
	quoted := regexp.MustCompile(`"((?:agent|artifact|backup|blocker|broker|channel|credential|data|decision|handoff|lock|message|session|state|system|task|thread|token|vote)\.[a-z_]+|artifact_shared|context_updated)"`)
	appended := map[string]bool{}
	err := filepath.WalkDir("../internal", func(file string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		for _, m := range quoted.FindAllStringSubmatch(read(t, file), -1) {
			if strings.Contains(m[1], ".json") || m[1] == "message.body" { // a file of an export, a field of a reply
				continue
			}
			appended[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(read(t, "events.md")) {
		if names, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(names, "`") {
			for _, name := range strings.Split(names, ", ") {
				listed[strings.Trim(name, "`")] = true
			}
		}
	}
	for name := range appended {
		if !listed[name] {
			t.Errorf("docs/events.md does not list %s", name)
		}
	}
	for name := range listed {
		if !appended[name] {
			t.Errorf("docs/events.md lists %s, which nothing appends", name)
		}
	}
}
