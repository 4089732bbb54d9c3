package toolcall

import (
	"regexp"
	"slices"
	"strings"
)

// A row is one way to carry out an action.
type row struct {
	tool, action string
	template     string
}

// The rows. In a template, <name> is an argument that must be given, [name] one that may be, and
// {name} one whose value is a word of the command itself. An ellipsis marks a list. A colon begins a
// condition on the value: a name of conditions, or the possible values. After a flag, = begins its
// value: an argument, or a fixed value, which a suggested command line need not have; [name=value]
// has a default.
//
// Call uses the first row whose template fits a command line, so the shortest call comes first.
var rows = []row{
	{"turn", "", "next --wait=[wait]"},
	{"turn", "", "{read:inbox}"},
	{"turn", "", "inbox --{read:summary}"},
	{"turn", "", "artifact download <artifact> --to=-"},
	{"turn", "", "thread get <read>"},
	{"turn", "", "receive --thread=<read> --wait=[wait]"},
	{"turn", "", "message get <read>"},
	{"turn", "", "message report <read>"},

	{"send", "", "send <to> <subject> --body=<text> " + content},
	{"send", "", "send <to> <text> " + content},
	{"send", "", "send <to> " + content},
	{"send", "", "ask <to> <subject> --body=<text> --wait=<ask> " + content},
	{"send", "", "ask <to> <text> --wait=<ask> " + content},
	{"send", "", "reply <answers> --body=[text] --subject=[subject] --priority=[priority] --type=[type]" +
		" --file=[files...] --payload=[data]"},

	{"settle", "ack", "ack [id...:message]"},
	{"settle", "ack", "task complete <id:task>"},
	{"settle", "reply", "reply [id:message] --ack --body=[text] --payload=[data]"},
	{"settle", "reply", "task complete <id:task> --result=[text]"},
	{"settle", "fail", "nack [id...:message] --error=[text] --fatal=[final]"},
	{"settle", "fail", "task fail <id:task> --error=[text] --fatal=[final]"},
	{"settle", "release", "release [id...:message]"},
	{"settle", "release", "task release <id:task>"},
	{"settle", "extend", "extend [id...:message]"},
	{"settle", "extend", "task update <id:task> --note=[text]"},

	{"lock", "acquire", "lock acquire <paths...> --shared=[shared] --wait=[wait] --for=[for] --reason=[reason]"},
	{"lock", "release", "lock release --{paths:all}"},
	{"lock", "release", "lock release <paths...>"},
	{"lock", "extend", "lock extend <paths...> --for=[for]"},
	{"lock", "list", "lock list [paths] --limit=50"},

	{"state", "get", "state get <key> --namespace=[namespace]"},
	{"state", "put", "state put <key> <value> --type=[type] --if-revision=[revision] --namespace=[namespace]"},
	{"state", "append", "state append <key> <value> --namespace=[namespace]"},
	{"state", "list", "state list [key] --namespace=[namespace] --limit=50"},
	{"state", "delete", "state delete <key> --if-revision=[revision] --namespace=[namespace]"},

	{"task", "create", "task create <title> --id=[id] --description=[text] --role=[role] --assignee=[assignee]" +
		" --depends-on=[depends_on...] --parent=[parent] --priority=[priority]"},
	{"task", "list", "task list --state=[state...] --role=[role] --assignee=[assignee] --parent=[parent] --limit=50"},
	{"task", "show", "task get <id> --full"},
	{"task", "show", "task get <id>"},
	{"task", "claim", "task claim [id] --wait=[wait]"},
	{"task", "update", "task update [id] --note=[text] --progress=[progress] --title=[title] --priority=[priority]"},
	{"task", "complete", "task complete [id] --result=[text]"},
	{"task", "fail", "task fail [id] --error=[text]"},
	{"task", "block", "task block [id] --reason=<text>"},
	{"task", "unblock", "task unblock [id]"},
	{"task", "decline", "task release [id] --decline --reason=<text>"},
	{"task", "release", "task release [id] --reason=[text]"},
	{"task", "cancel", "task cancel <id> --reason=[text]"},
	{"task", "retry", "task retry <id>"},
	{"task", "wait", "task wait [id...] --wait=[wait=55s] --after=[after]"},

	{"decide", "review", "review submit <about> [to] --body=[text] --task=[task] --wait=[wait=0s]"},
	{"decide", "plan", "plan submit <about> [to] --body=[text] --task=[task] --wait=[wait=0s]"},
	{"decide", "question", "decision open <to> <about> --body=[text] --verdict=[options...] --task=[task] --wait=[wait]"},
	{"decide", "question", "decision open <to> <text> --verdict=[options...] --task=[task] --wait=[wait]"},
	{"decide", "shutdown", "agent shutdown <to> [text] --wait=[wait]"},
	{"decide", "vote", "vote open <about> <options...> --body=[text] --to=[to...] --task=[task] --wait=[wait]"},
	{"decide", "vote", "vote open <text> <options...> --to=[to...] --task=[task] --wait=[wait]"},
	{"decide", "blocker", "blocker raise <text> --on=[on] --to=[to] --task=[task] --wait=[wait]"},
	{"decide", "handoff", "handoff create <to> <about> --background=[text] --task=<task> --transfer-task --wait=[wait]"},
	{"decide", "handoff", "handoff create <to> <about> --background=[text] --wait=[wait]"},
	{"decide", "answer", "decision {answer:cancel} <id:decision>"},
	{"decide", "answer", "decision {answer:defer} <id:decision> <wait>"},
	{"decide", "answer", "decision decide <id:decision> <answer> --reason=[text]"},
	{"decide", "answer", "blocker {answer:ack} <id:blocker>"},
	{"decide", "answer", "blocker {answer:resolve} <id:blocker> [text]"},
	{"decide", "answer", "handoff {answer:accept|reject} <id:handoff> [text]"},
	{"decide", "answer", "handoff {answer:cancel} <id:handoff>"},
	{"decide", "answer", "vote {answer:close} <id:vote>"},
	{"decide", "answer", "vote cast <id:vote> <answer> --reason=[text]"},
	{"decide", "answer", "review {answer:approve|revise|reject} <id> --reason=[text]"},
	{"decide", "answer", "plan {answer:approve|revise|reject} <id> --reason=[text]"},
	{"decide", "answer", "decision {answer:accept|defer|reject} <id> [text]"},
	{"decide", "resubmit", "decision resubmit <id:decision> --body=[text]"},
	{"decide", "show", "blocker get <id:blocker> --wait=[wait]"},
	{"decide", "show", "handoff get <id:handoff> --wait=[wait]"},
	{"decide", "show", "vote get <id:vote> --wait=[wait]"},
	{"decide", "show", "decision get <id> --wait=[wait]"},
	{"decide", "show", "review get <id> --wait=[wait]"},
	{"decide", "show", "plan get <id> --wait=[wait]"},

	{"team", "list", "agent list --role=[about] --limit=100"},
	{"team", "explain", "explain [about...]"},
	{"team", "show", "agent get [about] --full"},
	{"team", "show", "agent get [about]"},
	{"team", "status", "agent heartbeat --activity=[text]"},
	{"team", "nudge", "agent nudge <to> [text]"},
	{"team", "halt", "agent halt <to> [text]"},
	{"team", "resume", "agent resume <to> [text]"},
	{"team", "leave", "agent deregister --reason=[text]"},
}

