package toolcall

import (
	"bytes"
	"encoding/json"
)

// A Tool is one tool of the MCP server.
type Tool struct {
	Name        string
	Description string
	Args        []Arg
	required    []string
}

// An Arg is one argument of a tool.
type Arg struct {
	Name  string
	kind  kind
	about string
	oneOf []string
}

// A kind is the JSON type of an argument in the schema. Command also takes related types: a number
// for a text, a text for a number, one value for a list.
type kind string

const (
	text    kind = "string"
	list    kind = "array"
	flag    kind = "boolean"
	seconds kind = "number"
	object  kind = "object"
	value   kind = "any" // the schema says text; numbers, truth values and objects keep their types
)

// Tools returns the tools. Every word of them is part of each conversation of the model, so the
// schemas describe only what a name does not say.
func Tools() []Tool {
	return []Tool{
		{Name: "turn",
			Description: "Your next step: directives, losses, one message or task (now yours), and open work, " +
				"each with the call that settles it. Call it first and when you have nothing to do.",
			Args: []Arg{
				{Name: "wait", kind: seconds, about: "seconds to wait for work, up to 60"},
				{Name: "read", kind: text, about: "show instead: inbox, summary, or the thread of a message id"},
				{Name: "artifact", kind: text, about: "print it instead"},
			}},
		{Name: "send",
			Description: "Send a message. With ask, wait for the reply.",
			Args: []Arg{
				{Name: "to", kind: text, about: "agent, role:NAME (one of them), channel:NAME, builder-*, everyone, operator (a person)"},
				{Name: "text", kind: text},
				{Name: "subject", kind: text},
				{Name: "ask", kind: seconds, about: "seconds, up to 60"},
				{Name: "answers", kind: text, about: "message id; replaces to"},
				{Name: "priority", kind: text, about: "1 to 10, low, high"},
				{Name: "type", kind: text},
				{Name: "task", kind: text},
				{Name: "files", kind: list, about: "PATH:LINE"},
				{Name: "data", kind: object, about: "JSON payload"},
			}},
		{Name: "settle",
			Description: "Finish what turn gave you. as: reply (default with text; the text reaches the sender, or is the " +
				"task's result), ack (done, nothing to report), fail (text: why), release (another agent may take it), " +
				"extend (more time). next: then return the next turn, waiting that many seconds.",
			Args: []Arg{
				{Name: "id", kind: text, about: "message or task; default: the only one held"},
				{Name: "as", kind: text, oneOf: []string{"reply", "ack", "fail", "release", "extend"}},
				{Name: "text", kind: text},
				{Name: "data", kind: object, about: "payload of the reply"},
				{Name: "final", kind: flag, about: "fail: do not retry"},
				{Name: "next", kind: seconds},
			}},
		{Name: "lock",
			Description: "Lock files or folders before you change them, all or none. Refusals name the owners.",
			required:    []string{"action"},
			Args: []Arg{
				{Name: "action", kind: text, oneOf: []string{"acquire", "release", "extend", "list"}},
				{Name: "paths", kind: list, about: "a.go, src/, docs/**; release: also a fence, all"},
				{Name: "shared", kind: flag},
				{Name: "wait", kind: seconds},
				{Name: "for", kind: text, about: "such as 30m"},
				{Name: "reason", kind: text},
			}},
		{Name: "state",
			Description: "Values that all agents share, and documents that grow (append).",
			required:    []string{"action"},
			Args: []Arg{
				{Name: "action", kind: text, oneOf: []string{"get", "put", "append", "list", "delete"}},
				{Name: "key", kind: text, about: "list: a prefix"},
				{Name: "value", kind: value, about: "any JSON"},
				{Name: "revision", kind: text, about: "put, delete: only if unchanged since; 0: absent"},
				{Name: "namespace", kind: text},
			}},
		{Name: "task",
			Description: "Plan work and work on it. text is the description, note, result or reason. " +
				"update reports progress; wait returns when the tasks are done.",
			required: []string{"action"},
			Args: []Arg{
				{Name: "action", kind: text, oneOf: []string{"create", "list", "show", "claim", "update", "complete", "fail",
					"block", "unblock", "release", "decline", "cancel", "retry", "wait"}},
				{Name: "id", kind: text, about: "default: the one you hold"},
				{Name: "title", kind: text},
				{Name: "text", kind: text},
				{Name: "role", kind: text},
				{Name: "assignee", kind: text},
				{Name: "depends_on", kind: list},
				{Name: "parent", kind: text},
				{Name: "priority", kind: text},
				{Name: "progress", kind: seconds, about: "0 to 1"},
				{Name: "state", kind: list},
				{Name: "wait", kind: seconds},
				{Name: "after", kind: text},
			}},
		{Name: "decide",
			Description: "Ask others to decide, or answer. review, plan: submit work (about names it) for a verdict, again " +
				"after revise. question: verdicts in options. vote: of all, or of to. blocker: report what stops you (on: agent, " +
				"role:NAME, task:ID). handoff: pass work and task on. answer: approve, revise, reject, accept, " +
				"defer, ack, resolve, cancel, or your option.",
			required: []string{"action"},
			Args: []Arg{
				{Name: "action", kind: text, oneOf: []string{"review", "plan", "question", "shutdown", "vote", "blocker",
					"handoff", "answer", "resubmit", "show"}},
				{Name: "id", kind: text},
				{Name: "answer", kind: text},
				{Name: "about", kind: text, about: "scope or title"},
				{Name: "to", kind: text},
				{Name: "text", kind: text},
				{Name: "options", kind: list},
				{Name: "on", kind: text},
				{Name: "task", kind: text},
				{Name: "wait", kind: seconds},
			}},
		{Name: "team",
			Description: "list: agents and what they do. show: one agent (about: NAME), or what you hold. " +
				"explain: what is stuck and why, or one thing (about: ID, agent NAME, lock PATH, task ID). " +
				"status: say what you do. nudge, halt, resume others. leave ends your registration; " +
				"join renews it.",
			Args: []Arg{
				{Name: "action", kind: text, oneOf: []string{"list", "show", "explain", "status", "nudge", "halt", "resume",
					"leave", "join"}},
				{Name: "about", kind: text},
				{Name: "to", kind: text},
				{Name: "text", kind: text},
			}},
	}
}

