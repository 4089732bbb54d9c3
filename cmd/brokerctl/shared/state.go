package shared

import (
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/internal/words"
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
		stateGet.Command(c), statePut.Command(c), stateAppend.Command(c), stateDelete.Command(c), stateList.Command(c),
		stateHistory.Command(c), stateFollow.Command(c), stateTransact.Command(c))
}

// Options and the argument of commands about one key.
var (
	oneKey    = []command.Arg{{Field: "key", Name: "the key", Kind: command.Kind{Find: keyWords}}}
	namespace = command.Kind{Name: "NAME", Fixed: []string{"default", "global"}}
	ofKey     = command.Option{Field: "namespace", Kind: namespace,
		Usage: `namespace of the key (default: "default"); "global" is shared by all sessions`}
	ofTask = command.Option{Field: "task_id", Name: "task", Kind: words.Task,
		Usage: "task that the key belongs to; '': none (default: unchanged)"}
	ifRevision = command.Option{Field: "compare_revision", Name: "if-revision", Kind: command.Revision,
		Usage: "only if the key still has this revision, or 0: is absent; otherwise exit code 5"}
)

var stateGet = command.Spec[*pb.GetStateRequest, *pb.GetStateResponse]{
	Page: command.Page{
		Use:   "get KEY",
		Short: "Print a value, or a document as Markdown",
		Long: `Print a value as it is, or a document as Markdown. With -o json, print the value
as JSON, or the entries of a document. With --full, -o json also prints version,
revision, author and times.`,
		Example: `  brokerctl state get plan/step
  brokerctl state get plan/step --full -o json | jq .entry.revision
  brokerctl state get notes --at 4711`,
	},
	Call: readState,
	Args: oneKey,
	Options: []command.Option{
		ofKey,
		{Name: "full", Type: "bool", Usage: "with -o json: also its version, revision, author and times"},
		{Field: "at_revision", Name: "at", Kind: command.Revision, Usage: "the value at this revision"},
	},
	Prepare: func(g *command.Given, q *pb.GetStateRequest) error {
		format, err := g.Format()
		q.Markdown = format != output.FormatJSON
		return err
	},
	After: func(g *command.Given, _ *client.Client, q *pb.GetStateRequest, a *pb.GetStateResponse) (bool, error) {
		if !q.GetMarkdown() && !g.On("full") {
			return true, writeStateValue(g.Cmd.OutOrStdout(), a)
		}
		return false, nil
	},
	Text: func(g *command.Given, w io.Writer, _ *pb.GetStateRequest, a *pb.GetStateResponse) {
		g.Voice().State(w, a, prompt.ForModel(w))
	},
}

// readState reads a value, or all entries of a document, of which one answer has some.
func readState(g *command.Given, broker *client.Client, q *pb.GetStateRequest) (*pb.GetStateResponse, error) {
	answer, err := broker.State().GetState(g.Cmd.Context(), q)
	if err != nil {
		return nil, err
	}
	for last := answer.GetLastEntry(); last > 0 && last < answer.GetEntry().GetEntries(); last = answer.GetLastEntry() {
		q.AtRevision, q.AfterEntry = answer.GetEntry().GetRevision(), last
		more, err := broker.State().GetState(g.Cmd.Context(), q)
		if err != nil {
			return nil, err
		}
		answer.Entries = append(answer.Entries, more.GetEntries()...)
		answer.Markdown += more.GetMarkdown()
		if answer.LastEntry = more.GetLastEntry(); answer.LastEntry <= last {
			break
		}
	}
	return answer, nil
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

var statePut = command.Spec[*pb.PutStateRequest, *pb.PutStateResponse]{
	Page: command.Page{
		Use:   "put KEY VALUE",
		Short: "Write a value",
		Long:  `Write a value; @FILE reads it from a file, - from standard input.`,
		Example: `  brokerctl --agent lead state put plan/step 3 --type integer --if-revision 4711
  brokerctl --agent lead state put config @config.json --type json --own`,
	},
	Args: append(oneKey[:1:1], command.Arg{Name: "the value", Text: true}),
	Options: []command.Option{
		ofKey,
		{Name: "type", Type: "string", Kind: command.Kind{Name: "TYPE", Fixed: stateTypes}, Value: "string",
			Usage: strings.Join(stateTypes, ", ")},
		ifRevision,
		{Name: "create", Type: "bool", Usage: "only if the key is absent; otherwise exit code 5"},
		{Field: "ttl", Usage: "delete it after this time, 1s to 365d; each put sets it again (default: never)"},
		{Field: "own",
			Usage: "only this agent may write it until it deregisters; --own=false lifts this (default: unchanged)"},
		ofTask,
		command.RequestID,
	},
	Apart: [][]string{{"if-revision", "create"}},
	Prepare: func(g *command.Given, q *pb.PutStateRequest) error {
		if g.On("create") {
			q.CompareRevision = new(int64)
		}
		value, err := g.Caller.Text(g.Cmd, "VALUE", g.Args[1])
		if err != nil {
			return err
		}
		q.Value, err = parseValue(g.Text("type"), value)
		return err
	},
	Shown: "entry",
	Text: func(_ *command.Given, w io.Writer, _ *pb.PutStateRequest, a *pb.PutStateResponse) {
		e := a.GetEntry()
		prompt.Say(w, "put %s, version %d, revision %d", prompt.KeyName(e), e.GetVersion(), e.GetRevision())
	},
}

var stateAppend = command.Spec[*pb.AppendStateRequest, *pb.AppendStateResponse]{
	Page: command.Page{
		Use:   "append KEY TEXT",
		Short: "Add an entry to a document",
		Long: `Add an entry to a document; the first entry creates it. TEXT is Markdown; @FILE
reads it from a file, - from standard input. Concurrent writers lose no entry.
Agents that subscribe to the channel event/context_updated receive a message.`,
		Example: `  brokerctl --agent lead state append notes "We use gRPC and nothing else."
  git log -1 | brokerctl --agent builder-1 state append notes -`,
	},
	Args:    append(oneKey[:1:1], command.Arg{Name: "the text", Text: true}),
	Options: []command.Option{ofKey, ofTask, command.RequestID},
	Prepare: func(g *command.Given, q *pb.AppendStateRequest) (err error) {
		q.Text, err = g.Caller.Text(g.Cmd, "TEXT", g.Args[1])
		return err
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.AppendStateRequest, a *pb.AppendStateResponse) {
		e := a.GetEntry()
		prompt.Say(w, "added entry %d to %s, revision %d", a.GetNumber(), prompt.KeyName(e), e.GetRevision())
	},
}

var stateDelete = command.Spec[*pb.DeleteStateRequest, *pb.DeleteStateResponse]{
	Page: command.Page{
		Use:     "delete KEY",
		Short:   "Delete a key",
		Long:    "Delete a key. Its history stays for some time. Deleting twice is no error.",
		Example: `  brokerctl --agent lead state delete plan/step --if-revision 4711`,
	},
	Args:    oneKey,
	Options: []command.Option{ofKey, ifRevision, command.RequestID},
	Text: func(_ *command.Given, w io.Writer, q *pb.DeleteStateRequest, a *pb.DeleteStateResponse) {
		if a.GetDeleted() {
			prompt.Say(w, "deleted %s, revision %d", prompt.OneLine(q.GetKey()), a.GetRevision())
		} else {
			prompt.Say(w, "%s was not there", prompt.OneLine(q.GetKey()))
		}
	},
}
