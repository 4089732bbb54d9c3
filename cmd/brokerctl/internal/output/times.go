package output

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/prompt"
)

// When writes a time in the one style of this run; "" if there is none. On a terminal and for a
// language model it is relative, such as "3m ago" or "in 29m". In a pipe it is RFC 3339. --relative,
// --absolute (local time) and --utc (RFC 3339) choose one.
func (o *Output) When(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return ""
	case o.Global.Absolute:
		return t.AsTime().Local().Format("2006-01-02 15:04:05 MST")
	case o.relative():
		return prompt.Relative(t.AsTime().Sub(o.Env.Now()))
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// relative reports whether times are written as distances from now.
func (o *Output) relative() bool {
	format, _ := o.Format() // checked before the command ran
	return !o.Global.Absolute && !o.Global.UTC && (o.Global.Relative || o.Env.Columns > 0 || format == FormatPrompt)
}

// TimeWidth is the width of a column of times.
func (o *Output) TimeWidth() int {
	switch {
	case o.Global.Absolute:
		return len("2026-01-02 15:04:05 CEST")
	case o.relative():
		return len("59m ago")
	}
	return len(time.RFC3339)
}

// Since writes the time from which something has lasted: "for 3m", or "since" an absolute time.
func (o *Output) Since(t *timestamppb.Timestamp) string {
	if o.relative() {
		return "for " + prompt.Rough(max(o.Env.Now().Sub(t.AsTime()), 0))
	}
	return "since " + o.When(t)
}

// ShortOf is short for an API duration; "" if there is none.
func ShortOf(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return prompt.Duration(d.AsDuration())
}
