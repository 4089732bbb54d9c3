package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

func TestState_ValuesAreWrittenAndRead(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder", "b/builder")
	for _, c := range []struct {
		kind, value, json string
	}{
		{"string", "two words", `"two words"`},
		{"integer", "1152921504606846977", "1152921504606846977"},
		{"boolean", "true", "true"},
		{"json", `{"n": 1.0}`, `{"n":1.0}`},
	} {
		put := fields(t, "--agent", "a", "state", "put", "k/"+c.kind, c.value, "--type", c.kind)
		if got := must0(t, "state", "get", "k/"+c.kind); got != c.value+"\n" {
			t.Errorf("%s reads %q", c.kind, got)
		}
		if got := must0(t, "state", "get", "k/"+c.kind, "-o", "json"); got != c.json+"\n" {
			t.Errorf("%s is %s", c.kind, got)
		}
		got := fields(t, "state", "get", "k/"+c.kind, "--full")
		if at(t, got, "entry", "author") != "a" || at(t, got, "entry", "revision") != at(t, put, "revision") {
			t.Errorf("put %v, got %v", put, got)
		}
	}
	if n := at(t, fields(t, "state", "get", "k/json", "--full"), "entry", "value", "n"); n != json.Number("1.0") {
		t.Errorf("nested JSON has %v", n)
	}
	if got := withoutFrames(must0(t, "state", "list", "k/", "-o", "prompt")); strings.Count(got, "\n") != 4 || !strings.Contains(got, "k/string = two words (string, version 1, ") {
		t.Errorf("%q", got)
	}
	if got := withoutFrames(must0(t, "state", "get", "k/string", "-o", "prompt")); !strings.HasPrefix(got, "k/string, string, version 1, revision ") || !strings.HasSuffix(got, "\ntwo words\n") {
		t.Errorf("%q", got)
	}
	got := t.invoke(t.Context(), "from standard input", nil, "--agent", "a", "state", "put", "in", "-")
	if got.code != 0 || must0(t, "state", "get", "in") != "from standard input\n" {
		t.Errorf("%+v", got)
	}
}

func TestState_KeysAreListedByTask(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder")
	must0(t, "--agent", "a", "state", "put", "plan", "1", "--task", "t1")
	must0(t, "--agent", "a", "state", "put", "plan", "2")
	must0(t, "--agent", "a", "state", "append", "notes", "first", "--task", "t1")
	must0(t, "--agent", "a", "state", "put", "other", "1")
	got := t.invoke(t.Context(), `{"changes":[{"put":{"key":"pair","value":1,"task_id":"t2"}}]}`, nil, "--agent", "a", "state", "transact", "-")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	for task, want := range map[string]string{"t1": "notes plan ", "t2": "pair ", "t3": ""} {
		var keys string
		for line := range strings.Lines(must0(t, "state", "list", "--task", task, "-o", "json")) {
			keys += at(t, decode(t, line), "key").(string) + " "
		}
		if keys != want {
			t.Errorf("keys of %s: %q, want %q", task, keys, want)
		}
	}
	if got := must0(t, "state", "list", "plan", "-o", "prompt"); !strings.Contains(got, ", task t1)") {
		t.Errorf("%q", got)
	}
	must0(t, "--agent", "a", "state", "put", "plan", "3", "--task", "")
	if got := must0(t, "state", "list", "--task", "t1", "-o", "json"); strings.Contains(got, `"plan"`) {
		t.Errorf("%q", got)
	}
}

func TestState_KeysOfBridgesAreListedOnRequestOnly(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	must0(t, "state", "put", "plan", "1")
	must0(t, "state", "put", "b048/history", "jsonl", "--namespace", "bridge")
	if got := must0(t, "state", "list"); strings.Contains(got, "b048") || !strings.Contains(got, "plan") {
		t.Errorf("%q", got)
	}
	if got := must0(t, "state", "list", "--namespace", "bridge"); !strings.Contains(got, "b048") {
		t.Errorf("%q", got)
	}
}

func TestState_ConflictsAndWhatIsNotThereHaveTheirExitCodes(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder", "b/builder")
	first := at(t, fields(t, "--agent", "a", "state", "put", "k", "1", "--create"), "revision").(json.Number).String()
	must0(t, "--agent", "a", "state", "put", "k", "2", "--if-revision", first, "--own")
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{5, "is there already", []string{"--agent", "a", "state", "put", "k", "3", "--create"}},
		{5, "read it again", []string{"--agent", "a", "state", "put", "k", "3", "--if-revision", first}},
		{5, "read it again", []string{"--agent", "a", "state", "delete", "k", "--if-revision", first}},
		{7, "belongs to the agent a", []string{"--agent", "b", "state", "put", "k", "3"}},
		{3, "no key", []string{"state", "get", "none"}},
		{3, "no key", []string{"state", "history", "none"}},
		{2, "no integer", []string{"--agent", "a", "state", "put", "k", "x", "--type", "integer"}},
		{2, "none of string", []string{"--agent", "a", "state", "put", "k", "x", "--type", "blob"}},
		{2, "the value is missing", []string{"--agent", "a", "state", "put", "k"}},
		{2, "neither true nor false", []string{"--agent", "a", "state", "put", "k", "yes", "--type", "boolean"}},
	} {
		if got := ctl(t, c.args...); got.code != c.code || !strings.Contains(got.err, c.says) {
			t.Errorf("%q: %+v, want %d, %q", c.args, got, c.code, c.says)
		}
	}
	must0(t, "--agent", "a", "state", "delete", "k")
	if got := must0(t, "--agent", "a", "state", "delete", "k"); got != "k was not there\n" {
		t.Errorf("%q", got)
	}
	history := must0(t, "state", "history", "k")
	if lines := strings.Split(strings.TrimSpace(history), "\n"); len(lines) != 4 || !strings.Contains(lines[1], "(deleted)") {
		t.Errorf("%s", history)
	}
	if got := must0(t, "state", "get", "k", "--at", first); got != "1\n" {
		t.Errorf("at the first revision it is %q", got)
	}
}

