package top

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/each"
	"brokerd/cmd/brokerctl/table"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// A section is a part of the details of an item.
type section struct {
	title   string
	at      *timestamppb.Timestamp // when; absent = the title says all
	text    string                 // any number of lines
	message proto.Message          // its fields are shown; nil = none
}

// An opening reads the details of an item.
type opening struct {
	*client.Client
	observer bool
	command  func(*pb.Call) string
}

// explained returns the findings about a subject as sections. Observers may not ask for them.
func (o opening) explained(ctx context.Context, request *pb.ExplainRequest) ([]section, error) {
	if o.observer {
		return nil, nil
	}
	found, err := o.Admin().Explain(ctx, request)
	if status.Code(err) == codes.NotFound { // it has ended
		return nil, nil
	}
	return each.Of(found.GetFindings(), func(f *pb.Finding) section { return findingSection(f, o.command) }), err
}

func findingSection(f *pb.Finding, command func(*pb.Call) string) section {
	lines := append([]string{f.GetSummary()}, f.GetReasons()...)
	if len(f.GetCalls()) > 0 {
		lines = append(lines, "")
	}
	for _, c := range f.GetCalls() {
		lines = append(lines, "$ "+command(c))
	}
	return section{title: severity(f.GetSeverity()) + " " + f.GetSubject(), at: f.GetSince(),
		text: strings.Join(lines, "\n")}
}

// panelLines are the lines of the opened item.
func (m *Model) panelLines() []string {
	sections := m.panel.sections
	if f, ok := m.panel.row.item.(*pb.Finding); ok { // the frame has all of it
		sections = []section{findingSection(f, m.options.Command)}
	}
	var lines []string
	switch {
	case m.panel.err != nil:
		lines = append(lines, m.theme().bad(table.Clip(m.explain(m.panel.err), m.width)), "")
	case sections == nil:
		return []string{"loading …"}
	}
	for i, s := range sections {
		if i > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, m.sectionLines(s)...)
	}
	return lines
}

func (m *Model) sectionLines(s section) []string {
	var lines []string
	if title := prompt.OneLine(s.title); title != "" {
		if s.at != nil {
			title += ", " + exact(m.now(), s.at)
		}
		lines = append(lines, m.theme().heading(table.Clip(title, m.width)))
	}
	if s.text != "" {
		for line := range strings.Lines(prompt.Clean(s.text)) {
			lines = append(lines, table.Wrap(strings.TrimRight(line, "\n"), m.width-2)...)
		}
	}
	if s.message != nil {
		lines = append(lines, fieldLines(s.message.ProtoReflect(), table.Screen{Width: m.width, Color: m.options.Color},
			m.now())...)
	}
	return lines
}

// fieldLines writes the fields that a message has, each with its name; those of messages in it below
// it, indented.
func fieldLines(m protoreflect.Message, screen table.Screen, now time.Time) []string {
	var lines []string
	values := table.NewLabels(screen)
	flush := func() {
		var b strings.Builder
		_ = values.Write(&b) // a strings.Builder takes everything
		lines = append(lines, splitLines(b.String())...)
		values = table.NewLabels(screen)
	}
	nested := func(title string, m protoreflect.Message) {
		flush()
		lines = append(lines, title)
		inner := screen
		inner.Width = max(screen.Width-2, 20)
		for _, line := range fieldLines(m, inner, now) {
			lines = append(lines, "  "+line)
		}
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) {
			continue
		}
		name, v := strings.ReplaceAll(string(f.Name()), "_", " "), m.Get(f)
		switch {
		case f.IsMap():
			var entries []string
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries = append(entries, k.String()+"="+v.String())
				return true
			})
			slices.Sort(entries)
			values.Add(name, prompt.OneLine(strings.Join(entries, ", ")))
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			for i := range v.List().Len() {
				nested(fmt.Sprintf("%s %d", name, i+1), v.List().Get(i).Message())
			}
		case f.IsList():
			var items []string
			for i := range v.List().Len() {
				items = append(items, prompt.OneLine(scalar(f, v.List().Get(i))))
			}
			values.Add(name, strings.Join(items, ", "))
		case f.Kind() != protoreflect.MessageKind:
			add := values.Add
			if f.Kind() == protoreflect.EnumKind {
				add = values.AddState
			}
			for i, line := range splitLines(prompt.Clean(scalar(f, v))) {
				if i > 0 {
					name = ""
				}
				add(name, line)
			}
		default:
			switch inner := v.Message().Interface().(type) {
			case *timestamppb.Timestamp:
				values.Add(name, exact(now, inner))
			case *durationpb.Duration:
				values.Add(name, inner.AsDuration().String())
			default:
				nested(name, v.Message())
			}
		}
	}
	flush()
	return lines
}

// scalar writes a value that is no message.
func scalar(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if f.Kind() == protoreflect.EnumKind {
		return jsonform.EnumName(f.Enum(), v.Enum())
	}
	return v.String()
}

// exact writes a time as the distance from now, with the time itself.
func exact(now time.Time, t *timestamppb.Timestamp) string {
	return relative(now, t) + " (" + t.AsTime().UTC().Format(time.RFC3339) + ")"
}
