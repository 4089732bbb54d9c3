package prompt

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/jsonform"
)

// Fields writes the fields of a message of the API that are set, in their order: one line for each value, and the
// texts of several lines at the end. It leaves out the named fields, revisions, and what is zero. when writes times.
func Fields(w io.Writer, m proto.Message, when func(*timestamppb.Timestamp) string, leftOut ...string) {
	f := fieldsWriter{when}
	var texts []string
	f.each(m.ProtoReflect(), func(name, value string) {
		switch {
		case slices.Contains(leftOut, name) || value == "":
		case strings.Contains(strings.TrimSpace(value), "\n"):
			texts = append(texts, label(name)+":\n"+strings.TrimRight(value, "\n"))
		default:
			fmt.Fprintf(w, "%s: %s\n", label(name), OneLine(value))
		}
	})
	for _, text := range texts {
		fmt.Fprintln(w, Clean(text))
	}
}

// label is the name of a field as a text has it: "created" for created_at, "task" for task_id.
func label(name string) string {
	for _, suffix := range []string{"_at", "_id"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.ReplaceAll(name, "_", " ")
}

// mostRevision is the highest number that the id of a message can have.
const mostRevision = 1<<48 - 1

// A fieldsWriter writes values of fields.
type fieldsWriter struct {
	when func(*timestamppb.Timestamp) string
}

// each calls line with the name and the text of every value that is set.
func (f fieldsWriter) each(m protoreflect.Message, line func(name, value string)) {
	all := m.Descriptor().Fields()
	for i := range all.Len() {
		field := all.Get(i)
		name := string(field.Name())
		switch {
		case !m.Has(field), strings.HasSuffix(name, "revision"):
		case field.IsMap():
			pairs := map[string]string{}
			m.Get(field).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				pairs[k.String()] = v.String()
				return true
			})
			line(name, Labels(pairs))
		case field.IsList() && field.Message() == nil:
			var parts []string
			list := m.Get(field).List()
			for i := range list.Len() {
				parts = append(parts, f.value(field, list.Get(i)))
			}
			line(name, strings.Join(parts, ", "))
		case field.IsList():
			list := m.Get(field).List()
			for i := range list.Len() {
				line(name, f.value(field, list.Get(i)))
			}
		default:
			line(name, f.value(field, m.Get(field)))
		}
	}
}

// value is one value as text.
func (f fieldsWriter) value(field protoreflect.FieldDescriptor, v protoreflect.Value) string {
	switch field.Kind() {
	case protoreflect.EnumKind:
		return strings.ReplaceAll(jsonform.EnumName(field.Enum(), v.Enum()), "_", " ")
	case protoreflect.BoolKind:
		return "yes"
	case protoreflect.DoubleKind:
		return Percent(v.Float())
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *timestamppb.Timestamp:
			return f.when(m)
		case *durationpb.Duration:
			return Rough(m.AsDuration())
		}
		var parts []string
		f.each(v.Message(), func(name, value string) {
			if value != "" {
				parts = append(parts, label(name)+" "+OneLine(value))
			}
		})
		return strings.Join(parts, ", ")
	case protoreflect.StringKind:
		if short := ShortID(v.String(), mostRevision); short != "" {
			return short
		}
	}
	return v.String()
}
