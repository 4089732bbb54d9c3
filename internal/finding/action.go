package finding

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"
	"time"
)

// An Action is a call of the API that does what a command does.
type Action struct {
	Method  string // such as /brokerd.v1.MessageService/RedriveDeadLetters
	Request string // a JSON object with the field names of the proto
	Agent   string // in whose name the call is made; empty = the caller of Explain
}

// Action returns the call that does what a command does at a time. It returns false for a command
// that only shows something, that starts a program, or that needs further content.
func (words Command) Action(now time.Time) (Action, bool) {
	l := parse(words)
	c, found := calls[l.verb]
	if !found {
		return Action{}, false
	}
	request := c.request(&l, now)
	maps.DeleteFunc(request, func(_ string, v any) bool {
		list, isList := v.([]string)
		return v == "" || isList && len(list) == 0
	})
	text, err := json.Marshal(request)
	return Action{Method: "/brokerd.v1." + c.method, Request: string(text), Agent: l.agent}, err == nil
}

// A line is a command taken apart.
type line struct {
	agent   string // that acts; empty = the caller
	verb    string // such as dlq redrive, or release
	args    []string
	options map[string][]string // without the dashes
}

func parse(words Command) line {
	l := line{options: map[string][]string{}}
	for i := 0; i < len(words); i++ {
		name, option := strings.CutPrefix(words[i], "--")
		switch {
		case !option:
			l.args = append(l.args, words[i])
		case i+1 < len(words):
			i++
			l.options[name] = append(l.options[name], words[i])
		}
	}
	l.agent = l.option("agent")
	n := min(2, len(l.args))
	if n > 0 && calls[l.args[0]].request != nil {
		n = 1
	}
	l.verb, l.args = strings.Join(l.args[:n], " "), l.args[n:]
	return l
}

// option returns the value of an option, or an empty text.
func (l *line) option(name string) string { return strings.Join(l.options[name], "") }

// arg returns an argument, or an empty text.
func (l *line) arg(i int) string {
	if i < len(l.args) {
		return l.args[i]
	}
	return ""
}

// A request is the request of a call. Empty texts and lists are left out.
type request map[string]any

// A call is a method, and its request for a command.
type call struct {
	method  string
	request func(l *line, now time.Time) request
}

// calls has the call of each command that changes something, by its first words.
var calls = map[string]call{
	"admin drain": {"AdminService/Drain", func(*line, time.Time) request { return request{"resume": true} }},
	"admin move": {"AdminService/MoveMessages", func(l *line, _ time.Time) request {
		return request{"from": l.arg(0), "to": l.arg(1), "ids": l.options["id"]}
	}},
	"agent deregister": {"AgentService/DeregisterAgent", func(l *line, _ time.Time) request {
		l.agent = l.arg(0)
		return request{}
	}},
	"agent nudge":     {"MessageService/SendMessages", directive},
	"agent register":  {"AgentService/RegisterAgent", registration},
	"agent resume":    {"MessageService/SendMessages", directive},
	"blocker ack":     {"BlockerService/AcknowledgeBlocker", named("id")},
	"blocker resolve": {"BlockerService/ResolveBlocker", named("id")},
	"decision accept": {"DecisionService/Decide", verdict},
	"decision cancel": {"DecisionService/CancelDecision", named("id")},
	"decision decide": {"DecisionService/Decide", verdict},
	"decision defer":  {"DecisionService/Decide", verdict},
	"decision reject": {"DecisionService/Decide", verdict},
	"dlq delete":      {"MessageService/PurgeDeadLetters", deadLetters},
	"dlq redrive":     {"MessageService/RedriveDeadLetters", deadLetters},
	"handoff cancel":  {"HandoffService/CancelHandoff", named("id")},
	"lock release": {"LockService/ReleaseLocks", func(l *line, _ time.Time) request {
		return request{"fences": numbers(l.args), "tickets": numbers(l.args)} // each is one of both
	}},
	"lock revoke": {"LockService/ForceReleaseLocks", func(l *line, _ time.Time) request {
		return request{"revisions": numbers(l.args), "reason": l.option("reason")}
	}},
	"message cancel": {"MessageService/CancelMessage", named("id")},
	"message resend": {"MessageService/ResendMessage", named("id")},
	"plan approve":   {"DecisionService/Decide", verdict},
	"plan reject":    {"DecisionService/Decide", verdict},
	"plan revise":    {"DecisionService/Decide", verdict},
	"release": {"MessageService/ReleaseClaims", func(l *line, _ time.Time) request {
		return request{"ids": l.args}
	}},
	"review approve": {"DecisionService/Decide", verdict},
	"review reject":  {"DecisionService/Decide", verdict},
	"review revise":  {"DecisionService/Decide", verdict},
	"session configure": {"SessionService/ConfigureSession", func(l *line, _ time.Time) request {
		return request{"settings": request{"mailbox_limit": json.Number(l.option("mailbox-limit"))}}
	}},
	"task cancel":  {"TaskService/CancelTask", named("id")},
	"task release": {"TaskService/ReleaseTask", named("id")},
	"task retry":   {"TaskService/RetryTask", named("id")},
	"thread resolve": {"MessageService/ResolveThread", func(l *line, _ time.Time) request {
		return request{"thread_id": l.arg(0), "outcome": strings.Join(l.args[1:], " ")}
	}},
	"token release": {"TokenService/ReleaseToken", token},
	"token revoke":  {"TokenService/RevokeToken", token},
	"vote close":    {"VoteService/CloseVote", named("id")},
}

