package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// module writes a module with packages of tests into a folder, and makes it the working directory.
func module(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example\n\ngo 1.26.0\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// runs returns what the program prints, and its exit code.
func runs(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	code, err := run(t.Context(), &out, io.Discard, groups(args))
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String(), code
}

const good = `package good

import "testing"

func TestGood(t *testing.T) { t.Log("silent"); t.Run("part", func(t *testing.T) {}) }

func TestSkipped(t *testing.T) { t.Skip("jq is missing") }
`

func TestRun_PrintsPackagesAndCountsTests(t *testing.T) {
	module(t, map[string]string{"good/good_test.go": good, "other/other_test.go": strings.ReplaceAll(good, "package good", "package other")})
	printed, code := runs(t, "./good", "--", "-count=1", "./other")
	if code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	for _, want := range []string{
		`(?m)^ok  \texample/good\t`, `(?m)^ok  \texample/other\t`, `(?m)^=== Slowest packages\n +\d+\.\d\ds  example/`,
		`(?m)^ +\d+\.\d\ds  example/good TestGood$`, `(?m)^example/good TestSkipped: good_test.go:7: jq is missing$`,
		`(?m)^DONE 6 tests, 2 skipped in \d+\.\d{3}s\n\z`,
	} {
		if !regexp.MustCompile(want).MatchString(printed) {
			t.Errorf("%q is missing in\n%s", want, printed)
		}
	}
	if strings.Contains(printed, "silent") || strings.Contains(printed, "\x1b") {
		t.Errorf("the output of a test that passed, or a control code, is in\n%s", printed)
	}
}

func TestRun_PrintsAllThatFailedTestsWrote(t *testing.T) {
	module(t, map[string]string{
		"good/good_test.go": good,
		"bad/bad_test.go": `package bad

import ("fmt"; "testing")

func TestBad(t *testing.T) { fmt.Println("on standard output"); t.Log("first line"); t.Error("second line") }

func TestPasses(t *testing.T) { t.Log("silent") }
`,
		"panics/panics_test.go":   "package panics\n\nimport \"testing\"\n\nfunc TestPanics(t *testing.T) { panic(\"at once\") }\n",
		"nothing/nothing_test.go": "package nothing\n\nfunc nothing() {\n\tmissing()\n}\n",
	})
	printed, code := runs(t, "./good", "./bad", "./panics", "./nothing")
	if code == 0 {
		t.Error("the exit code is 0")
	}
	for _, want := range []string{
		"on standard output", "first line", "second line", "--- FAIL: TestBad", "FAIL\texample/bad", "panic: at once", "FAIL\texample/panics",
		"nothing_test.go:4:2: undefined: missing", "example/nothing [build failed]", "ok  \texample/good", "\n=== Failed tests\n", "example/bad TestBad\n",
		"\nexample/nothing\n", " failed in ",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is missing in\n%s", want, printed)
		}
	}
	if strings.Contains(printed, "silent") {
		t.Errorf("the output of a test that passed is in\n%s", printed)
	}
}

// The child is a shell that keeps a history, and a program that writes its configuration.
func TestRun_LeavesTheHomeFolderOfTheUserAlone(t *testing.T) {
	t.Setenv("GOCACHE", goEnv(t, "GOCACHE")) // otherwise it would be below the home folder
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("HISTFILE", filepath.Join(home, "history"))
	for _, name := range []string{"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"} {
		t.Setenv(name, filepath.Join(home, name))
	}
	module(t, map[string]string{"writes/writes_test.go": `package writes

import ("os/exec"; "strings"; "testing")

func TestWrites(t *testing.T) {
	shell := exec.Command("bash")
	shell.Stdin = strings.NewReader(` + "`" + `set -o history
echo secret
history -a
for folder in "$HOME/.config" "$XDG_CONFIG_HOME" "$XDG_STATE_HOME" "$XDG_DATA_HOME" "$XDG_CACHE_HOME"; do
  mkdir -p "$folder/program" && echo text >"$folder/program/file" || exit 7
done
` + "`" + `)
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}
`})
	if printed, code := runs(t, "-count=1", "./writes"); code != 0 {
		t.Fatal(printed)
	}
	err := filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.Contains(path, "/go/") { // the go command counts its own use there
			t.Errorf("the tests have written %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// goEnv returns a setting of Go.
func goEnv(t *testing.T, name string) string {
	t.Helper()
	env, err := environment(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range env {
		if value, found := strings.CutPrefix(v, name+"="); found {
			return value
		}
	}
	t.Fatalf("%s is missing", name)
	return ""
}
