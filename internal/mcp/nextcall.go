package mcp

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/calls"
	"brokerd/internal/jsonform"
	"brokerd/internal/prompt"
)

// toolCall writes a call of the API as the call of a tool, such as settle {"id":"7.1"}. What no tool does, only a
// person with a shell can.
func toolCall(call calls.Call) string {
	fields, said := fieldsOf(call)
	if said && call.Agent == "" {
		for _, r := range rows() {
			if given, ok := r.match(call.Method(), fields); ok {
				return r.call(given)
			}
		}
	}
	line := inShell(call.Agent, call.Name())
	if !said {
		return line + " TEXT"
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		for _, v := range others(fields[field]) {
			line += " --" + field + " " + v
		}
	}
	return line
}

// inShell is how a person with a shell makes a call, without its request.
func inShell(agent, method string) string {
	return "(in a shell) brokerctl" + prompt.Either(agent != "", " --agent "+agent, "") + " call " + method
}

// do is toolCall for a request, to which the caller must add the missing fields.
func do(request proto.Message, missing ...string) string {
	return toolCall(calls.Do(request, missing...))
}

// proposed writes a call that the broker proposes. agent is the caller.
func proposed(call *pb.Call, agent string) string {
	c, err := calls.Read(call)
	switch {
	case err != nil: // it is of a newer broker
		return inShell(call.GetAgent(), strings.TrimPrefix(call.GetMethod(), "/brokerd.v1.")) + " TEXT"
	case c.Program != nil: // explain has its words
		return "(in a shell) brokerctl explain agent " + c.Agent
	case c.Agent == agent:
		c.Agent = ""
	}
	return toolCall(c)
}

// alternatives shortens calls that differ only in their last argument from the first one: of these,
// only the value stays, such as "reject".
func alternatives(calls []string) []string {
	short := slices.Clone(calls)
	for i := 1; i < len(calls); i++ {
		same := calls[0][:strings.LastIndexByte(calls[0], ':')+1]
		value, found := strings.CutPrefix(calls[i], same)
		if found && same != "" && !strings.Contains(value, ":") {
			short[i] = strings.TrimSuffix(value, "}")
		}
	}
	return short
}

// fieldsOf returns the fields of a request that are set or missing, with the texts of their values; nil of a missing
// one. It returns false if one has no text. The subject of Explain is the field subject, the receiver of a message
// the field target.
func fieldsOf(call calls.Call) (fields map[string][]string, ok bool) {
	fields = map[string][]string{}
	for _, name := range call.Missing {
		fields[name] = nil
	}
	switch r := call.Request.(type) {
	case *pb.ExplainRequest:
		if what := r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().ByName("subject")); what != nil {
			name := []string{r.ProtoReflect().Get(what).String()}
			if what.Name() == "token" {
				name = strings.SplitN(name[0], "/", 2)
			}
			fields["subject"] = append([]string{string(what.Name())}, name...)
		}
		return fields, true
	case *pb.SendMessagesRequest:
		if len(r.GetMessages()) != 1 {
			return nil, false
		}
		m := proto.CloneOf(r.GetMessages()[0])
		fields["target"] = []string{prompt.Receiver(m.GetTarget())}
		m.Target, m.Priority = nil, 0 // of a directive, it is always the highest
		return fields, addFields(m.ProtoReflect(), "", fields)
	case *pb.ReleaseLocksRequest: // each number is one of both
		fields["fences"] = numbers(append(slices.Clip(r.GetFences()), r.GetTickets()...))
		return fields, len(r.GetPaths()) == 0 && !r.GetAll()
	}
	return fields, addFields(call.Request.ProtoReflect(), "", fields)
}

func numbers(list []int64) []string {
	var texts []string
	for _, n := range list {
		if s := strconv.FormatInt(n, 10); !slices.Contains(texts, s) {
			texts = append(texts, s)
		}
	}
	return texts
}