// find returns the tool with a name; false if there is none.
func find(name string) (Tool, bool) {
	for _, t := range Tools() {
		if t.Name == name {
			return t, true
		}
	}
	return Tool{}, false
}

// arg returns the argument with a name; false if the tool has none.
func (t Tool) arg(name string) (Arg, bool) {
	for _, a := range t.Args {
		if a.Name == name {
			return a, true
		}
	}
	return Arg{}, false
}

// names returns the names of the arguments in their order.
func (t Tool) names() []string {
	var names []string
	for _, a := range t.Args {
		names = append(names, a.Name)
	}
	return names
}

// action is the argument that chooses the action; "" if the tool has one action.
func (t Tool) action() string {
	switch t.Name {
	case "turn", "send":
		return ""
	case "settle":
		return "as"
	}
	return "action"
}

// Schema returns the JSON schema of the tool's arguments, in their order.
func (t Tool) Schema() json.RawMessage {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","properties":{`)
	for i, a := range t.Args {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(a.Name) + ":{")
		switch a.kind {
		case value:
			b.WriteString(`"type":"string"`)
		case list:
			b.WriteString(`"type":"array","items":{"type":"string"}`)
		default:
			b.WriteString(`"type":` + quote(a.kind))
		}
		if len(a.oneOf) > 0 {
			b.WriteString(`,"enum":` + quote(a.oneOf))
		}
		if a.about != "" {
			b.WriteString(`,"description":` + quote(a.about))
		}
		b.WriteByte('}')
	}
	b.WriteByte('}')
	if len(t.required) > 0 {
		b.WriteString(`,"required":` + quote(t.required))
	}
	b.WriteByte('}')
	return b.Bytes()
}

// quote writes a value as JSON that keeps < and > readable.
func quote(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // of strings, lists of strings, numbers and decoded JSON only
	return string(bytes.TrimSpace(b.Bytes()))
}

// Actions returns the actions of the tool; none if it has one action.
func (t Tool) Actions() []string {
	a, _ := t.arg(t.action())
	return a.oneOf
}
