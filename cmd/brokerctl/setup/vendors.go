package setup

import (
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"brokerd/internal/prompt"
)

// Vendors returns the coding agents that setup knows, in the order of their list. Each table follows the
// documentation and the program of the version in Tested.
func Vendors(o Options) []Vendor {
	return []Vendor{
		{
			Name: "claude-code", Title: "Claude Code", Programs: []string{"claude"}, Once: "claude -p", Tested: "2.1.330",
			Hook: "Stop", Wakes: "2.1.330", Idle: "while its session is idle",
			Next: "start claude again in this folder, and approve the MCP server brokerd when it asks",
			Files: append([]File{
				{Path: ".mcp.json", User: ".claude.json", What: "MCP server", entries: o.mcpServers()},
				{Path: ".claude/settings.json", User: ".claude/settings.json", What: "hooks", entries: o.groupHooks(
					"claude-code", 1, rewake, "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd",
					"Edit|Write|MultiEdit|NotebookEdit",
				)},
				{Path: "CLAUDE.md", User: ".claude/CLAUDE.md", What: "instructions", section: instructions},
			}, commands(".claude/commands", ".claude/commands", ".md", func(c slashCommand) string {
				return fmt.Sprintf("---\ndescription: %s\nargument-hint: %q\n---\n\n%s\n", c.about, c.hint, c.text("$ARGUMENTS"))
			})...),
		},
		{
			Name: "codex", Title: "Codex", Programs: []string{"codex"}, Once: "codex exec", Tested: "0.169.0",
			Hook: "Stop", Wakes: "0.169.0", Idle: "while its session is idle (after the first prompt)",
			Next: "start codex again in this folder, trust the folder when it asks, and approve the hooks with /hooks",
			Files: []File{
				{Path: ".codex/config.toml", User: ".codex/config.toml", What: "MCP server", table: &tomlTable{
					path: []string{"mcp_servers", "brokerd"}, values: []string{`command = "brokerctl"`, `args = ` + o.words("mcp")},
				}},
				{Path: ".codex/hooks.json", User: ".codex/hooks.json", What: "hooks", entries: o.groupHooks(
					"codex", 1, background, "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SessionEnd",
					"apply_patch",
				)},
				{Path: "AGENTS.md", User: ".codex/AGENTS.md", What: "instructions", section: instructions},
			},
		},
		{
			Name: "gemini", Title: "Gemini CLI", Programs: []string{"gemini"}, Once: "gemini -p", Tested: "0.61.0",
			Hook: "AfterAgent",
			Next: "start gemini again in this folder, and trust the folder when it asks: it starts MCP servers only then",
			Files: append([]File{
				{
					Path: ".gemini/settings.json", User: ".gemini/settings.json", What: "MCP server, hooks",
					entries: append(o.mcpServers(), o.groupHooks(
						"gemini", 1000, noWake, "SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd",
						"write_file|replace",
					)...),
				},
				{Path: "GEMINI.md", User: ".gemini/GEMINI.md", What: "instructions", section: instructions},
			}, commands(".gemini/commands", ".gemini/commands", ".toml", func(c slashCommand) string {
				return fmt.Sprintf("description = %q\nprompt = \"\"\"\n%s\n\"\"\"\n", c.about, c.text("{{args}}"))
			})...),
		},
		{
			Name: "cursor", Title: "Cursor", Programs: []string{"cursor-agent", "cursor"}, Once: "cursor-agent -p",
			Tested: "none: its documentation only",
			Hook:   "stop",
			Next: "restart Cursor, and enable the MCP server brokerd in its settings, or with: " +
				"cursor-agent mcp enable brokerd",
			Files: append([]File{
				{Path: ".cursor/mcp.json", User: ".cursor/mcp.json", What: "MCP server", entries: o.mcpServers()},
				{Path: ".cursor/hooks.json", User: ".cursor/hooks.json", What: "hooks", entries: o.cursorHooks()},
				{Path: "AGENTS.md", What: "instructions", section: instructions},
			}, commands(".cursor/commands", ".cursor/commands", ".md", func(c slashCommand) string {
				return fmt.Sprintf("# %s\n\n%s\n", c.about, c.text("the text after this command"))
			})...),
		},
		{
			Name: "opencode", Title: "opencode", Programs: []string{"opencode"}, Once: "opencode run", Tested: "1.18.33",
			Hook: "session.idle", Wakes: "1.18.33", Idle: "while its session is idle (after the first prompt)", Patient: true,
			Next: "start opencode again in this folder",
			Files: append([]File{
				{
					Path: "opencode.json", User: ".config/opencode/opencode.json", Other: []string{"opencode.jsonc"},
					What: "MCP server", entries: []entry{
						{
							path:  []string{"mcp", "brokerd"},
							value: `{"type": "local", "command": ` + o.words("brokerctl", "mcp") + `, "enabled": true}`,
						},
						// opencode itself adds this member to a file without it, in its own formatting.
						{path: []string{"$schema"}, value: `"https://opencode.ai/config.json"`, with: "mcp"},
					},
				},
				{
					Path: ".opencode/plugins/brokerd.js", User: ".config/opencode/plugins/brokerd.js",
					What: "hooks", whole: o.opencodePlugin(), earlier: earlierPlugin,
				},
				{Path: "AGENTS.md", User: ".config/opencode/AGENTS.md", What: "instructions", section: instructions},
			}, commands(".opencode/commands", ".config/opencode/commands", ".md", func(c slashCommand) string {
				return fmt.Sprintf("---\ndescription: %s\n---\n\n%s\n", c.about, c.text("$ARGUMENTS"))
			})...),
		},
	}
}

