package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
)

// A problem is a failed command as brokerctl reports it.
type problem struct {
	Code       string         `json:"code"`             // of exitCodes
	Reason     string         `json:"reason,omitempty"` // the broker's
	Message    string         `json:"message"`
	Fields     []problemField `json:"fields,omitempty"`
	RetryAfter string         `json:"retry_after,omitempty"` // such as 1.2s

	exit  int
	retry time.Duration
}

// A problemField is one field of the request that the broker refused.
type problemField struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// report prints err on standard error, as one line or as one JSON object, and returns the exit code.
func (c *cli) report(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return exitDone
	}
	p := c.problem(err)
	s, ended := signalOf(ctx)
	ended = ended && (errors.As(err, new(*interrupted)) || errors.Is(err, context.Canceled) ||
		status.Code(err) == codes.Canceled)
	if ended {
		p = problem{Message: (&interrupted{s}).Error(), exit: exitSignal + int(s)}
	}
	if p.exit == exitUsage && (!c.ran || strings.HasPrefix(p.Message, "unknown command")) {
		p.Message += fmt.Sprintf(" (see %s --help)", cmd.CommandPath())
	}
	switch {
	case p.Message == "":
	case c.errorsAsJSON():
		p.Code = codeOf(p.exit)
		e := json.NewEncoder(c.env.Err)
		e.SetEscapeHTML(false)
		_ = e.Encode(map[string]problem{"error": p}) // the exit code tells it too
	case !ended:
		fmt.Fprintf(c.env.Err, "brokerctl: %s\n", oneLine(p.text()))
	}
	return p.exit
}

// errorsAsJSON reports whether the command line, the environment or the file asks for JSON. If the
// command line cannot be parsed, an option may be unknown and the output format still given.
func (c *cli) errorsAsJSON() bool {
	given := c.global.output
	if given == "" && !c.ran {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.ParseErrorsAllowlist.UnknownFlags = true
		f.StringVarP(&given, "output", "o", "", "")
		f.BoolP("help", "h", false, "") // otherwise Parse ends at --help, and prints its own help
		_ = f.Parse(c.args)
	}
	for _, output := range []string{given, os.Getenv("BROKERD_OUTPUT")} {
		if output != "" {
			return output == formatJSON
		}
	}
	s, err := c.settings()
	return err == nil && s.output.value == formatJSON
}

// explain turns an error into an exit code and a text that says what was wrong and what to do.
func (c *cli) explain(err error) (exit int, text string) {
	p := c.problem(err)
	return p.exit, p.text()
}

// text is the message with the time to wait.
func (p problem) text() string {
	if p.retry == 0 {
		return p.Message
	}
	return p.Message + "; try again in " + short(p.retry)
}

// problem turns an error into what brokerctl reports of it.
func (c *cli) problem(err error) problem {
	p := problem{exit: exitError, Message: err.Error()}
	var f *failure
	s, ofBroker := grpcStatus(err)
	switch failed := errors.As(err, &f); {
	case failed:
		p.exit, p.Message = f.code, f.text
	case ofBroker:
		p.Message = c.forCommandLine(s)
		p.exit = exitCode(s.Code(), client.Reason(s.Err()))
	case !c.ran:
		p.exit, p.Message = exitUsage, usageText(p.Message)
	}
	if !ofBroker {
		return p
	}
	p.Reason = client.Reason(s.Err())
	for _, field := range client.Fields(s.Err()) {
		p.Fields = append(p.Fields, problemField{c.flagOf(field.Name), field.Description})
	}
	if p.retry = client.RetryDelay(s.Err()); p.retry > 0 {
		p.RetryAfter = strconv.FormatFloat(p.retry.Seconds(), 'f', -1, 64) + "s"
	}
	return p
}

// forCommandLine returns the message of the broker in terms of the command line: the fields that the
// metadata of a call carries become flags and variables, and the reason adds what to do.
func (c *cli) forCommandLine(s *status.Status) string {
	text := s.Message()
	for _, field := range client.Fields(s.Err()) {
		text = strings.ReplaceAll(text, field.Name+": ", c.flagOf(field.Name)+": ")
	}
	if c.tools {
		return text
	}
	hint := reasons[client.Reason(s.Err())].hint
	again := (&cli{global: globalOptions{addr: c.global.addr, session: c.global.session}}).again()
	words := []string{"brokerctl", again, "SOURCE", c.sourceOfAgent(), "NAME", shellWord(client.Resource(s.Err()))}
	if hint == "" || strings.Contains(hint, "SOURCE") && c.sourceOfAgent() == "" {
		return text
	}
	if !strings.HasSuffix(text, "?") {
		text += ";"
	}
	return text + " " + strings.NewReplacer(words...).Replace(hint)
}

// sourceOfAgent returns the flag, variable or file that names the agent; "" if none does.
func (c *cli) sourceOfAgent() string {
	if c.found == nil || c.found.agent.value == "" {
		return ""
	}
	return c.found.agent.from
}

// flagOf returns the flag or variable that sets a field of the request or of the metadata, and other
// fields as they are.
func (c *cli) flagOf(field string) string {
	switch field {
	case "brokerd-agent":
		if from := c.sourceOfAgent(); from != "" {
			return from
		}
		return "--agent"
	case "brokerd-session":
		if c.found != nil && c.found.session.from != "" {
			return c.found.session.from
		}
		return "--session"
	case "brokerd-incarnation":
		return "BROKERD_INCARNATION"
	case "brokerd-fence":
		return "BROKERD_FENCE"
	}
	name := strings.ReplaceAll(field[strings.LastIndexByte(field, '.')+1:], "_", "-")
	if c.flags != nil && c.flags.Lookup(name) != nil {
		return "--" + name
	}
	return field
}

// A reason is what the command line makes of a reason of the broker.
type reason struct {
	exit int    // 0: the class of the error says it
	hint string // NAME is the thing that the error is about, SOURCE what names the agent; "" = none
}

// reasons are the reasons of the broker that have their own exit code or a hint for the command line.
// The texts of the broker serve all clients and name no flags.
var reasons = map[string]reason{
	"AGENT_REQUIRED":       {exitUsage, "name it with --agent or BROKERD_AGENT"},
	"AGENT_NOT_REGISTERED": {exitNotFound, "brokerctl agent register NAME"},
	"OPERATOR_ONLY":        {0, "the agent comes from SOURCE"},
	"CREDENTIAL_REQUIRED":  {0, "name that file with BROKERD_CREDENTIAL_FILE"},
	"CREDENTIAL_UNKNOWN":   {0, "check the file that BROKERD_CREDENTIAL_FILE names"},

	"CLAIM_LOST":        {exitLost, ""},
	"NO_OPEN_CLAIM":     {exitLost, ""},
	"LOCK_LOST":         {exitLost, ""},
	"TASK_LOST":         {exitLost, ""},
	"TOKEN_LOST":        {exitLost, ""},
	"TOKEN_NOT_HELD":    {exitConflict, "brokerctl token acquire producer_critic NAME"},
	"FENCE_LOST":        {exitLost, ""},
	"STALE_INCARNATION": {exitLost, ""},

	"NO_RESPONDERS":     {exitNotFound, ""},
	"SESSION_NOT_FOUND": {0, "see session list"},
	"SESSION_OPEN":      {0, "brokerctl session close NAME"},
	"NOBODY_WAITS":      {0, "brokerctl send AGENT TEXT reaches an agent"},
	"NOT_DEAD":          {0, "brokerctl message get NAME shows its state"},
	"PATHS_LOCKED":      {0, "see brokerctl lock list, and brokerctl lock revoke"},
}
