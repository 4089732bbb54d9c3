package mcp

import (
	"strconv"
	"strings"
	"unicode"

	pb "brokerd/gen/brokerd/v1"
)

// ParseReceiver reads the one grammar for receivers: NAME, role:NAME, channel:NAME, a pattern, everyone. The broker
// checks names, and resolves all_ROLE.
func ParseReceiver(s string) (*pb.Target, error) {
	kind, name, qualified := strings.Cut(s, ":")
	switch {
	case s == "":
		return nil, argumentf("the receiver is empty: give an agent's name, role:NAME, channel:NAME, a pattern such as " +
			"'builder-*', or everyone")
	case s == "everyone", s == "all", s == "ALL", s == "*":
		return &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, nil
	case qualified && (kind == "role" || kind == "channel"):
		if name == "" {
			return nil, argumentf("receiver %q names no %s: write %s:NAME", s, kind, kind)
		}
		if strings.ContainsAny(name, "*?") {
			return nil, argumentf("receiver %q: patterns match agents' names only, not a %s's", s, kind)
		}
		if kind == "role" {
			return &pb.Target{To: &pb.Target_Role{Role: name}}, nil
		}
		return &pb.Target{To: &pb.Target_Channel{Channel: name}}, nil
	case strings.ContainsAny(s, "*?"):
		return &pb.Target{To: &pb.Target_Pattern{Pattern: s}}, nil
	}
	return &pb.Target{To: &pb.Target_Agent{Agent: s}}, nil
}

// ParseAgentOrRole reads a receiver that is an agent or a role.
func ParseAgentOrRole(s string) (agent, role string, err error) {
	target, err := ParseReceiver(s)
	if err != nil {
		return "", "", err
	}
	switch to := target.GetTo().(type) {
	case *pb.Target_Agent:
		return to.Agent, "", nil
	case *pb.Target_Role:
		return "", to.Role, nil
	}
	return "", "", argumentf("receiver %q: name an agent or a role: NAME or role:NAME", s)
}

// priorities are the names for priorities.
var priorities = map[string]int32{"low": 3, "normal": 5, "high": 7, "critical": 10}

// ParsePriority reads a number or a name; "" is 0, the broker's default. what is the option or argument, for errors.
func ParsePriority(what, s string) (int32, error) {
	if s == "" {
		return 0, nil
	}
	if n, ok := priorities[strings.ToLower(s)]; ok {
		return n, nil
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 || n > 10 {
		return 0, argumentf("%s %q is neither 1 to 10 nor low, normal, high or critical", what, s)
	}
	return int32(n), nil
}

// ParseFile reads PATH or PATH:LINE. what is the option or argument, for errors.
func ParseFile(what, s string) (*pb.FileReference, error) {
	if i := strings.LastIndexByte(s, ':'); i > 0 {
		if line, err := strconv.ParseInt(s[i+1:], 10, 32); err == nil {
			if line < 1 {
				return nil, argumentf("%s %q: lines count from 1", what, s)
			}
			return &pb.FileReference{Path: s[:i], Line: int32(line)}, nil
		}
	}
	if s == "" {
		return nil, argumentf("%s is empty: write PATH or PATH:LINE", what)
	}
	return &pb.FileReference{Path: s}, nil
}

// SetText puts a text into a message: into the subject if it is one short line or if the message has a body already,
// else into the body.
func SetText(m *pb.Message, text string) {
	const most = 200 // bytes
	if m.GetBody() != "" || len(text) <= most && !strings.ContainsFunc(text, unicode.IsControl) {
		m.Subject = text
		return
	}
	m.Body = text
}

// ParseAwaited reads the object that a blocker waits for; nil for "".
func ParseAwaited(s string) *pb.AwaitedObject {
	kind, name, _ := strings.Cut(s, ":")
	switch {
	case s == "":
		return nil
	case kind == "role":
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Role{Role: name}}
	case kind == "task":
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_TaskId{TaskId: name}}
	case kind == "lock":
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Lock{Lock: name}}
	case kind == "text":
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: name}}
	case strings.Contains(s, " "): // no name of an agent
		return &pb.AwaitedObject{Object: &pb.AwaitedObject_Text{Text: s}}
	}
	return &pb.AwaitedObject{Object: &pb.AwaitedObject_Agent{Agent: s}}
}

