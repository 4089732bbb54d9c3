package command

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

// ParseDuration reads a duration such as 90s, 1h30m, 2d or 1d12h.
func ParseDuration(s string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
		return 0, fmt.Errorf("%q has no unit; write %[1]ss, %[1]sm, %[1]sh or %[1]sd", s)
	}
	const day = 24 * time.Hour
	rest, total := s, time.Duration(0)
	days, after, hasDays := strings.Cut(s, "d")
	if hasDays {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || math.Abs(n) > float64(math.MaxInt64/day) {
			return 0, noDuration(s)
		}
		rest, total = after, time.Duration(n*float64(day))
	}
	if rest == "" && hasDays {
		return total, nil
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, noDuration(s)
	}
	return total + d, nil
}

func noDuration(s string) error {
	return fmt.Errorf("%q is not a duration such as 90s, 10m, 1h30m or 2d", s)
}

// MissingFlag is the error of a flag that must be given, with what it is for.
func MissingFlag(name, what string) error { return problem.Usagef("--%s is missing: %s", name, what) }

// valueName is the annotation of a flag with what a help page calls its value.
const valueName = "value"

// valueOf returns what a help page calls the value of an option; "" for a switch.
func valueOf(f *pflag.Flag) string {
	switch kind := f.Value.Type(); {
	case kind == "bool":
		return ""
	case f.Annotations[valueName] != nil:
		return f.Annotations[valueName][0]
	case kind == "duration":
		return "DURATION"
	case strings.HasPrefix(kind, "int"), kind == "double":
		return "N"
	}
	return "TEXT"
}

// flagSynonyms are flags of other programs, and the flag that stands for each of them here.
var flagSynonyms = map[string]string{
	"max": "limit", "number": "limit", "last": "limit", "name": "agent", "timeout": "wait",
	"duration": "for", "expires": "ttl", "message": "body", "text": "body", "format": "output",
	"sender": "from", "m": "body", "s": "session",
}

// otherwise says what to write in place of flags of other programs that no flag here stands for.
var otherwise = map[string]string{"json": "-o json", "option": "each OPTION as an argument"}

// RefuseEmptyFlags refuses an option that was given without a value: an empty name or id comes from an unset variable of
// a shell. Texts may be empty, and so may options whose help says what an empty one means.
func RefuseEmptyFlags(flags *pflag.FlagSet) error {
	var empty error
	flags.Visit(func(f *pflag.Flag) {
		none := f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			none = len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")
		}
		if v, ok := f.Value.(*optionValue); ok {
			none = slices.Contains(v.texts, "")
		}
		if none && valueOf(f) != "TEXT" && !strings.Contains(f.Usage, "''") {
			empty = problem.Usagef("--%s is empty; is a variable of the shell not set?", f.Name)
		}
	})
	return empty
}

// meantFlags returns the flags of a command that may be meant by a name that none has.
func meantFlags(cmd *cobra.Command, name string) []string {
	if synonym := flagSynonyms[name]; cmd.Flags().Lookup(synonym) != nil {
		return []string{synonym}
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if slices.Contains(known, name) {
		return []string{name}
	}
	return Near(name, known)
}

// ExplainFlagError says in plain words what pflag says of a wrong option.
func ExplainFlagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	var empty *pflag.ValueRequiredError
	switch {
	case errors.As(err, &unknown):
		name, dashes := unknown.GetSpecifiedName(), "--"
		if short := unknown.GetSpecifiedShortnames(); short != "" { // -wait is read as -w -a -i -t
			name, dashes = short, "-"
		}
		name, _, _ = strings.Cut(name, "=")
		hint := DidYouMean("--", meantFlags(cmd, name))
		if instead := otherwise[name]; instead != "" && hint == "" {
			hint = "; write " + instead
		}
		return problem.Usagef("unknown flag: %s%s%s", dashes, name, hint)
	case errors.As(err, &empty):
		return problem.Usagef("--%s needs a value: --%[1]s %s", empty.GetFlag().Name, valueOf(empty.GetFlag()))
	case errors.As(err, &invalid):
		if invalid.GetFlag().Value.Type() == "duration" {
			return problem.Usagef("--%s: %v", invalid.GetFlag().Name, invalid.Unwrap())
		}
		kind := prompt.Either(valueOf(invalid.GetFlag()) == "", "neither true nor false", "not a number")
		return problem.Usagef("--%s: %q is %s", invalid.GetFlag().Name, invalid.GetValue(), kind)
	}
	return err
}
