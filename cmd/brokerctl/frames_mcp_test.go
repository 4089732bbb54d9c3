package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/hook"
	"brokerd/internal/apptest"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// toolWalks are calls of all tools and actions of brokerctl mcp, as victim, in an order in which each has something
// to do. failed says that the result is an error.
var toolWalks = []struct {
	tool, args string
	failed     bool
	shows      bool
}{
	{"turn", `{}`, false, true}, {"mail", `{"event":"PostToolUse"}`, false, true}, {"mail", `{"event":"Stop"}`, false, false},
	{"turn", `{"read":"inbox"}`, false, true}, {"turn", `{"read":"summary"}`, false, true},
	{"turn", `{"read":"<message>"}`, false, true}, {"turn", `{"artifact":"PATH"}`, false, true},
	{"send", `{"to":"lead","text":"x"}`, false, false}, {"send", `{"to":"lead","text":"x","type":"review.note","data":1}`, false, true},
	{"lock", `{"action":"list"}`, false, true}, {"lock", `{"action":"acquire","paths":["src/x.go"]}`, true, false},
	{"lock", `{"action":"acquire","paths":["b.go"]}`, false, false}, {"lock", `{"action":"extend","paths":["b.go"]}`, false, false},
	{"lock", `{"action":"release","paths":["src/x.go"]}`, true, false}, {"lock", `{"action":"release","paths":["b.go"]}`, false, false},
	{"state", `{"action":"get","key":"plan/step"}`, false, true}, {"state", `{"action":"get","key":"notes"}`, false, true},
	{"state", `{"action":"list"}`, false, true}, {"state", `{"action":"put","key":"mine","value":1}`, false, false},
	{"state", `{"action":"append","key":"log","value":"x"}`, false, false}, {"state", `{"action":"delete","key":"mine"}`, false, false},
	{"task", `{"action":"list"}`, false, true}, {"task", `{"action":"show","id":"failed"}`, false, true},
	{"task", `{"action":"wait","id":"failed","wait":0.01}`, true, true}, {"task", `{"action":"claim","id":"failed"}`, true, false},
	{"task", `{"action":"claim","id":"assigned"}`, false, true}, {"task", `{"action":"update","text":"x"}`, false, false},
	{"task", `{"action":"block","text":"x"}`, false, false}, {"task", `{"action":"unblock"}`, false, false},
	{"task", `{"action":"release"}`, false, false}, {"task", `{"action":"decline","id":"assigned","text":"x"}`, false, false},
	{"task", `{"action":"create","title":"x","id":"mine","assignee":"victim"}`, false, false},
	{"task", `{"action":"claim","id":"mine"}`, false, false}, {"task", `{"action":"fail","text":"x"}`, false, false},
	{"task", `{"action":"complete","id":"mine"}`, true, false}, {"task", `{"action":"cancel","id":"mine"}`, false, false},
	{"task", `{"action":"retry","id":"mine"}`, true, false},
	{"decide", `{"action":"show","id":"<decision>"}`, false, true}, {"decide", `{"action":"show","id":"<review>"}`, false, true},
	{"decide", `{"action":"show","id":"<blocker>"}`, false, true}, {"decide", `{"action":"show","id":"<handoff>"}`, false, true},
	{"decide", `{"action":"show","id":"<vote>"}`, false, true}, {"decide", `{"action":"show","id":"<plan>"}`, false, true},
	{"decide", `{"action":"answer","id":"<vote>","answer":"none"}`, true, true},
	{"decide", `{"action":"answer","id":"<vote>","answer":"b"}`, false, false},
	{"decide", `{"action":"answer","id":"<review>","answer":"revise","text":"x"}`, false, true},
	{"decide", `{"action":"answer","id":"<decision>","answer":"a"}`, false, true},
	{"decide", `{"action":"answer","id":"<blocker>","answer":"resolve","text":"x"}`, false, false},
	{"decide", `{"action":"answer","id":"<handoff>","answer":"accept"}`, false, false},
	{"decide", `{"action":"review","about":"y","to":"mallory","text":"x"}`, false, false},
	{"decide", `{"action":"plan","about":"login","text":"x"}`, false, false},
	{"decide", `{"action":"question","to":"mallory","about":"x","options":["a","b"]}`, false, false},
	{"decide", `{"action":"shutdown","to":"mallory"}`, true, false}, {"decide", `{"action":"vote","about":"x","options":["a","b"]}`, false, false},
	{"decide", `{"action":"blocker","text":"x","to":"mallory"}`, false, false},
	{"decide", `{"action":"handoff","to":"mallory","about":"x"}`, false, false},
	{"decide", `{"action":"resubmit","id":"<decision>","text":"x"}`, true, false},
	{"team", `{}`, false, true}, {"team", `{"action":"list"}`, false, true}, {"team", `{"action":"show","about":"<name>"}`, false, true}, {"team", `{"action":"show"}`, false, true},
	{"team", `{"action":"explain"}`, false, false}, {"team", `{"about":"blocker <blocker>"}`, false, false},
	{"team", `{"action":"status","text":"x"}`, false, false}, {"team", `{"action":"nudge","to":"mallory"}`, true, false},
	{"team", `{"action":"halt","to":"mallory"}`, true, false}, {"team", `{"action":"resume","to":"mallory"}`, true, false},
	{"settle", `{"as":"extend"}`, false, false}, {"settle", `{"as":"release","next":0}`, false, true},
	{"settle", `{"text":"x","next":0}`, false, true}, {"settle", `{"as":"fail","text":"x","next":0}`, false, true},
	{"settle", `{"as":"ack","next":0}`, false, true},
	{"settle", `{"as":"ack","id":"999"}`, true, false}, {"settle", `{"id":"999","as":"reply","text":"x"}`, true, false},
	{"team", `{"action":"leave"}`, false, false}, {"team", `{"action":"join"}`, false, false},
}

