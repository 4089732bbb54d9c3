package mcp

import (
	"regexp"
	"slices"
	"strings"
)

// A row is one way to carry out an action.
type row struct {
	tool, action string
	template     string
	run          func(*call) error
}

// rows returns the rows. The template is the command line of brokerctl with the same effect. In it, <name> is an
// argument that must be given, [name] one that may be, and {name} one whose value is a word of the command itself. An
// ellipsis marks a list. A colon begins a condition on the value: a name of conditions, or the possible values. After a
// flag, = begins its value.
//
// nextCall uses the first row whose template fits a command line, so the shortest call comes first.
func rows() []row {
	return []row{
		{"turn", "", "next --wait=[wait]", (*call).next},
		{"turn", "", "{read:inbox}", (*call).inbox},
		{"turn", "", "inbox --{read:summary}", (*call).summary},
		{"turn", "", "artifact download <artifact> --to=-", (*call).artifact},
		{"turn", "", "thread get <read>", (*call).thread},
		{"turn", "", "receive --thread=<read> --wait=[wait]", (*call).thread},
		{"turn", "", "message get <read>", (*call).thread},
		{"turn", "", "message report <read>", (*call).thread},

		{"send", "", "send <to> <subject> --body=<text> " + content, (*call).send},
		{"send", "", "send <to> <text> " + content, (*call).send},
		{"send", "", "send <to> " + content, (*call).send},
		{"send", "", "ask <to> <subject> --body=<text> --wait=<ask> " + content, (*call).ask},
		{"send", "", "ask <to> <text> --wait=<ask> " + content, (*call).ask},
		{"send", "", "reply <answers> --body=[text] --subject=[subject] --priority=[priority] --type=[type]" +
			" --file=[files...] --payload=[data]", (*call).answer},

		{"settle", "ack", "ack [id...:message]", (*call).ack},
		{"settle", "ack", "task complete <id:task>", (*call).completeTask},
		{"settle", "reply", "reply [id:message] --ack --body=[text] --payload=[data]", (*call).reply},
		{"settle", "reply", "task complete <id:task> --result=[text]", (*call).completeTask},
		{"settle", "fail", "nack [id...:message] --error=[text] --fatal=[final]", (*call).nack},
		{"settle", "fail", "task fail <id:task> --error=[text] --fatal=[final]", (*call).failTask},
		{"settle", "release", "release [id...:message]", (*call).release},
		{"settle", "release", "task release <id:task>", (*call).releaseTask},
		{"settle", "extend", "extend [id...:message]", (*call).extend},
		{"settle", "extend", "task update <id:task> --note=[text]", (*call).updateTask},

		{"lock", "acquire", "lock acquire <paths...> --shared=[shared] --wait=[wait] --for=[for] --reason=[reason]",
			(*call).lock},
		{"lock", "release", "lock release --{paths:all}", (*call).unlock},
		{"lock", "release", "lock release <paths...>", (*call).unlock},
		{"lock", "extend", "lock extend <paths...> --for=[for]", (*call).extendLock},
		{"lock", "list", "lock list [paths]", (*call).locks},

		{"state", "get", "state get <key> --namespace=[namespace]", (*call).getState},
		{"state", "put", "state put <key> <value> --type=[type] --if-revision=[revision] --namespace=[namespace]",
			(*call).putState},
		{"state", "append", "state append <key> <value> --namespace=[namespace]", (*call).appendState},
		{"state", "list", "state list [key] --namespace=[namespace]", (*call).listState},
		{"state", "delete", "state delete <key> --if-revision=[revision] --namespace=[namespace]", (*call).deleteState},

		{"task", "create", "task create <title> --id=[id] --description=[text] --role=[role] --assignee=[assignee]" +
			" --depends-on=[depends_on...] --parent=[parent] --priority=[priority]", (*call).createTask},
		{"task", "list", "task list --state=[state...] --role=[role] --assignee=[assignee] --parent=[parent]",
			(*call).tasks},
		{"task", "show", "task get <id> --full", (*call).showTask},
		{"task", "show", "task get <id>", (*call).showTask},
		{"task", "claim", "task claim [id] --wait=[wait]", (*call).claimTask},
		{"task", "update", "task update [id] --note=[text] --progress=[progress] --title=[title] --priority=[priority]",
			(*call).updateTask},
		{"task", "complete", "task complete [id] --result=[text]", (*call).completeTask},
		{"task", "fail", "task fail [id] --error=[text]", (*call).failTask},
		{"task", "block", "task block [id] --reason=<text>", (*call).blockTask},
		{"task", "unblock", "task unblock [id]", (*call).unblockTask},
		{"task", "decline", "task release [id] --decline --reason=<text>", (*call).declineTask},
		{"task", "release", "task release [id] --reason=[text]", (*call).releaseTask},
		{"task", "cancel", "task cancel <id> --reason=[text]", (*call).cancelTask},
		{"task", "retry", "task retry <id>", (*call).retryTask},
		{"task", "wait", "task wait [id...] --wait=[wait] --after=[after]", (*call).waitTasks},

		{"decide", "review", "review submit <about> [to] --body=[text] --task=[task] --wait=[wait]",
			(*call).submitReview},
		{"decide", "plan", "plan submit <about> [to] --body=[text] --task=[task] --wait=[wait]", (*call).submitPlan},
		{"decide", "question", "decision open <to> <about> --body=[text] --verdict=[options...] --task=[task] --wait=[wait]",
			(*call).question},
		{"decide", "question", "decision open <to> <text> --verdict=[options...] --task=[task] --wait=[wait]",
			(*call).question},
		{"decide", "shutdown", "agent shutdown <to> [text] --wait=[wait]", (*call).shutdown},
		{"decide", "vote", "vote open <about> <options...> --body=[text] --to=[to...] --task=[task] --wait=[wait]",
			(*call).openVote},
		{"decide", "vote", "vote open <text> <options...> --to=[to...] --task=[task] --wait=[wait]", (*call).openVote},
		{"decide", "blocker", "blocker raise <text> --on=[on] --to=[to] --task=[task] --wait=[wait]", (*call).raise},
		{"decide", "handoff", "handoff create <to> <about> --background=[text] --task=<task> --transfer-task --wait=[wait]",
			(*call).offerHandoff},
		{"decide", "handoff", "handoff create <to> <about> --background=[text] --wait=[wait]", (*call).offerHandoff},
		{"decide", "answer", "decision {answer:cancel} <id:decision>", (*call).cancelDecision},
		{"decide", "answer", "decision {answer:defer} <id:decision> <wait>", (*call).deferDecision},
		{"decide", "answer", "decision decide <id:decision> <answer> --reason=[text]", (*call).decide},
		{"decide", "answer", "blocker {answer:ack} <id:blocker>", (*call).acknowledge},
		{"decide", "answer", "blocker {answer:resolve} <id:blocker> [text]", (*call).resolve},
		{"decide", "answer", "handoff {answer:accept|reject} <id:handoff> [text]", (*call).answerHandoff},
		{"decide", "answer", "handoff {answer:cancel} <id:handoff>", (*call).cancelHandoff},
		{"decide", "answer", "vote {answer:close} <id:vote>", (*call).closeVote},
		{"decide", "answer", "vote cast <id:vote> <answer> --reason=[text]", (*call).cast},
		{"decide", "answer", "review {answer:approve|revise|reject} <id> --reason=[text]", (*call).decideReview},
		{"decide", "answer", "plan {answer:approve|revise|reject} <id> --reason=[text]", (*call).decidePlan},
		{"decide", "answer", "decision {answer:accept|defer|reject} <id> [text]", (*call).decide},
		{"decide", "resubmit", "decision resubmit <id:decision> --body=[text]", (*call).resubmit},
		{"decide", "show", "blocker get <id:blocker> --wait=[wait]", (*call).showBlocker},
		{"decide", "show", "handoff get <id:handoff> --wait=[wait]", (*call).showHandoff},
		{"decide", "show", "vote get <id:vote> --wait=[wait]", (*call).showVote},
		{"decide", "show", "decision get <id> --wait=[wait]", (*call).showDecision},
		{"decide", "show", "review get <id> --wait=[wait]", (*call).showReview},
		{"decide", "show", "plan get <id> --wait=[wait]", (*call).showPlan},

		{"team", "list", "agent list --role=[about]", (*call).agents},
		{"team", "explain", "explain [about...]", (*call).findings},
		{"team", "show", "agent get [about] --full", (*call).showAgent},
		{"team", "show", "agent get [about]", (*call).showAgent},
		{"team", "status", "agent heartbeat --activity=[text]", (*call).report},
		{"team", "nudge", "agent nudge <to> [text]", (*call).nudge},
		{"team", "halt", "agent halt <to> [text]", (*call).halt},
		{"team", "resume", "agent resume <to> [text]", (*call).resume},
		{"team", "leave", "agent deregister --reason=[text]", (*call).leave},
	}
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
	choices  string // the condition on the value
}

// parts takes a template apart.
func (r *row) parts() []part {
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
