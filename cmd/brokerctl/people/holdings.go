package people

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/turn"
	pb "brokerd/gen/brokerd/v1"
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
		what := prompt.Either(t.GetToken(),
			"token "+prompt.ResourceName(strings.Join(t.GetResources(), " "), true), prompt.Paths(t.GetResources()))
		add("waits for %s at place %d, ticket %d", what, t.GetPosition(), t.GetTicket())
	}
	for _, q := range h.GetToAnswer() {
		add("owes an answer to %s: %s", c.Voice().Question(q, true), c.Voice().Answer(q))
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
		s += prompt.Either(more != "", ", "+more, "")
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

// readCounters reads what an agent has counted: COUNTER=N, several with commas.
func readCounters(g *command.Given, to command.Target, texts []string) error {
	counters := (&pb.Counters{}).ProtoReflect()
	for text := range strings.SplitSeq(strings.Join(texts, ","), ",") {
		name, number, _ := strings.Cut(text, "=")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return problem.Usagef("--count: %q is not a number (see %s --help)", text, g.Cmd.CommandPath())
		}
		f := counters.Descriptor().Fields().ByName(protoreflect.Name(name))
		if f == nil {
			return problem.Usagef("--count %q is none of turns, model_tokens, files, tool_calls, errors", name)
		}
		counters.Set(f, protoreflect.ValueOfInt64(n))
	}
	to.Set(protoreflect.ValueOfMessage(counters))
	return nil
}

var agentCheckpoint = command.Spec[*pb.SaveCheckpointRequest, *pb.SaveCheckpointResponse]{
	Page: command.Page{
		Use:   "checkpoint [REFERENCE]",
		Short: "Record progress, to resume after a crash",
		Long: `Record progress, to resume after a crash; agent get --full shows the last 20
checkpoints, newest first. REFERENCE is what the checkpoint is about, such as a
message's id.`,
		Example: `  brokerctl --agent builder-1 agent checkpoint t1 --data '{"step":"tests"}'`,
	},
	Args: []command.Arg{{Field: "reference", Name: "the reference"}},
	Options: []command.Option{
		{Field: "kind", Usage: "{} (default: custom)"},
		{Field: "data", Kind: command.JSON, Usage: "any JSON; @FILE reads a file, - standard input"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.SaveCheckpointRequest, a *pb.SaveCheckpointResponse) {
		prompt.Say(w, "saved %d", a.GetRevision())
	},
}
