package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/processtest"
)

// The commands of the page work in its order, and the answers have what the page shows of them.
func TestHTTP_CurlPrintsWhatThePageSays(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	dir, env := t.TempDir(), processtest.Environment(t)
	line := startDaemon(t, dir, env, processtest.Build(t), "--listen", "127.0.0.1:0", "--log-format", "console")
	address := line[strings.LastIndex(line, "127.0.0.1:"):]
	address = strings.FieldsFunc(address, func(r rune) bool { return r == ',' || r == ' ' || r == '"' })[0]
	shell := openTerminal(t, dir, env)
	printed, shown := "", 0
	for _, block := range fence.FindAllStringSubmatch(read(t, "http.md"), -1) {
		switch block[1] {
		case "sh":
			for _, command := range strings.Split(strings.TrimSpace(block[2]), "\n") {
				if m := exitCode.FindStringSubmatch(command); m != nil {
					command = strings.TrimSuffix(command, m[0]) + "; test $? = " + m[1]
				}
				printed = shell.run(strings.ReplaceAll(command, "127.0.0.1:7420", address))
			}
		case "json":
			shown++
			var want, got any
			if err := json.Unmarshal([]byte(block[2]), &want); err != nil {
				t.Fatalf("%v:\n%s", err, block[2])
			}
			lines := strings.Split(strings.TrimSpace(printed), "\n") // curl adds its own before
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &got); err != nil {
				t.Fatalf("%v:\n%s", err, printed)
			}
			if path, ok := contains(got, want); !ok {
				t.Errorf("the page shows\n%s\nand %s differs in\n%s", block[2], path, printed)
			}
		default: // the shape of server-sent events
			if !strings.Contains(printed, "\ndata: {\"events\":[{\"revision\":") || !strings.Contains(printed, "\nid: ") {
				t.Errorf("the stream prints\n%s", printed)
			}
		}
	}
	if shown < 7 {
		t.Errorf("the page shows %d answers", shown)
	}
	if _, err := os.Stat(filepath.Join(dir, "plan.md")); err != nil {
		t.Error(err)
	}
}

// contains reports whether a JSON value has all that another shows of it; otherwise it returns the
// first place that differs.
func contains(value, shown any) (path string, ok bool) {
	switch shown := shown.(type) {
	case map[string]any:
		object, _ := value.(map[string]any)
		for name, inner := range shown {
			found, present := object[name]
			if path, ok := contains(found, inner); !ok || !present {
				return name + " " + path, false
			}
		}
		return "", object != nil
	case []any:
		list, _ := value.([]any)
		if len(list) != len(shown) {
			return "the length", false
		}
		for i, inner := range shown {
			if path, ok := contains(list[i], inner); !ok {
				return path, false
			}
		}
		return "", true
	}
	return "", value == shown
}
