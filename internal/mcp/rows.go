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
		{"turn", "", "next --wait=[wait]", nextTurn},
		{"turn", "", "{read:inbox}", showInbox},
		{"turn", "", "inbox --{read:summary}", showSummary},
		{"turn", "", "artifact download <artifact> --to=-", showArtifact},
		{"turn", "", "thread get <read>", showThread},
		{"turn", "", "receive --thread=<read> --wait=[wait]", showThread},
		{"turn", "", "message get <read>", showThread},
		{"turn", "", "message report <read>", showThread},

		{"send", "", "send <to> <subject> --body=<text> " + content, send},
		{"send", "", "send <to> <text> " + content, send},
		{"send", "", "send <to> " + content, send},
		{"send", "", "ask <to> <subject> --body=<text> --wait=<ask> " + content, ask},
		{"send", "", "ask <to> <text> --wait=<ask> " + content, ask},
		{"send", "", "reply <answers> --body=[text] --subject=[subject] --priority=[priority] --type=[type]" +
			" --file=[files...] --payload=[data]", answerMessage},

		{"settle", "ack", "ack [id...:message]", ackMessages},
		{"settle", "ack", "task complete <id:task>", completeTask},
		{"settle", "reply", "reply [id:message] --ack --body=[text] --payload=[data]", replyAndAck},
		{"settle", "reply", "task complete <id:task> --result=[text]", completeTask},
		{"settle", "fail", "nack [id...:message] --error=[text] --fatal=[final]", nackMessages},
		{"settle", "fail", "task fail <id:task> --error=[text] --fatal=[final]", failTask},
		{"settle", "release", "release [id...:message]", releaseClaims},
		{"settle", "release", "task release <id:task>", releaseTask},
		{"settle", "extend", "extend [id...:message]", extendClaims},
		{"settle", "extend", "task update <id:task> --note=[text]", updateTask},

		{"lock", "acquire", "lock acquire <paths...> --shared=[shared] --wait=[wait] --for=[for] --reason=[reason]",
			acquireLocks},
		{"lock", "release", "lock release --{paths:all}", releaseLocks},
		{"lock", "release", "lock release <paths...>", releaseLocks},
		{"lock", "extend", "lock extend <paths...> --for=[for]", extendLocks},
		{"lock", "list", "lock list [paths]", listLocks},

		{"state", "get", "state get <key> --namespace=[namespace]", getState},
		{"state", "put", "state put <key> <value> --type=[type] --if-revision=[revision] --namespace=[namespace]",
			putState},
		{"state", "append", "state append <key> <value> --namespace=[namespace]", appendState},
		{"state", "list", "state list [key] --namespace=[namespace]", listState},
		{"state", "delete", "state delete <key> --if-revision=[revision] --namespace=[namespace]", deleteState},

		{"task", "create", "task create <title> --id=[id] --description=[text] --role=[role] --assignee=[assignee]" +
			" --depends-on=[depends_on...] --parent=[parent] --priority=[priority]", createTask},
		{"task", "list", "task list --state=[state...] --role=[role] --assignee=[assignee] --parent=[parent]",
			listTasks},
		{"task", "show", "task get <id> --full", showTask},
		{"task", "show", "task get <id>", showTask},
		{"task", "claim", "task claim [id] --wait=[wait]", claimTask},
		{"task", "update", "task update [id] --note=[text] --progress=[progress] --title=[title] --priority=[priority]",
			updateTask},
		{"task", "complete", "task complete [id] --result=[text]", completeTask},
		{"task", "fail", "task fail [id] --error=[text]", failTask},
		{"task", "block", "task block [id] --reason=<text>", blockTask},
		{"task", "unblock", "task unblock [id]", unblockTask},
		{"task", "decline", "task release [id] --decline --reason=<text>", declineTask},
		{"task", "release", "task release [id] --reason=[text]", releaseTask},
		{"task", "cancel", "task cancel <id> --reason=[text]", cancelTask},
		{"task", "retry", "task retry <id>", retryTask},
		{"task", "wait", "task wait [id...] --wait=[wait] --after=[after]", waitTasks},

		{"decide", "review", "review submit <about> [to] --body=[text] --task=[task] --wait=[wait]",
			submitReview},
		{"decide", "plan", "plan submit <about> [to] --body=[text] --task=[task] --wait=[wait]", submitPlan},
		{"decide", "question", "decision open <to> <about> --body=[text] --verdict=[options...] --task=[task] --wait=[wait]",
			submitQuestion},
		{"decide", "question", "decision open <to> <text> --verdict=[options...] --task=[task] --wait=[wait]",
			submitQuestion},
		{"decide", "shutdown", "agent shutdown <to> [text] --wait=[wait]", submitShutdown},
		{"decide", "vote", "vote open <about> <options...> --body=[text] --to=[to...] --task=[task] --wait=[wait]",
			openVote},
		{"decide", "vote", "vote open <text> <options...> --to=[to...] --task=[task] --wait=[wait]", openVote},
		{"decide", "blocker", "blocker raise <text> --on=[on] --to=[to] --task=[task] --wait=[wait]", raiseBlocker},
		{"decide", "handoff", "handoff create <to> <about> --background=[text] --task=<task> --transfer-task --wait=[wait]",
			createHandoff},
		{"decide", "handoff", "handoff create <to> <about> --background=[text] --wait=[wait]", createHandoff},
		{"decide", "answer", "decision {answer:cancel} <id:decision>", cancelDecision},
		{"decide", "answer", "decision {answer:defer} <id:decision> <wait>", deferDecision},
		{"decide", "answer", "decision decide <id:decision> <answer> --reason=[text]", decide},
		{"decide", "answer", "blocker {answer:ack} <id:blocker>", acknowledgeBlocker},
		{"decide", "answer", "blocker {answer:resolve} <id:blocker> [text]", resolveBlocker},
		{"decide", "answer", "handoff {answer:accept|reject} <id:handoff> [text]", answerHandoff},
		{"decide", "answer", "handoff {answer:cancel} <id:handoff>", cancelHandoff},
		{"decide", "answer", "vote {answer:close} <id:vote>", closeVote},
		{"decide", "answer", "vote cast <id:vote> <answer> --reason=[text]", castVote},
		{"decide", "answer", "review {answer:approve|revise|reject} <id> --reason=[text]", decideReview},
		{"decide", "answer", "plan {answer:approve|revise|reject} <id> --reason=[text]", decidePlan},
		{"decide", "answer", "decision {answer:accept|defer|reject} <id> [text]", decide},
		{"decide", "resubmit", "decision resubmit <id:decision> --body=[text]", resubmitDecision},
		{"decide", "show", "blocker get <id:blocker> --wait=[wait]", showBlocker},
		{"decide", "show", "handoff get <id:handoff> --wait=[wait]", showHandoff},
		{"decide", "show", "vote get <id:vote> --wait=[wait]", showVote},
		{"decide", "show", "decision get <id> --wait=[wait]", showDecision},
		{"decide", "show", "review get <id> --wait=[wait]", showReview},
		{"decide", "show", "plan get <id> --wait=[wait]", showPlan},

		{"team", "list", "agent list --role=[about]", listAgents},
		{"team", "explain", "explain [about...]", showFindings},
		{"team", "show", "agent get [about] --full", showAgent},
		{"team", "show", "agent get [about]", showAgent},
		{"team", "status", "agent heartbeat --activity=[text]", reportActivity},
		{"team", "nudge", "agent nudge <to> [text]", nudge},
		{"team", "halt", "agent halt <to> [text]", halt},
		{"team", "resume", "agent resume <to> [text]", resume},
		{"team", "leave", "agent deregister --reason=[text]", leave},
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
