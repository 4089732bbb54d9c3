// Command sbom prints a CycloneDX bill of materials of Go programs: their modules, as the linker has
// recorded them, the standard library, and SQLite. The same programs give the same bytes.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "version of the programs")
	sqlite := flag.String("sqlite", "", "version of SQLite, which go-sqlite3 contains")
	flag.Parse()
	if err := write(os.Stdout, *version, *sqlite, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write writes the bill of materials of the given files.
func write(w io.Writer, version, sqlite string, files []string) error {
	if version == "" || sqlite == "" || len(files) == 0 {
		return errors.New("give -version, -sqlite and the programs")
	}
	programs, libraries := []cdx.Component{}, []cdx.Component{library("generic", "sqlite", sqlite)}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		name := filepath.Base(file)
		programs = append(programs, cdx.Component{
			Type: cdx.ComponentTypeApplication, Name: name, Version: version, BOMRef: name,
		})
		libraries = append(libraries, library("golang", "std", strings.TrimPrefix(info.GoVersion, "go")))
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			libraries = append(libraries, library("golang", module.Path, module.Version))
		}
	}
	slices.SortFunc(libraries, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	libraries = slices.CompactFunc(libraries, func(a, b cdx.Component) bool { return a.BOMRef == b.BOMRef })

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{
		Type: cdx.ComponentTypeApplication, Name: "brokerd", Version: version, BOMRef: "release", Components: &programs,
	}}
	bom.Components = &libraries
	return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// library returns a component that is part of the programs.
func library(kind, name, version string) cdx.Component {
	purl := fmt.Sprintf("pkg:%s/%s@%s", kind, name, version)
	return cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl, BOMRef: purl}
}