// content are the options that every message may have.
const content = "--priority=[priority] --type=[type] --task=[task] --file=[files...] --payload=[data]" +
	" --reply-to=[answers]"

// conditions are the conditions on values that have names. The broker gives tasks and decisions
// these ids, unless their creators choose others for tasks.
var conditions = map[string]*regexp.Regexp{
	"message":  regexp.MustCompile(`^([0-9]+(\.[0-9]+)?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`),
	"task":     regexp.MustCompile(`^[^0-9]|^[0-9]+[^0-9.]`),
	"decision": regexp.MustCompile(`^d-[0-9]+$`),
	"blocker":  regexp.MustCompile(`^b-[0-9]+$`),
	"handoff":  regexp.MustCompile(`^h-[0-9]+$`),
	"vote":     regexp.MustCompile(`^v-[0-9]+$`),
}

// A part is one word of a template.
type part struct {
	flag     string // with its dashes; "" for an argument of the command
	fixed    string // the word, or the value of the flag; "" if an argument of the tool gives it
	arg      string // the argument of the tool
	many     bool
	required bool
	word     bool   // the value is a word of the command
	prefix   string // of that word
	absent   string // the value of the flag if the argument is not given
	choices  string // the condition on the value
}

// parts takes a template apart.
func (r row) parts() []part {
	var parts []part
	for _, word := range strings.Fields(r.template) {
		var p part
		if before, after, found := strings.Cut(word, "{"); found {
			p.prefix, word = before, "{"+after
		}
		if strings.HasPrefix(word, "--") {
			p.flag, word, _ = strings.Cut(word, "=")
		}
		if !strings.ContainsAny(word, "<[{") {
			p.fixed = word
			parts = append(parts, p)
			continue
		}
		p.word, p.required = word[0] == '{', word[0] != '['
		inner, choices, _ := strings.Cut(word[1:len(word)-1], ":")
		inner, p.absent, _ = strings.Cut(inner, "=")
		p.arg, p.many = strings.CutSuffix(inner, "...")
		p.choices = choices
		parts = append(parts, p)
	}
	return parts
}

// fits reports whether a value meets the condition.
func (p part) fits(v string) bool {
	if known := conditions[p.choices]; known != nil {
		return known.MatchString(v)
	}
	return p.choices == "" || slices.Contains(strings.Split(p.choices, "|"), v)
}

// allowed names the possible values, for errors.
func (p part) allowed() string {
	if p.choices == "" || conditions[p.choices] != nil {
		return ""
	}
	return "; possible: " + strings.ReplaceAll(p.choices, "|", ", ")
}
