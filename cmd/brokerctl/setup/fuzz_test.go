package setup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tailscale/hujson"
	"pgregory.net/rapid"
)

// drawSpace draws whitespace and comments.
func drawSpace(t *rapid.T, comments bool) string {
	parts := []string{"", "", "", " ", "\n", "\r\n", "\t", "  "}
	if comments {
		parts = append(parts, "// a, {\n", "/* b } */")
	}
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 3).Draw(t, "space"), "")
}

// drawJSON draws a document that has the names of setup in it, in any formatting.
func drawJSON(t *rapid.T, depth int, comments bool) string {
	gap := func() string { return drawSpace(t, comments) }
	list := func(open, end string, item func() string) string {
		n := rapid.IntRange(0, 3).Draw(t, "items")
		var b strings.Builder
		b.WriteString(open + gap())
		for i := range n {
			b.WriteString(item() + gap())
			if i < n-1 || comments && rapid.Bool().Draw(t, "trailing") {
				b.WriteString("," + gap())
			}
		}
		return b.String() + end
	}
	kind := rapid.IntRange(0, 3).Draw(t, "kind")
	if depth == 0 {
		kind = 0
	}
	if kind == 1 {
		return list("[", "]", func() string { return drawJSON(t, depth-1, comments) })
	}
	if kind >= 2 {
		return list("{", "}", func() string {
			name := rapid.SampledFrom([]string{
				`"mcpServers"`, `"hooks"`, `"other"`, `"PreToolUse"`, `"Stop"`, `"version"`, `"\u0068ooks"`, `"mcp"`,
			}).Draw(t, "name")
			return name + gap() + ":" + gap() + drawJSON(t, depth-1, comments)
		})
	}
	return rapid.SampledFrom([]string{`1`, `"a // b"`, `null`, `true`, `"\\\""`, `-1.5e3`}).Draw(t, "value")
}

// drawDocument draws a file: a document with an optional byte order mark, or only whitespace.
func drawDocument(t *rapid.T) string {
	comments := rapid.Bool().Draw(t, "comments")
	text := drawSpace(t, comments) + drawJSON(t, 3, comments) + drawSpace(t, comments)
	if rapid.IntRange(0, 9).Draw(t, "blank") == 0 {
		text = drawSpace(t, comments)
	}
	if rapid.IntRange(0, 4).Draw(t, "bom") == 0 {
		text = "\ufeff" + text
	}
	return text
}

// roundTrip adds and removes, and checks what must hold for every file.
func roundTrip(t interface {
	Helper()
	Fatalf(string, ...any)
}, f File, before Content) {
	t.Helper()
	added, conflicts, err := f.Add(before)
	if err != nil {
		t.Fatalf("%s: add to %q: %v", f.Path, before.Text, err)
	}
	again, conflictsAgain, err := f.Add(added)
	if err != nil || again != added || !cmp.Equal(conflicts, conflictsAgain) {
		t.Fatalf("%s: a second add changes %q to %q (%v, %v, %v)",
			f.Path, added.Text, again.Text, conflicts, conflictsAgain, err)
	}
	removed, _, err := f.Remove(added)
	if err != nil || removed != before {
		t.Fatalf("%s: %q\nbecomes %q\nand after remove %q (%v)", f.Path, before.Text, added.Text, removed.Text, err)
	}
}

func TestSetup_RemoveRestoresAnyJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := Content{Text: drawDocument(t), Exists: true}
		for _, v := range Vendors(Options{}) {
			for _, f := range v.Files {
				if f.entries == nil {
					continue
				}
				roundTrip(t, f, before)
				added, _, _ := f.Add(before)
				_, text := cutBOM(added.Text)
				if _, err := hujson.Parse([]byte(text)); err != nil {
					t.Fatalf("%q becomes %q: %v", before.Text, added.Text, err)
				}
			}
		}
	})
}

func TestSetup_RemoveRestoresAnyText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{
			"", "# a", "[mcp_servers.other]", "command = \"x\"", "text", "```", "a.b = {c = 1, d = [1, 2]} # x",
		})
		end := rapid.SampledFrom([]string{"\n", "\n", "\r\n"})
		var b strings.Builder
		for range rapid.IntRange(0, 6).Draw(t, "lines") {
			b.WriteString(line.Draw(t, "line") + end.Draw(t, "end"))
		}
		b.WriteString(rapid.SampledFrom([]string{"", "x = 1", "# no line ending"}).Draw(t, "last"))
		for _, v := range Vendors(Options{}) {
			for _, f := range v.Files {
				before := Content{Text: b.String(), Exists: true}
				if f.section != "" {
					roundTrip(t, f, before)
				}
				if _, err := parseTOML(before.Text); f.table != nil && err == nil {
					roundTrip(t, f, before)
				}
			}
		}
	})
}

func TestSetup_RemoveDeletesWhatAddCreated(t *testing.T) {
	for _, v := range Vendors(Options{}) {
		for _, f := range v.Files {
			roundTrip(t, f, Content{})
			if f.whole == "" {
				roundTrip(t, f, Content{Exists: true})
			}
		}
	}
}
