package command

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/internal/output"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/jsonform"
)

// An Option is a flag of a command. It sets a field of the request; without a field, it has a type, and the code of the
// command reads it.
type Option struct {
	Field string // of the request, or after dots of a message in it; the flag has its name unless Name says otherwise
	Name  string
	Short string // one letter
	Kind  Kind
	Usage string // {} stands for the names of an enum's values
	Type  string // without a field: bool, double, duration, int, string or strings
	Value string // the default
	Zero  bool   // a duration of 0 is a value like any other; otherwise it is left out
	Comma bool   // of a list of texts: a comma separates two of them
	Must  bool   // it must be given
	Means int32  // the flag is a switch that sets this value of an enum
	Says  string // without Field: the field that the code of the command sets from it
}

// flag is the name of the option.
func (o Option) flag() string {
	return cmp.Or(o.Name, strings.ReplaceAll(o.Field[strings.LastIndexByte(o.Field, '.')+1:], "_", "-"))
}

// A Target is the field of a request that an option or an argument sets.
type Target struct {
	Flag string // in errors: the name of the option; of an argument, the one that its field would have

	request protoreflect.Message
	path    []protoreflect.FieldDescriptor // to the message of the field
	field   protoreflect.FieldDescriptor
}

// newTarget finds a field by its name, which may have dots. A name that the request does not have is a defect of the
// command.
func newTarget(request protoreflect.Message, path, flag string) Target {
	to := Target{Flag: flag, request: request}
	d := request.Descriptor()
	for step := range strings.SplitSeq(path, ".") {
		if to.field != nil {
			to.path, d = append(to.path, to.field), to.field.Message()
		}
		if to.field = d.Fields().ByName(protoreflect.Name(step)); to.field == nil {
			panic(fmt.Sprintf("build command tree: %s has no field %q", d.FullName(), step))
		}
	}
	return to
}

// message is the message that has the field: of a list, the first.
func (to Target) message() protoreflect.Message {
	m := to.request
	for _, f := range to.path {
		switch {
		case !f.IsList():
			m = m.Mutable(f).Message()
		case m.Get(f).List().Len() == 0:
			m = m.Mutable(f).List().AppendMutable().Message()
		default:
			m = m.Mutable(f).List().Get(0).Message()
		}
	}
	return m
}

// Set sets the field, or adds to it if it is a list.
func (to Target) Set(v protoreflect.Value) {
	m := to.message()
	if to.field.IsList() {
		m.Mutable(to.field).List().Append(v)
	} else {
		m.Set(to.field, v)
	}
}

// Given is what the caller of a command has given.
type Given struct {
	*Caller
	Cmd  *cobra.Command
	Args []string

	omission string // what the command says at its end of the items that a list leaves out
}

// Text returns the value of an option as it was written; "" if it was not given.
func (g *Given) Text(name string) string { return g.Cmd.Flag(name).Value.String() }

// Texts returns the values of an option that may be repeated.
func (g *Given) Texts(name string) []string { return g.Cmd.Flag(name).Value.(*optionValue).texts }

// On reports whether a switch was given.
func (g *Given) On(name string) bool { return g.Text(name) == "true" }

// Duration returns the value of an option; 0 if it was not given.
func (g *Given) Duration(name string) time.Duration {
	d, _ := ParseDuration(g.Text(name)) // checked by Set
	return d
}

// Int returns the value of an option; 0 if it was not given.
func (g *Given) Int(name string) int {
	n, _ := strconv.Atoi(g.Text(name)) // checked by Set
	return n
}

// Float returns the value of an option; 0 if it was not given.
func (g *Given) Float(name string) float64 {
	f, _ := strconv.ParseFloat(g.Text(name), 64) // checked by Set
	return f
}

// optionValue is the value of an option: the texts that were given. They become fields when the command runs; what
// pflag itself reports is checked at once.
type optionValue struct {
	kind   string // the type, as pflag and help name it
	commas bool   // a text may have several values
	many   bool   // all texts count, not only the last
	texts  []string
	given  bool
}

// String implements pflag.Value.
func (v *optionValue) String() string { return strings.Join(v.texts, ",") }

// Type implements pflag.Value.
func (v *optionValue) Type() string { return v.kind }

// Set implements pflag.Value.
func (v *optionValue) Set(s string) (err error) {
	texts := []string{s}
	if v.commas && s != "" {
		if texts, err = csv.NewReader(strings.NewReader(s)).Read(); err != nil {
			return err
		}
	}
	for i, text := range texts {
		if texts[i], err = v.normal(text); err != nil {
			return err
		}
	}
	if !v.given || !v.many {
		v.texts, v.given = nil, true
	}
	v.texts = append(v.texts, texts...)
	return nil
}

// normal returns the form of a value that counts, such as true for 1, or what is wrong with it.
func (v *optionValue) normal(s string) (_ string, err error) {
	switch v.kind {
	case "bool":
		var on bool
		on, err = strconv.ParseBool(s)
		return strconv.FormatBool(on), err
	case "int", "int64":
		_, err = strconv.ParseInt(s, 10, 64)
	case "int32":
		_, err = strconv.ParseInt(s, 10, 32)
	case "double":
		_, err = strconv.ParseFloat(s, 64)
	case "duration":
		var d time.Duration
		if d, err = ParseDuration(s); err == nil && d < 0 {
			err = fmt.Errorf("%q is negative", s)
		}
	}
	return s, err
}

