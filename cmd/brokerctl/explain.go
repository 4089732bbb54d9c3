package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

func newExplainCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "explain [[message] ID | lock PATH | token TYPE SCOPE | agent NAME | role ROLE | channel NAME | KIND ID]",
		Short: "Say what is stuck, and which command frees it",
		Long: `Explain why something is stuck: its holder, the waiting agents, since when and why, and the commands that free it, the
best first. Without a subject: the worst problems of the session; for an agent, only what concerns that agent and its
role's queue. A lock is named by a path, or by the number of a fence or ticket. KIND is
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
					c.voice().Finding(w, f)
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

// parseSubject reads what is to be explained.
func parseSubject(args []string) (*pb.ExplainRequest, error) {
	request, err := mcp.ParseSubject(args)
	if err != nil {
		return nil, usagef("%s", strings.Replace(err.Error(), "; write: ", "; write: brokerctl explain ", 1))
	}
	return request, nil
}

// completeSubject completes the kinds, and names of agents.
func (c *cli) completeSubject(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return mcp.SubjectKinds(), cobra.ShellCompDirectiveNoFileComp
	case args[0] == "token":
		return c.completeTokens(cmd, args[1:], to)
	case len(args) == 1:
		lists := map[string]wordList{"message": messageIDWords, "agent": agentNames, "role": roleNames,
			"channel": channelNames, "lock": c.allLocks, "task": taskWords()}
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
		command = prompt.WordsOnly(command)
	}
	rest, ok := strings.CutPrefix(command, "brokerctl ")
	if !ok {
		return command
	}
	s := "brokerctl "
	if c.global.addr != "" {
		s += "--addr " + prompt.ShellWord(c.global.addr) + " "
	}
	if c.global.session != "" && !strings.HasPrefix(rest, "--session ") {
		s += "--session " + prompt.ShellWord(c.global.session) + " "
	}
	if (c.global.operator || c.global.agent != "") && !strings.Contains(rest, "--agent ") {
		s += "--agent " + prompt.ShellWord(c.global.agent) + " "
	}
	return s + rest
}

func severityName(f *pb.Finding) string { return strings.ToUpper(prompt.Enum(f.GetSeverity())) }

// printFinding writes a finding for people.
func (c *cli) printFinding(w io.Writer, f *pb.Finding) {
	since := ""
	if f.GetSince() != nil {
		since = ", " + c.since(f.GetSince())
	}
	fmt.Fprintf(w, "%s  %s%s\n", c.paint(fmt.Sprintf("%-7s", severityName(f))), prompt.OneLine(f.GetSubject()), since)
	fmt.Fprintf(w, "  %s\n", prompt.OneLine(f.GetSummary()))
	for _, reason := range f.GetReasons() {
		fmt.Fprintf(w, "  - %s\n", prompt.OneLine(reason))
	}
	for _, command := range f.GetCommands() {
		fmt.Fprintf(w, "  $ %s\n", prompt.Clean(command))
	}
}
