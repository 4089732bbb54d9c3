package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/brokerctl/setup"
	"brokerd/internal/apptest"
)

// tree returns the files below the working folder with their modes and contents.
func tree(t *shell) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(t.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := ""
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(b)
		}
		if path, err = filepath.Rel(t.dir, path); err != nil {
			return err
		}
		files[path] = info.Mode().String() + "\n" + text
		return nil
	})
	apptest.NoError(t, err)
	return files
}

// place writes a file with its folder.
func place(t *shell, path, text string, mode os.FileMode) {
	t.Helper()
	path = t.path(path)
	apptest.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	apptest.NoError(t, os.WriteFile(path, []byte(text), mode))
	apptest.NoError(t, os.Chmod(path, mode))
}

func TestSetup_RemoveLeavesTheFolderAsItWas(tt *testing.T) {
	t := newShell(tt)
	for _, v := range setup.Vendors(setup.Options{}) {
		t.Run(v.Name, func(t *shell) {
			t.Parallel()
			isolate(t)
			empty := tree(t)
			if out := must0(t, "setup", v.Name, "--dry-run"); !strings.Contains(out, "+++ b/"+v.Files[0].Path) {
				t.Errorf("%s", out)
			}
			if diff := gocmp.Diff(empty, tree(t)); diff != "" {
				t.Errorf("--dry-run wrote:\n%s", diff)
			}
			must0(t, "setup", v.Name)
			added := tree(t)
			for _, f := range v.Files {
				if added[f.Path] == "" {
					t.Errorf("no %s", f.Path)
				}
			}
			if out := must0(t, "setup", v.Name); strings.Contains(out, "+++") || strings.Contains(out, "created") {
				t.Errorf("a second call:\n%s", out)
			}
			if diff := gocmp.Diff(added, tree(t)); diff != "" {
				t.Errorf("a second call changes:\n%s", diff)
			}
			must0(t, "setup", v.Name, "--remove", "--dry-run")
			if diff := gocmp.Diff(added, tree(t)); diff != "" {
				t.Errorf("--remove --dry-run wrote:\n%s", diff)
			}
			must0(t, "setup", v.Name, "--remove")
			if diff := gocmp.Diff(empty, tree(t)); diff != "" {
				t.Errorf("--remove left:\n%s", diff)
			}
			if out := must0(t, "setup", v.Name, "--remove"); strings.Contains(out, "removed") {
				t.Errorf("a second --remove:\n%s", out)
			}
		})
	}
}

func TestSetup_KeepsModesAndSymbolicLinks(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	place(t, "AGENTS.md", "Use tabs.\n", 0o600)
	place(t, "conf/mcp.json", "{\n\t\"mcpServers\": {}\n}\n", 0o640)
	apptest.NoError(t, os.Symlink("AGENTS.md", t.path("CLAUDE.md")))
	apptest.NoError(t, os.Symlink("conf/mcp.json", t.path(".mcp.json")))
	before := tree(t)
	must0(t, "setup", "claude-code")
	must0(t, "setup", "codex")
	added := tree(t)
	for path, want := range map[string]string{"CLAUDE.md": "L", ".mcp.json": "L", "AGENTS.md": "-rw-------",
		"conf/mcp.json": "-rw-r-----"} {
		if !strings.HasPrefix(added[path], want) {
			t.Errorf("%s is %.11s", path, added[path])
		}
	}
	if strings.Count(added["AGENTS.md"], "setup: begin") != 1 || !strings.Contains(added["conf/mcp.json"], `"brokerd"`) {
		t.Errorf("%s\n%s", added["AGENTS.md"], added["conf/mcp.json"])
	}
	must0(t, "setup", "codex", "--remove")
	must0(t, "setup", "claude-code", "--remove")
	if diff := gocmp.Diff(before, tree(t)); diff != "" {
		t.Errorf("%s", diff)
	}
}

func TestSetup_TheLastVendorRemovesTheSharedSection(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	before := tree(t)
	for _, name := range []string{"codex", "cursor", "opencode"} {
		must0(t, "setup", name)
	}
	out := must0(t, "setup", "codex", "--remove")
	if !strings.Contains(out, "unchanged  AGENTS.md (instructions, still used by Cursor)") {
		t.Errorf("%s", out)
	}
	must0(t, "setup", "opencode", "--remove")
	if text := tree(t)["AGENTS.md"]; !strings.Contains(text, "setup: begin") {
		t.Errorf("cursor reads AGENTS.md too: %q", text)
	}
	must0(t, "setup", "cursor", "--remove")
	if diff := gocmp.Diff(before, tree(t)); diff != "" {
		t.Errorf("%s", diff)
	}
}