// BindOptions adds the options to a command, also to one that is not declared. The returned function sets the fields of
// those that were given.
func BindOptions(c *Caller, cmd *cobra.Command, request protoreflect.Message, options []Option) func(*Given) error {
	var set []func(*Given) error
	for _, o := range options {
		v := &optionValue{kind: o.Type, commas: o.Comma, many: o.Type == "strings"}
		usage, kind := o.Usage, o.Kind
		if o.Field != "" {
			to := newTarget(request, o.Field, o.flag())
			v.kind, kind.Name = typeOf(to.field), o.Kind.nameOf(to.field, o.flag())
			v.many = to.field.IsList() || to.field.IsMap() || kind.Read != nil
			switch e := to.field.Enum(); {
			case o.Means != 0:
				v.kind = "bool"
			case kind.Read != nil:
				v.kind = "string"
			case e != nil:
				kind.Fixed, v.commas = jsonform.EnumNames(e), to.field.IsList()
				usage = strings.ReplaceAll(usage, "{}", strings.Join(kind.Fixed, ", "))
			}
			set = append(set, func(g *Given) error { return o.set(g, to, v) })
		}
		switch {
		case o.Value != "":
			v.texts = []string{o.Value}
		case v.kind == "bool":
			v.texts = []string{"false"}
		}
		f := cmd.Flags().VarPF(v, o.flag(), o.Short, usage)
		if v.kind == "bool" {
			f.NoOptDefVal = "true"
			continue
		}
		c.Describe(cmd, f, kind)
	}
	return func(g *Given) error {
		for _, one := range set {
			if err := one(g); err != nil {
				return err
			}
		}
		return nil
	}
}

// Describe notes what the value of a flag means: its name in help, and its completion.
func (c *Caller) Describe(cmd *cobra.Command, f *pflag.Flag, kind Kind) {
	if kind.Name != "" {
		f.Annotations = map[string][]string{valueName: {kind.Name}}
	}
	// cobra keeps each function for as long as the program runs, and with it the tree of this run.
	if len(c.Args) > 0 && strings.HasPrefix(c.Args[0], cobra.ShellCompRequestCmd) {
		Must(cmd.RegisterFlagCompletionFunc(f.Name, c.completeKind(func([]string) Kind { return kind })))
	}
}

// set sets the field of an option if it was given, or has a default.
func (o Option) set(g *Given, to Target, v *optionValue) error {
	switch {
	case !v.given && o.Must:
		return MissingFlag(o.flag(), strings.TrimSuffix(o.Usage, "; required"))
	case !v.given && o.Value == "", o.Means != 0 && v.String() != "true":
		return nil
	case o.Means != 0:
		to.Set(protoreflect.ValueOfEnum(protoreflect.EnumNumber(o.Means)))
		return nil
	case v.kind == "duration" && g.Duration(o.flag()) == 0 && !o.Zero:
		return nil
	}
	if o.Kind.Read != nil {
		return o.Kind.Read(g, to, v.texts)
	}
	return readField(to, v.texts)
}

// typeOf is the type of an option for a field, as pflag and help name it.
func typeOf(f protoreflect.FieldDescriptor) string {
	switch {
	case isDuration(f):
		return "duration"
	case f.Message() != nil, f.Kind() == protoreflect.EnumKind:
		return "string"
	}
	return f.Kind().String()
}

func isDuration(f protoreflect.FieldDescriptor) bool {
	return f.Message() != nil && f.Message().FullName() == "google.protobuf.Duration"
}

// readField reads texts as the type of the field says.
func readField(to Target, texts []string) error {
	f := to.field
	if f.IsMap() {
		labels, err := parseLabels(texts)
		for k, v := range labels {
			to.message().Mutable(f).Map().Set(protoreflect.ValueOfString(k).MapKey(), protoreflect.ValueOfString(v))
		}
		return err
	}
	if !f.IsList() {
		texts = texts[len(texts)-1:]
	}
	for _, s := range texts {
		v, err := scalar(to, s)
		if err != nil {
			return err
		}
		to.Set(v)
	}
	return nil
}

// scalar reads one value. Set has refused what is no number.
func scalar(to Target, s string) (v protoreflect.Value, err error) {
	switch f := to.field; f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(s == "true"), nil
	case protoreflect.Int32Kind:
		n, err := strconv.ParseInt(s, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)), err
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(s, 10, 64)
		return protoreflect.ValueOfInt64(n), err
	case protoreflect.DoubleKind:
		n, err := strconv.ParseFloat(s, 64)
		return protoreflect.ValueOfFloat64(n), err
	case protoreflect.EnumKind:
		n, err := output.ParseEnum(to.Flag, f.Enum(), s)
		return protoreflect.ValueOfEnum(n), err
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(s), nil
	case protoreflect.MessageKind:
		if isDuration(f) {
			d, err := ParseDuration(s)
			return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()), err
		}
	}
	return v, problem.Failf(problem.ExitError, "%s has no form on a command line", to.field.FullName())
}

// completeKind completes a value; of returns its kind for the arguments before it.
func (c *Caller) completeKind(of func(before []string) Kind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, before []string, begun string) ([]string, cobra.ShellCompDirective) {
		switch k := of(before); {
		case k.Find != nil:
			return c.Words(cmd, k.Find(&Given{Caller: c, Cmd: cmd, Args: before}, begun))
		case k.Words != nil:
			words, directive := c.Words(cmd, k.Words)
			return append(words, k.Fixed...), directive
		case k.Files:
			return nil, cobra.ShellCompDirectiveDefault
		default:
			return k.Fixed, cmp.Or(k.Complete, cobra.ShellCompDirectiveNoFileComp)
		}
	}
}
