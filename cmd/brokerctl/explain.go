package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/toolcall"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

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

func newExplainCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [[message] ID | lock PATH | token TYPE SCOPE | agent NAME | role ROLE | KIND ID]",
		Short: "Say what is stuck, and which command frees it",
		Long: `Explain why something is stuck: its holder, the waiting agents, since when and why, and the commands that free it. The
commands can be run as printed, the best first. Without a subject: the worst problems of the session; for an agent, only
what concerns that agent and its role's queue. A lock is named by a path, or by the number of a fence or ticket. KIND is
task, decision, blocker, handoff or vote.

Severities: ERROR, stuck until an agent or an operator acts; WARNING, slow or at risk; INFO, as it should be.`,
		Example: `  brokerctl explain
  brokerctl --agent builder-1 explain
  brokerctl explain 4711
  brokerctl explain lock src/login.go
  brokerctl explain token review login
  brokerctl explain task login-api`,
		DisableFlagsInUseLine: true,
		Args:                  func(_ *cobra.Command, args []string) error { _, err := parseSubject(args); return err },
		ValidArgsFunction:     c.completeSubject,
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := parseSubject(args)
			if err != nil {
				return err
			}
			if lock, ok := request.GetSubject().(*pb.ExplainRequest_Lock); ok && strings.Trim(lock.Lock, "0123456789") != "" {
				paths, err := c.lockPaths([]string{lock.Lock})
				if err != nil {
					return err
				}
				lock.Lock = paths[0]
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().Explain(cmd.Context(), request)
			if err != nil {
				return err
			}
			for _, f := range answer.GetFindings() {
				for i, command := range f.GetCommands() {
					f.Commands[i] = c.likewise(command)
				}
			}
			format, err := c.format()
			if err != nil || format == formatJSON || len(answer.GetFindings()) == 0 {
				none := "nothing is stuck"
				if agent := broker.Identity().Agent; agent != "" {
					none = "nothing that concerns " + agent + " is stuck"
				}
				return list(c, cmd, answer.GetFindings(), view[*pb.Finding]{none: none})
			}
			w := cmd.OutOrStdout()
			for i, f := range answer.GetFindings() {
				if format == formatPrompt {
					c.promptFinding(w, f)
					continue
				}
				if i > 0 {
					fmt.Fprintln(w)
				}
				c.printFinding(w, f)
			}
			return nil
		},
	}
}

// messageID matches a message's revision, id or claim id.
var messageID = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// parseSubject reads what is to be explained.
func parseSubject(args []string) (*pb.ExplainRequest, error) {
	request := &pb.ExplainRequest{}
	if len(args) == 0 {
		return request, nil
	}
	for _, s := range subjects {
		if s.kind == args[0] {
			if err := exactly(s.args...)(nil, args[1:]); err != nil {
				return nil, err
			}
			s.set(request, args[1:])
			return request, nil
		}
	}
	if len(args) == 1 && messageID.MatchString(args[0]) {
		request.Subject = &pb.ExplainRequest_Message{Message: args[0]}
		return request, nil
	}
	return nil, usagef("cannot explain %q; write: brokerctl explain message ID, lock PATH, token TYPE SCOPE, "+
		"agent NAME, role ROLE, or task, decision, blocker, handoff or vote ID", args[0])
}

// completeSubject completes the kinds, and names of agents.
func (c *cli) completeSubject(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		var kinds []string
		for _, s := range subjects {
			kinds = append(kinds, s.kind)
		}
		return kinds, cobra.ShellCompDirectiveNoFileComp
	case args[0] == "token":
		return c.completeTokens(cmd, args[1:], to)
	case len(args) == 1:
		lists := map[string]wordList{"message": messageIDWords, "agent": agentNames, "role": roleNames, "lock": c.allLocks, "task": taskWords()}
		if list := lists[args[0]]; list != nil {
			return c.words(cmd, list)
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// likewise adds to a suggested command the global options of this run that the broker does not know. For a
// language model, it replaces the words that are texts of others, such as the scope of a token.
func (c *cli) likewise(command string) string {
	if c.forModel() {
		command = wordsOnly(command)
	}
	rest, ok := strings.CutPrefix(command, "brokerctl ")
	if !ok {
		return command
	}
	if c.tools {
		return toolCall(strings.TrimPrefix(rest, "--session "+shellWord(c.client.Identity().Session)+" "))
	}
	s := "brokerctl "
	if c.global.addr != "" {
		s += "--addr " + shellWord(c.global.addr) + " "
	}
	if c.global.session != "" && !strings.HasPrefix(rest, "--session ") {
		s += "--session " + shellWord(c.global.session) + " "
	}
	if (c.global.operator || c.global.agent != "") && !strings.Contains(rest, "--agent ") {
		s += "--agent " + shellWord(c.global.agent) + " "
	}
	return s + rest
}

// wordsOnly replaces the arguments of a command line that are no single words by TEXT.
func wordsOnly(command string) string {
	words := toolcall.Split(command)
	for i, word := range words {
		if !prompt.Word(word) {
			words[i] = "TEXT"
		}
	}
	return strings.Join(words, " ")
}

func severityName(f *pb.Finding) string { return strings.ToUpper(enumOf(f.GetSeverity())) }

// printFinding writes a finding for people.
func (c *cli) printFinding(w io.Writer, f *pb.Finding) {
	since := ""
	if f.GetSince() != nil {
		since = ", " + c.since(f.GetSince())
	}
	fmt.Fprintf(w, "%s  %s%s\n", c.paint(fmt.Sprintf("%-7s", severityName(f))), oneLine(f.GetSubject()), since)
	fmt.Fprintf(w, "  %s\n", oneLine(f.GetSummary()))
	for _, reason := range f.GetReasons() {
		fmt.Fprintf(w, "  - %s\n", oneLine(reason))
	}
	for _, command := range f.GetCommands() {
		fmt.Fprintf(w, "  $ %s\n", clean(command))
	}
}

// promptFinding writes a finding for a language model.
func (c *cli) promptFinding(w io.Writer, f *pb.Finding) {
	since := ""
	if f.GetSince() != nil {
		since = ", " + c.since(f.GetSince())
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s%s: %s\n", severityName(f), oneLine(f.GetSubject()), since, oneLine(f.GetSummary()))
	for _, reason := range f.GetReasons() {
		fmt.Fprintf(&text, "Because: %s\n", oneLine(reason))
	}
	framed(w, "a finding of the broker, which may quote other agents", text.String())
	for _, command := range f.GetCommands() {
		say(w, "Run: %s", command)
	}
}
