package testkit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// NamedCommandsExist fails the test if a text in the Go source of some folders names a command of a
// program that does not exist. before is a regular expression of what stands before such a name, so
// that prose is left alone.
func NamedCommandsExist(t testing.TB, root *cobra.Command, before string, dirs ...string) {
	t.Helper()
	command := regexp.MustCompile(before + root.Name() + ` ([a-z][a-z-]*(?: [a-z][a-z-]*)?)`)
	found := 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.BasicLit)
				if !ok || literal.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Errorf("%s: %v", path, err)
				}
				for _, m := range command.FindAllStringSubmatch(text, -1) {
					found++
					cmd, rest, err := root.Find(strings.Fields(m[1]))
					if err != nil || cmd == root || cmd.HasSubCommands() && len(rest) > 0 {
						t.Errorf("%s names %q, which does not exist", path, m[0])
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if found == 0 {
		t.Error("no text names a command")
	}
}
