package hook

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

// A hookVendor is a coding agent that calls hooks. The differences between the vendors are names.
type hookVendor struct {
	events map[string]string // its events that have another name, with the name that Claude Code gives them
	Tools  []string          // its tools that write the files that their input names

	// answer converts the answer; nil: the vendor reads the fields of hookAnswer, and takes exit code 2
	// with a reason on standard error as a refusal.
	answer func(hookAnswer) any

	Context bool // its hook after a tool call may add to the conversation
	prompt  bool // and so may its hook of the user's prompt
	server  bool // a listener wakes its session by its server or its queue
	plugin  bool // a plugin calls the hooks, and says which messages were in a request to the model
}

// Vendors has the coding agents by the names that brokerctl setup gives them.
var Vendors = map[string]hookVendor{
	"claude-code": {Tools: []string{"Edit", "Write", "MultiEdit", "NotebookEdit"}, Context: true},
	"codex":       {Tools: []string{"apply_patch"}, Context: true, prompt: true, server: true},
	"gemini": {
		Context: true, prompt: true,
		events: map[string]string{
			"BeforeAgent": "UserPromptSubmit", "BeforeTool": "PreToolUse", "AfterTool": "PostToolUse", "AfterAgent": "Stop",
		},
		Tools: []string{"write_file", "replace"},
	},
	"cursor": {
		events: map[string]string{
			"preToolUse": "PreToolUse", "postToolUse": "PostToolUse", "stop": "Stop", "sessionEnd": "SessionEnd",
		},
		Tools: []string{"Write", "Edit", "MultiEdit", "StrReplace", "EditNotebook", "Delete"},
		answer: func(a hookAnswer) any {
			permission := prompt.Either(a.refusal != "", "deny", "")
			return cursorAnswer{Followup: a.Reason, Permission: permission, User: a.refusal, Agent: a.refusal}
		},
	},
	// The plugin that setup adds calls the hook with the events of Claude Code.
	"opencode": {
		Tools: []string{"edit", "write", "patch", "multiedit", "apply_patch"}, Context: true, prompt: true, plugin: true,
	},
}

// Events of the plugin of setup: messages whose marks the prompt quotes were in a request to the model, or will not be.
const (
	Accepted = "BrokerdAccepted"
	Returned = "BrokerdReturned"
)

// anyServersTools are tools of MCP servers that write a file.
var anyServersTools = []string{"write_file", "edit_file", "create_file"}

var vendorNames = slices.Sorted(maps.Keys(Vendors))

// oneHookVendor checks the argument of hook.
func oneHookVendor(_ *cobra.Command, args []string) error {
	if len(args) != 1 || !slices.Contains(vendorNames, args[0]) {
		return problem.Usagef("hook needs the name of a coding agent: %s", strings.Join(vendorNames, ", "))
	}
	return nil
}

// Input is what a coding agent writes to a hook's standard input, as far as it matters here. Each
// vendor sets some of the fields.
type Input struct {
	SessionID      string          `json:"session_id"`
	ConversationID string          `json:"conversation_id"`
	Cwd            string          `json:"cwd"`
	WorkspaceRoots []string        `json:"workspace_roots"`
	Event          string          `json:"hook_event_name"`
	Tool           string          `json:"tool_name"`
	ToolInput      json.RawMessage `json:"tool_input"`
	StopHookActive bool            `json:"stop_hook_active"`
	LoopCount      int             `json:"loop_count"` // how often a hook has continued the conversation
	Reason         string          `json:"reason"`     // why the session ends
	Status         string          `json:"status"`     // of the turn that ends: completed, aborted or error
	Transcript     string          `json:"transcript_path"`
	ToolUseID      string          `json:"tool_use_id"`
	AgentID        string          `json:"agent_id"` // of a subagent
	Prompt         string          `json:"prompt"`
	Source         string          `json:"source"` // of a session that starts: startup, resume, clear or compact

	named string // the event, as the vendor names it
}

// read reads the input and gives its event the name that Claude Code gives it.
func (v hookVendor) read(r io.Reader) (in Input, err error) {
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return in, err
	}
	in.named = in.Event
	in.Event = cmp.Or(v.events[in.Event], in.Event)
	in.SessionID = cmp.Or(in.SessionID, in.ConversationID)
	if in.Cwd == "" && len(in.WorkspaceRoots) > 0 {
		in.Cwd = in.WorkspaceRoots[0]
	}
	in.StopHookActive = in.StopHookActive || in.LoopCount > 0
	if in.Event == "Stop" && in.Status != "" && in.Status != "completed" {
		in.Event = "" // the user has stopped the agent, so it must not continue
	}
	return in, nil
}

// files returns the files that the input of the tool names. The input of a tool that names none may
// have any form.
func (in *Input) files() []string {
	var names struct {
		FilePath     string `json:"file_path"`
		NotebookPath string `json:"notebook_path"`
		Path         string `json:"path"`
		CamelCase    string `json:"filePath"`
		Command      string `json:"command"`   // the patch in Codex
		PatchText    string `json:"patchText"` // and in opencode
	}
	_ = json.Unmarshal(in.ToolInput, &names) // fields of the wrong type stay empty
	if file := cmp.Or(names.FilePath, names.NotebookPath, names.Path, names.CamelCase); file != "" {
		return []string{file}
	}
	return patchedFiles(cmp.Or(names.PatchText, names.Command))
}

// patchedFiles returns the files that a patch of the tool apply_patch changes.
func patchedFiles(patch string) []string {
	var files []string
	for line := range strings.Lines(patch) {
		for _, header := range []string{"*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "} {
			if file, ok := strings.CutPrefix(strings.TrimSpace(line), header); ok {
				files = append(files, file)
			}
		}
	}
	return files
}

// hookAnswer is what a hook writes to standard output.
type hookAnswer struct {
	Decision      string `json:"decision,omitempty"` // block: continue the turn
	Reason        string `json:"reason,omitempty"`   // for the agent
	SystemMessage string `json:"systemMessage,omitempty"`

	Specific *hookContext `json:"hookSpecificOutput,omitempty"`

	refusal string // why the tool must not run
}

// hookContext is what a hook adds to the conversation.
type hookContext struct {
	Event   string `json:"hookEventName"`
	Context string `json:"additionalContext"`
}

// cursorAnswer is the form of Cursor.
type cursorAnswer struct {
	Followup   string `json:"followup_message,omitempty"`
	Permission string `json:"permission,omitempty"`
	User       string `json:"user_message,omitempty"`
	Agent      string `json:"agent_message,omitempty"`
}

func (v hookVendor) write(w io.Writer, a hookAnswer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if v.answer != nil {
		return e.Encode(v.answer(a))
	}
	return e.Encode(a)
}
