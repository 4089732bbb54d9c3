package main

import (
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/hook"
	"brokerd/cmd/brokerctl/setup"
	"brokerd/internal/apptest"
)

// Inputs as the vendors write them: Codex by the schemas in its program, Gemini CLI by the reference in its
// package, Cursor by its documentation, opencode by the plugin of setup.
var vendorInputs = map[string]struct{ write, other, stop, end string }{
	"codex": {
		`{"session_id":"S","turn_id":"t","transcript_path":null,"cwd":"DIR","hook_event_name":"PreToolUse",
			"model":"m","permission_mode":"default",
			"tool_name":"apply_patch","tool_use_id":"c",
			"tool_input":{"command":"*** Begin Patch\n*** Update File: src/a.go\n@@\n-x\n+y\n` +
			`*** Add File: DIR/src/b.go\n+z\n*** End Patch"}}`,
		`{"session_id":"S","turn_id":"t","transcript_path":null,"cwd":"DIR","hook_event_name":"PreToolUse",
			"model":"m","permission_mode":"default",
			"tool_name":"Bash","tool_use_id":"c","tool_input":{"command":"ls"}}`,
		`{"session_id":"S","turn_id":"t","transcript_path":null,"cwd":"DIR","hook_event_name":"Stop","model":"m",
			"permission_mode":"default",
			"stop_hook_active":false,"last_assistant_message":null}`,
		`{"session_id":"S","transcript_path":null,"cwd":"DIR","hook_event_name":"SessionEnd","reason":"other"}`,
	},
	"gemini": {
		`{"session_id":"S","transcript_path":"/t","cwd":"DIR","hook_event_name":"BeforeTool",
			"timestamp":"2026-11-01T00:00:00Z",
			"tool_name":"replace","tool_input":{"file_path":"DIR/src/a.go","old_string":"x","new_string":"y"}}`,
		`{"session_id":"S","transcript_path":"/t","cwd":"DIR","hook_event_name":"BeforeTool",
			"timestamp":"2026-11-01T00:00:00Z",
			"tool_name":"read_file","tool_input":{"file_path":"DIR/src/a.go"}}`,
		`{"session_id":"S","transcript_path":"/t","cwd":"DIR","hook_event_name":"AfterAgent",
			"timestamp":"2026-11-01T00:00:00Z",
			"prompt":"p","prompt_response":"r","stop_hook_active":false}`,
		`{"session_id":"S","transcript_path":"/t","cwd":"DIR","hook_event_name":"SessionEnd",
			"timestamp":"2026-11-01T00:00:00Z","reason":"exit"}`,
	},
	"cursor": {
		`{"conversation_id":"S","generation_id":"g","model":"m","hook_event_name":"preToolUse","cursor_version":"2.0",
			"workspace_roots":["DIR"],
			"tool_name":"Write","tool_input":{"file_path":"DIR/src/a.go","content":"x"},"tool_use_id":"u"}`,
		`{"conversation_id":"S","generation_id":"g","model":"m","hook_event_name":"preToolUse","cursor_version":"2.0",
			"workspace_roots":["DIR"],
			"tool_name":"MCP:x","tool_input":"{\"path\":\"a\"}","tool_use_id":"u"}`,
		`{"conversation_id":"S","generation_id":"g","model":"m","hook_event_name":"stop","cursor_version":"2.0",
			"workspace_roots":["DIR"],
			"status":"completed","loop_count":0}`,
		`{"conversation_id":"S","generation_id":"g","model":"m","hook_event_name":"sessionEnd","cursor_version":"2.0",
			"workspace_roots":["DIR"],
			"session_id":"S","reason":"user_close","duration_ms":1}`,
	},
	"opencode": {
		`{"cwd":"DIR","hook_event_name":"PreToolUse","session_id":"S","tool_name":"edit",
			"tool_input":{"filePath":"DIR/src/a.go","oldString":"x","newString":"y"}}`,
		`{"cwd":"DIR","hook_event_name":"PreToolUse","session_id":"S","tool_name":"bash","tool_input":{"command":"ls",
			"filePath":7}}`,
		`{"cwd":"DIR","hook_event_name":"Stop","session_id":"S","stop_hook_active":false}`,
		`{"cwd":"DIR","hook_event_name":"SessionEnd","session_id":"S"}`,
	},
}

// hookedBy calls the hook of a vendor in a session.
func hookedBy(t *shell, vendor, input, session string, args ...string) result {
	t.Helper()
	input = strings.NewReplacer("DIR", t.dir, `"S"`, `"`+session+`"`).Replace(input)
	return t.invoke(t.Context(), input, nil, append([]string{"hook", vendor, "--within", "5m"}, args...)...)
}

