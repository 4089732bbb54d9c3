package client_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/client"
	"brokerd/internal/apptest"
)

// A tree is a folder with what tests put there.
type tree struct {
	t   *testing.T
	top string
}

func newTree(t *testing.T) tree {
	t.Helper()
	t.Setenv("BROKERD_ROOT", "")
	top, err := filepath.EvalSymlinks(t.TempDir())
	apptest.NoError(t, err)
	return tree{t, top}
}

func (f tree) at(name string) string { return filepath.Join(f.top, name) }

// dir makes folders.
func (f tree) dir(names ...string) {
	f.t.Helper()
	for _, name := range names {
		apptest.NoError(f.t, os.MkdirAll(f.at(name), 0o755))
	}
}

// file writes a file, with the folders to it.
func (f tree) file(name, text string) {
	f.t.Helper()
	f.dir(filepath.Dir(name))
	apptest.NoError(f.t, os.WriteFile(f.at(name), []byte(text), 0o644))
}

func (f tree) link(name, target string) {
	f.t.Helper()
	apptest.NoError(f.t, os.Symlink(target, f.at(name)))
}

// paths are those for a working folder and a root, both within the tree; the root may be empty.
func (f tree) paths(dir, root string) *client.Paths {
	f.t.Helper()
	p, err := client.NewPaths(f.at(dir), root)
	apptest.NoError(f.t, err)
	return p
}

// wantPaths maps names, which may begin with TOP, the folder of the tree.
func (f tree) wantPaths(p *client.Paths, want map[string]string) {
	f.t.Helper()
	for name, path := range want {
		name = strings.Replace(name, "TOP", f.top, 1)
		got, err := p.Map(name)
		var outside *client.OutsideError
		switch {
		case path == "outside" && !errors.As(err, &outside):
			f.t.Errorf("%s: %q, %v; want it outside of %s", name, got, err, p.Root())
		case path != "outside" && (err != nil || got != path):
			f.t.Errorf("%s: %q, %v; want %q", name, got, err, path)
		}
	}
}

func (f tree) wantRoot(p *client.Paths, want string) {
	f.t.Helper()
	if p.Root() != f.at(want) {
		f.t.Errorf("root %s, want %s", p.Root(), f.at(want))
	}
}