// ParseElectorate reads into a request who may vote: agents, one role, or everyone. what is the option or argument,
// for errors.
func ParseElectorate(what string, request *pb.OpenVoteRequest, to []string) error {
	var agents []string
	for _, s := range to {
		target, err := ParseReceiver(s)
		if err != nil {
			return err
		}
		agent, isAgent := target.GetTo().(*pb.Target_Agent)
		switch role, isRole := target.GetTo().(*pb.Target_Role); {
		case isAgent:
			agents = append(agents, agent.Agent)
		case isRole && len(to) == 1:
			request.Electorate = &pb.OpenVoteRequest_Role{Role: role.Role}
		case s == "everyone" && len(to) == 1:
			request.Electorate = &pb.OpenVoteRequest_Everyone{Everyone: true}
		default:
			return argumentf("%s %q: an electorate is agents, or one role as role:NAME, or everyone", what, s)
		}
	}
	if len(agents) > 0 {
		request.Electorate = &pb.OpenVoteRequest_Agents{Agents: &pb.Names{Names: agents}}
	}
	return nil
}

// A subject is a kind of thing that can be explained.
type subject struct {
	kind string
	args []string // what names one
	set  func(r *pb.ExplainRequest, args []string)
}

// subjects are all of them.
var subjects = []subject{
	{"message", []string{"the message's id or revision"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Message{Message: args[0]}
	}},
	{"lock", []string{"the path, the fence or the ticket"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Lock{Lock: args[0]}
	}},
	{"token", []string{"the token's type", "its scope"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Token{Token: args[0] + "/" + args[1]}
	}},
	{"agent", []string{"the agent's name"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Agent{Agent: args[0]}
	}},
	{"role", []string{"the role"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Role{Role: args[0]}
	}},
	{"channel", []string{"the channel"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Channel{Channel: args[0]}
	}},
	{"task", []string{"the task's id"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Task{Task: args[0]}
	}},
	{"decision", []string{"the decision's id"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Decision{Decision: args[0]}
	}},
	{"blocker", []string{"the blocker's id"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Blocker{Blocker: args[0]}
	}},
	{"handoff", []string{"the handoff's id"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Handoff{Handoff: args[0]}
	}},
	{"vote", []string{"the vote's id"}, func(r *pb.ExplainRequest, args []string) {
		r.Subject = &pb.ExplainRequest_Vote{Vote: args[0]}
	}},
}

// SubjectKinds returns the kinds of things that can be explained.
func SubjectKinds() []string {
	var kinds []string
	for _, s := range subjects {
		kinds = append(kinds, s.kind)
	}
	return kinds
}

// ParseSubject reads what is to be explained: a kind and what names one, a message's id, or nothing.
func ParseSubject(args []string) (*pb.ExplainRequest, error) {
	request := &pb.ExplainRequest{}
	if len(args) == 0 {
		return request, nil
	}
	for _, s := range subjects {
		if s.kind != args[0] {
			continue
		}
		switch words := args[1:]; {
		case len(words) < len(s.args):
			return nil, argumentf("%s is missing", s.args[len(words)])
		case len(words) > len(s.args):
			return nil, argumentf("argument %q is one too many; a text of several words needs quotes", words[len(s.args)])
		default:
			s.set(request, words)
			return request, nil
		}
	}
	if len(args) == 1 && conditions["message"].MatchString(args[0]) {
		request.Subject = &pb.ExplainRequest_Message{Message: args[0]}
		return request, nil
	}
	return nil, argumentf("cannot explain %q; write: message ID, lock PATH, token TYPE SCOPE, "+
		"agent NAME, role ROLE, channel NAME, or task, decision, blocker, handoff or vote ID", args[0])
}