func TestFrames_NoSenderChoosesALineOfATool(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	ids := hostileWorld(t)
	m := startModel(t, "--agent", "victim", "--role", "builder")
	walked := map[string]bool{}
	marks := map[string]bool{}
	for _, w := range toolWalks {
		args := strings.ReplaceAll(w.args, "PATH", hostilePath)
		for name, id := range ids {
			args = strings.ReplaceAll(args, "<"+name+">", id)
		}
		text, failed := m.try(w.tool, args)
		if w.tool == "mail" {
			text = strings.Join(texts(decode(t, text)), "\n")
		}
		if failed != w.failed {
			t.Errorf("%s %s: failed is %t:\n%s", w.tool, w.args, failed, text)
		}
		wantFramed(t, w.tool+" "+w.args, text, w.shows)
		var given map[string]any
		apptest.NoError(t, json.Unmarshal([]byte(w.args), &given))
		for _, name := range []string{"action", "as"} {
			if action, ok := given[name].(string); ok {
				walked[w.tool+" "+action] = true
			}
		}
		walked[w.tool] = true
		ofResult := map[string]bool{}
		for _, line := range outside(text) {
			if begin := frameBegin.FindStringSubmatch(line); begin != nil {
				ofResult[begin[1]] = true
			}
		}
		for mark := range ofResult {
			if marks[mark] || len(mark) != 16 || len(ofResult) > 1 {
				t.Errorf("%s %s: the marks %v are not one new mark of 64 bits", w.tool, w.args, ofResult)
			}
			marks[mark] = true
		}
	}
	list, err := m.session.ListTools(t.Context(), nil)
	apptest.NoError(t, err)
	for _, tool := range list.Tools {
		if !walked[tool.Name] {
			t.Errorf("the tool %s has no walk", tool.Name)
		}
	}
	for name, actions := range mcp.Tools() {
		for _, action := range actions {
			if !walked[name+" "+action] {
				t.Errorf("%s %s has no walk", name, action)
			}
		}
	}
}

// texts returns all texts in decoded JSON.
func texts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{v}
	case map[string]any:
		var all []string
		for _, item := range v {
			all = append(all, texts(item)...)
		}
		return all
	case []any:
		var all []string
		for _, item := range v {
			all = append(all, texts(item)...)
		}
		return all
	}
	return nil
}

func TestFrames_NoSenderChoosesALineOfAHook(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	hostileWorld(t)
	t.Setenv("BROKERD_AGENT", "victim")
	inputs := maps.Clone(vendorInputs)
	inputs["claude-code"] = struct{ write, other, stop, end string }{editInput, editInput, stopInput, endInput}
	for vendor, v := range hook.Vendors {
		in, known := inputs[vendor]
		if !known {
			t.Errorf("the hook of %s has no walk", vendor)
			continue
		}
		must0(t, "task", "create", "Look", "--id", "for-"+vendor, "--assignee", "mallory")
		must0(t, "--agent", "mallory", "task", "release", "for-"+vendor, "--decline", "--reason", hostileText)
		after := strings.NewReplacer("PreToolUse", "PostToolUse", "BeforeTool", "AfterTool", "preToolUse", "postToolUse").Replace(in.write)
		for _, event := range []struct {
			name, input, wants string
			shows              bool
		}{
			{"write", in.write, "src/a.go is held by mallory, ends in ", false}, {"after", after, prompt.Either(v.Context, "Next: brokerctl ack ", ""), v.Context},
			{"stop", in.stop, "Next: brokerctl ack ", true}, {"end", in.end, "", false},
		} {
			must0(t, "--agent", "mallory", "send", "victim", hostileLine, "--body", hostileText)
			got := hookedBy(t, vendor, event.input, "5b1c")
			all := []string{got.err}
			if got.out != "" {
				all = append(all, texts(decode(t, got.out))...)
			}
			for _, text := range all {
				wantFramed(t, vendor+" "+event.name, text, false)
			}
			text := strings.Join(all, "\n")
			if !strings.Contains(text, event.wants) || event.shows != strings.Contains(text, canary) {
				t.Errorf("%s %s: %+v", vendor, event.name, got)
			}
		}
	}
	if got := slices.Sorted(maps.Keys(inputs)); len(got) != len(hook.Vendors) {
		t.Errorf("%v", got)
	}
}
