package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	"brokerd/cmd/internal/exitcode"
	"brokerd/internal/jsonform"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// A problem is a failed command as brokerctl reports it. Its Code is one of exitCodes.
type problem struct {
	jsonform.Problem
	exit int

	quoted string // for a language model: the message of the broker, which quotes other agents
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
		p = problem{Problem: jsonform.Problem{Message: (&interrupted{s}).Error()}, exit: exitSignal + int(s)}
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
		fmt.Fprintf(c.env.Err, "brokerctl: %s\n%s", prompt.OneLine(p.text()), c.quote(p))
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
	for _, output := range []string{given, c.env.get("BROKERD_OUTPUT")} {
		if output != "" {
			return output == formatJSON
		}
	}
	s, err := c.settings()
	return err == nil && s.output.value == formatJSON
}

// quote returns the frame around what a problem quotes; "" if it quotes nothing.
func (c *cli) quote(p problem) string {
	if p.quoted == "" {
		return ""
	}
	return prompt.Frame(c.env.Mark(), "the message of the broker, which may quote other agents", p.quoted)
}

// explain turns an error into an exit code and a text that says what was wrong and what to do.
func (c *cli) explain(err error) (exit int, text string) {
	p := c.problem(err)
	return p.exit, p.text()
}

// text is the message with the time to wait.
func (p problem) text() string {
	if p.Retry == 0 {
		return p.Message
	}
	return p.Message + "; try again in " + prompt.Duration(p.Retry)
}

// problem turns an error into what brokerctl reports of it.
func (c *cli) problem(err error) problem {
	p := problem{Problem: jsonform.Problem{Message: err.Error()}, exit: exitError}
	var f *failure
	s, ofBroker := grpcStatus(err)
	if ofBroker {
		p.Problem = jsonform.NewProblem(s)
		for i, field := range p.Fields {
			p.Fields[i].Field = c.flagOf(field.Field)
		}
	}
	switch failed := errors.As(err, &f); {
	case failed:
		p.exit, p.Message, p.quoted = f.code, f.text, f.quoted
	case ofBroker:
		p.Message = c.forCommandLine(s)
		p.exit = exitcode.Of(s.Code(), p.Reason)
		if mcp.Quotes(p.Reason) && c.forModel() {
			p.Message, p.quoted = "the broker refuses this ("+p.Reason+")", p.Message
		}
	case !c.ran:
		p.exit, p.Message = exitUsage, usageText(p.Message)
	}
	return p
}

// lost returns the error of a command that was stopped. The message of the broker says why, and may quote
// other agents.
func (c *cli) lost(text, why string) error { return c.failQuoting(exitLost, text, why) }

// failQuoting returns an error with a text of others.
func (c *cli) failQuoting(code int, text, quoted string) error {
	if c.forModel() {
		return &failure{code: code, text: text, quoted: quoted}
	}
	return failf(code, "%s: %s", text, quoted)
}

// fieldPath is a field of an item at the beginning of a message, such as tasks[0].depends_on[1].
var fieldPath = regexp.MustCompile(`^[a-z_]+\[\d+\][][a-z0-9_.]*`)

// forCommandLine returns the message of the broker in terms of the command line: the fields that the
// metadata of a call carries become flags and variables, and the reason adds what to do.
func (c *cli) forCommandLine(s *status.Status) string {
	text := s.Message()
	for _, field := range client.Fields(s.Err()) {
		text = strings.ReplaceAll(text, field.Name+": ", c.flagOf(field.Name)+": ")
	}
	if field := fieldPath.FindString(text); field != "" {
		text = c.flagOf(field) + text[len(field):]
	}
	if client.Reason(s.Err()) == "AGENT_NOT_REGISTERED" && c.sourceOfAgent() == "NAME" {
		return fmt.Sprintf("there is no agent %q in this session; see %s", client.Resource(s.Err()), c.command("agent list"))
	}
	hint := hints[client.Reason(s.Err())]
	again := (&cli{global: globalOptions{addr: c.global.addr, session: c.global.session}}).again()
	words := []string{"brokerctl", again, "SOURCE", c.sourceOfAgent(), "NAME", prompt.ShellWord(client.Resource(s.Err()))}
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

// flagOf returns the flag, argument or variable that sets a field of the request or of the metadata, and other fields as
// they are.
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
	if strings.Contains("."+field, ".target.") && slices.Contains(c.arguments, "RECEIVER") {
		return "RECEIVER"
	}
	name, index, _ := strings.Cut(field[strings.LastIndexByte(field, '.')+1:], "[")
	name = strings.ReplaceAll(name, "_", "-")
	if c.flags != nil && c.flags.Lookup(name) != nil {
		return "--" + name
	}
	for _, word := range c.arguments {
		if upper := strings.ToUpper(name); word == upper || word+"S" == upper {
			if n, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err == nil && n > 0 {
				return fmt.Sprintf("%s %d", word, n+1)
			}
			return word
		}
	}
	return field
}

// hints are the reasons of the broker that have a hint for the command line: NAME is the thing that
// the error is about, SOURCE the place that names the agent. The texts of the broker serve all clients
// and name no flags.
var hints = map[string]string{
	"AGENT_REQUIRED":       "name it with --agent or BROKERD_AGENT",
	"AGENT_NOT_REGISTERED": "brokerctl agent register NAME",
	"NOT_FOR_AGENTS":       "the agent comes from SOURCE",
	"OPERATOR_ONLY":        "the agent comes from SOURCE",
	"CREDENTIAL_REQUIRED":  "name that file with BROKERD_CREDENTIAL_FILE",
	"CREDENTIAL_UNKNOWN":   "check the file that BROKERD_CREDENTIAL_FILE names",
	"TOKEN_NOT_HELD":       "brokerctl token acquire producer_critic NAME",
	"SESSION_NOT_FOUND":    "see session list",
	"SESSION_OPEN":         "brokerctl session close NAME",
	"NOBODY_WAITS":         "brokerctl ack finishes it, and brokerctl send AGENT TEXT reaches an agent",
	"NOT_DEAD":             "brokerctl message get NAME shows its state",
	"PATHS_LOCKED":         "see brokerctl lock list, and brokerctl lock revoke",
}
