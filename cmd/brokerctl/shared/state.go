package shared

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

const stateLong = `Values by key, and documents that grow by entries, shared by the agents of a
session. Each change is a version with a revision. A change can depend on the
revision that was read (--if-revision), or on the key being absent (--create).

A key belongs to a namespace (--namespace, otherwise "default"). All sessions
share the namespace "global".`

// NewStateCommand returns the commands of brokerctl state.
func NewStateCommand(c *command.Caller) *cobra.Command {
	return command.Group("state", "Share values and documents", stateLong, "  brokerctl state list",
		newStateGetCommand(c), newStatePutCommand(c), newStateAppendCommand(c), newStateDeleteCommand(c), newStateListCommand(c),
		newStateHistoryCommand(c), newStateFollowCommand(c), newStateTransactCommand(c))
}

// addNamespace adds the option that says where a key lies.
func addNamespace(f *pflag.FlagSet, namespace *string) {
	f.StringVar(namespace, "namespace", "", `namespace of the key (default: "default"); "global" is shared by all sessions`)
}

// addTask adds the option that says which task a key belongs to.
func addTask(cmd *cobra.Command, task *string) {
	cmd.Flags().StringVar(task, "task", "", "task that the key belongs to; '': none (default: unchanged)")
}

// conditionOptions say what must be so for a change to be made.
type conditionOptions struct {
	ifRevision int64
	create     bool
}

// AddFlags adds the options.
func (o *conditionOptions) AddFlags(cmd *cobra.Command, creates bool) {
	cmd.Flags().Int64Var(&o.ifRevision, "if-revision", 0, "only if the key still has this revision, or 0: is absent; otherwise exit code 5")
	if creates {
		cmd.Flags().BoolVar(&o.create, "create", false, "only if the key is absent; otherwise exit code 5")
		cmd.MarkFlagsMutuallyExclusive("if-revision", "create")
	}
}

// revision returns the API's form.
func (o *conditionOptions) revision(cmd *cobra.Command) *int64 {
	if o.create {
		return new(int64)
	}
	return command.IfSet(cmd, "if-revision", o.ifRevision)
}

func newStateGetCommand(c *command.Caller) *cobra.Command {
	request := &pb.GetStateRequest{}
	var full bool
	cmd := &cobra.Command{
		Use:   "get KEY",
		Short: "Print a value, or a document as Markdown",
		Long: `Print a value as it is, or a document as Markdown. With -o json, print the value
as JSON, or the entries of a document. With --full, -o json also prints version,
revision, author and times.`,
		Example: `  brokerctl state get plan/step
  brokerctl state get plan/step --full -o json | jq .entry.revision
  brokerctl state get notes --at 4711`,
		Args:              command.Exactly("the key"),
		ValidArgsFunction: completeKey(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Key = args[0]
			format, err := c.Format()
			if err != nil {
				return err
			}
			request.Markdown = format != output.FormatJSON
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.State().GetState(cmd.Context(), request)
			if err != nil {
				return err
			}
			for last := answer.GetLastEntry(); last > 0 && last < answer.GetEntry().GetEntries(); last = answer.GetLastEntry() {
				request.AtRevision, request.AfterEntry = answer.GetEntry().GetRevision(), last
				more, err := broker.State().GetState(cmd.Context(), request)
				if err != nil {
					return err
				}
				answer.Entries, answer.Markdown = append(answer.Entries, more.GetEntries()...), answer.Markdown+more.GetMarkdown()
				if answer.LastEntry = more.GetLastEntry(); answer.LastEntry <= last {
					break
				}
			}
			if format == output.FormatJSON && !full {
				return writeStateValue(cmd.OutOrStdout(), answer)
			}
			return c.Show(cmd, answer, func(w io.Writer) { c.Voice().State(w, answer, prompt.ForModel(w)) })
		},
	}
	addNamespace(cmd.Flags(), &request.Namespace)
	cmd.Flags().BoolVar(&full, "full", false, "with -o json: also its version, revision, author and times")
	cmd.Flags().Int64Var(&request.AtRevision, "at", 0, "the value at this revision")
	return cmd
}

// writeStateValue writes the value of a key as JSON; that of a document is the list of its entries.
func writeStateValue(w io.Writer, answer *pb.GetStateResponse) error {
	if answer.GetEntry().GetType() != pb.StateType_STATE_TYPE_DOCUMENT {
		return output.WriteJSON(w, answer.GetEntry().GetValue())
	}
	var b bytes.Buffer
	b.WriteByte('[')
	for i, entry := range answer.GetEntries() {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := jsonform.Append(&b, entry); err != nil {
			return err
		}
	}
	b.WriteString("]\n")
	_, err := w.Write(b.Bytes())
	return err
}

// stateTypes are the types that a value may be written as.
var stateTypes = []string{"string", "integer", "boolean", "json"}

