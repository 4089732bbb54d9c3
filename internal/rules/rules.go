package rules

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/validate"
)

// ByHand has the messages that their services check, which the walk leaves out, with all that only they contain. Their
// options are the same bounds. They leave out what depends on another field or on the call (the target, which a reply
// must not have; first_number), and forms that no option has: ids, mailboxes, version, trace_parent. A session may want
// less of a payload.
var ByHand = map[protoreflect.FullName]bool{
	"brokerd.v1.SendRequest": true, "brokerd.v1.SendMessagesRequest": true, "brokerd.v1.Message": true,
	"brokerd.v1.ClaimRequest": true, "brokerd.v1.ClaimMessagesRequest": true,
	"brokerd.v1.AckMessagesRequest": true, "brokerd.v1.NackMessagesRequest": true,
	"brokerd.v1.ExtendClaimsRequest": true, "brokerd.v1.ReleaseClaimsRequest": true,
}

// Of returns the rule of a field; nil if it has none.
func Of(f protoreflect.FieldDescriptor) *pb.Rule {
	if !proto.HasExtension(f.Options(), pb.E_Rule) {
		return nil
	}
	return proto.GetExtension(f.Options(), pb.E_Rule).(*pb.Rule)
}

// A Set has the checks of the messages for which it was asked. It is for one goroutine.
type Set struct {
	All  bool // Check those of ByHand too.
	made map[protoreflect.FullName]*Message
}

// A Message has the checks of one kind of message. It may be used concurrently.
type Message struct {
	fields []field
}

// A field has the checks of one field.
type field struct {
	protoreflect.FieldDescriptor
	name    string
	missing string   // the violation of an absent field; empty = it may be absent
	most    int      // items of a list; 0 = no limit
	value   test     // of the value, or of each item of a list; nil = anything
	inner   *Message // the checks of a message; nil = none
}

// A test checks a value.
type test func(c *validate.Check, name string, v protoreflect.Value)

// Message returns the checks of a kind of message; nil if it has none. It panics if an option does not fit its field.
func (s *Set) Message(d protoreflect.MessageDescriptor) *Message {
	if known, ok := s.made[d.FullName()]; ok {
		return known
	}
	if s.made == nil {
		s.made = map[protoreflect.FullName]*Message{}
	}
	m := &Message{}
	if ByHand[d.FullName()] && !s.All || d.ParentFile().Package() == "google.protobuf" {
		m = nil
	}
	s.made[d.FullName()] = m
	if m == nil {
		return nil
	}
	for i := range d.Fields().Len() {
		if f := s.field(d.Fields().Get(i)); f.missing != "" || f.most > 0 || f.value != nil || f.inner != nil {
			m.fields = append(m.fields, f)
		}
	}
	if len(m.fields) == 0 {
		s.made[d.FullName()], m = nil, nil
	}
	return m
}

func (s *Set) field(d protoreflect.FieldDescriptor) field {
	rule := Of(d)
	f := field{FieldDescriptor: d, name: string(d.Name()), most: int(rule.GetMaxItems()), value: testOf(d, rule)}
	if d.Message() != nil && !d.IsMap() {
		f.inner = s.Message(d.Message())
	}
	if d.ContainingOneof() == nil && (rule.GetRequired() || rule.GetNotBlank() && !d.IsList()) {
		f.missing = missing(d, rule)
	}
	return f
}

// Check returns an Invalid fault that names every violation in a request, or nil. A nil Message has no checks.
func (m *Message) Check(request proto.Message) error {
	if m == nil {
		return nil
	}
	var c validate.Check
	m.check(&c, request.ProtoReflect())
	return c.Err()
}

func (m *Message) check(c *validate.Check, in protoreflect.Message) {
	for i := range m.fields {
		f := &m.fields[i]
		switch {
		case !in.Has(f.FieldDescriptor):
			if f.missing != "" {
				c.Fail(f.name, "%s", f.missing)
			}
		case f.IsList():
			f.list(c, in.Get(f.FieldDescriptor).List())
		default:
			f.single(c, f.name, in.Get(f.FieldDescriptor))
		}
	}
}

// list checks the items of a list, unless there are too many of them.
func (f *field) list(c *validate.Check, items protoreflect.List) {
	if f.most > 0 && items.Len() > f.most {
		c.Count(f.name, items.Len(), f.most)
		return
	}
	if f.value == nil && f.inner == nil {
		return
	}
	for i := range items.Len() {
		n := c.Found()
		if f.single(c, "", items.Get(i)); c.Found() > n {
			c.Under(fmt.Sprintf("%s[%d]", f.name, i), n)
		}
	}
}

// single checks a value. An item of a list has no name.
func (f *field) single(c *validate.Check, name string, v protoreflect.Value) {
	if f.value != nil {
		f.value(c, name, v)
	}
	if f.inner != nil {
		n := c.Found()
		if f.inner.check(c, v.Message()); name != "" && c.Found() > n {
			c.Under(name, n)
		}
	}
}
