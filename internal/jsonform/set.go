package jsonform

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/fault"
)

// filter is the field whose own fields a name reaches without a prefix.
const filter = "filter"

// Set sets the field with a name from texts, as the query of a URL has them. A name with dots reaches
// a field of a nested message, or an entry of a map: labels.team. The fields of a message named filter
// need no prefix. The error is fault.Invalid; Set refuses names that the message does not have, and
// fields that are set already.
func Set(message proto.Message, name string, texts []string) error {
	m := message.ProtoReflect()
	first, rest, nested := strings.Cut(name, ".")
	f := m.Descriptor().Fields().ByName(protoreflect.Name(first))
	if f == nil {
		if inner := m.Descriptor().Fields().ByName(filter); inner != nil && inner.Message() != nil &&
			inner.Message().Fields().ByName(protoreflect.Name(first)) != nil {
			return set(m.Mutable(inner).Message(), name, name, texts)
		}
	}
	if nested && f != nil && f.Message() != nil && !f.IsList() && !f.IsMap() {
		return set(m.Mutable(f).Message(), rest, name, texts)
	}
	return set(m, name, name, texts)
}

// set sets a field of a message. path is the name that the caller gave.
func set(m protoreflect.Message, name, path string, texts []string) error {
	first, key, nested := strings.Cut(name, ".")
	f := m.Descriptor().Fields().ByName(protoreflect.Name(first))
	switch {
	case f == nil:
		return unknown(path, m.Descriptor())
	case nested && f.IsMap():
		if len(texts) > 1 {
			return fault.Field(path, "is given %d times", len(texts))
		}
		entry, entries := protoreflect.ValueOfString(key).MapKey(), m.Mutable(f).Map()
		if entries.Has(entry) {
			return fault.Field(path, "is given twice")
		}
		v, err := parse(f.MapValue(), path, texts[0])
		if err == nil {
			entries.Set(entry, v)
		}
		return err
	case nested && f.Message() != nil && !f.IsList():
		return set(m.Mutable(f).Message(), key, path, texts)
	case nested:
		return fault.Field(path, "cannot be given as a parameter")
	case m.Has(f):
		return fault.Field(path, "is given twice")
	}
	if err := alone(m, f, path); err != nil {
		return err
	}
	if f.IsList() {
		return setList(m, f, path, texts)
	}
	if len(texts) > 1 {
		return fault.Field(path, "is given %d times", len(texts))
	}
	switch {
	case f.IsMap():
		return fault.Field(path, "needs a key, such as %s.KEY", path)
	case IsJSONText(f):
		m.Set(f, protoreflect.ValueOfString(texts[0]))
		return nil
	case f.Message() == nil:
		v, err := parse(f, path, texts[0])
		if err == nil {
			m.Set(f, v)
		}
		return err
	case f.Message().FullName() == timestamp || f.Message().FullName() == duration:
		return setText(m.Mutable(f).Message(), path, texts[0])
	}
	return fault.Field(path, "cannot be given as a parameter")
}

func setList(m protoreflect.Message, f protoreflect.FieldDescriptor, path string, texts []string) error {
	if f.Message() != nil {
		return fault.Field(path, "cannot be given as a parameter")
	}
	list := m.Mutable(f).List()
	for _, text := range texts {
		v, err := parse(f, path, text)
		if err != nil {
			return err
		}
		list.Append(v)
	}
	return nil
}