// parseValue reads a value of a type.
func parseValue(kind, s string) (*pb.StateValue, error) {
	switch strings.ToLower(kind) {
	case "string":
		return &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: s}}, nil
	case "integer":
		n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
		if err != nil {
			return nil, problem.Usagef("%q is no integer of 64 bits", s)
		}
		return &pb.StateValue{Value: &pb.StateValue_IntegerValue{IntegerValue: n}}, nil
	case "boolean":
		switch strings.TrimSpace(s) {
		case "true":
			return &pb.StateValue{Value: &pb.StateValue_BooleanValue{BooleanValue: true}}, nil
		case "false":
			return &pb.StateValue{Value: &pb.StateValue_BooleanValue{}}, nil
		}
		return nil, problem.Usagef("%q is neither true nor false", s)
	case "json":
		return &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: strings.TrimSpace(s)}}, nil
	}
	return nil, problem.Usagef("--type %q is none of %s", kind, strings.Join(stateTypes, ", "))
}

func newStatePutCommand(c *command.Caller) *cobra.Command {
	o := &conditionOptions{}
	request := &pb.PutStateRequest{}
	var kind string
	var ttl time.Duration
	var own bool
	var task string
	cmd := &cobra.Command{
		Use:   "put KEY VALUE",
		Short: "Write a value",
		Example: `  brokerctl --agent lead state put plan/step 3 --type integer --if-revision 4711
  brokerctl --agent lead state put config @config.json --type json --own`,
		Args:              command.Exactly("the key", "the value"),
		ValidArgsFunction: completeKey(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := c.Text(cmd, "VALUE", args[1])
			if err != nil {
				return err
			}
			if request.Value, err = parseValue(kind, value); err != nil {
				return err
			}
			request.Key, request.CompareRevision, request.Ttl, request.Own = args[0], o.revision(cmd), command.Duration(ttl), command.IfSet(cmd, "own", own)
			request.TaskId = command.IfSet(cmd, "task", task)
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.State().PutState(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer.GetEntry(), func(w io.Writer) {
				e := answer.GetEntry()
				prompt.Say(w, "put %s, version %d, revision %d", prompt.KeyName(e), e.GetVersion(), e.GetRevision())
			})
		},
	}
	cmd.Long = `Write a value; @FILE reads it from a file, - from standard input.`
	addNamespace(cmd.Flags(), &request.Namespace)
	cmd.Flags().StringVar(&kind, "type", "string", strings.Join(stateTypes, ", "))
	o.AddFlags(cmd, true)
	command.DurationVar(cmd.Flags(), &ttl, "ttl", 0, "delete it after this time, 1s to 365d; each put sets it again (default: never)")
	cmd.Flags().BoolVar(&own, "own", false, "only this agent may write it until it deregisters; --own=false lifts this (default: unchanged)")
	addTask(cmd, &task)
	command.AddRequestID(cmd, &request.RequestId)
	command.Must(cmd.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(stateTypes, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func newStateAppendCommand(c *command.Caller) *cobra.Command {
	request := &pb.AppendStateRequest{}
	var task string
	cmd := &cobra.Command{
		Use:   "append KEY TEXT",
		Short: "Add an entry to a document",
		Long: `Add an entry to a document; the first entry creates it. TEXT is Markdown; @FILE
reads it from a file, - from standard input. Concurrent writers lose no entry.
Agents that subscribe to the channel event/context_updated receive a message.`,
		Example: `  brokerctl --agent lead state append notes "We use gRPC and nothing else."
  git log -1 | brokerctl --agent builder-1 state append notes -`,
		Args:              command.Exactly("the key", "the text"),
		ValidArgsFunction: completeKey(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			request.Key = args[0]
			if request.Text, err = c.Text(cmd, "TEXT", args[1]); err != nil {
				return err
			}
			request.TaskId = command.IfSet(cmd, "task", task)
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.State().AppendState(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				prompt.Say(w, "added entry %d to %s, revision %d", answer.GetNumber(), prompt.KeyName(answer.GetEntry()), answer.GetEntry().GetRevision())
			})
		},
	}
	addNamespace(cmd.Flags(), &request.Namespace)
	addTask(cmd, &task)
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}

func newStateDeleteCommand(c *command.Caller) *cobra.Command {
	o := &conditionOptions{}
	request := &pb.DeleteStateRequest{}
	cmd := &cobra.Command{
		Use:               "delete KEY",
		Short:             "Delete a key",
		Long:              "Delete a key. Its history stays for some time. Deleting twice is no error.",
		Example:           `  brokerctl --agent lead state delete plan/step --if-revision 4711`,
		Args:              command.Exactly("the key"),
		ValidArgsFunction: completeKey(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.Key, request.CompareRevision = args[0], o.revision(cmd)
			broker, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			answer, err := broker.State().DeleteState(cmd.Context(), request)
			if err != nil {
				return err
			}
			return c.Show(cmd, answer, func(w io.Writer) {
				if answer.GetDeleted() {
					prompt.Say(w, "deleted %s, revision %d", prompt.OneLine(args[0]), answer.GetRevision())
				} else {
					prompt.Say(w, "%s was not there", prompt.OneLine(args[0]))
				}
			})
		},
	}
	addNamespace(cmd.Flags(), &request.Namespace)
	o.AddFlags(cmd, false)
	command.AddRequestID(cmd, &request.RequestId)
	return cmd
}
