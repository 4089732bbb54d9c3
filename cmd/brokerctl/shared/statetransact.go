package shared

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/prompt"
)

// A transaction is what the file of `state transact` holds.
type transaction struct {
	Compares []struct {
		Namespace string `json:"namespace"`
		Key       string `json:"key"`
		Revision  int64  `json:"revision"`
	} `json:"compares"`
	Changes []struct {
		Put    *transactionPut `json:"put"`
		Delete *struct {
			Namespace  string `json:"namespace"`
			Key        string `json:"key"`
			IfRevision *int64 `json:"if_revision"`
		} `json:"delete"`
	} `json:"changes"`
}

// A transactionPut is one value to write.
type transactionPut struct {
	Namespace  string          `json:"namespace"`
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value"`
	Type       string          `json:"type"`
	IfRevision *int64          `json:"if_revision"`
	TTL        string          `json:"ttl"`
	Own        *bool           `json:"own"`
	TaskID     *string         `json:"task_id"`
}

const transactLong = `Compare, put and delete keys under one revision: all changes, or none. FILE (-:
standard input) is JSON:

  {"compares": [{"key": "plan/step", "revision": 4711}],
   "changes": [
     {"put": {"key": "plan/step", "value": 4, "task_id": "t1"}},
     {"put": {"key": "notes", "value": {"any": "JSON"}, "ttl": "10m"}},
     {"delete": {"namespace": "global", "key": "old", "if_revision": 4700}}]}

Revision 0 means that the key must be absent. A put may also have "own": true. A
value is a string, an integer, true, false or other JSON, unless "type" names its
type. Exit code 5: a condition does not hold, and nothing is changed.`

var stateTransact = command.Spec[*pb.TransactStateRequest, *pb.TransactStateResponse]{
	Page: command.Page{
		Use:   "transact FILE",
		Short: "Make several changes, all or none",
		Long:  transactLong,
		Example: `  echo '{"changes":[{"put":{"key":"a","value":1}}]}' |
    brokerctl --agent lead state transact -`,
	},
	Args:    []command.Arg{{Name: "the file", Kind: command.Kind{Files: true}}},
	Options: []command.Option{command.RequestID},
	Prepare: func(g *command.Given, q *pb.TransactStateRequest) error {
		source := g.Args[0]
		if source != "-" {
			source = "@" + source
		}
		content, err := g.Caller.Text(g.Cmd, "FILE", source)
		if err != nil {
			return err
		}
		return parseTransaction(q, content)
	},
	Text: func(_ *command.Given, w io.Writer, _ *pb.TransactStateRequest, a *pb.TransactStateResponse) {
		prompt.Say(w, "made %s, revision %d", prompt.Count(len(a.GetEntries()), "change"), a.GetRevision())
	},
}

// parseTransaction reads the file's content.
func parseTransaction(request *pb.TransactStateRequest, content string) error {
	var t transaction
	d := json.NewDecoder(bytes.NewReader([]byte(content)))
	d.DisallowUnknownFields()
	err := d.Decode(&t)
	if err == nil && d.More() {
		err = errors.New("something follows the transaction")
	}
	if err != nil {
		return problem.Usagef("the transaction is not as `state transact --help` shows it: %v", err)
	}
	for _, compare := range t.Compares {
		request.Compares = append(request.Compares, &pb.StateCompare{
			Namespace: compare.Namespace, Key: compare.Key, Revision: compare.Revision,
		})
	}
	for i, change := range t.Changes {
		switch {
		case change.Put != nil && change.Delete == nil:
			put, err := change.Put.request()
			if err != nil {
				return problem.Usagef("change %d: %v", i+1, err)
			}
			request.Changes = append(request.Changes, &pb.StateChange{Change: &pb.StateChange_Put{Put: put}})
		case change.Delete != nil && change.Put == nil:
			d := &pb.DeleteStateRequest{
				Namespace: change.Delete.Namespace, Key: change.Delete.Key, CompareRevision: change.Delete.IfRevision,
			}
			request.Changes = append(request.Changes, &pb.StateChange{Change: &pb.StateChange_Delete{Delete: d}})
		default:
			return problem.Usagef(`change %d: it must have either "put" or "delete"`, i+1)
		}
	}
	return nil
}

func (p *transactionPut) request() (*pb.PutStateRequest, error) {
	put := &pb.PutStateRequest{
		Namespace: p.Namespace, Key: p.Key, CompareRevision: p.IfRevision, Own: p.Own, TaskId: p.TaskID,
	}
	if p.TTL != "" {
		ttl, err := command.ParseDuration(p.TTL)
		if err != nil {
			return nil, fmt.Errorf("ttl: %w", err)
		}
		put.Ttl = durationpb.New(ttl)
	}
	if p.Value == nil {
		return nil, errors.New("it has no value")
	}
	value, kind := string(p.Value), p.Type
	var quoted string
	isText := json.Unmarshal(p.Value, &quoted) == nil && value != "null"
	if kind == "" {
		kind = "json"
		switch {
		case isText:
			kind = "string"
		case value == "true" || value == "false":
			kind = "boolean"
		case json.Unmarshal(p.Value, new(int64)) == nil && value != "null":
			kind = "integer"
		}
	}
	if isText && !strings.EqualFold(kind, "json") {
		value = quoted
	}
	var err error
	put.Value, err = parseValue(kind, value)
	return put, err
}
