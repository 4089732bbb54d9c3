package rules_test

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/rules"
)

// A trial is a request with a value at a bound of a field, or beyond it.
type trial struct {
	field   protoreflect.FullName
	path    string
	what    string
	ok      bool
	request proto.Message
}

// A place is a way to a field of a request.
type place struct {
	root protoreflect.MessageDescriptor
	way  []protoreflect.FieldDescriptor
}

// cases returns the trials of all fields of a message, nested ones included.
func cases(root protoreflect.MessageDescriptor) (all []trial) {
	var walk func(p place, d protoreflect.MessageDescriptor)
	walk = func(p place, d protoreflect.MessageDescriptor) {
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			at := place{root, append(p.way[:len(p.way):len(p.way)], f)}
			all = append(all, at.trials()...)
			if inner := f.Message(); inner != nil && !f.IsMap() && inner.ParentFile().Package() == root.ParentFile().Package() {
				walk(at, inner)
			}
		}
	}
	walk(place{root: root}, root)
	return all
}

// trials returns those of a field.
func (p place) trials() (all []trial) {
	f := p.way[len(p.way)-1]
	try := func(ok bool, what string, values ...protoreflect.Value) {
		all = append(all, trial{f.FullName(), p.path(f.IsList() && len(values) == 1), what, ok, p.request(values)})
	}
	for _, b := range bounds(f) {
		try(true, b.what+" at the bound", b.at)
		if b.beyond.IsValid() {
			try(false, b.what+" beyond the bound", b.beyond)
		}
	}
	if f.IsList() && f.Kind() == protoreflect.StringKind && len(bounds(f)) > 0 {
		try(false, "an empty item", protoreflect.ValueOfString(""))
	}
	rule := rules.Of(f)
	if most := int(rule.GetMaxItems()); most > 0 {
		item := protoreflect.ValueOfString("a")
		switch {
		case f.Message() != nil:
			item = protoreflect.ValueOfMessage(made(f.Message()))
		case f.Kind() == protoreflect.EnumKind:
			item = protoreflect.ValueOfEnum(1)
		case f.Kind() == protoreflect.Int64Kind:
			item = protoreflect.ValueOfInt64(1)
		}
		try(true, "a list at the bound", repeat(item, most)...)
		try(false, "a list beyond the bound", repeat(item, most+1)...)
	}
	if (rule.GetRequired() || rule.GetNotBlank() && !f.IsList()) && f.ContainingOneof() == nil {
		try(false, "nothing")
	}
	return all
}

// A bound has a value at it, and one beyond it.
type bound struct {
	what       string
	at, beyond protoreflect.Value
}

