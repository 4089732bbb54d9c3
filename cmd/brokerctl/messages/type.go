package messages

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// NewTypeCommand returns the commands of brokerctl type.
func NewTypeCommand(c *command.Caller) *cobra.Command {
	return command.Group("type", "Message types and their schemas",
		`A type has one name in snake_case; TaskComplete, task.complete and task_complete
are one type. The session settings unknown-types and invalid-payloads say what the
broker does with other types, and with payloads that do not fit.`, "  brokerctl type get task_complete",
		typeList.Command(c), typeGet.Command(c), typeValidate.Command(c), typeRegister.Command(c))
}

var typeList = command.Listing[*pb.ListMessageTypesRequest, *pb.ListMessageTypesResponse, *pb.MessageType]{
	Page: command.Page{
		Use:     "list [PREFIX]",
		Short:   "List the types of the broker and of the session",
		Example: "  brokerctl type list --family task",
	},
	Items: (*pb.ListMessageTypesResponse).GetTypes,
	Args:  []command.Arg{{Field: "prefix", Name: "the prefix", Text: true}},
	Options: []command.Option{
		{Field: "family", Kind: command.Kind{Words: words.TypeFamilies},
			Usage: "only types of this family; session: registered ones"},
	},
	View: func(*command.Given) output.View[*pb.MessageType] {
		return output.View[*pb.MessageType]{
			Columns: []table.Column{{Name: "TYPE"}, {Name: "FAMILY"}, {Name: "TITLE", Min: 30}},
			Row: func(t *pb.MessageType) []string {
				return []string{t.GetName(), t.GetFamily() + prompt.Either(replacedBuiltIn(t), " (replaced)", ""), t.GetTitle()}
			},
			None: "no types",
		}
	},
}

// knownType is the name of a type with a schema.
var knownType = command.Kind{Words: words.TypeNames}

var typeGet = command.Spec[*pb.GetMessageTypeRequest, *pb.GetMessageTypeResponse]{
	Page: command.Page{
		Use:     "get TYPE",
		Short:   "Show a type with its example and schema",
		Example: "  brokerctl type get TaskComplete",
	},
	Args:  []command.Arg{{Field: "name", Name: "the type", Kind: knownType}},
	Shown: "type",
	Text: func(g *command.Given, w io.Writer, _ *pb.GetMessageTypeRequest, a *pb.GetMessageTypeResponse) {
		showType(g.Caller, w, a.GetType())
	},
}

// replacedBuiltIn reports whether the session has replaced the schema of a built-in type.
func replacedBuiltIn(t *pb.MessageType) bool { return t.GetBuiltIn() && t.GetRegisteredBy() != "" }

func showType(c *command.Caller, w io.Writer, t *pb.MessageType) {
	l := c.NewLabels(w)
	l.Line("type", t.GetName()+prompt.Either(t.GetDirective(), " (directive)", ""))
	l.Line("aliases", strings.Join(t.GetAliases(), ", "))
	l.Line("family", t.GetFamily())
	l.Line("title", t.GetTitle())
	l.Line("sender", t.GetSender())
	l.Line("recipient", t.GetRecipient())
	if by := t.GetRegisteredBy(); by != "" {
		l.Line(prompt.Either(t.GetBuiltIn(), "built in, replaced", "registered"),
			fmt.Sprintf("by %s, %s, version %d", by, c.When(t.GetRegisteredAt()), t.GetVersion()))
	}
	l.Line("example", t.GetExample())
	l.Line("schema", prompt.Either(t.GetSchema() == "", "none: every payload fits", t.GetSchema()))
	l.Flush()
}

var typeValidate = command.Spec[*pb.ValidatePayloadRequest, *pb.ValidatePayloadResponse]{
	Page: command.Page{
		Use:     "validate TYPE",
		Short:   "Check a payload as a send does, without a send",
		Long:    "validate fails if a send is refused.",
		Example: `  brokerctl type validate task_progress --payload @progress.json`,
	},
	Args:    []command.Arg{{Field: "type", Name: "the type", Kind: knownType}},
	Options: []command.Option{{Field: "payload", Kind: command.JSON, Usage: "JSON, @FILE or -"}},
	After:   showVerdict,
}

// showVerdict says what a send does with a payload; the error of one that is refused has the exit code.
func showVerdict(
	g *command.Given, _ *client.Client, _ *pb.ValidatePayloadRequest, a *pb.ValidatePayloadResponse,
) (done bool, err error) {
	err = g.Show(g.Cmd, a, func(w io.Writer) { prompt.Say(w, "%s: %s", a.GetType(), prompt.Enum(a.GetVerdict())) })
	refused := a.GetVerdict() == pb.PayloadVerdict_PAYLOAD_VERDICT_REFUSED
	switch {
	case err != nil:
		return true, err
	case refused && !g.ForModel():
		return true, problem.Failf(problem.ExitUsage, "%s", strings.Join(a.GetMessages(), "; "))
	}
	g.Warn(g.Cmd, a.GetMessages())
	if refused {
		return true, problem.Failf(problem.ExitUsage, "a send of this payload is refused")
	}
	return true, nil
}

var typeRegister = command.Spec[*pb.RegisterMessageTypeRequest, *pb.RegisterMessageTypeResponse]{
	Page: command.Page{
		Use:   "register TYPE",
		Short: "Add a type to the session, or replace its definition",
		Long: `Operators and agents that may send directives register types. With the name of a
built-in type, the schema replaces the built-in one.`,
		Example: `  brokerctl type register deploy_finished --title "A deployment is finished" \
    --schema '{"required":["host"]}'`,
	},
	Args: []command.Arg{{Field: "name", Name: "the type"}},
	Options: []command.Option{
		{Field: "aliases", Name: "alias", Usage: "another name; repeatable"},
		{Field: "title", Usage: "what such a message says"},
		{Field: "sender", Usage: "who sends it"},
		{Field: "recipient", Usage: "who receives it"},
		{Field: "schema", Kind: schemaText, Usage: "JSON Schema of the payload: JSON, @FILE or -"},
		{Field: "example", Kind: schemaText, Usage: "payload that fits: JSON, @FILE or -"},
		command.RequestID,
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.RegisterMessageTypeRequest, a *pb.RegisterMessageTypeResponse) {
		t := a.GetType()
		prompt.Say(w, "%s %s%s, version %d", prompt.Either(a.GetReplaced() || t.GetBuiltIn(), "replaced", "registered"),
			prompt.Either(t.GetBuiltIn(), "the built-in type ", ""), t.GetName(), t.GetVersion())
	},
}

// schemaText is JSON, or empty: none.
var schemaText = command.Kind{Read: command.JSON.Read}
