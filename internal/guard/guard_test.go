package guard_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"brokerd/internal/guard"
)

func TestGo_PassesOnTheErrorOrThePanic(t *testing.T) {
	t.Parallel()
	failure := errors.New("failure")
	for name, c := range map[string]struct {
		fn   func() error
		want string
	}{
		"an error": {func() error { return failure }, "failure"},
		"a panic":  {func() error { panic("defect") }, "panic: defect"},
	} {
		done := make(chan error, 1)
		guard.Go(zap.NewNop(), c.fn, func(err error) { done <- err })
		if err := <-done; err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}

// unguarded are the packages and files that may start goroutines by themselves: none of these
// goroutines serves a client.
var unguarded = []string{
	"guard/",        // recovers
	"store/",        // the writer and the checkpointer: a function of the writer recovers by itself
	"rpc/server.go", // the stop of the server
	"apptest/", "crashtest/", "postgrestest/", "processtest/", "testkit/",
}

// A panic in a goroutine that nothing recovers ends the daemon, so only the packages above have go
// statements.
func TestGo_IsTheOnlyWayToStartAGoroutineForAClient(t *testing.T) {
	t.Parallel()
	files, positions := 0, token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		for _, prefix := range unguarded {
			if strings.HasPrefix(name, prefix) {
				return nil
			}
		}
		file, err := parser.ParseFile(positions, path, nil, 0)
		if err != nil {
			return err
		}
		files++
		ast.Inspect(file, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a go statement: start the goroutine with guard.Go", positions.Position(g.Pos()))
			}
			return true
		})
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files were read: %v", files, err)
	}
}
