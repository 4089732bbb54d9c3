package command

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// A form is a command that can say some requests of a method.
type form struct {
	cmd *cobra.Command
	// words returns the words after the command's own with which it makes a call; false if it cannot.
	words func(call calls.Call, request protoreflect.Message) ([]string, bool)

	caller bool // they name the agent that makes the call
}

// Says notes how a command says the calls of a method that it does not declare. words returns the words after the
// command's own; nil if it does not make the call.
func Says[Q proto.Message](c *Caller, cmd *cobra.Command, words func(call calls.Call, q Q) []string) *cobra.Command {
	c.forms.add(newMessage[Q](), form{cmd, func(call calls.Call, request protoreflect.Message) ([]string, bool) {
		said := words(call, request.Interface().(Q))
		return said, said != nil
	}, false})
	return cmd
}

// forms are the commands of a run by the requests that they say.
type forms map[protoreflect.FullName][]form

func (all forms) add(request proto.Message, f form) {
	name := request.ProtoReflect().Descriptor().FullName()
	all[name] = append(all[name], f)
}

// words returns the shortest words that make a call, and whether they name the agent that makes it.
func (all forms) words(call calls.Call) (words []string, named bool) {
	m := call.Request.ProtoReflect()
	for _, f := range all[m.Descriptor().FullName()] {
		said, ok := f.words(call, m)
		said = append(strings.Fields(f.cmd.CommandPath())[1:], said...)
		if ok && (words == nil || len(said) < len(words)) {
			words, named = said, f.caller && call.Agent != ""
		}
	}
	if words == nil {
		words = []string{"call", call.Name(), call.Proto().GetRequest()}
	}
	return words, named
}

// Proposed writes a call that the broker proposes.
func (c *Caller) Proposed(call *pb.Call) string {
	said, err := calls.Read(call)
	if err != nil { // it is of a newer broker
		return c.line(call.GetAgent(), "call", strings.TrimPrefix(call.GetMethod(), "/brokerd.v1."), call.GetRequest())
	}
	return c.Line(said)
}

// Line writes a call as a command line, with the flags of this run that say where it acts. What no command says as it
// is becomes `brokerctl call`. For a language model, texts of others are left out.
func (c *Caller) Line(call calls.Call) string {
	words, named := c.forms.words(call)
	if named {
		return c.line("", words...)
	}
	return c.line(call.Agent, words...)
}

func (c *Caller) line(agent string, words ...string) string {
	global := c.Global
	if agent != "" {
		global.Agent, global.Operator = agent, false
	}
	return global.Again() + " " + c.quoted(words)
}

func (c *Caller) quoted(words []string) string {
	for i, word := range words {
		if c.ForModel() && !prompt.Word(word) {
			word = "TEXT"
		}
		words[i] = prompt.ShellWord(word)
	}
	return strings.Join(words, " ")
}

