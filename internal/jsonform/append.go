package jsonform

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The messages with a form that is not an object of their fields.
const (
	stateValue = "brokerd.v1.StateValue" // the value itself, whatever its type
	names      = "brokerd.v1.Names"      // its list: it is a message only to be told from an absent one
	timestamp  = "google.protobuf.Timestamp"
	duration   = "google.protobuf.Duration"
)

// jsonText are the string fields that hold JSON text. Their value is nested as it is.
var jsonText = map[protoreflect.FullName]bool{
	"brokerd.v1.Message.payload":                    true,
	"brokerd.v1.Notice.payload":                     true,
	"brokerd.v1.DecisionContent.payload":            true,
	"brokerd.v1.MessageType.example":                true,
	"brokerd.v1.MessageType.schema":                 true,
	"brokerd.v1.RegisterMessageTypeRequest.example": true,
	"brokerd.v1.RegisterMessageTypeRequest.schema":  true,
	"brokerd.v1.ValidatePayloadRequest.payload":     true,
	"brokerd.v1.Call.request":                       true,
	"brokerd.v1.Event.details":                      true,
	"brokerd.v1.PublishEventRequest.details":        true,
	"brokerd.v1.StateValue.json_value":              true,
	"brokerd.v1.Checkpoint.data":                    true,
	"brokerd.v1.SaveCheckpointRequest.data":         true,
}

// IsJSONText reports whether a string field holds JSON text.
func IsJSONText(f protoreflect.FieldDescriptor) bool { return jsonText[f.FullName()] }

// kinds tells apart the messages that one list mixes.
var kinds = map[protoreflect.FullName]string{"brokerd.v1.Lock": "lock", "brokerd.v1.LockTicket": "ticket"}

// Kind returns the value of the field kind that Append adds to a message; "" for most messages.
func Kind(m protoreflect.MessageDescriptor) string { return kinds[m.FullName()] }

// Append writes a message as one line without a newline. It leaves out the named fields of the
// message, not those of nested messages.
func Append(b *bytes.Buffer, m proto.Message, leftOut ...protoreflect.Name) error {
	if err := appendMessage(b, m.ProtoReflect(), leftOut...); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

func appendMessage(b *bytes.Buffer, m protoreflect.Message, leftOut ...protoreflect.Name) error {
	if len(m.GetUnknown()) > 0 {
		var err error
		if m, err = resolved(m); err != nil {
			return err
		}
	}
	fields := m.Descriptor().Fields()
	switch m.Descriptor().FullName() {
	case timestamp:
		return appendString(b, Time(m.Interface().(*timestamppb.Timestamp)))
	case duration:
		return appendString(b, Duration(m.Interface().(*durationpb.Duration).AsDuration()))
	case stateValue:
		f := m.WhichOneof(m.Descriptor().Oneofs().ByName("value"))
		if f == nil {
			b.WriteString("null")
			return nil
		}
		return appendField(b, m, f)
	case names:
		list := fields.ByName("names")
		return appendList(b, list, m.Get(list).List())
	}
	b.WriteByte('{')
	first := true
	if kind := Kind(m.Descriptor()); kind != "" {
		first = false
		fmt.Fprintf(b, `"kind":%q`, kind)
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		if slices.Contains(leftOut, f.Name()) {
			continue
		}
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && !m.Has(f) {
			continue
		}
		if !first {
			b.WriteByte(',')
		}
		first = false
		b.WriteByte('"')
		b.WriteString(string(f.Name()))
		b.WriteString(`":`)
		if err := appendField(b, m, f); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// resolved returns a copy of a message with the fields that the message has in encoded form. The broker
// stores contents encoded, and the answers of its handlers keep them so: gRPC sends the bytes as they
// are.
func resolved(m protoreflect.Message) (protoreflect.Message, error) {
	whole := proto.Clone(m.Interface())
	whole.ProtoReflect().SetUnknown(nil)
	err := proto.UnmarshalOptions{Merge: true}.Unmarshal(m.GetUnknown(), whole)
	return whole.ProtoReflect(), err
}

// Time writes a time as the form has it.
func Time(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.RFC3339Nano) }

// Duration writes a duration as Go parses it, without units that are zero at its end: "168h", "1m30s".
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func appendField(b *bytes.Buffer, m protoreflect.Message, f protoreflect.FieldDescriptor) error {
	v := m.Get(f)
	switch {
	case f.IsList():
		return appendList(b, f, v.List())
	case f.IsMap():
		return appendMap(b, f, v.Map())
	case f.HasPresence() && !m.Has(f):
		b.WriteString("null")
		return nil
	case IsJSONText(f):
		return appendJSONText(b, v.String())
	}
	return appendValue(b, f, v)
}

func appendList(b *bytes.Buffer, f protoreflect.FieldDescriptor, l protoreflect.List) error {
	b.WriteByte('[')
	for i := range l.Len() {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := appendValue(b, f, l.Get(i)); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	return nil
}

func appendMap(b *bytes.Buffer, f protoreflect.FieldDescriptor, m protoreflect.Map) error {
	var keys []protoreflect.MapKey
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	sort.Slice(keys, func(i, j int) bool { return keys[i].String() < keys[j].String() })
	b.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := appendString(b, k.String()); err != nil {
			return err
		}
		b.WriteByte(':')
		if err := appendValue(b, f.MapValue(), m.Get(k)); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func appendValue(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(b, v.Message())
	case protoreflect.EnumKind:
		name := EnumName(f.Enum(), v.Enum())
		if name == "" {
			b.WriteString("null")
			return nil
		}
		return appendString(b, name)
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		b.Write(strconv.AppendInt(b.AvailableBuffer(), v.Int(), 10))
		return nil
	default: // bool, unsigned, floating point, bytes: as encoding/json has them
		text, err := json.Marshal(v.Interface())
		b.Write(text)
		return err
	}
}

func appendJSONText(b *bytes.Buffer, text string) error {
	if text == "" {
		b.WriteString("null")
		return nil
	}
	mark := b.Len()
	if err := json.Compact(b, []byte(text)); err != nil { // not JSON after all: show it as it is
		b.Truncate(mark)
		return appendString(b, text)
	}
	return nil
}

func appendString(b *bytes.Buffer, s string) error {
	if isPlain(s) { // as nearly every text is
		b.WriteByte('"')
		b.WriteString(s)
		b.WriteByte('"')
		return nil
	}
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the newline that Encode adds
	return nil
}

// isPlain reports whether a text is ASCII that needs no escape in JSON.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
