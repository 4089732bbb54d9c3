package command

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
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/cmd/internal/exitcode"
	"brokerd/internal/jsonform"
	"brokerd/internal/mcp"
	"brokerd/internal/prompt"
)

// Report prints err on standard error, as one line or as one JSON object, and returns the exit code.
func (c *Caller) Report(ctx context.Context, cmd *cobra.Command, err error) int {
	if err == nil {
		return problem.ExitDone
	}
	p := c.problem(err)
	s, ended := problem.SignalOf(ctx)
	ended = ended && (errors.As(err, new(*problem.Interrupted)) || errors.Is(err, context.Canceled) ||
		status.Code(err) == codes.Canceled)
	if ended {
		p = problem.Problem{Problem: jsonform.Problem{Message: (&problem.Interrupted{Signal: s}).Error()}, Exit: problem.ExitSignal + int(s)}
	}
	if p.Exit == problem.ExitUsage && (!c.Ran || strings.HasPrefix(p.Message, "unknown command")) {
		p.Message += fmt.Sprintf(" (see %s --help)", cmd.CommandPath())
	}
	switch {
	case p.Message == "":
	case c.errorsAsJSON():
		p.Code = problem.CodeOf(p.Exit)
		e := json.NewEncoder(c.Env.Err)
		e.SetEscapeHTML(false)
		_ = e.Encode(map[string]jsonform.Problem{"error": p.Problem}) // the exit code tells it too
	case !ended:
		fmt.Fprintf(c.Env.Err, "brokerctl: %s\n%s", prompt.OneLine(p.Text()), c.quote(p))
	}
	return p.Exit
}

// errorsAsJSON reports whether the command line, the environment or the file asks for JSON. If the
// command line cannot be parsed, an option may be unknown and the output format still given.
func (c *Caller) errorsAsJSON() bool {
	given := c.Global.Output
	if given == "" && !c.Ran {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.ParseErrorsAllowlist.UnknownFlags = true
		f.StringVarP(&given, "output", "o", "", "")
		f.BoolP("help", "h", false, "") // otherwise Parse ends at --help, and prints its own help
		_ = f.Parse(c.Args)
	}
	for _, format := range []string{given, c.Env.Get("BROKERD_OUTPUT")} {
		if format != "" {
			return format == output.FormatJSON
		}
	}
	s, err := c.Settings()
	return err == nil && s.Output.Value == output.FormatJSON
}

// quote returns the frame around what a problem quotes; "" if it quotes nothing.
func (c *Caller) quote(p problem.Problem) string {
	if p.Quoted == "" {
		return ""
	}
	return prompt.Frame(c.Env.Mark(), "the message of the broker, which may quote other agents", p.Quoted)
}

// Explain turns an error into an exit code and a text that says what was wrong and what to do.
func (c *Caller) Explain(err error) (exit int, text string) {
	p := c.problem(err)
	return p.Exit, p.Text()
}

// problem turns an error into what brokerctl reports of it.
func (c *Caller) problem(err error) problem.Problem {
	p := problem.Problem{Problem: jsonform.Problem{Message: err.Error()}, Exit: problem.ExitError}
	var f *problem.Failure
	s, ofBroker := problem.Status(err)
	if ofBroker {
		p.Problem = jsonform.NewProblem(s)
		for i, field := range p.Fields {
			p.Fields[i].Field = c.flagOf(field.Field)
		}
	}
	switch failed := errors.As(err, &f); {
	case failed:
		p.Exit, p.Message, p.Quoted = f.Code, f.Text, f.Quoted
	case ofBroker:
		p.Message = c.forCommandLine(s)
		p.Exit = exitcode.Of(s.Code(), p.Reason)
		if mcp.Quotes(p.Reason) && c.ForModel() {
			p.Message, p.Quoted = "the broker refuses this ("+p.Reason+")", p.Message
		}
	case !c.Ran:
		p.Exit, p.Message = problem.ExitUsage, problem.UsageText(p.Message)
	}
	return p
}

// Lost returns the error of a command that was stopped. The message of the broker says why, and may quote
// other agents.
func (c *Caller) Lost(text, why string) error { return c.FailQuoting(problem.ExitLost, text, why) }

// FailQuoting returns an error with a text of others.
func (c *Caller) FailQuoting(code int, text, quoted string) error {
	if c.ForModel() {
		return &problem.Failure{Code: code, Text: text, Quoted: quoted}
	}
	return problem.Failf(code, "%s: %s", text, quoted)
}

// fieldPath is a field of an item at the beginning of a message, such as tasks[0].depends_on[1].
var fieldPath = regexp.MustCompile(`^[a-z_]+\[\d+\][][a-z0-9_.]*`)

// forCommandLine returns the message of the broker in terms of the command line: the fields that the
// metadata of a call carries become flags and variables, and the reason adds what to do.
func (c *Caller) forCommandLine(s *status.Status) string {
	text := s.Message()
	for _, field := range client.Fields(s.Err()) {
		text = strings.ReplaceAll(text, field.Name+": ", c.flagOf(field.Name)+": ")
	}
	if field := fieldPath.FindString(text); field != "" {
		text = c.flagOf(field) + text[len(field):]
	}
	if client.Reason(s.Err()) == "AGENT_NOT_REGISTERED" && c.SourceOfAgent() == "NAME" {
		return fmt.Sprintf("there is no agent %q in this session; see %s", client.Resource(s.Err()), c.Command("agent list"))
	}
	hint := hints[client.Reason(s.Err())]
	again := setting.Options{Addr: c.Global.Addr, Session: c.Global.Session}.Again()
	words := []string{"brokerctl", again, "SOURCE", c.SourceOfAgent(), "NAME", prompt.ShellWord(client.Resource(s.Err()))}
	if hint == "" || strings.Contains(hint, "SOURCE") && c.SourceOfAgent() == "" {
		return text
	}
	text += prompt.Either(!strings.HasSuffix(text, "?"), ";", "")
	return text + " " + strings.NewReplacer(words...).Replace(hint)
}

// flagOf returns the flag, argument or variable that sets a field of the request or of the metadata, and other fields as
// they are.
func (c *Caller) flagOf(field string) string {
	switch field {
	case "brokerd-agent":
		if from := c.SourceOfAgent(); from != "" {
			return from
		}
		return "--agent"
	case "brokerd-session":
		if c.Found != nil && c.Found.Session.From != "" {
			return c.Found.Session.From
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
