package top

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/client"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
)

// attention shows the findings of the broker with the calls that remove them, as commands.
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
			if len(f.GetCalls()) > 0 {
				command = s.command(f.GetCalls()[0])
			}
			rows = append(rows, row{key: f.GetSubject() + " " + f.GetSince().String(), item: f, cells: []cell{
				{severity(f.GetSeverity()), -int64(f.GetSeverity())}, s.ago(f.GetSince()), text(f.GetSubject()),
				text(f.GetSummary()), text(command),
			}})
		}
		return rows
	},
	actions: func(rows []row, command func(*pb.Call) string) []action {
		return one(rows, func(f *pb.Finding) []action {
			var actions []action
			for _, c := range f.GetCalls() {
				call, err := calls.Read(c)
				if err != nil || call.Shows() || len(call.Missing) > 0 || call.Program != nil {
					continue
				}
				text := command(c)
				actions = append(actions, action{label: text, effect: text,
					run: func(ctx context.Context, broker *client.Client, _ values) (string, error) {
						return "done: " + text, invoke(ctx, broker, call)
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

// makes is an effect that makes the call of a request, and says what that did. Each field of the form that the request
// has too fills it.
func makes(request proto.Message, did string) effect {
	return func(ctx context.Context, broker *client.Client, v values) (string, error) {
		filled := proto.Clone(request)
		for name, text := range v {
			if f := filled.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name)); f != nil && text != "" {
				filled.ProtoReflect().Set(f, protoreflect.ValueOfString(text))
			}
		}
		return did, invoke(ctx, broker, calls.Do(filled))
	}
}

// invoke makes a call that the broker proposes.
func invoke(ctx context.Context, broker *client.Client, call calls.Call) error {
	if call.Agent != "" {
		broker = broker.As(call.Agent)
	}
	for {
		answer := call.Answer()
		if err := broker.Conn().Invoke(ctx, call.Path(), call.Request, answer); err != nil {
			return err
		}
		if !turnPage(call.Request.ProtoReflect(), answer.ProtoReflect()) {
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