func TestSetup_ABrokenOrReadOnlyFileLeavesAllAsTheyAre(tt *testing.T) {
	t := newShell(tt)
	for _, c := range []struct {
		path, text string
		mode       os.FileMode
		want       string
	}{
		{".claude/settings.json", "{\n  \"a\": ,\n}\n", 0o644, ".claude/settings.json: line 2, column 8"},
		{".claude/commands/blocker.md/x", "", 0o644, ".claude/commands/blocker.md: is no regular file"},
		{"CLAUDE.md", "a\n", 0o444, "CLAUDE.md: is read-only"},
	} {
		isolate(t)
		place(t, c.path, c.text, c.mode)
		before := tree(t)
		got := ctl(t, "setup", "claude-code")
		if got.code != 2 || got.out != "" || !strings.Contains(got.err, c.want) ||
			!strings.Contains(got.err, "nothing was changed") {
			t.Errorf("%s: %+v", c.path, got)
		}
		if diff := gocmp.Diff(before, tree(t)); diff != "" {
			t.Errorf("%s:\n%s", c.path, diff)
		}
	}
	isolate(t)
	apptest.NoError(t, os.Symlink("nowhere", t.path("CLAUDE.md")))
	if got := ctl(t, "setup", "claude-code"); got.code != 2 || !strings.Contains(got.err, "CLAUDE.md: ") {
		t.Errorf("a link to no file: %+v", got)
	}
}

func TestSetup_ReportsConflictsAndMakesTheOtherChanges(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	place(t, ".mcp.json", `{"mcpServers": {"brokerd": {"command": "/opt/brokerctl"}}}`, 0o644)
	before := tree(t)
	for range 2 {
		got := ctl(t, "setup", "claude-code")
		if got.code != 5 || !strings.Contains(got.out, "conflict   .mcp.json") ||
			!strings.Contains(got.out, `kept: mcpServers.brokerd is {"command":"/opt/brokerctl"}`) ||
			!strings.Contains(got.err, "1 conflict") {
			t.Errorf("%+v", got)
		}
	}
	if _, err := os.Stat(t.path(".claude/settings.json")); err != nil {
		t.Error(err)
	}
	if got := ctl(t, "setup", "claude-code", "--remove"); got.code != 5 {
		t.Errorf("%+v", got)
	}
	if diff := gocmp.Diff(before, tree(t)); diff != "" {
		t.Errorf("%s", diff)
	}
}

func TestSetup_UsesTheNameThatAFileHas(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	place(t, "opencode.jsonc", "{\n  // mine\n}\n", 0o644)
	before := tree(t)
	must0(t, "setup", "opencode")
	if files := tree(t); files["opencode.json"] != "" || !strings.Contains(files["opencode.jsonc"], `"brokerd"`) {
		t.Errorf("%v", files)
	}
	must0(t, "setup", "opencode", "--remove")
	if diff := gocmp.Diff(before, tree(t)); diff != "" {
		t.Errorf("%s", diff)
	}
}

