package messages

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

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
		newTypeListCommand(c), newTypeGetCommand(c), newTypeValidateCommand(c), newTypeRegisterCommand(c))
}

func newTypeListCommand(c *command.Caller) *cobra.Command {
	var request pb.ListMessageTypesRequest
	var limit int
	cmd := &cobra.Command{
		Use:               "list [PREFIX]",
		Short:             "List the types of the broker and of the session",
		Example:           "  brokerctl type list --family task",
		Args:              command.Between(0, "the prefix"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				request.Prefix = args[0]
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			types, err := words.ListTypes(cmd.Context(), broker, &request, limit)
			if err != nil {
				return err
			}
			return output.List(&c.Output, cmd, types, output.View[*pb.MessageType]{
				Columns: []table.Column{{Name: "TYPE"}, {Name: "FAMILY"}, {Name: "TITLE", Min: 30}},
				Row: func(t *pb.MessageType) []string {
					return []string{t.GetName(), t.GetFamily() + prompt.Either(replacedBuiltIn(t), " (replaced)", ""), t.GetTitle()}
				},
				None: "no types",
			})
		},
	}
	cmd.Flags().StringVar(&request.Family, "family", "", "only types of this family; session: registered ones")
	command.Must(cmd.RegisterFlagCompletionFunc("family", c.CompleteArgs(true, words.TypeFamilies)))
	command.LimitVar(cmd.Flags(), &limit, 0)
	return cmd
}

func newTypeGetCommand(c *command.Caller) *cobra.Command {
	return &cobra.Command{
		Use:               "get TYPE",
		Short:             "Show a type with its example and schema",
		Example:           "  brokerctl type get TaskComplete",
		Args:              command.Exactly("the type"),
		ValidArgsFunction: c.CompleteArgs(false, words.TypeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Catalog().GetMessageType(cmd.Context(), &pb.GetMessageTypeRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.Show(cmd, answer.GetType(), func(w io.Writer) { showType(c, w, answer.GetType()) })
		},
	}
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

func newTypeValidateCommand(c *command.Caller) *cobra.Command {
	var payload string
	cmd := &cobra.Command{
		Use:               "validate TYPE",
		Short:             "Check a payload as a send does, without a send",
		Long:              "validate fails if a send is refused.",
		Example:           `  brokerctl type validate task_progress --payload @progress.json`,
		Args:              command.Exactly("the type"),
		ValidArgsFunction: c.CompleteArgs(false, words.TypeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := c.JSONInput(cmd, "payload", payload)
			if err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			request := &pb.ValidatePayloadRequest{Type: args[0], Payload: text}
			answer, err := broker.Catalog().ValidatePayload(cmd.Context(), request)
			if err != nil {
				return err
			}
			err = c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s: %s", answer.GetType(), prompt.Enum(answer.GetVerdict()))
			})
			if err != nil {
				return err
			}
			refused := answer.GetVerdict() == pb.PayloadVerdict_PAYLOAD_VERDICT_REFUSED
			if refused && c.ForModel() {
				c.Warn(cmd, answer.GetMessages())
				return problem.Failf(problem.ExitUsage, "a send of this payload is refused")
			}
			if refused {
				return problem.Failf(problem.ExitUsage, "%s", strings.Join(answer.GetMessages(), "; "))
			}
			c.Warn(cmd, answer.GetMessages())
			return nil
		},
	}
	cmd.Flags().StringVar(&payload, "payload", "", "JSON, @FILE or -")
	return cmd
}

func newTypeRegisterCommand(c *command.Caller) *cobra.Command {
	var request pb.RegisterMessageTypeRequest
	var schema, example string
	cmd := &cobra.Command{
		Use:   "register TYPE",
		Short: "Add a type to the session, or replace its definition",
		Long: `Operators and agents that may send directives register types. With the name of a
built-in type, the schema replaces the built-in one.`,
		Example: `  brokerctl type register deploy_finished --title "A deployment is finished" \
    --schema '{"required":["host"]}'`,
		Args:              command.Exactly("the type"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			request.Name = args[0]
			if request.Schema, err = c.JSONInput(cmd, "schema", schema); err != nil {
				return err
			}
			if request.Example, err = c.JSONInput(cmd, "example", example); err != nil {
				return err
			}
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Catalog().RegisterMessageType(cmd.Context(), &request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				t := answer.GetType()
				prompt.Say(w, "%s %s%s, version %d", prompt.Either(answer.GetReplaced() || t.GetBuiltIn(), "replaced", "registered"),
					prompt.Either(t.GetBuiltIn(), "the built-in type ", ""), t.GetName(), t.GetVersion())
			})
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&request.Aliases, "alias", nil, "another name; repeatable")
	f.StringVar(&request.Title, "title", "", "what such a message says")
	f.StringVar(&request.Sender, "sender", "", "who sends it")
	f.StringVar(&request.Recipient, "recipient", "", "who receives it")
	f.StringVar(&schema, "schema", "", "JSON Schema of the payload: JSON, @FILE or -")
	f.StringVar(&example, "example", "", "payload that fits: JSON, @FILE or -")
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}
