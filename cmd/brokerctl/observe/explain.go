package observe

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	"brokerd/cmd/brokerctl/internal/words"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// NewExplainCommand returns the command brokerctl explain.
func NewExplainCommand(c *command.Caller) *cobra.Command {
	cmd := &cobra.Command{
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
		ValidArgsFunction:     completeSubject(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := parseSubject(args)
			if err != nil {
				return err
			}
			if lock, ok := request.GetSubject().(*pb.ExplainRequest_Lock); ok && strings.Trim(lock.Lock, "0123456789") != "" {
				paths, err := turn.LockPaths(c, []string{lock.Lock})
				if err != nil {
					return err
				}
				lock.Lock = paths[0]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Admin().Explain(cmd.Context(), request)
			if err != nil {
				return err
			}
			format, err := c.Format()
			if err != nil || format == output.FormatJSON || len(answer.GetFindings()) == 0 {
				none := "nothing is stuck"
				if agent := broker.Identity().Agent; agent != "" {
					none = "nothing that concerns " + agent + " is stuck"
				}
				return output.List(&c.Output, cmd, answer.GetFindings(), output.View[*pb.Finding]{None: none})
			}
			w := cmd.OutOrStdout()
			for i, f := range answer.GetFindings() {
				if format == output.FormatPrompt {
					c.Voice().Finding(w, f)
					continue
				}
				if i > 0 {
					fmt.Fprintln(w)
				}
				printFinding(c, w, f)
			}
			return nil
		},
	}
	return command.Says(c, cmd, func(_ calls.Call, q *pb.ExplainRequest) []string {
		m := q.ProtoReflect()
		subject := m.WhichOneof(m.Descriptor().Oneofs().ByName("subject"))
		if subject == nil {
			return []string{}
		}
		name := []string{m.Get(subject).String()}
		if subject.Name() == "token" {
			name = strings.SplitN(name[0], "/", 2)
		}
		return command.Arguments(append([]string{string(subject.Name())}, name...)...)
	})
}

// parseSubject reads what is to be explained.
func parseSubject(args []string) (*pb.ExplainRequest, error) {
	request, err := mcp.ParseSubject(args)
	if err != nil {
		return nil, problem.Usagef("%s", strings.Replace(err.Error(), "; write: ", "; write: brokerctl explain ", 1))
	}
	return request, nil
}

// completeSubject completes the kinds, and names of agents.
func completeSubject(c *command.Caller) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return mcp.SubjectKinds(), cobra.ShellCompDirectiveNoFileComp
		case args[0] == "token" && len(args) < 3:
			return c.Words(cmd, words.TokenWords(strings.Join(args[1:], "")))
		case len(args) == 1:
			lists := map[string]command.WordList{
				"message": words.MessageIDWords, "agent": words.AgentNames, "role": words.RoleNames,
				"channel": words.ChannelNames, "lock": words.AllLocks(c), "task": words.TaskWords(),
			}
			if list := lists[args[0]]; list != nil {
				return c.Words(cmd, list)
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func severityName(f *pb.Finding) string { return strings.ToUpper(prompt.Enum(f.GetSeverity())) }

// printFinding writes a finding for people.
func printFinding(c *command.Caller, w io.Writer, f *pb.Finding) {
	since := prompt.Either(f.GetSince() != nil, ", "+c.Since(f.GetSince()), "")
	fmt.Fprintf(w, "%s  %s%s\n", c.Paint(fmt.Sprintf("%-7s", severityName(f))), prompt.OneLine(f.GetSubject()), since)
	fmt.Fprintf(w, "  %s\n", prompt.OneLine(f.GetSummary()))
	for _, reason := range f.GetReasons() {
		fmt.Fprintf(w, "  - %s\n", prompt.OneLine(reason))
	}
	for _, call := range f.GetCalls() {
		fmt.Fprintf(w, "  $ %s\n", prompt.Clean(c.Proposed(call)))
	}
}
