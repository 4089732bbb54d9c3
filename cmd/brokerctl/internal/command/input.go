package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// ParsePriority reads a number or a name; "" is 0, the broker's default.
func ParsePriority(flag, s string) (int32, error) {
	n, err := mcp.ParsePriority("--"+flag, s)
	return n, AsUsage(err)
}

// ParseFile reads PATH or PATH:LINE.
func ParseFile(s string) (*pb.FileReference, error) {
	f, err := mcp.ParseFile("--file", s)
	return f, AsUsage(err)
}

// Text returns the value of an option that may name a source: @FILE is read, - is standard input, and @@
// begins a text with one @.
func (c *Caller) Text(cmd *cobra.Command, flag, s string) (string, error) {
	var b []byte
	var err error
	switch {
	case s == "-":
		b, err = io.ReadAll(cmd.InOrStdin())
	case strings.HasPrefix(s, "@@"):
		return s[1:], nil
	case strings.HasPrefix(s, "@"):
		b, err = c.Env.ReadFile(s[1:])
	default:
		return s, nil
	}
	if err != nil {
		return "", problem.Usagef("--%s %s: %v (a text that begins with @ is written @@)", flag, s, err)
	}
	return string(b), nil
}

// JSONInput is text for an option that wants JSON, without white space around it.
func (c *Caller) JSONInput(cmd *cobra.Command, flag, s string) (string, error) {
	s, err := c.RawJSON(cmd, flag, s)
	return strings.TrimSpace(s), err
}

// RawJSON is jsonInput with the white space.
func (c *Caller) RawJSON(cmd *cobra.Command, flag, s string) (string, error) {
	s, err := c.Text(cmd, flag, s)
	if err != nil || s == "" {
		return "", err
	}
	var v json.RawMessage
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return "", problem.Usagef(
			`--%s is not JSON: %v (a plain text is written '"in quotes"', or goes to --body)`, flag, err)
	}
	return s, nil
}

// parseLabels reads KEY=VALUE options.
func parseLabels(pairs []string) (map[string]string, error) {
	labels := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, problem.Usagef("--label %q is not KEY=VALUE", pair)
		}
		labels[key] = value
	}
	return labels, nil
}

// ParseTime reads a time: RFC 3339, or a duration that lies back (forward = -1 for the past, 1 for the future).
func (c *Caller) ParseTime(flag, s string, forward time.Duration) (*timestamppb.Timestamp, error) {
	if s == "" {
		return nil, nil
	}
	if d, err := ParseDuration(s); err == nil && d >= 0 {
		return timestamppb.New(c.Env.Now().Add(forward * d)), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return nil, problem.Usagef(
			"--%s %q is neither a duration such as 90s or 2d nor a time such as 2026-01-02T15:04:05Z", flag, s)
	}
	return timestamppb.New(t), nil
}

// Duration converts an option; 0 = absent, so that the broker's default holds.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// AtLeast refuses a command line without the first arguments; more may follow.
func AtLeast(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return problem.Usagef("%s is missing", names[len(args)])
		}
		return nil
	}
}

// Exactly is cobra.ExactArgs with an error that says what is missing.
func Exactly(names ...string) cobra.PositionalArgs {
	return Between(len(names), names...)
}

// Between wants at least that many of the named arguments.
func Between(least int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least {
			return problem.Usagef("%s is missing", names[len(args)])
		}
		if len(args) > len(names) {
			return problem.Usagef("argument %q is one too many; a text of several words needs quotes", args[len(names)])
		}
		return nil
	}
}

// mayBeEmpty is the annotation of a command with the words for its arguments that may be empty.
const mayBeEmpty = "may be empty"

// MayBeEmpty reports whether the argument of a command with a word in its usage may be empty. An empty name or id must
// not stand for the only open claim or task.
func MayBeEmpty(cmd *cobra.Command, word string) bool {
	return slices.Contains(strings.Fields(cmd.Annotations[mayBeEmpty]), word)
}

// RefuseEmptyArguments makes the command and all below it refuse empty arguments, except texts and the
// arguments after --.
func RefuseEmptyArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		RefuseEmptyArguments(sub)
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		words, end := ArgumentWords(cmd), len(args)
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			end = dash
		}
		for i, arg := range args[:end] {
			if arg != "" || len(words) == 0 {
				continue
			}
			if word := words[min(i, len(words)-1)]; !MayBeEmpty(cmd, word) {
				return problem.Usagef("argument %d, %s, is empty; is a variable of the shell not set?", i+1, word)
			}
		}
		if check == nil {
			return nil
		}
		return check(cmd, args)
	}
}

// ArgumentWords returns the words for the arguments in the usage of a command, those after -- left out.
func ArgumentWords(cmd *cobra.Command) []string {
	words := argumentsOf(cmd.Use)
	for i, word := range words {
		words[i], _, _ = strings.Cut(strings.Trim(word, "[]."), "[")
	}
	return words
}

// ParseReceiver reads the one grammar for receivers: NAME, role:NAME, channel:NAME, a pattern,
// everyone. The broker checks names, and resolves all_ROLE.
func ParseReceiver(s string) (*pb.Target, error) {
	target, err := mcp.ParseReceiver(s)
	return target, AsUsage(err)
}

// AgentOrRole reads a receiver that is an agent or a role.
func AgentOrRole(s string) (agent, role string, err error) {
	agent, role, err = mcp.ParseAgentOrRole(s)
	return agent, role, AsUsage(err)
}

// AsUsage returns the error of a command line that cannot be read; nil for nil.
func AsUsage(err error) error {
	if err == nil {
		return nil
	}
	return problem.Usagef("%v", err)
}

// Warn prints the broker's warnings about what it has accepted. For a language model they are in a frame,
// because they quote what others have written, such as the schema of a type.
func (c *Caller) Warn(cmd *cobra.Command, warnings []string) {
	if len(warnings) > 0 && c.ForModel() {
		fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: %s\n%s", prompt.Count(len(warnings), "warning"), prompt.Frame(
			c.Env.Mark(), "warnings of the broker, which may quote other agents", strings.Join(warnings, "\n")))
		return
	}
	for _, text := range warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "brokerctl: warning: %s\n", prompt.OneLine(text))
	}
}

// Clipped shortens a text to at most that many bytes, at the end of a character.
func Clipped(s *string, most int) *string {
	if s == nil || len(*s) <= most {
		return s
	}
	cut := most - len("…")
	for !utf8.RuneStart((*s)[cut]) {
		cut--
	}
	return proto.String((*s)[:cut] + "…")
}
