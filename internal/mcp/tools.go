package mcp

import (
	"bytes"
	"encoding/json"
)

// A tool is one tool of the server.
type tool struct {
	name        string
	description string
	args        []argument
	required    []string
}

// An argument is one argument of a tool.
type argument struct {
	name  string
	kind  kind
	about string
	oneOf []string
}

// A kind is the JSON type of an argument in the schema. A call may also give related types: a number
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

// tools returns the tools. Every word of them is part of each conversation of the model, so the
// schemas describe only what a name does not say.
func tools() []tool {
	return []tool{
		{name: "turn",
			description: "Your next step: directives, losses, one message or task (now yours), and open work, " +
				"each with the call that settles it. Call it first and when you have nothing to do.",
			args: []argument{
				{name: "wait", kind: seconds, about: "seconds to wait for work, up to 50"},
				{name: "read", kind: text, about: "show instead: inbox, summary, or the thread of a message id"},
				{name: "artifact", kind: text, about: "print it instead"},
			}},
		{name: "send",
			description: "Send a message. With ask, wait for the reply.",
			args: []argument{
				{name: "to", kind: text, about: "agent, role:NAME (one of them), channel:NAME, builder-*, everyone, operator (a person)"},
				{name: "text", kind: text},
				{name: "subject", kind: text},
				{name: "ask", kind: seconds, about: "seconds, up to 50"},
				{name: "answers", kind: text, about: "message id; replaces to"},
				{name: "priority", kind: text, about: "1 to 10, low, high"},
				{name: "type", kind: text},
				{name: "task", kind: text},
				{name: "files", kind: list, about: "PATH:LINE"},
				{name: "data", kind: object, about: "JSON payload"},
			}},
		{name: "settle",
			description: "Finish what turn gave you. as: reply (default with text; the text reaches the sender, or is the " +
				"task's result), ack (done, nothing to report), fail (text: why), release (another agent may take it), " +
				"extend (more time). next: then return the next turn, waiting that many seconds.",
			args: []argument{
				{name: "id", kind: text, about: "message or task; default: the only one held"},
				{name: "as", kind: text, oneOf: []string{"reply", "ack", "fail", "release", "extend"}},
				{name: "text", kind: text},
				{name: "data", kind: object, about: "payload of the reply"},
				{name: "final", kind: flag, about: "fail: do not retry"},
				{name: "next", kind: seconds},
			}},
		{name: "lock",
			description: "Lock files or folders before you change them, all or none. Refusals name the owners.",
			required:    []string{"action"},
			args: []argument{
				{name: "action", kind: text, oneOf: []string{"acquire", "release", "extend", "list"}},
				{name: "paths", kind: list, about: "a.go, src/, docs/**; release: also a fence, all"},
				{name: "shared", kind: flag},
				{name: "wait", kind: seconds},
				{name: "for", kind: text, about: "such as 30m"},
				{name: "reason", kind: text},
			}},
		{name: "state",
			description: "Values that all agents share, and documents that grow (append).",
			required:    []string{"action"},
			args: []argument{
				{name: "action", kind: text, oneOf: []string{"get", "put", "append", "list", "delete"}},
				{name: "key", kind: text, about: "list: a prefix"},
				{name: "value", kind: value, about: "any JSON"},
				{name: "revision", kind: text, about: "put, delete: only if unchanged since; 0: absent"},
				{name: "namespace", kind: text},
			}},
		{name: "task",
			description: "Plan work and work on it. text is the description, note, result or reason. " +
				"update reports progress; wait returns when the tasks are done.",
			required: []string{"action"},
			args: []argument{
				{name: "action", kind: text, oneOf: []string{"create", "list", "show", "claim", "update", "complete", "fail",
					"block", "unblock", "release", "decline", "cancel", "retry", "wait"}},
				{name: "id", kind: text, about: "default: the one you hold"},
				{name: "title", kind: text},
				{name: "text", kind: text},
				{name: "role", kind: text},
				{name: "assignee", kind: text},
				{name: "depends_on", kind: list},
				{name: "parent", kind: text},
				{name: "priority", kind: text},
				{name: "progress", kind: seconds, about: "0 to 1"},
				{name: "state", kind: list},
				{name: "wait", kind: seconds},
				{name: "after", kind: text},
			}},
		{name: "decide",
			description: "Ask others to decide, or answer. review, plan: submit work (about names it) for a verdict, again " +
				"after revise. question: verdicts in options. vote: of all, or of to. blocker: report what stops you (on: agent, " +
				"role:NAME, task:ID). handoff: pass work and task on. answer: approve, revise, reject, accept, " +
				"defer, ack, resolve, cancel, or your option.",
			required: []string{"action"},
			args: []argument{
				{name: "action", kind: text, oneOf: []string{"review", "plan", "question", "shutdown", "vote", "blocker",
					"handoff", "answer", "resubmit", "show"}},
				{name: "id", kind: text},
				{name: "answer", kind: text},
				{name: "about", kind: text, about: "scope or title"},
				{name: "to", kind: text},
				{name: "text", kind: text},
				{name: "options", kind: list},
				{name: "on", kind: text},
				{name: "task", kind: text},
				{name: "wait", kind: seconds},
			}},
		{name: "team",
			description: "list: agents and what they do. show: one agent (about: NAME), or what you hold. " +
				"explain: what is stuck and why, or one thing (about: ID, agent NAME, lock PATH, task ID). " +
				"status: say what you do. nudge, halt, resume others. leave ends your registration; " +
				"join renews it.",
			args: []argument{
				{name: "action", kind: text, oneOf: []string{"list", "show", "explain", "status", "nudge", "halt", "resume",
					"leave", "join"}},
				{name: "about", kind: text},
				{name: "to", kind: text},
				{name: "text", kind: text},
			}},
	}
}

// find returns the tool with a name.
func find(name string) *tool {
	for _, t := range tools() {
		if t.name == name {
			return &t
		}
	}
	return nil
}

// arg returns the argument with a name; false if the tool has none.
func (t tool) arg(name string) (argument, bool) {
	for _, a := range t.args {
		if a.name == name {
			return a, true
		}
	}
	return argument{}, false
}

// names returns the names of the arguments in their order.
func (t tool) names() []string {
	var names []string
	for _, a := range t.args {
		names = append(names, a.name)
	}
	return names
}

// action is the argument that chooses the action; "" if the tool has one action.
func (t tool) action() string {
	switch t.name {
	case "turn", "send":
		return ""
	case "settle":
		return "as"
	}
	return "action"
}

// schema returns the JSON schema of the tool's arguments, in their order.
func (t tool) schema() json.RawMessage {
	var b bytes.Buffer
	b.WriteString(`{"type":"object","properties":{`)
	for i, a := range t.args {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(a.name) + ":{")
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

// actions returns the actions of the tool; none if it has one action.
func (t tool) actions() []string {
	a, _ := t.arg(t.action())
	return a.oneOf
}
