package main

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/prompt"
)

// when writes a time in the one style of this run; "" if there is none. On a terminal and for a
// language model it is relative, such as "3m ago" or "in 29m". In a pipe it is RFC 3339. --relative,
// --absolute (local time) and --utc (RFC 3339) choose one.
func (c *cli) when(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return ""
	case c.global.absolute:
		return t.AsTime().Local().Format("2006-01-02 15:04:05 MST")
	case c.relative():
		return prompt.Relative(t.AsTime().Sub(c.env.Now()))
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// relative reports whether times are written as distances from now.
func (c *cli) relative() bool {
	format, _ := c.format() // checked before the command ran
	return !c.global.absolute && !c.global.utc && (c.global.relative || c.env.Columns > 0 || format == formatPrompt)
}

// timeWidth is the width of a column of times.
func (c *cli) timeWidth() int {
	switch {
	case c.global.absolute:
		return len("2026-01-02 15:04:05 CEST")
	case c.relative():
		return len("59m ago")
	}
	return len(time.RFC3339)
}

// since writes the time from which something has lasted: "for 3m", or "since" an absolute time.
func (c *cli) since(t *timestamppb.Timestamp) string {
	if c.relative() {
		return "for " + prompt.Rough(max(c.env.Now().Sub(t.AsTime()), 0))
	}
	return "since " + c.when(t)
}

// shortOf is short for an API duration; "" if there is none.
func shortOf(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return prompt.Duration(d.AsDuration())
}