// addFields adds the fields of a message, with dots for those of a message in it.
func addFields(m protoreflect.Message, in string, fields map[string][]string) (ok bool) {
	ok = true
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := in + string(f.Name())
		switch {
		case f.IsMap():
			ok = false
		case f.IsList() && f.Message() != nil:
			ok = v.List().Len() == 1 && addFields(v.List().Get(0).Message(), name+".", fields)
		case f.IsList():
			for i := range v.List().Len() {
				fields[name] = append(fields[name], v.List().Get(i).String())
			}
		case f.Message() != nil:
			wait, isWait := v.Message().Interface().(*durationpb.Duration)
			if !isWait {
				ok = addFields(v.Message(), name+".", fields)
				break
			}
			fields[name] = []string{wait.AsDuration().String()}
		case f.Enum() != nil:
			fields[name] = []string{jsonform.EnumName(f.Enum(), v.Enum())}
		default:
			fields[name] = []string{fmt.Sprint(v.Interface())}
		}
		return ok
	})
	return ok
}

// match returns the values of the arguments if the row makes the call with these fields.
func (r *row) match(method string, fields map[string][]string) (map[string][]string, bool) {
	calls, parts := r.parts()
	if calls != method {
		return nil, false
	}
	given, n := map[string][]string{}, 0
	for _, p := range parts {
		values, set := fields[p.field]
		switch {
		case p.field == "": // its only value says what the method does
			given[p.arg] = []string{p.choices}
			continue
		case !set && (p.required || p.fixed != ""), p.fixed != "" && !slices.Equal(values, []string{p.fixed}):
			return nil, false
		case !set:
			continue
		}
		n++
		switch {
		case p.arg == "":
			continue
		case values == nil:
			values = []string{placeholder(p.field)}
		case len(values) > 1 && !p.many || !p.fits(values[0]):
			return nil, false
		}
		given[p.arg] = others(values)
	}
	return given, n == len(fields)
}

// placeholder stands for a value that the caller must add. A time is a wait, which has a usual one.
func placeholder(field string) string {
	switch name := field[strings.LastIndexByte(field, '.')+1:]; name {
	case "block":
		return "REASON"
	case "body":
		return "TEXT"
	case "until":
		return "30m"
	default:
		return strings.ToUpper(name)
	}
}

// others replaces values that are no single words by TEXT: they are texts of others, such as the scope of a token.
func others(values []string) []string {
	words := slices.Clone(values)
	for i, v := range values {
		if !prompt.Word(v) {
			words[i] = "TEXT"
		}
	}
	return words
}

// call writes the call of the row with the values.
func (r *row) call(given map[string][]string) string {
	t := find(r.tool)
	var fields []string
	for _, a := range t.args {
		values := given[a.name]
		switch {
		case a.name == t.action():
			if !r.byDefault(given) {
				fields = append(fields, quote(a.name)+":"+quote(r.action))
			}
		case len(values) > 0:
			fields = append(fields, quote(a.name)+":"+a.json(values, r.action != "answer"))
		}
	}
	return r.tool + " {" + strings.Join(fields, ",") + "}"
}

// byDefault reports whether the call needs no action.
func (r *row) byDefault(given map[string][]string) bool {
	switch r.tool + " " + r.action {
	case "settle reply":
		return given["text"] != nil
	case "settle ack":
		return true
	case "team list":
		return given["about"] == nil
	case "team explain":
		return given["about"] != nil
	}
	return false
}

// json writes values as the argument of a call. A wait is cut to what a call may take.
func (a argument) json(values []string, wait bool) string {
	switch a.kind {
	case seconds:
		if d, err := time.ParseDuration(values[0]); err == nil {
			n := d.Seconds()
			if wait {
				n = min(n, mostWait.Seconds())
			}
			return strconv.FormatFloat(n, 'f', -1, 64)
		}
		return values[0]
	case flag:
		return "true"
	case list:
		return quote(values)
	case text, object, value:
	}
	return quote(strings.Join(values, " "))
}
