package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	"brokerd/internal/prompt"

	pb "brokerd/gen/brokerd/v1"
)

func newTypeCommand(c *cli) *cobra.Command {
	return group("type", "Message types and their schemas",
		`A type has one name in snake_case; TaskComplete, task.complete and task_complete
are one type. The session settings unknown-types and invalid-payloads say what the
broker does with other types, and with payloads that do not fit.`, "  brokerctl type get task_complete",
		newTypeListCommand(c), newTypeGetCommand(c), newTypeValidateCommand(c), newTypeRegisterCommand(c))
}

func newTypeListCommand(c *cli) *cobra.Command {
	var request pb.ListMessageTypesRequest
	var limit int
	cmd := &cobra.Command{
		Use:               "list [PREFIX]",
		Short:             "List the types of the broker and of the session",
		Example:           "  brokerctl type list --family task",
		Args:              between(0, "the prefix"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				request.Prefix = args[0]
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			types, err := listTypes(cmd.Context(), broker, &request, limit)
			if err != nil {
				return err
			}
			return list(c, cmd, types, view[*pb.MessageType]{
				columns: []table.Column{{Name: "TYPE"}, {Name: "FAMILY"}, {Name: "TITLE", Min: 30}},
				row: func(t *pb.MessageType) []string {
					return []string{t.GetName(), t.GetFamily() + prompt.Either(replacedBuiltIn(t), " (replaced)", ""), t.GetTitle()}
				},
				none: "no types",
			})
		},
	}
	cmd.Flags().StringVar(&request.Family, "family", "", "only types of this family; session: registered ones")
	must(cmd.RegisterFlagCompletionFunc("family", c.completeArgs(true, typeFamilies)))
	limitVar(cmd.Flags(), &limit, 0)
	return cmd
}

// listTypes returns up to limit types, or all if it is 0.
func listTypes(
	ctx context.Context, broker *client.Client, request *pb.ListMessageTypesRequest, limit int,
) ([]*pb.MessageType, error) {
	return pages(limit, func(size int32, token string) ([]*pb.MessageType, string, error) {
		request.PageSize, request.PageToken = size, token
		page, err := broker.Catalog().ListMessageTypes(ctx, request)
		return page.GetTypes(), page.GetNextPageToken(), err
	})
}

// typeNames returns the names of types with their titles.
func typeNames(ctx context.Context, broker *client.Client) ([]string, error) {
	types, err := listTypes(ctx, broker.As(""), &pb.ListMessageTypesRequest{}, 0)
	words := make([]string, len(types))
	for i, t := range types {
		words[i] = t.GetName() + "\t" + t.GetTitle()
	}
	return words, err
}

func typeFamilies(ctx context.Context, broker *client.Client) ([]string, error) {
	types, err := listTypes(ctx, broker.As(""), &pb.ListMessageTypesRequest{}, 0)
	words := make([]string, len(types))
	for i, t := range types {
		words[i] = t.GetFamily()
	}
	slices.Sort(words)
	return slices.Compact(words), err
}

func newTypeGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:               "get TYPE",
		Short:             "Show a type with its example and schema",
		Example:           "  brokerctl type get TaskComplete",
		Args:              exactly("the type"),
		ValidArgsFunction: c.completeArgs(false, typeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Catalog().GetMessageType(cmd.Context(), &pb.GetMessageTypeRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return c.show(cmd, answer.GetType(), func(w io.Writer) { c.showType(w, answer.GetType()) })
		},
	}
}

// replacedBuiltIn reports whether the session has replaced the schema of a built-in type.
func replacedBuiltIn(t *pb.MessageType) bool { return t.GetBuiltIn() && t.GetRegisteredBy() != "" }

func (c *cli) showType(w io.Writer, t *pb.MessageType) {
	l := c.newLabels(w)
	l.line("type", t.GetName()+prompt.Either(t.GetDirective(), " (directive)", ""))
	l.line("aliases", strings.Join(t.GetAliases(), ", "))
	l.line("family", t.GetFamily())
	l.line("title", t.GetTitle())
	l.line("sender", t.GetSender())
	l.line("recipient", t.GetRecipient())
	if by := t.GetRegisteredBy(); by != "" {
		l.line(prompt.Either(t.GetBuiltIn(), "built in, replaced", "registered"),
			fmt.Sprintf("by %s, %s, version %d", by, c.when(t.GetRegisteredAt()), t.GetVersion()))
	}
	l.line("example", t.GetExample())
	l.line("schema", prompt.Either(t.GetSchema() == "", "none: every payload fits", t.GetSchema()))
	l.flush()
}

func newTypeValidateCommand(c *cli) *cobra.Command {
	var payload string
	cmd := &cobra.Command{
		Use:               "validate TYPE",
		Short:             "Check a payload as a send does, without a send",
		Long:              "validate fails if a send is refused.",
		Example:           `  brokerctl type validate task_progress --payload @progress.json`,
		Args:              exactly("the type"),
		ValidArgsFunction: c.completeArgs(false, typeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := c.jsonInput(cmd, "payload", payload)
			if err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			request := &pb.ValidatePayloadRequest{Type: args[0], Payload: text}
			answer, err := broker.Catalog().ValidatePayload(cmd.Context(), request)
			if err != nil {
				return err
			}
			err = c.show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "%s: %s", answer.GetType(), prompt.Enum(answer.GetVerdict()))
			})
			if err != nil {
				return err
			}
			refused := answer.GetVerdict() == pb.PayloadVerdict_PAYLOAD_VERDICT_REFUSED
			if refused && c.forModel() {
				c.warn(cmd, answer.GetMessages())
				return failf(exitUsage, "a send of this payload is refused")
			}
			if refused {
				return failf(exitUsage, "%s", strings.Join(answer.GetMessages(), "; "))
			}
			c.warn(cmd, answer.GetMessages())
			return nil
		},
	}
	cmd.Flags().StringVar(&payload, "payload", "", "JSON, @FILE or -")
	return cmd
}

func newTypeRegisterCommand(c *cli) *cobra.Command {
	var request pb.RegisterMessageTypeRequest
	var schema, example string
	cmd := &cobra.Command{
		Use:   "register TYPE",
		Short: "Add a type to the session, or replace its definition",
		Long: `Operators and agents that may send directives register types. With the name of a
built-in type, the schema replaces the built-in one.`,
		Example: `  brokerctl type register deploy_finished --title "A deployment is finished" \
    --schema '{"required":["host"]}'`,
		Args:              exactly("the type"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			request.Name = args[0]
			if request.Schema, err = c.jsonInput(cmd, "schema", schema); err != nil {
				return err
			}
			if request.Example, err = c.jsonInput(cmd, "example", example); err != nil {
				return err
			}
			broker, err := c.connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.Catalog().RegisterMessageType(cmd.Context(), &request)
			if err != nil {
				return err
			}
			return c.show(cmd, answer, func(w io.Writer) {
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
	addRequestID(cmd, &request.RequestId)
	return cmd
}
