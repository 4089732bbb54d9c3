package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The program of the test has modules too.
func TestSBOM_HasEachModuleOnceAndIsTheSameTwice(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := write(w, "1.2.3", "3.51.3", []string{program, program}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("two runs differ:\n%s\n%s", &first, &second)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, c := range *bom.Components {
		name, _, _ := strings.Cut(c.PackageURL, "@")
		found[name]++
	}
	for _, want := range []string{"pkg:generic/sqlite", "pkg:golang/std", "pkg:golang/github.com/CycloneDX/cyclonedx-go"} {
		if found[want] != 1 {
			t.Errorf("%s is listed %d times in %v", want, found[want], found)
		}
	}
	if got := bom.Metadata.Component; got.Name != "brokerd" || got.Version != "1.2.3" {
		t.Errorf("the bill is of %s %s", got.Name, got.Version)
	}
}
