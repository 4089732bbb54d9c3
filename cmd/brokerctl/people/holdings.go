package people

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// holdingLines describes what an agent holds, waits for and has open, one line for each.
func holdingLines(c *command.Caller, h *pb.Holdings) []string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, prompt.OneLine(fmt.Sprintf(format, args...))) }
	for _, claim := range h.GetClaims() {
		add("claim %s, attempt %d: %s from %s%s", claim.GetClaimId(), claim.GetAttempt(), claim.GetType(), claim.GetSender(),
			prompt.Either(claim.GetSubject() != "", ", "+prompt.Clip(claim.GetSubject(), 60), ""))
	}
	for _, l := range h.GetLocks() {
		add("lock %s%s, ends %s, fence %d%s", prompt.Paths(l.GetPaths()), prompt.Either(l.GetShared(), " (shared)", ""), c.When(l.GetHeldUntil()), l.GetFence(), ofHolder(l.GetHolder()))
	}
	for _, k := range h.GetTokens() {
		add("token %s, ends %s, fence %d%s", turn.TokenName(k.GetType(), k.GetScope()), c.When(k.GetHeldUntil()), k.GetFence(), ofHolder(k.GetHolder()))
	}
	for _, t := range h.GetTickets() {
		what := prompt.Paths(t.GetResources())
		if t.GetToken() {
			what = "token " + prompt.ResourceName(strings.Join(t.GetResources(), " "), true)
		}
		add("waits for %s at place %d, ticket %d", what, t.GetPosition(), t.GetTicket())
	}
	for _, q := range h.GetToAnswer() {
		add("owes an answer to %s: %s", c.Voice().Question(q, true), c.Command("reply %d ANSWER", q.GetRevision()))
	}
	for _, q := range h.GetAsked() {
		add("has no answer yet to %s", strings.TrimSpace(c.Voice().Question(q, true)))
	}
	for _, i := range h.GetWork() {
		add("%s", c.Voice().ItemLine(i, true))
	}
	return lines
}

func ofHolder(holder string) string {
	return prompt.Either(holder != "", ", holder "+prompt.Clip(holder, 64), "")
}

// checkpointLine says how far an agent has come.
func checkpointLine(c *command.Caller, k *pb.Checkpoint) string {
	s := fmt.Sprintf("%s: %s", c.When(k.GetSavedAt()), prompt.Enum(k.GetKind()))
	for _, more := range []string{k.GetReference(), prompt.Clip(k.GetData(), 60)} {
		if more != "" {
			s += ", " + more
		}
	}
	return s
}

// counted says what an agent has counted.
func counted(n *pb.Counters) string {
	if n == nil {
		return ""
	}
	var parts []string
	for _, p := range []struct {
		n    *int64
		noun string
	}{{n.Turns, "turn"}, {n.ModelTokens, "model token"}, {n.Files, "file"}, {n.ToolCalls, "tool call"}, {n.Errors, "error"}} {
		if p.n != nil {
			parts = append(parts, prompt.Count(*p.n, p.noun))
		}
	}
	return strings.Join(parts, ", ")
}

// parseCounters reads what an agent has counted.
func parseCounters(given map[string]int64) (*pb.Counters, error) {
	if len(given) == 0 {
		return nil, nil
	}
	counters := &pb.Counters{}
	fields := counters.ProtoReflect().Descriptor().Fields()
	for name, n := range given {
		f := fields.ByName(protoreflect.Name(name))
		if f == nil {
			return nil, problem.Usagef("--count %q is none of turns, model_tokens, files, tool_calls, errors", name)
		}
		counters.ProtoReflect().Set(f, protoreflect.ValueOfInt64(n))
	}
	return counters, nil
}

func newAgentCheckpointCommand(c *command.Caller) *cobra.Command {
	request := &pb.SaveCheckpointRequest{}
	var kind, data string
	cmd := &cobra.Command{
		Use:   "checkpoint [REFERENCE]",
		Short: "Record progress, to resume after a crash",
		Long: `Record progress, to resume after a crash; agent get --full shows the last 20
checkpoints, newest first. REFERENCE is what the checkpoint is about, such as a
message's id.`,
		Example:           `  brokerctl --agent builder-1 agent checkpoint t1 --data '{"step":"tests"}'`,
		Args:              command.Between(0, "the reference"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				request.Reference = args[0]
			}
			number, err := output.ParseEnum("kind", pb.CheckpointKind(0).Descriptor(), kind)
			if err != nil {
				return err
			}
			request.Kind = pb.CheckpointKind(number)
			if request.Data, err = c.JSONInput(cmd, "data", data); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Agents().SaveCheckpoint(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) { prompt.Say(w, "saved %d", answer.GetRevision()) })
		},
	}
	kinds := jsonform.EnumNames(pb.CheckpointKind(0).Descriptor())
	cmd.Flags().StringVar(&kind, "kind", "", strings.Join(kinds, ", ")+" (default: custom)")
	cmd.Flags().StringVar(&data, "data", "", "any JSON; @FILE reads a file, - standard input")
	command.AddRequestID(cmd, &request.RequestId)
	command.Must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}