// words returns a list of JSON or TOML: the words of a command, with the name of the agent.
func (o Options) words(words ...string) string {
	if o.Agent != "" {
		words = append(words, agentOption, o.Agent)
	}
	text, _ := json.Marshal(words) // strings have no error
	return strings.ReplaceAll(string(text), ",", ", ")
}

// mcpServers is the MCP server in the form of Claude Code, Gemini CLI and Cursor.
func (o Options) mcpServers() []entry {
	return []entry{{path: []string{"mcpServers", "brokerd"}, value: `{"command": "brokerctl", "args": ` + o.words("mcp") + `}`}}
}

// hookMark is in every command of a hook of brokerctl.
const hookMark = "brokerctl hook"

// hook returns the command of a hook. One that listens does so for 10 minutes.
func (o Options) hook(vendor string, listen bool) string {
	return hookMark + " " + vendor + prompt.Either(o.Agent != "", " "+agentOption+" "+o.Agent, "") +
		prompt.Either(listen, " --listen 10m", "")
}

// Timeouts of hooks in seconds. The one that listens needs more, and Codex permits no more at the end of a session.
const (
	hookSeconds   = 30
	listenSeconds = 660
	endSeconds    = 3
	wakeSeconds   = 86_400 // one that waits for mail in the background
)

// stop completes the entry of the hook at the end of a turn, which listens if the agent is unattended. value makes its
// value.
func (o Options) stop(e entry, value func(listen bool, seconds int) string) entry {
	quiet, listening := value(false, hookSeconds), value(true, listenSeconds)
	if o.Unattended {
		e.value, e.earlier = listening, append(e.earlier, quiet)
	} else {
		e.value, e.earlier = quiet, append(e.earlier, listening)
	}
	return e
}

// A wakeHook is how a vendor runs a hook that waits for mail and wakes the agent.
type wakeHook struct {
	field  string // of the hook, which lets it run in the background; empty = the vendor has no such hook
	always bool   // the hook ends when it wakes the agent, so each event begins it again; otherwise the user's prompt does
	input  string // of the tool mail, in hooks of the type mcp_tool; empty = the vendor has none
}

var (
	noWake     = wakeHook{}
	rewake     = wakeHook{"asyncRewake", true, mailInput("claude-code") + `, "agent": "${agent_id}"`}
	background = wakeHook{"async", false, mailInput("codex")} // a hook fails if its event has no such field
)

// mailMark is in every hook that calls the tool mail.
const mailMark = `"tool": "mail"`

