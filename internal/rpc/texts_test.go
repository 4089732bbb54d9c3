package rpc_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// makers are the functions whose literals are texts of errors.
var makers = []string{"New", "Field", "Missing", "Fail", "refuse"}

// startup is where errors are not answers to calls: their reader has started brokerd.
var startup = regexp.MustCompile(`^\.\./(store|disk)/|^(listen|credential)\.go$`)

// The texts of errors serve every client: a program, a shell, a model. They name no RPC, no metadata
// and no command.
func TestErrors_TextsNameNoCallAndNoCommand(t *testing.T) {
	t.Parallel()
	names := []string{"brokerctl", "metadata (brokerd|authorization)", "--[a-z]+"}
	for _, m := range generated() {
		if name := string(m.Name()); regexp.MustCompile("[a-z][A-Z]").MatchString(name) { // not Send, Ask and so on
			names = append(names, name)
		}
	}
	foreign := regexp.MustCompile(`(^|\W)(` + strings.Join(names, "|") + `)\b`)
	texts := 0
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		path = strings.TrimPrefix(path, "../rpc/")
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || startup.MatchString(path) {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || !slices.Contains(makers, called(call)) {
				return true
			}
			for _, argument := range call.Args {
				ast.Inspect(argument, func(n ast.Node) bool {
					if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
						texts++
						if name := foreign.FindString(l.Value); name != "" {
							t.Errorf("%s: %s names %q", set.Position(l.Pos()), l.Value, name)
						}
					}
					return true
				})
			}
			return true
		})
		return nil
	})
	if err != nil || texts < 200 {
		t.Errorf("%d texts, %v", texts, err)
	}
}

// called returns the name of the function or method that is called.
func called(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
