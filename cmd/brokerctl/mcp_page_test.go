package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"brokerd/internal/apptest"
)

// The calls and results in docs/mcp.md are those of a server; -update writes them.
func TestMCP_ThePageShowsATurn(tt *testing.T) {
	t := newShell(tt)
	const heading = "## What a turn looks like\n"
	page, err := filepath.Abs("../../docs/mcp.md")
	apptest.NoError(t, err)
	old, err := os.ReadFile(page)
	apptest.NoError(t, err)
	startTeam(t)
	register(t, "lead/lead")
	m := startModel(t, "--agent", "builder-1", "--role", "builder")
	m.call("turn", `{}`)
	question := sent(t, "--agent", "lead", "builder-1", "Which port does the API use?", "--priority", "high")
	must0(t, "--agent", "lead", "task", "create", "Write the schema", "--id", "schema", "--role", "builder")
	var blocks []string
	show := func(tool, args string) {
		blocks = append(blocks, "```\n"+args+"\n\n"+m.call(tool, args)+"\n```")
	}
	show("turn", `{"wait":50}`)
	show("settle", `{"id":"`+question+`.1","text":"8080, see config.go","next":50}`)
	for _, stable := range []struct{ changing, text string }{
		{`=== [0-9a-f]{16} `, "=== 5dcc5d4c9e0f21b7 "},
		{`sent [0-9]+s ago`, "sent now"},
		{`yours for 29m[0-9]*s?`, "yours for 30m"},
	} {
		for i := range blocks {
			blocks[i] = regexp.MustCompile(stable.changing).ReplaceAllString(blocks[i], stable.text)
		}
	}
	head, tail, _ := strings.Cut(string(old), heading)
	tail = regexp.MustCompile("(?s)```\n.*?\n```").ReplaceAllStringFunc(tail, func(block string) string {
		if len(blocks) == 0 {
			t.Fatalf("one block more than the test makes:\n%s", block)
		}
		block, blocks = blocks[0], blocks[1:]
		return block
	})
	if len(blocks) > 0 {
		t.Fatalf("docs/mcp.md has no place for\n%s", blocks[0])
	}
	text := head + heading + tail
	if *update {
		apptest.NoError(t, os.WriteFile(page, []byte(text), 0o644))
		return
	}
	if diff := gocmp.Diff(string(old), text); diff != "" {
		t.Errorf("docs/mcp.md differs; after a wanted change run the test with -update (-file +text):\n%s", diff)
	}
}
