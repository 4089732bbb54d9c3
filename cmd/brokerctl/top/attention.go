package top

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
)

// attention shows the findings of the broker with the commands that remove them.
var attention = view{
	title: "Attention", short: "Attention", question: "What needs me?", none: "nothing is stuck",
	columns: []table.Column{
		{Name: "SEVERITY", State: true}, {Name: "SINCE"}, {Name: "SUBJECT", Min: 16}, {Name: "SUMMARY", Min: 30},
		{Name: "COMMAND", Rank: 1, Min: 24},
	},
	rows: func(s snapshot) []row {
		var rows []row
		for _, f := range s.frame.GetFindings() {
			command := ""
			if len(f.GetCommands()) > 0 {
				command = s.command(f.GetCommands()[0])
			}
			rows = append(rows, row{key: f.GetSubject() + " " + f.GetSince().String(), item: f, cells: []cell{
				{severity(f.GetSeverity()), -int64(f.GetSeverity())}, s.ago(f.GetSince()), text(f.GetSubject()),
				text(f.GetSummary()), text(command),
			}})
		}
		return rows
	},
	actions: func(rows []row, command func(string) string) []action {
		return one(rows, func(f *pb.Finding) []action {
			var actions []action
			for _, a := range f.GetActions() {
				text := command(f.GetCommands()[a.GetCommand()])
				actions = append(actions, action{label: text, effect: text,
					run: func(ctx context.Context, broker *client.Client, _ values) (string, error) {
						return "done: " + text, invoke(ctx, broker, a)
					}})
			}
			return actions
		})
	},
}

func severity(s pb.FindingSeverity) string { return strings.ToUpper(enum(s).text) }

// one returns the actions on the item of the only row.
func one[T proto.Message](rows []row, actions func(T) []action) []action {
	if len(rows) == 1 {
		if item, ok := rows[0].item.(T); ok {
			return actions(item)
		}
	}
	return nil
}

// invoke makes the call of a finding's action.
func invoke(ctx context.Context, broker *client.Client, a *pb.FindingAction) error {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(a.GetMethod(), "/"), "/", "."))
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return fmt.Errorf("find the method %s: %w", a.GetMethod(), err)
	}
	method, ok := d.(protoreflect.MethodDescriptor)
	if !ok {
		return fmt.Errorf("%s is no method", a.GetMethod())
	}
	request, err := newMessage(method.Input())
	if err != nil {
		return err
	}
	answer, err := newMessage(method.Output())
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal([]byte(a.GetRequest()), request); err != nil {
		return fmt.Errorf("read the request of %s: %w", a.GetMethod(), err)
	}
	if a.GetAgent() != "" {
		broker = broker.As(a.GetAgent())
	}
	for {
		if err := broker.Conn().Invoke(ctx, a.GetMethod(), request, answer); err != nil {
			return err
		}
		if !turnPage(request.ProtoReflect(), answer.ProtoReflect()) {
			return nil
		}
	}
}

// turnPage makes a request ask for the page after its answer; false if there is none. One call on all
// dead letters concerns a page of them.
func turnPage(request, answer protoreflect.Message) bool {
	from, to := answer.Descriptor().Fields().ByName("next_page_token"),
		request.Descriptor().Fields().ByName("page_token")
	if from == nil || to == nil || !answer.Has(from) {
		return false
	}
	request.Set(to, answer.Get(from))
	return true
}

func newMessage(d protoreflect.MessageDescriptor) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, fmt.Errorf("find the type %s: %w", d.FullName(), err)
	}
	return kind.New().Interface(), nil
}
