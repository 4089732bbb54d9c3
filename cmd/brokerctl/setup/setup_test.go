package setup

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the .after files of testdata")

// fixtures calls check for every file in testdata: VENDOR/PATH~CASE.before, with % for / in PATH.
func fixtures(t *testing.T, check func(t *testing.T, f File, name string, before string)) {
	t.Helper()
	for _, v := range Vendors(Options{}) {
		names, err := filepath.Glob("testdata/" + v.Name + "/*.before")
		if err != nil || len(names) == 0 {
			t.Errorf("%s has no fixtures (%v)", v.Name, err)
		}
		for _, name := range names {
			path, _, _ := strings.Cut(strings.ReplaceAll(filepath.Base(name), "%", "/"), "~")
			t.Run(name, func(t *testing.T) {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range v.Files {
					if f.Path == path {
						check(t, f, name, string(text))
						return
					}
				}
				t.Fatalf("%s has no file %s", v.Name, path)
			})
		}
	}
}

func TestSetup_MergesEachFixtureAndRestoresIt(t *testing.T) {
	fixtures(t, func(t *testing.T, f File, name, before string) {
		roundTrip(t, f, Content{before, true})
		added, conflicts, err := f.Add(Content{before, true})
		if err != nil || len(conflicts) > 0 || added.Text == before {
			t.Fatalf("%v, %v, %q", err, conflicts, added.Text)
		}
		after := strings.TrimSuffix(name, ".before") + ".after"
		if *update {
			if err := os.WriteFile(after, []byte(added.Text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(after)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), added.Text); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A call with other options replaces what an earlier one wrote, and each removes what any of them wrote.
func TestSetup_AnotherCallReplacesWhatAnEarlierOneWrote(t *testing.T) {
	all := []Options{{}, {Agent: "a-1"}, {Agent: "b.2"}, {Unattended: true}, {Agent: "a-1", Unattended: true}, {Wake: true}, {Agent: "b.2", Unattended: true, Wake: true}}
	fixtures(t, func(t *testing.T, _ File, name, text string) {
		before := Content{text, true}
		vendor, path := filepath.Base(filepath.Dir(name)), strings.ReplaceAll(filepath.Base(name), "%", "/")
		path, _, _ = strings.Cut(path, "~")
		for _, earlier := range all {
			written, _, err := fileOf(t, vendor, path, earlier).Add(before)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range all {
				f := fileOf(t, vendor, path, o)
				want, _, err := f.Add(before)
				if err != nil {
					t.Fatal(err)
				}
				got, conflicts, err := f.Add(written)
				if err != nil || len(conflicts) > 0 || got != want {
					t.Errorf("%+v after %+v: %q (%v)\n%s", o, earlier, conflicts, err, cmp.Diff(want.Text, got.Text))
				}
				if left, kept, err := f.Remove(written); err != nil || len(kept) > 0 || left != before {
					t.Errorf("%+v removes %+v: %q (%v)\n%s", o, earlier, kept, err, cmp.Diff(text, left.Text))
				}
			}
		}
	})
}

func TestSetup_ReplacesTheHooksThatListenedAlways(t *testing.T) {
	const listens = "--listen 10m"
	for _, v := range Vendors(Options{Unattended: true}) {
		for _, f := range v.Files {
			old, _, err := f.Add(Content{})
			if err != nil {
				t.Fatal(err)
			}
			if f.earlier != nil {
				continue // see the next test
			}
			if f.What == "hooks" && !strings.Contains(old.Text, listens) {
				t.Errorf("%s: an unattended agent does not listen: %s", v.Name, old.Text)
			}
			now := fileOf(t, v.Name, f.Path, Options{})
			fresh, _, _ := now.Add(Content{})
			if got, conflicts, err := now.Add(old); err != nil || len(conflicts) > 0 || got != fresh || strings.Contains(got.Text, listens) {
				t.Errorf("%s %s: %q (%v)\n%s", v.Name, f.Path, conflicts, err, cmp.Diff(fresh.Text, got.Text))
			}
		}
	}
}

func TestSetup_ReplacesEarlierPlugins(t *testing.T) {
	f := fileOf(t, "opencode", ".opencode/plugins/brokerd.js", Options{Agent: "a-1"})
	fresh, _, _ := f.Add(Content{})
	for name, option := range map[string]string{"first": "", "third": "", "third, with options": `const listening = ["--listen", "10m"]`} {
		text, err := os.ReadFile("testdata/opencode/" + strings.TrimSuffix(name, ", with options") + "-plugin.js")
		if err != nil {
			t.Fatal(err)
		}
		old := string(text)
		if option != "" {
			old = strings.Replace(old, "const listening = []", option, 1)
		}
		if got, conflicts, err := f.Add(Content{old, true}); err != nil || len(conflicts) > 0 || got != fresh {
			t.Errorf("%s: %q (%v)\n%s", name, conflicts, err, cmp.Diff(fresh.Text, got.Text))
		}
	}
}

func TestSetup_GivesEachCodingAgentItsName(t *testing.T) {
	for _, v := range Vendors(Options{Agent: "codex-1"}) {
		hooks := 0
		for i, f := range v.Files {
			c, _, err := f.Add(Content{})
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Agent(c); i == 0 && got != "codex-1" {
				t.Errorf("%s: the MCP server has the name %q:\n%s", v.Name, got, c.Text)
			}
			named := "brokerctl hook " + v.Name + " --agent codex-1"
			hooks += strings.Count(c.Text, named) + strings.Count(c.Text, `const agent = ["--agent", "codex-1"]`)
			if strings.Count(c.Text, "brokerctl hook "+v.Name) > strings.Count(c.Text, named)+strings.Count(c.Text, "// call runs") {
				t.Errorf("%s: a hook without the name:\n%s", v.Name, c.Text)
			}
		}
		if hooks == 0 {
			t.Errorf("%s: no hook has the name", v.Name)
		}
	}
}

// Only the name may differ: what a user has written otherwise stays.
func TestSetup_KeepsAServerThatTheUserChanged(t *testing.T) {
	for _, c := range []struct{ vendor, path, text string }{
		{"claude-code", ".mcp.json", `{"mcpServers": {"brokerd": {"command": "brokerctl", "args": ["mcp", "--agent", "a", "--role", "b"]}}}`},
		{"claude-code", ".mcp.json", `{"mcpServers": {"brokerd": {"command": "brokerctl", "args": ["--agent", "mcp"]}}}`},
		{"codex", ".codex/config.toml", "[mcp_servers.brokerd]\ncommand = \"brokerctl\"\nargs = [\"mcp\", \"--agent\", \"a\"]\n"},
	} {
		f := fileOf(t, c.vendor, c.path, Options{Agent: "b"})
		if added, conflicts, err := f.Add(Content{c.text, true}); err != nil || added.Text != c.text || len(conflicts) != 1 {
			t.Errorf("%q becomes %q, %q (%v)", c.text, added.Text, conflicts, err)
		}
	}
}

func TestSetup_RemoveKeepsWhatTheUserAddedMeanwhile(t *testing.T) {
	for _, v := range Vendors(Options{}) {
		for _, f := range v.Files {
			added, _, err := f.Add(Content{})
			if err != nil {
				t.Fatal(err)
			}
			edited, want := "", ""
			switch {
			case f.entries != nil:
				edited, want = strings.Replace(added.Text, "{", "{\"mine\": 1,", 1), `"mine": 1`
			case f.whole == "":
				edited, want = "mine = 1\n"+added.Text+"mine = 2\n", "mine = 1\nmine = 2\n"
			default:
				edited, want = added.Text+"mine\n", added.Text+"mine\n"
			}
			left, _, err := f.Remove(Content{edited, true})
			if err != nil || !left.Exists || !strings.Contains(left.Text, want) || f.whole == "" &&
				strings.Contains(left.Text, "brokerd") {
				t.Errorf("%s %s: %q becomes %q (%v)", v.Name, f.Path, edited, left.Text, err)
			}
		}
	}
}

func TestSetup_KeepsWhatTheUserSetDifferently(t *testing.T) {
	for _, c := range []struct{ vendor, path, text, conflict string }{
		{"claude-code", ".mcp.json", `{"mcpServers": {"brokerd": {"command": "/opt/brokerctl"}}}`,
			`mcpServers.brokerd is {"command":"/opt/brokerctl"}`},
		{"claude-code", ".mcp.json", `{"mcpServers": []}`, "mcpServers is no object"},
		{"claude-code", ".mcp.json", `["a"]`, "the file is no object"},
		{"claude-code", "CLAUDE.md", "a\n<!-- brokerctl setup: begin -->\nmine\n<!-- brokerctl setup: end -->\n",
			"another text"},
		{"claude-code", ".claude/commands/inbox.md", "mine\n", "another content"},
		{"codex", ".codex/config.toml", "[mcp_servers.brokerd]\ncommand = \"mine\"\n",
			"mcp_servers.brokerd has other values"},
		{"codex", ".codex/config.toml", "mcp_servers.brokerd.command = \"mine\"\n", "mcp_servers.brokerd has other values"},
		{"codex", ".codex/config.toml", "mcp_servers = {docs = {command = \"docs\"}}\n",
			`add to it by hand: brokerd = { command = "brokerctl", args = ["mcp"] }`},
		{"codex", ".codex/config.toml", "mcp_servers = 1\n", "mcp_servers is no table"},
		{"opencode", "opencode.json", `{"mcp": {"brokerd": null}}`, "mcp.brokerd is null"},
	} {
		f := fileOf(t, c.vendor, c.path, Options{})
		added, conflicts, err := f.Add(Content{c.text, true})
		if err != nil || added.Text != c.text || len(conflicts) != 1 || !strings.Contains(conflicts[0], c.conflict) {
			t.Errorf("%s: %q becomes %q, conflicts %q (%v)", c.path, c.text, added.Text, conflicts, err)
		}
	}
}

// A user who follows the conflict has what setup would have added.
func TestSetup_TakesTheMemberOfAnInlineTableThatItNames(t *testing.T) {
	f := fileOf(t, "codex", ".codex/config.toml", Options{})
	_, conflicts, err := f.Add(Content{"mcp_servers = {docs = {command = \"docs\"}}\n", true})
	if err != nil || len(conflicts) != 1 {
		t.Fatalf("%q (%v)", conflicts, err)
	}
	_, member, _ := strings.Cut(conflicts[0], "by hand: ")
	edited := Content{"mcp_servers = {docs = {command = \"docs\"}, " + member + "}\n", true}
	if added, conflicts, err := f.Add(edited); err != nil || len(conflicts) > 0 || added != edited {
		t.Errorf("%q becomes %q, %q (%v)", edited.Text, added.Text, conflicts, err)
	}
}

func TestSetup_KeepsAHookThatTheUserChanged(t *testing.T) {
	f := fileOf(t, "claude-code", ".claude/settings.json", Options{})
	text := `{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "brokerctl hook claude-code --keep-going"}]}]}}`
	added, conflicts, err := f.Add(Content{text, true})
	if err != nil || len(conflicts) != 1 || !strings.HasPrefix(conflicts[0], "hooks.Stop has ") ||
		strings.Count(added.Text, `"Stop"`) != 1 || !strings.Contains(added.Text, `"PreToolUse"`) ||
		strings.Contains(added.Text, "--listen") {
		t.Errorf("%q, %q (%v)", added.Text, conflicts, err)
	}
	left, kept, err := f.Remove(added)
	if err != nil || left.Text != text || len(kept) != 1 {
		t.Errorf("%q, %q (%v)", left.Text, kept, err)
	}
}

func TestSetup_RefusesABrokenFileWithItsLine(t *testing.T) {
	for _, c := range []struct{ vendor, path, text, want string }{
		{"claude-code", ".mcp.json", "{\n  \"mcpServers\": {,}\n}", "line 2, column 18"},
		{"claude-code", ".mcp.json", "{\n", "line 2"},
		{"codex", ".codex/config.toml", "a = 1\n[mcp_servers\n", "line 2"},
		{"codex", ".codex/config.toml", "a = 1\na = 2\n", "line 2"},
		{"claude-code", "CLAUDE.md", "a\n<!-- brokerctl setup: begin -->\n", "line 2"},
		{"claude-code", "CLAUDE.md", "<!-- brokerctl setup: end -->\n", "line 1"},
	} {
		f := fileOf(t, c.vendor, c.path, Options{})
		before := Content{c.text, true}
		if after, _, err := f.Add(before); err == nil || !strings.Contains(err.Error(), c.want) || after != before {
			t.Errorf("%q becomes %q: %v, want an error with %q", c.text, after.Text, err, c.want)
		}
	}
}

func fileOf(t *testing.T, vendor, path string, o Options) File {
	t.Helper()
	v, err := Find(vendor, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Files {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("%s has no file %s", vendor, path)
	return File{}
}

func TestDiff_IsUnified(t *testing.T) {
	old := "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13"
	for _, c := range []struct {
		before, after Content
		want          string
	}{
		{Content{old, true}, Content{old, true}, ""},
		{Content{}, Content{"a\n", true}, "--- /dev/null\n+++ b/f\n@@ -0,0 +1,1 @@\n+a\n"},
		{Content{"a\n", true}, Content{}, "--- a/f\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-a\n"},
		{
			Content{old, true}, Content{"1\nx\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n", true},
			"--- a/f\n+++ b/f\n@@ -1,5 +1,5 @@\n 1\n-2\n+x\n 3\n 4\n 5\n@@ -10,4 +10,5 @@\n 10\n 11\n 12\n-13\n" +
				"\\ No newline at end of file\n+13\n+14\n",
		},
		{
			Content{"1\n2\n3\n4\n5\n6\n8\n", true}, Content{"0\n1\n2\n3\n4\n5\n6\n9\n", true},
			"--- a/f\n+++ b/f\n@@ -1,7 +1,8 @@\n+0\n 1\n 2\n 3\n 4\n 5\n 6\n-8\n+9\n",
		},
	} {
		if got := Diff("f", c.before, c.after); got != c.want {
			t.Errorf("%q to %q:\n%s\nwant\n%s", c.before.Text, c.after.Text, got, c.want)
		}
	}
}
