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

// rows returns the rows. A template begins with the method that the row calls with one request, if it does so. Its words
// are the arguments: <name> must be given, [name] may be; an ellipsis marks a list; a colon begins a condition on the value:
// a name of conditions, or the possible values. Before =, a word names the field of the request that has the argument, or
// that has a fixed value.
//
// A call that the broker proposes is written with the first row whose method and fields fit, so the shortest comes first.
func rows() []row {
	return []row{
		{"turn", "", "[wait]", nextTurn},
		{"turn", "", "ListMessages box=inbox <read:inbox>", showInbox},
		{"turn", "", "GetInboxSummary <read:summary>", showSummary},
		{"turn", "", "DownloadArtifact name=<artifact>", showArtifact},
		{"turn", "", "GetMessage id=<read>", showThread},
		{"turn", "", "Receive filter.thread_id=<read> wait=[wait]", showThread},

		{"send", "", "target=<to> subject=<subject> body=<text> " + content, send},
		{"send", "", "target=<to> body=<text> " + content, send},
		{"send", "", "target=<to> " + content, send},
		{"send", "", "target=<to> subject=<subject> body=<text> wait=<ask> " + content, ask},
		{"send", "", "target=<to> body=<text> wait=<ask> " + content, ask},
		{"send", "", "Reply id=<answers> message.body=[text] message.subject=[subject] message.priority=[priority]" +
			" message.type=[type] message.files=[files...] message.payload=[data]", answerMessage},

		{"settle", "ack", "AckMessages ids=[id...:message]", ackMessages},
		{"settle", "ack", "CompleteTask id=<id:task>", completeTask},
		{"settle", "reply", "Reply id=[id:message] ack=true message.body=[text] message.payload=[data]", replyAndAck},
		{"settle", "reply", "CompleteTask id=<id:task> result=[text]", completeTask},
		{"settle", "fail", "NackMessages nacks.claim_id=[id...:message] nacks.error=[text] nacks.fatal=[final]", nackMessages},
		{"settle", "fail", "FailTask id=<id:task> error=[text] fatal=[final]", failTask},
		{"settle", "release", "ReleaseClaims ids=[id...:message]", releaseClaims},
		{"settle", "release", "ReleaseTask id=<id:task>", releaseTask},
		{"settle", "extend", "ExtendClaims extensions.claim_id=[id...:message]", extendClaims},
		{"settle", "extend", "UpdateTask id=<id:task> note=[text]", updateTask},

		{"lock", "acquire", "AcquireLocks paths=<paths...> mode=[shared] wait=[wait] max_hold=[for] reason=[reason]", acquireLocks},
		{"lock", "release", "<paths:all>", releaseLocks},
		{"lock", "release", "ReleaseLocks fences=<paths...>", releaseLocks},
		{"lock", "extend", "ExtendLocks fences=<paths...> max_hold=[for]", extendLocks},
		{"lock", "list", "ListLocks path=[paths]", listLocks},

		{"state", "get", "key=<key> namespace=[namespace]", getState},
		{"state", "put", "key=<key> value=<value> type=[type] compare_revision=[revision] namespace=[namespace]", putState},
		{"state", "append", "key=<key> value=<value> namespace=[namespace]", appendState},
		{"state", "list", "prefix=[key] namespace=[namespace]", listState},
		{"state", "delete", "DeleteState key=<key> compare_revision=[revision] namespace=[namespace]", deleteState},

		{"task", "create", "title=<title> id=[id] description=[text] role=[role] assignee=[assignee] depends_on=[depends_on...]" +
			" parent=[parent] priority=[priority]", createTask},
		{"task", "list", "states=[state...] role=[role] assignee=[assignee] parent=[parent]", listTasks},
		{"task", "show", "GetTask id=<id>", showTask},
		{"task", "claim", "ClaimTask id=[id] wait=[wait]", claimTask},
		{"task", "update", "UpdateTask id=[id] note=[text] progress=[progress] title=[title] priority=[priority]", updateTask},
		{"task", "complete", "CompleteTask id=[id] result=[text]", completeTask},
		{"task", "fail", "FailTask id=[id] error=[text]", failTask},
		{"task", "block", "UpdateTask id=[id] block=<text>", blockTask},
		{"task", "unblock", "UpdateTask id=[id] unblock=true", unblockTask},
		{"task", "decline", "ReleaseTask id=[id] decline=true reason=<text>", declineTask},
		{"task", "release", "ReleaseTask id=[id] reason=[text]", releaseTask},
		{"task", "cancel", "CancelTask id=<id> reason=[text]", cancelTask},
		{"task", "retry", "RetryTask id=<id>", retryTask},
		{"task", "wait", "WaitTasks task_ids=[id...] wait=[wait] after_revision=[after]", waitTasks},

		{"decide", "review", "scope=<about> to=[to] body=[text] task_id=[task] wait=[wait]", submitReview},
		{"decide", "plan", "scope=<about> to=[to] body=[text] task_id=[task] wait=[wait]", submitPlan},
		{"decide", "question", "to=<to> title=<about> body=[text] verdicts=[options...] task_id=[task] wait=[wait]", submitQuestion},
		{"decide", "question", "to=<to> title=<text> verdicts=[options...] task_id=[task] wait=[wait]", submitQuestion},
		{"decide", "shutdown", "to=<to> title=[text] wait=[wait]", submitShutdown},
		{"decide", "vote", "title=<about> options=<options...> body=[text] electorate=[to...] task_id=[task] wait=[wait]", openVote},
		{"decide", "vote", "title=<text> options=<options...> electorate=[to...] task_id=[task] wait=[wait]", openVote},
		{"decide", "blocker", "reason=<text> awaited=[on] recipients=[to] task_id=[task] wait=[wait]", raiseBlocker},
		{"decide", "handoff", "to=<to> title=<about> background=[text] task_id=<task> wait=[wait]", createHandoff},
		{"decide", "handoff", "to=<to> title=<about> background=[text] wait=[wait]", createHandoff},
		{"decide", "answer", "CancelDecision id=<id:decision> <answer:cancel>", cancelDecision},
		{"decide", "answer", "Decide id=<id:decision> verdict=<answer:defer> until=<wait>", deferDecision},
		{"decide", "answer", "Decide id=<id:decision> verdict=<answer> reason=[text]", decide},
		{"decide", "answer", "AcknowledgeBlocker id=<id:blocker> <answer:ack>", acknowledgeBlocker},
		{"decide", "answer", "ResolveBlocker id=<id:blocker> <answer:resolve> resolution=[text]", resolveBlocker},
		{"decide", "answer", "AcceptHandoff id=<id:handoff> <answer:accept> notes=[text]", answerHandoff},
		{"decide", "answer", "RejectHandoff id=<id:handoff> <answer:reject> notes=[text]", answerHandoff},
		{"decide", "answer", "CancelHandoff id=<id:handoff> <answer:cancel>", cancelHandoff},
		{"decide", "answer", "CloseVote id=<id:vote> <answer:close>", closeVote},
		{"decide", "answer", "CastVote id=<id:vote> option=<answer> reason=[text]", castVote},
		{"decide", "answer", "id=<id> verdict=<answer:approve|revise|reject> reason=[text]", decideReview},
		{"decide", "answer", "id=<id> verdict=<answer:accept|defer> reason=[text]", decide},
		{"decide", "resubmit", "ResubmitDecision id=<id:decision> content.body=[text]", resubmitDecision},
		{"decide", "show", "GetBlocker id=<id:blocker> wait=[wait]", showBlocker},
		{"decide", "show", "GetHandoff id=<id:handoff> wait=[wait]", showHandoff},
		{"decide", "show", "GetVote id=<id:vote> wait=[wait]", showVote},
		{"decide", "show", "GetDecision id=<id> wait=[wait]", showDecision},

		{"team", "list", "ListAgents role=[about]", listAgents},
		{"team", "explain", "Explain subject=[about...]", showFindings},
		{"team", "show", "GetAgent view=full name=[about]", showAgent},
		{"team", "show", "GetAgent name=[about]", showAgent},
		{"team", "status", "Heartbeat activity=[text]", reportActivity},
		{"team", "nudge", "SendMessages type=nudge target=<to> subject=[text]", nudge},
		{"team", "halt", "SendMessages type=halt target=<to> subject=[text]", halt},
		{"team", "resume", "SendMessages type=resume target=<to> subject=[text]", resume},
		{"team", "leave", "DeregisterAgent reason=[text]", leave},
	}
}

// content are the arguments that every message may have.
const content = "priority=[priority] type=[type] task_id=[task] files=[files...] payload=[data] in_reply_to=[answers]"

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
	field    string // of the request; "" if the row reads the argument itself
	fixed    string // the value of the field; "" if an argument of the tool gives it
	arg      string // the argument of the tool
	many     bool
	required bool
	choices  string // the condition on the value
}

// parts takes a template apart.
func (r *row) parts() (method string, parts []part) {
	for _, word := range strings.Fields(r.template) {
		var p part
		if field, after, found := strings.Cut(word, "="); found {
			p.field, word = field, after
		}
		switch {
		case word[0] == '<' || word[0] == '[':
			inner, choices, _ := strings.Cut(word[1:len(word)-1], ":")
			p.arg, p.many = strings.CutSuffix(inner, "...")
			p.required, p.choices = word[0] == '<', choices
		case p.field == "":
			method = word
			continue
		default:
			p.fixed = word
		}
		parts = append(parts, p)
	}
	return method, parts
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