// bounds returns those of the values of a field.
func bounds(f protoreflect.FieldDescriptor) (all []bound) {
	rule := rules.Of(f)
	text := func(what, at, beyond string) {
		all = append(all, bound{what, protoreflect.ValueOfString(at), protoreflect.ValueOfString(beyond)})
	}
	long := func(n int32) string { return strings.Repeat("x", int(n)) }
	number := func(what string, at, beyond int64) {
		value := protoreflect.ValueOfInt64
		if f.Kind() == protoreflect.Int32Kind {
			value = func(n int64) protoreflect.Value { return protoreflect.ValueOfInt32(int32(n)) }
		}
		all = append(all, bound{what, value(at), value(beyond)})
	}
	if rule.GetNotBlank() {
		text("a text", "x", " ")
	}
	switch {
	case rule.GetName():
		text("a name", long(128), long(129))
	case rule.GetNewName():
		text("a name", long(128), long(129))
		text("a reserved name", long(1), "all")
	case rule.GetPattern():
		text("a pattern", long(127)+"*", long(128)+"*")
	case rule.GetLine() > 0:
		text("a line", long(rule.GetLine()), long(rule.GetLine()+1))
		text("two lines", "x", "x\ny")
	case rule.GetText() > 0:
		text("a text", long(rule.GetText()), long(rule.GetText()+1))
		text("a NUL", "x", "x\x00")
	case rule.GetJson() > 0:
		text("JSON", `{"a":"`+long(rule.GetJson()-8)+`"}`, `{"a":"`+long(rule.GetJson()-7)+`"}`)
		text("half JSON", "{}", "{")
	case rule.GetLabels():
		all = append(all, bound{"labels", labelled(f, 64), labelled(f, 65)})
	case rule.GetPageSize():
		number("a page", 1000, 1001)
		number("a page", 1, -1)
	case rule.GetLongest() != "":
		longest, shortest := rules.Duration(f, rule.GetLongest()), rules.Duration(f, rule.GetShortest())
		span := func(what string, at, beyond time.Duration) {
			all = append(all, bound{what, duration(at), duration(beyond)})
		}
		span("a long duration", longest, longest+1)
		span("a short duration", shortest, shortest-1)
		if rule.GetOrZero() {
			span("no duration", 0, -1)
		}
	case f.Kind() == protoreflect.EnumKind && f.Message() == nil:
		all = append(all, bound{"an enum", protoreflect.ValueOfEnum(1), protoreflect.ValueOfEnum(99)})
	case f.Message() != nil && f.Message().FullName() == "google.protobuf.Timestamp":
		all = append(all, bound{"a time", stamp(time.Now().Unix()), stamp(-1)})
	case f.Kind() == protoreflect.DoubleKind && rule != nil:
		for _, beyond := range []float64{float64(rule.GetMax()) + 0.1, float64(rule.GetMin()) - 0.1, math.NaN()} {
			all = append(all, bound{"a number", protoreflect.ValueOfFloat64(float64(rule.GetMax())), protoreflect.ValueOfFloat64(beyond)})
		}
	default:
		if rule != nil && rule.Max != nil {
			number("a high number", rule.GetMax(), rule.GetMax()+1)
		}
		if least := rule.GetMin(); rule != nil && (rule.Min != nil || rule.Max != nil) && (least != 1 || f.HasPresence() || f.IsList()) {
			number("a low number", least, least-1)
		} else if least == 1 {
			number("a low number", least, -1) // 0 is absent
		}
	}
	return all
}

// path returns the path of the field, or of its first item.
func (p place) path(item bool) string {
	var parts []string
	for i, f := range p.way {
		name := string(f.Name())
		if f.IsList() && (item || i < len(p.way)-1) {
			name += "[0]"
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, ".")
}

// request returns a request with a value at the place, or with the items of a list; without values it is absent.
func (p place) request(values []protoreflect.Value) proto.Message {
	root := made(p.root)
	at := root
	for _, f := range p.way[:len(p.way)-1] {
		if f.IsList() {
			at = at.Mutable(f).List().AppendMutable().Message()
		} else {
			at = at.Mutable(f).Message()
		}
	}
	f := p.way[len(p.way)-1]
	for _, v := range values {
		if f.IsList() {
			at.Mutable(f).List().Append(v)
		} else {
			at.Set(f, v)
		}
	}
	return root.Interface()
}

func made(d protoreflect.MessageDescriptor) protoreflect.Message {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err) // every message of the API is registered
	}
	return kind.New()
}

func repeat(v protoreflect.Value, n int) []protoreflect.Value {
	all := make([]protoreflect.Value, n)
	for i := range all {
		all[i] = v
	}
	return all
}

// labelled returns so many labels.
func labelled(f protoreflect.FieldDescriptor, n int) protoreflect.Value {
	m := made(f.ContainingMessage()).Mutable(f)
	for i := range n {
		m.Map().Set(protoreflect.ValueOfString(fmt.Sprintf("k%d", i)).MapKey(), protoreflect.ValueOfString("v"))
	}
	return m
}

func duration(d time.Duration) protoreflect.Value {
	return protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect())
}

func stamp(seconds int64) protoreflect.Value {
	return protoreflect.ValueOfMessage((&timestamppb.Timestamp{Seconds: seconds}).ProtoReflect())
}