func TestState_DocumentsReadAsMarkdown(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder", "b/builder")
	must0(t, "--agent", "a", "state", "append", "notes", "We use gRPC.")
	got := t.invoke(t.Context(), "- one\n- two\n", nil, "--agent", "b", "state", "append", "notes", "-")
	if got.code != 0 || !strings.HasPrefix(got.out, "added entry 2 to notes, revision ") {
		t.Errorf("%+v", got)
	}
	text := must0(t, "state", "get", "notes")
	for _, part := range []string{"# notes\n", "## 1. a, ", "\n\nWe use gRPC.\n", "## 2. b, ", "\n- one\n- two\n"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
	if got := must0(t, "state", "get", "notes", "-o", "json"); !strings.HasPrefix(got, `[{"number":1,`) {
		t.Errorf("%s", got)
	}
	if e := at(t, fields(t, "state", "get", "notes", "--full"), "entries", 1); at(t, e, "text") != "- one\n- two\n" || at(t, e, "author") != "b" {
		t.Errorf("%v", e)
	}
	if got := must0(t, "state", "list"); !strings.Contains(got, "(document of 2 entries)") {
		t.Errorf("%s", got)
	}
}

func TestState_DocumentsLargerThanAnAnswerAreReadWhole(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder")
	file := filepath.Join(t.TempDir(), "part")
	apptest.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", 256<<10)), 0o600))
	for range 14 {
		must0(t, "--agent", "a", "state", "append", "big", "@"+file)
	}
	if got := must0(t, "state", "get", "big"); strings.Count(got, "\n## ") != 14 || !strings.Contains(got, "\n## 14. a") {
		t.Errorf("%d entries of 14", strings.Count(got, "\n## "))
	}
	if got := at(t, fields(t, "state", "get", "big", "--full"), "entries").([]any); len(got) != 14 {
		t.Errorf("%d entries of 14", len(got))
	}
}

func TestState_WatchPrintsChangesInOrder(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder")
	before := at(t, fields(t, "--agent", "a", "state", "put", "other", "0"), "revision").(json.Number).String()
	must0(t, "--agent", "a", "state", "put", "k/1", "one")
	must0(t, "--agent", "a", "state", "delete", "other")
	must0(t, "--agent", "a", "state", "put", "k/2", "two")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got := t.invoke(ctx, "", nil, "state", "follow", "k/", "--after", before, "--limit", "2", "-o", "prompt")
	got.out = withoutFrames(got.out)
	if got.code != 0 || !strings.HasPrefix(got.out, "k/1 = one (") || !strings.Contains(got.out, "\nk/2 = two (") {
		t.Errorf("%+v", got)
	}
	got = t.invoke(ctx, "", nil, "state", "follow", "--after", before, "--limit", "3", "-o", "json")
	if lines := strings.Split(strings.TrimSpace(got.out), "\n"); len(lines) != 3 || at(t, decode(t, lines[1]), "deleted") != true {
		t.Errorf("%+v", got)
	}
}

func TestState_TransactMakesAllOrNothing(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a/builder")
	transact := func(content string) result {
		return t.invoke(t.Context(), content, nil, "--agent", "a", "state", "transact", "-")
	}
	must0(t, "--agent", "a", "state", "put", "gone", "x")
	got := transact(`{"compares": [{"key": "n", "revision": 0}], "changes": [
		{"put": {"key": "n", "value": 4}}, {"put": {"key": "s", "value": "text"}}, {"put": {"key": "b", "value": false, "ttl": "10m"}},
		{"put": {"key": "j", "value": {"x": [1, null]}, "own": true}}, {"put": {"key": "z", "value": null}}, {"put": {"key": "t", "value": 5, "type": "string"}},
		{"delete": {"key": "gone"}}]}`)
	if got.code != 0 || !strings.HasPrefix(got.out, "made 7 changes, revision ") {
		t.Fatalf("%+v", got)
	}
	for key, want := range map[string]string{"n": "integer 4", "s": "string text", "b": "boolean false", "j": `json {"x": [1, null]}`, "z": "json null", "t": "string 5"} {
		kind := at(t, fields(t, "state", "get", key, "--full"), "entry", "type").(string)
		if got := kind + " " + strings.TrimSpace(must0(t, "state", "get", key)); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if got := transact(`{"compares": [{"key": "n"}], "changes": [{"put": {"key": "n", "value": 5}}]}`); got.code != 5 || must0(t, "state", "get", "n") != "4\n" {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{``, `{"changes": [{}]}`, `{"change": []}`, `{"changes": [{"put": {"key": "k"}}]}`, `{} {}`,
		`{"changes": [{"put": {"key": "k", "value": 1, "ttl": "soon"}}]}`, `{"changes": [{"put": {"key": "k", "value": {}, "type": "integer"}}]}`} {
		if got := transact(bad); got.code != 2 {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}
