package prompt

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
)

// Clean replaces the characters that could move the cursor of a terminal, or hide text on it: agents
// write any text. Newlines stay.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return r
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp):
			return '\ufffd'
		}
		return r
	}, s)
}

// OneLine is Clean for a text that is shown in one line: it joins the lines.
func OneLine(s string) string {
	return strings.Join(strings.FieldsFunc(Clean(s), func(r rune) bool { return r == '\n' }), "; ")
}

// Clip shortens a text to one line of at most n runes.
func Clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Brief shortens a name or an id to at most 36 bytes, the length of a UUID: they may be long, and the line they
// are in must not be.
func Brief(s string) string {
	const most = 36
	if s = strings.Join(strings.Fields(s), " "); len(s) <= most {
		return s
	}
	cut := most - len("…")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Relative writes a distance from now, such as "3m ago", "in 0.9s" or "now".
func Relative(d time.Duration) string {
	switch {
	case d <= -time.Second:
		return Rough(-d) + " ago"
	case d < 50*time.Millisecond:
		return "now"
	case d < 9500*time.Millisecond:
		return "in " + d.Round(100*time.Millisecond).String()
	}
	return "in " + Rough(d)
}

// Rough writes a duration in its largest unit, rounded.
func Rough(d time.Duration) string {
	const day = 24 * time.Hour
	for _, u := range []struct {
		unit, below time.Duration
		name        string
	}{{time.Second, time.Minute, "s"}, {time.Minute, time.Hour, "m"}, {time.Hour, 2 * day, "h"}} {
		if r := d.Round(u.unit); r < u.below {
			return fmt.Sprintf("%d%s", r/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%dd", d.Round(day)/day)
}

// Duration writes a duration exactly, from two days on with days: "24h", "1m30s", "0s", "7d", "4d4h30m".
func Duration(d time.Duration) string {
	const day = 24 * time.Hour
	if d < 2*day {
		return jsonform.Duration(d)
	}
	days := fmt.Sprintf("%dd", d/day)
	if d%day == 0 {
		return days
	}
	return days + jsonform.Duration(d%day)
}

// Count writes a number with its noun, which it puts into the plural unless the number is 1.
func Count[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	switch stem, y := strings.CutSuffix(noun, "y"); {
	case y && !strings.HasSuffix(stem, "e"):
		noun = stem + "ies"
	case strings.HasSuffix(noun, "x"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// UpTo1000 formats a count that the broker ends at 1,000.
func UpTo1000(n int64) string {
	if n >= 1000 {
		return "1000+"
	}
	return strconv.FormatInt(n, 10)
}

// Names lists names, and how many more there are if only some are known.
func Names(known []string, of int) string {
	const most = 20
	shown := known[:min(len(known), most)]
	s := Clean(strings.Join(shown, ", "))
	if more := of - len(shown); more > 0 {
		s += Either(s == "", "", " and ") + fmt.Sprintf("%d more", more)
	}
	return s
}

// Enum returns the short name of an enum's value, and "" for the unset one.
func Enum(v protoreflect.Enum) string { return jsonform.EnumName(v.Descriptor(), v.Number()) }

// Labels writes labels as KEY=VALUE.
func Labels(m map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, k+"="+m[k])
	}
	return strings.Join(pairs, ", ")
}

// Files writes references to files as PATH or PATH:LINE.
func Files(refs []*pb.FileReference) string {
	var s []string
	for _, f := range refs {
		if f.GetLine() > 0 {
			s = append(s, fmt.Sprintf("%s:%d", f.GetPath(), f.GetLine()))
		} else {
			s = append(s, f.GetPath())
		}
	}
	return strings.Join(s, ", ")
}

// Receiver writes a target as agents name it: NAME, role:NAME, channel:NAME, a pattern or everyone.
func Receiver(t *pb.Target) string {
	switch to := t.GetTo().(type) {
	case *pb.Target_Agent:
		return to.Agent
	case *pb.Target_Role:
		return "role:" + to.Role
	case *pb.Target_Channel:
		return "channel:" + to.Channel
	case *pb.Target_Pattern:
		return to.Pattern
	case *pb.Target_Everyone:
		return "everyone"
	}
	return ""
}

// ShellWord quotes an argument for a shell, where it needs that.
func ShellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// AgentState returns the state of an agent, and what else keeps work from it.
func AgentState(a *pb.Agent) string {
	state := a.GetState()
	asleep := a.GetAsleepSince() != nil && a.GetStoppedAt() == nil
	return state + Either(a.GetHalted(), ", halted", "") +
		Either(a.GetDegraded() && state != "degraded", ", degraded", "") + Either(asleep, ", asleep", "")
}

// ForModel reports whether what is written is for a language model: tables become sentences there.
func ForModel(w io.Writer) bool {
	_, ok := w.(*Writer)
	return ok
}

// Say writes a line of the program itself. For a language model, it is outside of the frame that surrounds
// everything else, so it contains no text of others except single words such as names and ids.
func Say(w io.Writer, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if p, ok := w.(*Writer); ok {
		p.Say(line)
		return
	}
	fmt.Fprintln(w, line)
}

// Framed writes text of others. For a language model, it is a frame with a title.
func Framed(w io.Writer, title, text string) {
	if p, ok := w.(*Writer); ok {
		p.Frame(title, text)
		return
	}
	fmt.Fprintln(w, strings.TrimRight(Clean(text), "\n"))
}

// Either chooses between two words.
func Either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}