func TestSetup_TheUsersFilesAreBelowTheHomeFolder(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, v := range setup.Vendors(setup.Options{}) {
		must0(t, "setup", v.Name, "--user")
		for _, f := range v.Files {
			if _, err := os.Stat(filepath.Join(home, f.User)); err != nil {
				t.Error(err)
			}
		}
		must0(t, "setup", v.Name, "--user", "--remove")
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if left, err := os.ReadDir(t.dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestSetup_NamesTheAgentAsInitDoes(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	out := must0(t, "setup", "claude-code", "--user")
	if !strings.Contains(out, "--agent NAME --role ROLE\n") {
		t.Errorf("%s", out)
	}
	out = must0(t, "setup", "claude-code", "--agent", "builder-1", "--role", "builder")
	if !strings.Contains(out, "created    .brokerd.yaml (agent builder-1)\n") || strings.Contains(out, "--agent NAME") {
		t.Errorf("%s", out)
	}
	must0(t, "setup", "claude-code", "--agent", "critic-1", "-o", "json")
	text, err := os.ReadFile(t.path(setting.ConfigFile))
	if want := "agents:\n  builder-1: {role: builder}\n  critic-1: {}\n"; err != nil ||
		!strings.HasSuffix(string(text), want) ||
		strings.Contains(string(text), "output") {
		t.Errorf("%s (%v)", text, err)
	}
	if !strings.Contains(out, `agent run --agent builder-1 --wake 'claude -p "run brokerctl next"'`) {
		t.Errorf("%s", out)
	}
	if out := must0(t, "setup", "codex"); !strings.Contains(out, "several (builder-1, critic-1): brokerctl setup codex --agent NAME") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "setup", "codex", "--role", "builder"); got.code != 2 || !strings.Contains(got.err, "--agent NAME") {
		t.Errorf("%+v", got)
	}
}

// inNewFolder enters a new folder with this name.
func inNewFolder(t *shell, name string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	apptest.NoError(t, os.Mkdir(dir, 0o755))
	t.Chdir(dir)
}

func TestSetup_NamesTheAgentAfterTheFolderAsTheMCPServerDoes(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	inNewFolder(t, "My Web")
	m := startModel(t)
	m.call("turn", `{}`, "You are the agent my-web in")
	m.end()
	const line = "  created    .brokerd.yaml (agent my-web, named after this folder)\n"
	wouldBe := strings.Replace(strings.TrimLeft(line, " "), "created    ", "would be created  ", 1)
	if out := must0(t, "setup", "claude-code", "--dry-run"); !strings.Contains(out, wouldBe) || strings.Contains(out, line) ||
		!strings.Contains(out, "+  my-web: {}\n") {
		t.Errorf("%s", out)
	}
	if out := must0(t, "setup", "claude-code"); !strings.Contains(out, line) || strings.Contains(out, "hooks only warn") ||
		!strings.Contains(out, "agent run --agent my-web --pty") {
		t.Errorf("%s", out)
	}
	added := tree(t)
	if out := must0(t, "setup", "claude-code"); strings.Contains(out, "named after") {
		t.Errorf("a second call:\n%s", out)
	}
	if diff := gocmp.Diff(added, tree(t)); diff != "" {
		t.Errorf("a second call changes:\n%s", diff)
	}
	startModel(t).call("turn", `{}`, "You are the agent my-web in")
	if got := fields(t, "whoami"); at(t, got, "agent") != "my-web" {
		t.Errorf("the shell is %v", got)
	}
	if got := hooked(t, editInput); got.code != 0 || got.err != "" {
		t.Errorf("the hook: %+v", got)
	}
	if lock := fields(t, "lock", "list", "--owner", "my-web"); at(t, lock, "paths", 0) != "src/a.go" {
		t.Errorf("%v", lock)
	}

	inNewFolder(t, "my-web")
	if out := must0(t, "setup", "codex"); !strings.Contains(out, "(agent my-web-2, named after this folder)") {
		t.Errorf("an agent of another folder has the name:\n%s", out)
	}
}

func TestSetup_RemoveTakesItsAgentBack(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	for _, c := range []struct {
		name   string
		git    bool
		ignore map[string]string
	}{
		{"web", false, nil},
		{"null", true, nil},
		{"007", true, map[string]string{".gitignore": ""}},
		{"web", true, map[string]string{".gitignore": "a"}},
		{"web", true, map[string]string{".gitignore": "a\n"}},
		{"web", true, map[string]string{".gitignore": "a\r\n"}},
		{"web", true, map[string]string{".gitignore": setting.ConfigFile + "\n"}},
	} {
		inNewFolder(t, c.name)
		if c.git {
			t.git("init", "--quiet")
		}
		for path, text := range c.ignore {
			place(t, path, text, 0o644)
		}
		before := tree(t)
		must0(t, "setup", "claude-code")
		must0(t, "setup", "codex")
		if file, err := setting.ReadConfig(t.path(setting.ConfigFile)); err != nil || !slices.Equal(file.Names(), []string{c.name}) {
			t.Errorf("%v: %v, %v", c, file, err)
		}
		if c.git && t.git("status", "--short", setting.ConfigFile) != "" {
			t.Errorf("%v: git does not ignore %s", c, setting.ConfigFile)
		}
		out := must0(t, "setup", "codex", "--remove")
		if !strings.Contains(out, "unchanged  .brokerd.yaml (agent, still used by Claude Code)") {
			t.Errorf("%v: %s", c, out)
		}
		must0(t, "setup", "claude-code", "--remove")
		if diff := gocmp.Diff(before, tree(t)); diff != "" {
			t.Errorf("%v:\n%s", c, diff)
		}
	}
}

func TestSetup_RemoveKeepsAnAgentThatTheUserConfigured(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	for _, change := range []func(){
		func() { must0(t, "setup", "claude-code", "--agent", "critic-1") },
		func() {
			text, err := os.ReadFile(t.path(setting.ConfigFile))
			apptest.NoError(t, err)
			place(t, setting.ConfigFile, string(text)+"output: json\n", 0o644)
		},
		func() { place(t, setting.ConfigFile, "agents:\n  builder-1: {}\n", 0o644) },
	} {
		inNewFolder(t, "web")
		must0(t, "setup", "claude-code")
		change()
		want := tree(t)[setting.ConfigFile]
		must0(t, "setup", "claude-code", "--remove")
		if got := tree(t)[setting.ConfigFile]; got != want {
			t.Errorf("%q became %q", want, got)
		}
	}
}

func TestSetup_AnAgentKeepsTheAddressOfTheFolderAbove(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	configure(t, "addr: 127.0.0.1:4711\nsession: website\ncredential_file: secret\n")
	secret := t.path("secret")
	must0(t, "trust", "--yes")
	apptest.NoError(t, os.Mkdir(t.path("web"), 0o755))
	t.Chdir("web")
	must0(t, "setup", "claude-code")
	want := "addr: 127.0.0.1:4711\nsession: website\ncredential_file: " + secret + "\nagents:\n  web: {}\n"
	if text, err := os.ReadFile(t.path(setting.ConfigFile)); err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("%s (%v)", text, err)
	}
}

func TestSetup_ListsTheVendors(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv("PATH", t.TempDir())
	apptest.NoError(t, os.WriteFile(filepath.Join(t.Getenv("PATH"), "codex"), nil, 0o700))
	must0(t, "setup", "claude-code")
	for line := range strings.Lines(must0(t, "setup", "-o", "json")) {
		got := decode(t, line)
		name := at(t, got, "name")
		if at(t, got, "found") != (name == "codex") || at(t, got, "set_up") != (name == "claude-code") {
			t.Errorf("%v", got)
		}
	}
	if out := must0(t, "setup"); !strings.Contains(out, "claude-code") || !strings.Contains(out, ".codex/config.toml") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "setup", "emacs"); got.code != 2 ||
		!strings.Contains(got.err, `no coding agent "emacs"; setup knows claude-code, codex,`) {
		t.Errorf("%+v", got)
	}
}

