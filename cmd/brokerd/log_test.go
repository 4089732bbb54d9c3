package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

// records decodes a log of JSON. Every line of it must be an object.
func records(t *testing.T, text string) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(text) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Errorf("%q is not JSON: %v", line, err)
		}
		all = append(all, r)
	}
	return all
}

func TestLog_OfJSONHasTheStartAndTheStopAsRecords(t *testing.T) {
	t.Parallel()
	p := &program{dir: t.TempDir()}
	p.cmd = command(t, "--data", p.dir, "--log-format", "json", "--sync", "normal", "--metrics", "127.0.0.1:0")
	var out bytes.Buffer
	p.cmd.Stdout, p.cmd.Stderr = &out, &p.stderr
	apptest.NoError(t, p.cmd.Start())
	p.stderr.await(t, `"msg":"started"`, 1)
	other := command(t, "--data", p.dir, "--log-format", "json")
	refused, _ := other.CombinedOutput()
	p.end(t)
	if out.Len() > 0 {
		t.Errorf("standard output has %q", out.String())
	}
	found := map[any]map[string]any{}
	for _, r := range records(t, p.stderr.String()) {
		found[r["msg"]] = r
	}
	started := found["started"]
	listen, _ := started["listen"].([]any)
	if started["version"] != fileVersion(t) || started["data"] != p.dir || started["sync"] != "normal" ||
		started["pid"] != float64(p.cmd.Process.Pid) || len(listen) != 1 || listen[0] != "unix://"+p.dir+"/brokerd.sock" {
		t.Errorf("the record of the start: %v", started)
	}
	for msg, duration := range map[string]string{"stopping": "ran", "stopped": "took"} {
		r := found[msg]
		if r["level"] != "info" || r["reason"] != "terminated signal received" || r[duration] == nil {
			t.Errorf("the record %q: %v", msg, r)
		}
	}

	last := records(t, string(refused))
	if code := other.ProcessState.ExitCode(); code == 0 || len(last) != 1 || last[0]["level"] != "error" ||
		!strings.Contains(last[0]["error"].(string), "in use by another brokerd") {
		t.Errorf("a second daemon: exit code %d, %v", code, last)
	}
}

func TestLog_NamesTheReasonOfTheStop(t *testing.T) {
	t.Parallel()
	p, stdin := launchWithInput(t, "--data", t.TempDir(), "--stop-on-stdin-eof")
	apptest.NoError(t, stdin.Close())
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if text := p.stderr.String(); !strings.Contains(text, `{"reason": "standard input has ended", "ran": `) {
		t.Errorf("the log: %s", text)
	}
}

func TestAddress_IsRefusedBeforeTheDataFolderIsMade(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--listen", "--metrics", "--pprof"} {
		dir := t.TempDir() + "/new"
		root := newRoot()
		root.SetArgs([]string{"--data", dir, flag, "0.0.0.0:7070"})
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%s 0.0.0.0:7070 was accepted", flag)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the data folder was made", flag)
		}
	}
}