// named returns the request of a command with one argument.
func named(field string) func(*line, time.Time) request {
	return func(l *line, _ time.Time) request { return request{field: l.arg(0)} }
}

func deadLetters(l *line, _ time.Time) request {
	return request{"ids": l.args, "mailbox": l.option("mailbox")}
}

func token(l *line, _ time.Time) request {
	return request{"type": l.arg(0), "scope": l.arg(1), "holder": l.option("holder"), "reason": l.option("reason")}
}

// directive sends the directive that the verb names.
func directive(l *line, _ time.Time) request {
	kind, name, qualified := strings.Cut(l.arg(0), ":")
	if !qualified {
		kind, name = "agent", l.arg(0)
	}
	const highest = 10 // priority
	message := request{
		"target": request{kind: name}, "type": strings.TrimPrefix(l.verb, "agent "), "priority": highest,
		"subject": strings.Join(l.args[1:], " "),
	}
	return request{"messages": []request{message}}
}

// registration registers an agent with the description that the options give.
func registration(l *line, _ time.Time) request {
	l.agent = l.arg(0)
	labels := request{}
	for _, label := range l.options["label"] {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	lease, _ := time.ParseDuration(l.option("lease")) // the registry has formatted it
	return request{
		"role": l.option("role"), "capabilities": l.options["capability"], "instance": l.option("instance"),
		"worktree": l.option("worktree"), "labels": labels, "display_name": l.option("display-name"),
		"description": l.option("description"), "lease": strconv.FormatFloat(lease.Seconds(), 'f', -1, 64) + "s",
	}
}

// verdict decides: as the verb says, or as an argument of decision decide. A verdict that defers has
// a duration.
func verdict(l *line, now time.Time) request {
	_, word, _ := strings.Cut(l.verb, " ")
	wait := l.arg(1)
	if word == "decide" {
		word, wait = l.arg(1), l.option("for")
	}
	r := request{"id": l.arg(0), "verdict": word}
	if d, err := time.ParseDuration(wait); err == nil {
		r["until"] = now.Add(d).UTC().Format(time.RFC3339Nano)
	}
	return r
}

// numbers returns words that are numbers as JSON has them.
func numbers(words []string) []json.Number {
	list := make([]json.Number, len(words))
	for i, word := range words {
		list[i] = json.Number(word)
	}
	return list
}