// The tables of docs/setup.md are those of the package setup.
func TestSetup_ThePageListsTheFiles(t *testing.T) {
	var want strings.Builder
	want.WriteString("\n| coding agent | tested version | hook at the end of a turn | afterwards |\n|---|---|---|---|\n")
	for _, v := range setup.Vendors(setup.Options{}) {
		fmt.Fprintf(&want, "| %s (`brokerctl setup %s`) | %s | %s | %s |\n", v.Title, v.Name, v.Tested, v.Hook, v.Next)
	}
	want.WriteString("\n| coding agent | file | file with `--user` | addition |\n|---|---|---|---|\n")
	for _, v := range setup.Vendors(setup.Options{}) {
		for _, f := range v.Files {
			user := "–"
			if f.User != "" {
				user = "`~/" + f.User + "`"
			}
			fmt.Fprintf(&want, "| %s | `%s` | %s | %s |\n", v.Title, f.Path, user, f.What)
		}
	}
	want.WriteString("\n")
	const page, mark = "../../docs/setup.md",
		"<!-- The table of setup makes the following tables; see setup_test.go. -->\n"
	old, err := os.ReadFile(page)
	apptest.NoError(t, err)
	head, rest, _ := strings.Cut(string(old), mark)
	const after = "`make vendors` installs"
	_, tail, _ := strings.Cut(rest, after)
	text := head + mark + want.String() + after + tail
	if *update {
		apptest.NoError(t, os.WriteFile(page, []byte(text), 0o644))
		return
	}
	if diff := gocmp.Diff(string(old), text); diff != "" {
		t.Errorf("docs/setup.md (-file +tables):\n%s", diff)
	}
}
