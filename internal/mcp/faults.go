package mcp

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/status"

	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// A refusal is an outcome that is no success.
type refusal struct {
	text   string
	quoted string // text of others, for a frame
	fine   bool   // nothing has gone wrong: there was only nothing to do, or no answer in time
}

func (r *refusal) Error() string { return r.text }

// nothingf is the outcome of a call for which there was nothing.
func nothingf(format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...), fine: true}
}

// refusef is the outcome of a call that could not do what it should.
func refusef(format string, args ...any) error { return &refusal{text: fmt.Sprintf(format, args...)} }

// quoting are the reasons of errors whose messages quote texts of others, such as the option that has won a
// vote, a path in a deadlock or the reason of an operator. The messages of the other errors contain names and
// ids, and what the caller has written itself.
var quoting = map[string]bool{
	"AGENT_NOT_REGISTERED": true, "ARTIFACT_NOT_FOUND": true, "CREDENTIAL_REVOKED": true, "DEADLOCK": true,
	"DECISION_CLOSED": true, "OPTION_NOT_FOUND": true, "PAYLOAD_INVALID": true, "TASK_NOT_YOURS": true,
	"TICKET_REVOKED": true, "VOTE_CLOSED": true,
}

// Quotes reports whether the message of an error with a reason quotes texts of others.
func Quotes(reason string) bool { return quoting[reason] }

// explain writes an error for the model, and reports whether the call has failed.
func (c *call) explain(err error) (failed bool) {
	var r *refusal
	switch {
	case err == nil:
		return false
	case errors.As(err, &r):
	case errors.As(err, new(*argumentError)):
		r = &refusal{text: err.Error()}
	default:
		r = c.fault(err)
	}
	c.w.Say(prompt.OneLine(r.text))
	if r.quoted != "" {
		c.w.Frame("the message of the broker, which may quote other agents", r.quoted)
	}
	return !r.fine
}

// fault returns an error of the broker in terms of the tool.
func (c *call) fault(err error) *refusal {
	s, ok := status.FromError(err)
	if !ok {
		return &refusal{text: err.Error()}
	}
	p := jsonform.NewProblem(s)
	text := p.Message
	for _, field := range p.Fields {
		if name := c.row.argumentOf(field.Field); name != "" {
			text = strings.ReplaceAll(text, field.Field+": ", name+": ")
			text = strings.ReplaceAll(text, field.Field+" ", name+" ")
		}
	}
	r := &refusal{text: text}
	if quoting[p.Reason] {
		r = &refusal{text: "the broker refuses this (" + p.Reason + ")", quoted: text}
	}
	if p.Retry > 0 {
		r.text += "; try again in " + prompt.Duration(p.Retry)
	}
	return r
}

// warn writes warnings of the broker about what it has accepted. They may quote others, such as the schema of a type.
func (c *call) warn(warnings []string) {
	if len(warnings) > 0 {
		c.w.Say(prompt.Count(int64(len(warnings)), "warning"))
		c.w.Frame("warnings of the broker, which may quote other agents", strings.Join(warnings, "\n"))
	}
}