func TestHook_EveryVendorLocksTheFilesThatItWrites(tt *testing.T) {
	t := newShell(tt)
	for vendor, in := range vendorInputs {
		t.Run(vendor, func(t *shell) {
			t.Parallel()
			startBroker(t)
			configure(t, "agents: {builder-1: {}}\n")
			for _, input := range []string{in.write, in.other} {
				if got := hookedBy(t, vendor, input, "s1"); got.code != 0 || got.out+got.err != "" {
					t.Fatalf("%+v", got)
				}
			}
			lock := fields(t, "lock", "list")
			if at(t, lock, "paths", 0) != "src/a.go" || at(t, lock, "holder") != "s1" {
				t.Errorf("%v", lock)
			}
			got := hookedBy(t, vendor, in.write, "s2")
			const why = "src/a.go is held by builder-1, ends in "
			switch {
			case vendor == "cursor":
				answer := decode(t, got.out)
				if got.code != 0 || at(t, answer, "permission") != "deny" ||
					!strings.Contains(at(t, answer, "agent_message").(string), why) {
					t.Errorf("%+v", got)
				}
			case got.code != hook.ExitBlock || !strings.Contains(got.err, why):
				t.Errorf("%+v", got)
			}
			if got := hookedBy(t, vendor, in.end, "s1"); got.code != 0 || got.err != "" {
				t.Errorf("%+v", got)
			}
			if got := hookedBy(t, vendor, in.write, "s2"); got.code != 0 || got.out+got.err != "" {
				t.Errorf("after the end of the session: %+v", got)
			}
		})
	}
}

// The plugin of opencode calls the hook before these tools only.
func TestHook_ThePluginKnowsTheToolsThatWrite(t *testing.T) {
	v, err := setup.Find("opencode", setup.Options{})
	apptest.NoError(t, err)
	plugin, _, err := v.Files[1].Add(setup.Content{})
	want := `const writers = ["` + strings.Join(hook.Vendors["opencode"].Tools, `", "`) + `"]`
	if err != nil || !strings.Contains(plugin.Text, want) {
		t.Errorf("%v: no %s", err, want)
	}
}

func TestHook_APatchLocksEveryFileThatItNames(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	t.Setenv("BROKERD_AGENT", "builder-1")
	if got := hookedBy(t, "codex", vendorInputs["codex"].write, "s1"); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if lock := fields(t, "lock", "list"); at(t, lock, "paths", 0) != "src/a.go" || at(t, lock, "paths", 1) != "src/b.go" {
		t.Errorf("%v", lock)
	}
	got := hookedBy(t, "codex", vendorInputs["codex"].write, "s2")
	if got.code != hook.ExitBlock || !strings.Contains(got.err, "lock acquire src/a.go src/b.go --holder s2") {
		t.Errorf("%+v", got)
	}
}

func TestHook_EveryVendorContinuesATurnWithItsMail(tt *testing.T) {
	t := newShell(tt)
	for vendor, in := range vendorInputs {
		t.Run(vendor, func(t *shell) {
			t.Parallel()
			startBroker(t)
			register(t, "lead/lead", "builder-1/builder")
			t.Setenv("BROKERD_AGENT", "builder-1")
			sent(t, "--agent", "lead", "builder-1", "Add login")
			if vendor == "cursor" {
				stopped := strings.Replace(in.stop, "completed", "aborted", 1)
				if got := hookedBy(t, vendor, stopped, "s1"); got.code != 0 || got.out != "" {
					t.Errorf("the user stopped the agent: %+v", got)
				}
			}
			got := hookedBy(t, vendor, in.stop, "s1")
			answer := decode(t, got.out)
			field := "reason"
			if vendor == "cursor" {
				field = "followup_message"
			} else if at(t, answer, "decision") != "block" {
				t.Errorf("%v", answer)
			}
			if got.code != 0 || !strings.Contains(at(t, answer, field).(string), "Subject: Add login") {
				t.Errorf("%+v", got)
			}
			sent(t, "--agent", "lead", "builder-1", "Add logout")
			continued := strings.NewReplacer(
				`active":false`, `active":true`, `"loop_count":0`, `"loop_count":1`,
			).Replace(in.stop)
			if got := hookedBy(t, vendor, continued, "s1"); got.code != 0 || got.out != "" {
				t.Errorf("a turn that a hook began: %+v", got)
			}
		})
	}
}

func TestHook_RefusesInTheWayOfTheVendorWithoutABroker(tt *testing.T) {
	t := newShell(tt)
	isolate(t)
	t.Setenv("BROKERD_AGENT", "builder-1")
	for vendor, in := range vendorInputs {
		got := hookedBy(t, vendor, in.write, "s1", "--addr", "127.0.0.1:1", "--fail", "closed")
		if refused := got.code == hook.ExitBlock || strings.Contains(got.out, `"permission":"deny"`); !refused {
			t.Errorf("%s: %+v", vendor, got)
		}
		got = hookedBy(t, vendor, in.write, "s1", "--addr", "127.0.0.1:1")
		if got.code != 0 || !strings.Contains(got.err, "no broker is running") {
			t.Errorf("%s: %+v", vendor, got)
		}
	}
	for _, args := range [][]string{{"hook"}, {"hook", "emacs"}} {
		got := ctl(t, args...)
		if got.code != 2 || !strings.Contains(got.err, "claude-code, codex, cursor, gemini, opencode") {
			t.Errorf("%q: %+v", args, got)
		}
	}
}