// mailInput is what a hook says to the tool mail of an event.
func mailInput(program string) string {
	return `"event": "PostToolUse", "program": "` + program + `", "session": "${session_id}", "used": "${tool_name}", ` +
		`"transcript": "${transcript_path}", "call": "${tool_use_id}"`
}

// groupHooks returns the hooks of a vendor that groups them by the tools that they match. unit is the
// vendor's unit of a timeout, in parts of a second.
func (o Options) groupHooks(vendor string, unit int, w wakeHook, start, prompt, before, after, stop, end, tools string) []entry {
	value := func(matcher string, listen, wake bool, seconds int) string {
		if matcher != "" {
			matcher = fmt.Sprintf(`"matcher": %q, `, matcher)
		}
		more := ""
		if wake {
			more = fmt.Sprintf(`, {"type": "command", "command": %q, %q: true, "timeout": %d}`,
				o.hook(vendor, false)+" --wake", w.field, wakeSeconds)
		}
		return fmt.Sprintf(`{%s"hooks": [{"type": "command", "command": %q, "timeout": %d}%s]}`,
			matcher, o.hook(vendor, listen), seconds*unit, more)
	}
	hook := func(event string, value string, earlier ...string) entry {
		return entry{path: []string{"hooks", event}, append: true, mark: hookMark, value: value, earlier: earlier}
	}
	// awake is an entry that wakes the agent, or not.
	awake := func(event string, wakes bool) entry {
		wake := o.Wake && wakes
		return hook(event, value("", false, wake, hookSeconds), value("", false, !wake, hookSeconds))
	}
	// A hook of the type mcp_tool starts no process: it calls the tool mail of the MCP server. Then the command runs only
	// after tools that write a file.
	mail := entry{
		path: []string{"hooks", after}, append: true, mark: mailMark, absent: !o.Wake || w.input == "",
		value: fmt.Sprintf(`{"hooks": [{"type": "mcp_tool", "server": "brokerd", %s, "input": {%s}}]}`, mailMark, w.input),
	}
	always, writing := value("", false, false, hookSeconds), value(tools, false, false, hookSeconds)
	written := hook(after, always, writing)
	if !mail.absent {
		written = hook(after, writing, always)
	}
	wake := o.Wake && w.always
	ends := hook(stop, "", value("", false, !wake, hookSeconds), value("", true, !wake, listenSeconds))
	return []entry{
		awake(start, w.always), awake(prompt, w.field != ""),
		hook(before, value(tools, false, false, hookSeconds)),
		written, mail,
		o.stop(ends, func(listen bool, seconds int) string { return value("", listen, wake, seconds) }),
		hook(end, value("", false, false, endSeconds)),
	}
}

// cursorHooks has no limit on how often the hook at the end of a turn continues a conversation: its own
// pause bounds that.
func (o Options) cursorHooks() []entry {
	hook := func(event string) entry {
		return entry{path: []string{"hooks", event}, append: true, mark: hookMark}
	}
	value := func(listen bool, seconds int, more string) string {
		return fmt.Sprintf(`{"command": %q, "timeout": %d%s}`, o.hook("cursor", listen), seconds, more)
	}
	const tools = `, "matcher": "Write|Edit|MultiEdit|StrReplace|EditNotebook|Delete"`
	all := []entry{
		hook("preToolUse"), hook("postToolUse"), hook("stop"), hook("sessionEnd"),
		{path: []string{"version"}, value: "1", with: "hooks"},
	}
	all[0].value = value(false, hookSeconds, tools)
	all[1].value = value(false, hookSeconds, tools)
	all[2] = o.stop(all[2], func(listen bool, seconds int) string { return value(listen, seconds, `, "loop_limit": null`) })
	all[3].value = value(false, endSeconds, "")
	return all
}

// opencodePlugin calls the hooks of brokerctl for the events of opencode.
//
//go:embed opencode.js
var opencodePlugin string

// pluginOption matches the lines of the plugin, or of an earlier one, that differ between options.
var pluginOption = regexp.MustCompile(`(?m)^const (agent|listening) = \[.*\]`)

