package rpc

import (
	"reflect"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/internal/fault"
)

// What an item takes in memory besides its text, in bytes.
const (
	scalarSize  = 8
	textSize    = 16
	entrySize   = 128 // of a map
	messageSize = 256 // of a message whose Go type is not known
)

// A shape has what the wire form of a message can become: its lists, maps and messages.
type shape struct {
	fields []*shapeField // by number; nil = a field without items
}

// A shapeField is a field with items. Each item takes size bytes, and more if it is a message.
type shapeField struct {
	name    string
	number  protowire.Number
	size    int
	message *shape // of each item; nil = a scalar, a text, or an entry of a map
	list    bool   // it has at most fault.MaxItems items if the request itself has it
	packed  bool   // its items are numbers, and several of them may share one occurrence
	scalar  protoreflect.Kind
}

// shapes are the shapes of the messages that were decoded. Its methods may be called concurrently.
type shapes struct{ all sync.Map } // of *shape, by descriptor

// of returns the shape of a message.
func (s *shapes) of(d protoreflect.MessageDescriptor) *shape {
	if known, ok := s.all.Load(d); ok {
		return known.(*shape)
	}
	made := newShape(d, map[protoreflect.FullName]*shape{})
	s.all.Store(d, made)
	return made
}

// newShape makes the shape of a message from those that are made already, to which it adds.
func newShape(d protoreflect.MessageDescriptor, made map[protoreflect.FullName]*shape) *shape {
	if s := made[d.FullName()]; s != nil {
		return s
	}
	s := &shape{}
	made[d.FullName()] = s
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		field := &shapeField{name: string(f.Name()), number: f.Number(), list: f.IsList() || f.IsMap(), scalar: f.Kind()}
		switch {
		case f.IsMap():
			field.size = entrySize
		case f.Message() != nil:
			field.size, field.message = goSize(f.Message()), newShape(f.Message(), made)
		case !f.IsList():
			continue
		case f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind:
			field.size = textSize
		default:
			field.size, field.packed = scalarSize, true
		}
		for len(s.fields) <= int(f.Number()) {
			s.fields = append(s.fields, nil)
		}
		s.fields[f.Number()] = field
	}
	return s
}

// goSize returns how many bytes an empty message and a pointer to it take.
func goSize(d protoreflect.MessageDescriptor) int {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return messageSize
	}
	return int(reflect.TypeOf(t.Zero().Interface()).Elem().Size()) + scalarSize
}

// check counts the items of a request before they are built. It returns how many bytes they take besides
// their texts. Bytes that are no message have the items before the first fault, as the decoder builds
// them.
func (s *shape) check(data []byte) (size int, err error) {
	if len(data) > fault.MaxItems {
		if err := s.checkLists(data); err != nil {
			return 0, err
		}
	}
	t := tally{left: fault.MaxAllItems}
	if !s.count(data, &t) {
		return t.size, fault.TooManyItems("items in lists and maps")
	}
	return t.size, nil
}

// checkLists checks the lists of the request itself.
func (s *shape) checkLists(data []byte) error {
	var few [64]int
	has := few[:] // by number
	if len(s.fields) > len(has) {
		has = make([]int, len(s.fields))
	}
	for len(data) > 0 {
		f, value, kind, rest := s.next(data)
		if rest == nil {
			break
		}
		if f != nil && f.list {
			has[f.number] += f.items(value, kind)
		}
		data = rest
	}
	for number, n := range has {
		if n > fault.MaxItems {
			return fault.LongList(s.fields[number].name)
		}
	}
	return nil
}

// A tally counts items.
type tally struct {
	left int // that may follow
	size int // in bytes
}

// count adds the items of a message, and reports whether there are few enough of them.
func (s *shape) count(data []byte, t *tally) bool {
	for len(data) > 0 {
		f, value, kind, rest := s.next(data)
		if rest == nil {
			return true // the decoder fails here too
		}
		data = rest
		if f == nil {
			continue
		}
		n := f.items(value, kind)
		t.left -= n
		t.size += n * f.size
		if t.left < 0 || f.message != nil && kind == protowire.BytesType && !f.message.count(value, t) {
			return false
		}
	}
	return true
}

// next reads the next field. f is nil if the field has no items; value is its bytes; rest is nil if the
// bytes are no message.
func (s *shape) next(data []byte) (f *shapeField, value []byte, kind protowire.Type, rest []byte) {
	number, kind, n := protowire.ConsumeTag(data)
	if n < 0 {
		return nil, nil, 0, nil
	}
	data = data[n:]
	if kind == protowire.BytesType {
		value, n = protowire.ConsumeBytes(data)
	} else {
		n = protowire.ConsumeFieldValue(number, kind, data)
	}
	if n < 0 {
		return nil, nil, 0, nil
	}
	if int(number) < len(s.fields) {
		f = s.fields[number]
	}
	return f, value, kind, data[n:]
}

// items returns how many items one occurrence of a field has: of a packed list several.
func (f *shapeField) items(value []byte, kind protowire.Type) int {
	if kind != protowire.BytesType || !f.packed {
		return 1
	}
	switch f.scalar {
	case protoreflect.DoubleKind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
		return len(value) / 8
	case protoreflect.FloatKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return len(value) / 4
	}
	n := 0
	for _, b := range value {
		if b < 0x80 { // the last byte of a number
			n++
		}
	}
	return n
}
