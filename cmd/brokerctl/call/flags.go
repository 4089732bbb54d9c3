package call

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/internal/jsonform"
	"brokerd/proto"
)

// deepest is how many messages within messages have flags. Deeper fields are for JSON.
const deepest = 3

// A value is the texts that were given for a field.
type value struct {
	kind  string // as help names it
	texts []string
}

// String implements pflag.Value.
func (v *value) String() string { return strings.Join(v.texts, ",") }

// Type implements pflag.Value.
func (v *value) Type() string { return v.kind }

// Set implements pflag.Value. The field's own form is checked when all is known.
func (v *value) Set(s string) error {
	v.texts = append(v.texts, s)
	return nil
}

// bind adds the flags of the method that the command line names, and its comment as the text of the page.
func (r *request) bind(cmd *cobra.Command) {
	r.flags = map[string]string{}
	for _, arg := range r.c.Args {
		m, err := method(arg)
		if err != nil {
			continue
		}
		comments, err := proto.Comments()
		command.Must(err)
		name := fmt.Sprintf("%s/%s", m.Parent().Name(), m.Name())
		cmd.Use, cmd.Long, cmd.Example = "call "+name+" [JSON|@FILE|-]", comments[m.FullName()], "  brokerctl call "+name
		if m.IsStreamingClient() {
			cmd.Use = "call " + name
			cmd.Long += fmt.Sprintf("\n\nRequests are lines of JSON on standard input; docs/api.md describes %s.",
				m.Input().Name())
			return
		}
		r.add(cmd, m.Input(), "", comments, deepest)
		return
	}
}

// add adds a flag for each field of a message. prefix is the names that lead to it.
func (r *request) add(
	cmd *cobra.Command, d protoreflect.MessageDescriptor, prefix string, comments map[protoreflect.FullName]string,
	depth int,
) {
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		path := prefix + string(f.Name())
		kind, scalar := kindOf(f)
		switch {
		case !scalar && !f.IsList() && !f.IsMap() && depth > 1:
			r.add(cmd, f.Message(), path+".", comments, depth-1)
		case scalar:
			name := strings.ReplaceAll(path, "_", "-")
			if cmd.Root().PersistentFlags().Lookup(name) != nil {
				name = "request." + name
			}
			flag := cmd.Flags().VarPF(&value{kind: kind}, name, "", usage(f, comments[f.FullName()]))
			switch e := f.Enum(); {
			case kind == "bool":
				flag.NoOptDefVal = "true"
			case e != nil:
				r.c.Describe(cmd, flag, command.Kind{Fixed: jsonform.EnumNames(e)})
			default:
				r.c.Describe(cmd, flag, command.Kind{})
			}
			r.flags[name] = path
		}
	}
}

// kindOf returns the type of a flag for a field, and whether a text can be its value.
func kindOf(f protoreflect.FieldDescriptor) (kind string, scalar bool) {
	switch {
	case f.IsMap():
		return "map", f.MapValue().Message() == nil
	case f.Message() == nil:
		return map[protoreflect.Kind]string{
			protoreflect.BoolKind: "bool", protoreflect.Int32Kind: "int32", protoreflect.Int64Kind: "int64",
			protoreflect.DoubleKind: "double",
		}[f.Kind()], true
	case f.Message().FullName() == "google.protobuf.Duration":
		return "duration", !f.IsList()
	case f.Message().FullName() == "google.protobuf.Timestamp":
		return "", !f.IsList()
	}
	return "", false
}

// usage is what the API says of a field.
func usage(f protoreflect.FieldDescriptor, comment string) string {
	text := strings.ReplaceAll(comment, "\n", " ")
	if e := f.Enum(); e != nil {
		text = strings.TrimSpace(text + " " + strings.Join(jsonform.EnumNames(e), ", "))
	}
	switch {
	case f.IsMap():
		text = strings.TrimSpace(text + " KEY=VALUE (repeatable)")
	case f.IsList():
		text = strings.TrimSpace(text + " (repeatable)")
	}
	return text
}

// A flag is one that was given.
type flag struct {
	name, kind string
	texts      []string
}

// given returns the flags of fields that the command line has, in order.
func (r *request) given(cmd *cobra.Command) []flag {
	var all []flag
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok {
			all = append(all, flag{f.Name, v.kind, v.texts})
		}
	})
	slices.SortFunc(all, func(a, b flag) int { return strings.Compare(a.name, b.name) })
	return all
}