// words returns the words of a declared command for a request; false if it has fields that the command does not set, or
// lacks one that it always sets.
func (b *binding) words(call calls.Call, request protoreflect.Message) ([]string, bool) {
	runs := strings.Contains(b.use, "-- COMMAND")
	if runs != (call.Program != nil) {
		return nil, false
	}
	left := map[string]bool{} // the fields that the words do not say yet; false: the caller must add it
	setFields(request, "", left)
	for _, field := range call.Missing {
		left[field] = false
	}
	for field, value := range b.sets {
		if !left[field] {
			return nil, false
		}
		if texts, _ := fieldTexts(newTarget(request, field, "")); !slices.Equal(texts, []string{value}) {
			return nil, false
		}
		delete(left, field)
	}
	// text returns the values of a field, or what stands for it if the caller must add it.
	text := func(field string, kind Kind, called string) (values []string, ok bool) {
		if kind.Write != nil { // the fields of a message
			within := func(name string, _ bool) bool { return strings.HasPrefix(name, field+".") }
			had := len(left)
			if maps.DeleteFunc(left, within); len(left) == had {
				return nil, true
			}
			return []string{kind.Write(newTarget(request, field, called).get().Message().Interface())}, true
		}
		set, found := left[field]
		delete(left, field)
		switch {
		case !found:
			return nil, true
		case set:
		case isTime(newTarget(request, field, called).field):
			return []string{"30m"}, true
		default:
			return []string{strings.ToUpper(called)}, true
		}
		if values, ok = fieldTexts(newTarget(request, field, called)); kind.Source {
			for i, v := range values {
				ok = ok && v != "-" // it has no other form
				if strings.HasPrefix(v, "@") {
					values[i] = "@" + v
				}
			}
		}
		return values, ok
	}
	var args, flags []string
	for i, names := 0, argumentsOf(b.use); i < len(b.args); i++ {
		a := b.args[i]
		called, _, _ := strings.Cut(strings.Trim(names[min(i, len(names)-1)], "[]."), "[")
		if a.Caller && call.Agent != "" {
			args = append(args, call.Agent)
		}
		for _, field := range append(slices.Clip(a.Fields), a.Field) {
			values, ok := text(field, a.Kind, called)
			if !ok || len(values) > 0 && field == a.Field && len(args) < i {
				return nil, false
			}
			for _, v := range values {
				if a.Fields == nil || !slices.Contains(args, v) { // a number may be one of both
					args = append(args, v)
				}
			}
		}
	}
	for _, o := range b.flags {
		field := cmp.Or(o.Field, o.Says)
		if _, found := left[field]; !found {
			if o.Must {
				return nil, false
			}
			continue
		}
		to := newTarget(request, field, o.flag())
		switch {
		case o.Means != 0 && to.get().Enum() != protoreflect.EnumNumber(o.Means):
			continue
		case o.Means != 0, to.field.Kind() == protoreflect.BoolKind:
			off := o.Means == 0 && left[field] && !to.get().Bool()
			delete(left, field)
			flags = append(flags, "--"+o.flag()+prompt.Either(off, "=false", ""))
			continue
		}
		values, ok := text(field, o.Kind, o.flag())
		if !ok {
			return nil, false
		}
		for _, v := range values {
			if o.Comma && strings.ContainsAny(v, `,"`) { // it would be several values
				return nil, false
			}
			flags = append(flags, "--"+o.flag(), v)
		}
	}
	switch {
	case len(left) > 0, len(args) < b.least:
		return nil, false
	case runs:
		return slices.Concat(flags, []string{"--"}, call.Program), true
	case slices.ContainsFunc(args, isFlag):
		return slices.Concat(flags, []string{"--"}, args), true
	}
	return append(args, flags...), true
}

// isFlag reports whether a command takes a word for a flag.
func isFlag(word string) bool { return strings.HasPrefix(word, "-") }

// Arguments returns words that a command must not take for flags.
func Arguments(words ...string) []string {
	if slices.ContainsFunc(words, isFlag) {
		return append([]string{"--"}, words...)
	}
	return words
}

// setFields adds the names of the fields that a message has, with dots for those of messages in it.
func setFields(m protoreflect.Message, in string, all map[string]bool) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := in + string(f.Name())
		switch {
		case f.Message() == nil || f.IsMap() || isScalar(f), f.IsList() && v.List().Len() != 1:
			all[name] = true
		case f.IsList():
			setFields(v.List().Get(0).Message(), name+".", all)
		default:
			setFields(v.Message(), name+".", all)
		}
		return true
	})
}

// isScalar reports whether the message of a field is one value on a command line.
func isScalar(f protoreflect.FieldDescriptor) bool { return isDuration(f) || isTime(f) }

func isTime(f protoreflect.FieldDescriptor) bool {
	return f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp"
}

// fieldTexts returns the values of a field as a command line has them.
func fieldTexts(to Target) (texts []string, ok bool) {
	f, v := to.field, to.get()
	switch {
	case f.IsList():
		for i := range v.List().Len() {
			s, ok := scalarText(f, v.List().Get(i))
			if !ok {
				return nil, false
			}
			texts = append(texts, s)
		}
		return texts, true
	case f.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			texts = append(texts, k.String()+"="+v.String())
			return true
		})
		slices.Sort(texts)
		return texts, true
	}
	s, ok := scalarText(f, v)
	return []string{s}, ok
}

func scalarText(f protoreflect.FieldDescriptor, v protoreflect.Value) (string, bool) {
	switch f.Kind() {
	case protoreflect.StringKind:
		return v.String(), true
	case protoreflect.EnumKind:
		return jsonform.EnumName(f.Enum(), v.Enum()), true
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return strconv.FormatInt(v.Int(), 10), true
	case protoreflect.BoolKind:
		return strconv.FormatBool(v.Bool()), true
	case protoreflect.DoubleKind:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64), true
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *durationpb.Duration:
			return prompt.Duration(m.AsDuration()), true
		case *timestamppb.Timestamp:
			return m.AsTime().Format(time.RFC3339Nano), true
		}
	}
	return "", false
}
