package brokerd_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Phrases that a comment must not have, because each has a plainer word, such as "the holder" for
// "whoever holds", "every consumer" for "everybody", "notifies" for "tells" and "capacity" for "room".
var phrases = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"whoever", "nobody", "somebody", "everybody", "anew", "once more", "for ever", "time-outs?", "signs? of life",
	"of its own",
	"tells?", "is told", "are told", "was told", "lets", "hands? out", "handed out", "gives? back", "given back", "goes back",
	"goes on", "looks? at", "looks? whether", "looked at", "hangs? on", "how it stands", "how they stand", "is over",
	"the truth about", "circles?", "how-manieth", "comes? into being", "is born", "dies", "room", "what was granted",
	"what waits", "what is there",
}, "|") + `)\b`)

// unmended names the files, one per line, whose comments still have such a phrase.
const unmended = "testdata/unmended.txt"

// A file that has one of the phrases must be in the list, and a file without any must not. So the list
// can only shrink.
func TestComments_ArePlainEnglish(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(unmended)
	if err != nil {
		t.Fatal(err)
	}
	listed := strings.Fields(string(text))
	var found []string
	for _, path := range sources(t) {
		bad := phrasesOf(t, path)
		if len(bad) == 0 {
			continue
		}
		found = append(found, path)
		if !slices.Contains(listed, path) {
			t.Errorf("%s has in its comments: %s", path, strings.Join(bad, "; "))
		}
	}
	for _, path := range listed {
		if !slices.Contains(found, path) {
			t.Errorf("%s has no such phrase: remove it from %s", path, unmended)
		}
		if strings.HasSuffix(path, ".proto") {
			t.Errorf("%s has %s, but every proto must be in plain English", unmended, path)
		}
	}
}

// sources returns the protos and the handwritten Go files, tests apart.
func sources(t *testing.T) (paths []string) {
	t.Helper()
	for _, dir := range []string{"client", "cmd", "internal", "proto"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if filepath.Ext(path) == ".proto" || filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
				paths = append(paths, filepath.ToSlash(path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// phrasesOf returns the phrases in the comments of a file, each with its comment.
func phrasesOf(t *testing.T, path string) (found []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile(path, -1, len(text)), text, nil, scanner.ScanComments) // a proto has the same tokens
	for {
		_, kind, literal := s.Scan()
		switch {
		case kind == token.EOF:
			return found
		case kind == token.COMMENT && phrases.MatchString(literal):
			found = append(found, phrases.FindString(literal)+" in "+literal)
		}
	}
}
