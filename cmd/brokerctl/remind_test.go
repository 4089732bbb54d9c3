package main

import (
	"bytes"
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/internal/apptest"
	"brokerd/internal/prompt"
	"brokerd/internal/worktest"
	pb "brokerd/internal/worktest/reminder/v1"
)

// mostLines is how many lines the declaration of a command has at most that makes one unary call.
const mostLines = 25

// remind is a whole command for a call that no service of the broker has.
var remind = command.Spec[*pb.SetReminderRequest, *pb.SetReminderResponse]{
	Page: command.Page{
		Use:     "remind AGENT TEXT",
		Short:   "Remind an agent of something",
		Example: `  brokerctl --agent lead remind builder-1 "Push the branch" --importance high`,
	},
	Args: []command.Arg{
		{Field: "agent", Name: "the agent's name", Kind: words.Agent},
		{Field: "text", Name: "the text"},
	},
	Options: []command.Option{
		{Field: "importance", Usage: "how much it matters: {}"},
		{Field: "due_at", Name: "due", Kind: command.Ahead, Usage: "end it then: 2h (from now), or RFC 3339"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.SetReminderRequest, a *pb.SetReminderResponse) {
		prompt.Say(w, "%s reminds %s", a.GetReminder().GetId(), a.GetReminder().GetAgent())
	},
}

func TestRemind_ADeclarationOf25LinesIsAGoodCommand(tt *testing.T) {
	t := newShell(tt)
	_, _, conn := worktest.Serve(t, clockwork.NewRealClock())
	run := func(args ...string) result {
		var out, errs bytes.Buffer
		env := t.environment("", &out, &errs)
		env.Columns = 80
		c := command.New(env, args...)
		root, cmd := newRoot(c), remind.Command(c)
		root.AddCommand(cmd)
		c.BindAll()
		c.MarkRuns(cmd)
		return result{execute(t.Context(), c, root), out.String(), errs.String()}
	}
	t.Setenv("BROKERD_ADDR", strings.TrimPrefix(conn.Target(), "passthrough:///"))
	t.Setenv("BROKERD_AGENT", "a")
	const id = "0192d5a8-7b6c-7000-8000-000000000001"
	long := strings.Repeat("x", 513)
	for _, c := range []struct {
		args     []string
		exit     int
		out, err string // parts, of which each "…" stands for any text
	}{
		{[]string{"remind", "--help"}, 0, "Remind an agent of something.\n…brokerctl remind AGENT TEXT [flags]\n…--due TIME " +
			"…from now…--importance IMPORTANCE\n…how much it matters: low, high\n…--request-id UUID …lead remind b", ""},
		{[]string{"__complete", "remind", "--"}, 0, "--due\t…--importance\thow much it matters: low, high\n", ""},
		{[]string{"__complete", "remind", "--importance", ""}, 0, "low\nhigh\n:4\n", ""},

		{[]string{"remind"}, problem.ExitUsage, "", "the agent's name"},
		{[]string{"remind", "b"}, problem.ExitUsage, "", "the text"},
		{[]string{"remind", "b", "x", "y"}, problem.ExitUsage, "", "y"},
		{[]string{"remind", "b", "x", "--importance", "hi"}, problem.ExitUsage, "", `--importance "hi"…low, high`},
		{[]string{"remind", "b", "x", "--importanc", "low"}, problem.ExitUsage, "", "did you mean --importance?"},
		{[]string{"remind", "b", "x", "--due", "soon"}, problem.ExitUsage, "", `--due…"soon"`},
		{[]string{"remind", "b", long}, problem.ExitUsage, "", "TEXT…512"},
		{[]string{"remind", "nobody", "x"}, problem.ExitNotFound, "", "nobody"},

		{[]string{"remind", "b", "Push", "--request-id", id}, 0, "r-…reminds b\n", ""},
		{[]string{"remind", "b", "Push", "--request-id", id, "-o", "id"}, 0, "r-", ""},
		{[]string{"remind", "b", "Push", "--due", "2h", "--importance", "high", "-o", "json"}, 0,
			`{"reminder":{"id":"r-…"opener":"a","agent":"b","text":"Push","due_at":"20…"importance":"high"}}`, ""},
		{[]string{"remind", "b", "Test", "-o", "prompt"}, 0, "reminds b", ""},
		{[]string{"remind", "b", "Pull"}, problem.ExitError, "", "3 pending reminders"}, // the request id has made one
	} {
		got := run(c.args...)
		if got.code != c.exit || !has(got.out, c.out) || !has(got.err, c.err) || c.exit != 0 && got.out != "" {
			t.Errorf("%.60q: %+v", c.args, got)
		}
	}
}

// has reports whether a text has the parts between "…", in this order.
func has(text, parts string) bool {
	for part := range strings.SplitSeq(parts, "…") {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}

func TestRemind_PlainCommandsAreShortDeclarations(t *testing.T) {
	own := map[string]int{}
	plainSpecs(t, "remind_test.go", own)
	if n := own["remind"]; n == 0 || n > mostLines {
		t.Errorf("remind has %d lines, want at most %d", n, mostLines)
	}
	files, err := filepath.Glob("*/*.go")
	apptest.NoError(t, err)
	lines := map[string]int{}
	for _, path := range files {
		plainSpecs(t, path, lines)
	}
	names := slices.SortedFunc(maps.Keys(lines), func(a, b string) int {
		return cmp.Or(lines[a]-lines[b], strings.Compare(a, b))
	})
	if len(names) < 20 {
		t.Fatalf("there are only %d plain commands: %v", len(names), names)
	}
	for _, name := range append(names[:10:10], names[len(names)/2]) { // the ten plainest, and half of all
		t.Logf("%s: %d lines", name, lines[name])
		if lines[name] > mostLines {
			t.Errorf("%s has %d lines, want at most %d", name, lines[name], mostLines)
		}
	}
}

// plainSpecs notes the lines of the declarations in a file that are plain: a page, one call of the API, its arguments
// and options, and a text for the answer.
func plainSpecs(t *testing.T, path string, lines map[string]int) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	apptest.NoError(t, err)
	for _, d := range file.Decls {
		ast.Inspect(d, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if ok && len(v.Values) == 1 && isPlain(v.Values[0]) {
				lines[v.Names[0].Name] = files.Position(v.End()).Line - files.Position(v.Pos()).Line + 1
			}
			return true
		})
	}
}

// isPlain reports whether an expression is a command.Spec that only has the fields of plain commands.
func isPlain(e ast.Expr) bool {
	spec, ok := e.(*ast.CompositeLit)
	if !ok || !strings.HasPrefix(types.ExprString(spec.Type), "command.Spec[") {
		return false
	}
	for _, part := range spec.Elts {
		field := part.(*ast.KeyValueExpr)
		switch field.Key.(*ast.Ident).Name {
		case "Page", "Args", "Options", "Shown", "Text":
		default:
			return false
		}
	}
	return true
}