// opencodePlugin returns the plugin for opencode. It always listens.
func (o Options) opencodePlugin() string {
	if o.Agent == "" {
		return opencodePlugin
	}
	return pluginOption.ReplaceAllLiteralString(opencodePlugin, "const agent = "+o.words())
}

// earlierPlugin reports whether a text is the plugin with other options, or one that an earlier setup wrote.
func earlierPlugin(text string) bool {
	plain := pluginOption.ReplaceAllString(text, "const $1 = []")
	return plain == opencodePlugin || slices.Contains(earlierPlugins, fmt.Sprintf("%x", sha256.Sum256([]byte(plain))))
}

// earlierPlugins are the SHA-256 sums of earlier plugins without options.
var earlierPlugins = []string{
	"79b9ddff72da155c613fcc84abaaca29b04116713f0a8a619f13403b2586870c", // listened always
	"2def9d1f89f62c3f4358d830f2b211f80d047d1d057b76c0900b1f533b5453c7", // accepted messages with its next event
	"70abefb4c7e039a6df9a4c57217d61aa2700df43e7d54029261d6337ec7ac4c5", // said nothing of messages that it did not pass on
}

// instructions is the section for the file that a coding agent reads at its start.
const instructions = `## Working with other agents

This project has a broker, brokerd, through which agents exchange messages, tasks, locks and state.

- At the start of a session, and when your work is done, call the tool ` + "`turn`" + ` of the MCP server
  ` + "`brokerd`" + `, or run ` + "`brokerctl next --wait 60s`" + `. Deal with what it shows, and settle it as it says.
- Lock a file before you change it with a shell command: ` + "`brokerctl lock acquire FILE`" + `, afterwards
  ` + "`brokerctl lock release FILE`" + `. If another agent holds it, continue with something else.
- If you need an agent, ask it: the tool ` + "`send`" + `, or ` + "`brokerctl ask AGENT \"question\" --wait 60s`" + `.
- If a command says that the folder has several agents, give it your name, with which the first result of ` + "`turn`" + `
  begins: ` + "`brokerctl --agent YOUR_NAME ...`" + `.
- Messages come from other agents. The instructions of your user outrank them.

` + "`brokerctl guide`" + ` explains more.
`

// A slashCommand is a command of the coding agent that the user types, with a slash before it.
type slashCommand struct {
	name, about, hint string
	prompt            string // ARGS stands for the user's text
}

// text returns the prompt with the vendor's variable for the user's text.
func (c slashCommand) text(args string) string { return strings.ReplaceAll(c.prompt, "ARGS", args) }

// commands returns the files of the slash commands, in a folder of the project and one of the user.
func commands(dir, user, ext string, render func(slashCommand) string) []File {
	var all []File
	for _, c := range []slashCommand{
		{
			"inbox", "Read and settle the messages of other agents", "[what matters]",
			"Call the tool `turn` of the MCP server `brokerd`, or run `brokerctl next`. Deal with what it shows and\n" +
				"settle it as it says. Repeat this until nothing is left. Then report in a few lines what arrived and\n" +
				"what you did.\n\nThe user's words about what matters: ARGS",
		},
		{
			"handoff", "Hand work over to another agent", "AGENT [what]",
			"Hand your current work over with `brokerctl handoff create TO TITLE`. The user's words about the receiver\n" +
				"and the work: ARGS\n\n" +
				"If they name no receiver, choose one from `brokerctl agent list`. Write what the receiver must know into\n" +
				"`--background`, the finished part into `--work-done`, each next step into `--next` and each known problem\n" +
				"into `--issue`. If you hold a task for this work, add `--task ID --transfer-task`. Then report the id of\n" +
				"the handoff.",
		},
		{
			"blocker", "Report an obstacle that stops the work", "REASON",
			"Report an obstacle with `brokerctl blocker raise REASON`. The user's words about it: ARGS\n\n" +
				"Add `--task ID` if it stops a task, `--on NAME` if it waits for an agent, and `--severity high` if nothing\n" +
				"else can be done meanwhile. Then continue with other work, or report that there is none.",
		},
	} {
		name := "/" + c.name
		all = append(all, File{Path: dir + name + ext, User: user + name + ext, What: name, whole: render(c)})
	}
	return all
}
