package main

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/mcp"
)

// parsePriority reads a number or a name; "" is 0, the broker's default.
func parsePriority(flag, s string) (int32, error) {
	n, err := mcp.ParsePriority("--"+flag, s)
	return n, asUsage(err)
}

// parseFile reads PATH or PATH:LINE.
func parseFile(s string) (*pb.FileReference, error) {
	f, err := mcp.ParseFile("--file", s)
	return f, asUsage(err)
}

// text returns the value of an option that may name a source: @FILE is read, - is standard input, and @@
// begins a text with one @.
func (c *cli) text(cmd *cobra.Command, flag, s string) (string, error) {
	var b []byte
	var err error
	switch {
	case s == "-":
		b, err = io.ReadAll(cmd.InOrStdin())
	case strings.HasPrefix(s, "@@"):
		return s[1:], nil
	case strings.HasPrefix(s, "@"):
		b, err = c.env.readFile(s[1:])
	default:
		return s, nil
	}
	if err != nil {
		return "", usagef("--%s %s: %v (a text that begins with @ is written @@)", flag, s, err)
	}
	return string(b), nil
}

// jsonInput is text for an option that wants JSON, without white space around it.
func (c *cli) jsonInput(cmd *cobra.Command, flag, s string) (string, error) {
	s, err := c.rawJSON(cmd, flag, s)
	return strings.TrimSpace(s), err
}

// rawJSON is jsonInput with the white space.
func (c *cli) rawJSON(cmd *cobra.Command, flag, s string) (string, error) {
	s, err := c.text(cmd, flag, s)
	if err != nil || s == "" {
		return "", err
	}
	var v json.RawMessage
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		return "", usagef(`--%s is not JSON: %v (a plain text is written '"in quotes"', or goes to --body)`, flag, err)
	}
	return s, nil
}

// parseLabels reads KEY=VALUE options.
func parseLabels(pairs []string) (map[string]string, error) {
	labels := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("--label %q is not KEY=VALUE", pair)
		}
		labels[key] = value
	}
	return labels, nil
}

// parseTime reads a time: RFC 3339, or a duration that lies back (forward = -1 for the past, 1 for the future).
func (c *cli) parseTime(flag, s string, forward time.Duration) (*timestamppb.Timestamp, error) {
	if s == "" {
		return nil, nil
	}
	if d, err := parseDuration(s); err == nil && d >= 0 {
		return timestamppb.New(c.env.Now().Add(forward * d)), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return nil, usagef("--%s %q is neither a duration such as 90s or 2d nor a time such as 2026-01-02T15:04:05Z", flag, s)
	}
	return timestamppb.New(t), nil
}

// duration converts an option; 0 = absent, so that the broker's default holds.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// ifSet returns a pointer to an option's value if it was given.
func ifSet[T any](cmd *cobra.Command, flag string, v T) *T {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	return &v
}

// atLeast refuses a command line without the first arguments; more may follow.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usagef("%s is missing", names[len(args)])
		}
		return nil
	}
}

// exactly is cobra.ExactArgs with an error that says what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return between(len(names), names...)
}

// between wants at least that many of the named arguments.
func between(least int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least {
			return usagef("%s is missing", names[len(args)])
		}
		if len(args) > len(names) {
			return usagef("argument %q is one too many; a text of several words needs quotes", args[len(names)])
		}
		return nil
	}
}

// mayBeEmpty are the words in the usage of commands for arguments that may be empty. An empty name or
// id comes from an unset variable of a shell, and must not stand for the only open claim or task.
var mayBeEmpty = []string{
	"TEXT", "TITLE", "SUMMARY", "NOTE", "NOTES", "REASON", "RESOLUTION", "OUTCOME", "VALUE", "PREFIX",
}

// refuseEmptyArguments makes the command and all below it refuse empty arguments, except texts and the
// arguments after --.
func refuseEmptyArguments(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		refuseEmptyArguments(sub)
	}
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		words, end := argumentWords(cmd), len(args)
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			end = dash
		}
		for i, arg := range args[:end] {
			if arg != "" || len(words) == 0 {
				continue
			}
			if word := words[min(i, len(words)-1)]; !slices.Contains(mayBeEmpty, word) {
				return usagef("argument %d, %s, is empty; is a variable of the shell not set?", i+1, word)
			}
		}
		if check == nil {
			return nil
		}
		return check(cmd, args)
	}
}

// argumentWords returns the words for the arguments in the usage of a command, those after -- left out.
func argumentWords(cmd *cobra.Command) []string {
	var words []string
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.HasPrefix(word, "-") || word == "[flags]" {
			break
		}
		word, _, _ = strings.Cut(strings.Trim(word, "[]."), "[")
		words = append(words, word)
	}
	return words
}