func TestPaths_NamesOfOneFileHaveOnePath(t *testing.T) {
	f := newTree(t)
	f.file("repo/src/a.go", "")
	f.dir("repo/lib/deep", "elsewhere/real")
	f.file("elsewhere/real/x", "")
	f.link("repo/src/b.go", "a.go")
	f.link("repo/src/absolute", f.at("repo/src/a.go"))
	f.link("repo/out", "../elsewhere/real")
	f.link("repo/src/new.go", "../lib/made.go") // leads to nothing yet
	f.link("into", "repo/lib/deep")
	f.link("home", "repo")
	f.link("repo/loop", "loop")
	p := f.paths("repo/src", f.at("repo"))
	f.wantRoot(p, "repo")
	f.wantPaths(p, map[string]string{
		"a.go":                       "src/a.go",
		"./a.go":                     "src/a.go",
		"TOP/repo/src/a.go":          "src/a.go",
		"TOP/home/src/a.go":          "src/a.go",
		"../lib/../src/a.go":         "src/a.go",
		"b.go":                       "src/a.go",
		"absolute":                   "src/a.go",
		"new.go":                     "lib/made.go",
		"TOP/into/../x":              "lib/x", // .. of where the link leads
		"TOP/into/x":                 "lib/deep/x",
		"made/later.go":              "src/made/later.go",
		"made/../c.go":               "src/c.go",
		"a.go/x":                     "src/a.go/x", // nothing there either
		"made/":                      "src/made/",
		"../lib":                     "lib/",
		"../lib/":                    "lib/",
		"..":                         "**",
		"TOP/repo/":                  "**",
		"*.go":                       "src/*.go",
		"**":                         "src/**",
		"TOP/home/**/*.go":           "**/*.go",
		"TOP/into/*/":                "lib/deep/*/",
		"made/*.go":                  "src/made/*.go",
		"../../x":                    "outside",
		"/etc/passwd":                "outside",
		"../out/x":                   "outside",
		"../out/*.go":                "outside",
		"TOP/repository/x":           "outside",
		"../../*":                    "outside",
		"TOP/repo/../elsewhere/real": "outside",
	})
	for _, bad := range []string{"", "../loop", "*/../x", "a.go/", "a.go/*"} {
		if got, err := p.Map(bad); err == nil {
			t.Errorf("%q is %q", bad, got)
		}
	}
	all, err := p.MapAll("a.go", "../lib")
	if err != nil || strings.Join(all, " ") != "src/a.go lib/" {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := p.MapAll("a.go", "/x"); err == nil || !strings.Contains(err.Error(), "/x is outside of the session's root "+f.at("repo")) {
		t.Errorf("%v", err)
	}
}

func TestPaths_RootIsFoundInOrder(t *testing.T) {
	f := newTree(t)
	f.dir("plain/a/b", "given", "repo/.git", "repo/x/y")
	f.file("plain/a/.brokerd.yaml", "")
	f.file("repo/x/.brokerd.yaml", "")
	f.file("file", "")
	f.wantRoot(f.paths("given", ""), "given")
	f.wantRoot(f.paths("plain/a/b", ""), "plain/a")
	f.wantRoot(f.paths("repo/x/y", ""), "repo")
	f.wantRoot(f.paths("repo/x/y", ".."), "repo/x")
	t.Setenv("BROKERD_ROOT", f.at("given"))
	f.wantRoot(f.paths("repo/x/y", ""), "given")
	f.wantRoot(f.paths("repo/x/y", f.at("plain")), "plain")
	for _, bad := range []string{f.at("nowhere"), f.at("file")} {
		if _, err := client.NewPaths(f.top, bad); err == nil {
			t.Errorf("%s is taken as a root", bad)
		}
	}
	t.Chdir(f.at("repo/x"))
	p, err := client.NewPaths("", "..")
	apptest.NoError(t, err)
	f.wantRoot(p, "repo")
	f.wantPaths(p, map[string]string{"y/z": "x/y/z"})
}

// worktrees makes a repository main and its worktree side, as git does.
func (f tree) worktrees() {
	f.t.Helper()
	f.dir("main/.git", "main/src", "side/src")
	f.file("main/.git/worktrees/side/commondir", "../..\n")
	f.file("side/.git", "gitdir: "+f.at("main/.git/worktrees/side")+"\n")
}

func TestPaths_EveryWorktreeIsTheMainOne(t *testing.T) {
	f := newTree(t)
	f.worktrees()
	f.file("near/.git", "gitdir: ../main/.git/worktrees/side\n") // relative, as newer versions of git can have it
	for _, dir := range []string{"main", "main/src", "side", "side/src", "near"} {
		p := f.paths(dir, "")
		f.wantRoot(p, "main")
		f.wantPaths(p, map[string]string{
			"TOP/main/src/a.go": "src/a.go", "TOP/side/src/a.go": "src/a.go", "TOP/near/src/a.go": "src/a.go", "TOP/side": "**", "TOP/side/s*": "s*",
			"TOP/side/new/x": "new/x", "TOP/x": "outside",
		})
	}
	f.wantPaths(f.paths("side/src", ""), map[string]string{"a.go": "src/a.go", "../*": "*", "..": "**"})
	f.wantPaths(f.paths("side", f.at("side/src")), map[string]string{"TOP/main/src/a.go": "a.go", "src/a.go": "a.go", "a.go": "outside"})
	f.wantPaths(f.paths("side", f.top), map[string]string{"a.go": "main/a.go", "TOP/x": "x"})
}

func TestPaths_RepositoriesOfOtherShapes(t *testing.T) {
	f := newTree(t)
	f.worktrees()
	// A submodule belongs to the repository around it, in each of its worktrees.
	f.file("main/.git/modules/sub/config", "[core]\n\tbare = false\n\tworktree = ../../../sub\n[remote \"x\"]\n\tworktree = no\n")
	f.file("main/sub/.git", "gitdir: ../.git/modules/sub\n")
	f.file("main/.git/worktrees/side/modules/sub/config", "[core]\n\tworktree = ../../../../../../side/sub\n")
	f.file("side/sub/.git", "gitdir: ../../main/.git/worktrees/side/modules/sub\n")
	f.file("main/.git/modules/sub/worktrees/far/commondir", "../..\n")
	f.file("far/.git", "gitdir: "+f.at("main/.git/modules/sub/worktrees/far"))
	for _, dir := range []string{"main", "main/sub", "side/sub", "far"} {
		p := f.paths(dir, "")
		f.wantRoot(p, "main")
		f.wantPaths(p, map[string]string{"TOP/main/sub/x": "sub/x", "TOP/side/sub/x": "sub/x", "TOP/far/x": "sub/x", "TOP/main/x": "x"})
	}
	// So does another repository within a worktree.
	f.dir("side/vendor/.git")
	f.wantPaths(f.paths("side", ""), map[string]string{"vendor/x": "vendor/x"})
	f.wantRoot(f.paths("side/vendor", ""), "main/vendor")

	// Worktrees of a bare repository agree, though there is no main one; with and without a .git beside it.
	f.file("project/.bare/worktrees/a/commondir", "../..")
	f.file("project/.bare/worktrees/b/commondir", "../..")
	f.file("project/.bare/config", "[core]\n\tbare = true\n")
	f.file("project/a/.git", "gitdir: "+f.at("project/.bare/worktrees/a"))
	f.file("project/b/.git", "gitdir: "+f.at("project/.bare/worktrees/b"))
	for range 2 {
		f.wantPaths(f.paths("project/a", ""), map[string]string{"x": "x", "TOP/project/b/x": "x", "TOP/x": "outside"})
		f.wantPaths(f.paths("project/b", f.at("project/a")), map[string]string{"x": "x"})
		f.file("project/.git", "gitdir: ./.bare")
	}
	// Two that call each other the main one are an error, not a circle.
	f.file("loop/p/.git", "gitdir: "+f.at("loop/g"))
	f.file("loop/g/commondir", "../q/.git")
	f.file("loop/q/.git", "gitdir: "+f.at("loop/h"))
	f.file("loop/h/commondir", "../p/.git")
	if p, err := client.NewPaths(f.at("loop/p"), ""); err == nil {
		t.Errorf("a circle has the root %s", p.Root())
	}
	// What is no repository is none.
	f.file("broken/.git", "something else")
	f.wantRoot(f.paths("broken", ""), "broken")
}

func TestPaths_RealGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("git is not installed")
	}
	f := newTree(t)
	run := func(dir string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), git, append([]string{"-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always"}, args...)...)
		cmd.Dir = f.at(dir)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.top, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	f.dir("main", "part")
	run("part", "init", "-q")
	run("part", "commit", "-q", "--allow-empty", "-m", "first")
	run("main", "init", "-q")
	run("main", "submodule", "--quiet", "add", f.at("part"), "sub")
	run("main", "commit", "-q", "-m", "first")
	run("main", "worktree", "add", "-q", "../side")
	run("main", "worktree", "add", "-q", "inner")
	run("side", "submodule", "--quiet", "update", "--init")
	run("", "clone", "-q", "--bare", "main", "bare.git")
	run("bare.git", "worktree", "add", "-q", "../one", "-b", "one")
	run("bare.git", "worktree", "add", "-q", "../two", "-b", "two")
	run("", "init", "-q", "--separate-git-dir", "apart.git", "apart")
	run("apart", "commit", "-q", "--allow-empty", "-m", "first")
	run("apart", "worktree", "add", "-q", "../beside")
	for _, dir := range []string{"main", "side", "main/inner", "main/sub", "side/sub"} {
		p := f.paths(dir, "")
		f.wantRoot(p, "main")
		f.wantPaths(p, map[string]string{
			"TOP/main/a": "a", "TOP/side/a": "a", "TOP/main/inner/a": "a", "TOP/main/sub/a": "sub/a", "TOP/side/sub/a": "sub/a", "TOP/part/a": "outside",
		})
	}
	f.wantPaths(f.paths("one", ""), map[string]string{"a": "a", "TOP/two/a": "a"})
	for _, dir := range []string{"apart", "beside"} {
		f.wantPaths(f.paths(dir, ""), map[string]string{"a": "a", "TOP/apart/a": "a", "TOP/beside/a": "a"})
	}
}
