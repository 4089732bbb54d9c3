package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
)

// jsonText are the string fields that hold JSON text; it is nested as it is.
var jsonText = map[protoreflect.FullName]bool{
	"brokerd.v1.Message.payload":       true,
	"brokerd.v1.MessageType.example":   true,
	"brokerd.v1.MessageType.schema":    true,
	"brokerd.v1.Event.details":         true,
	"brokerd.v1.FindingAction.request": true,
	"brokerd.v1.StateValue.json_value": true,
	"brokerd.v1.Checkpoint.data":       true,
}

// jsonKinds tells apart what one list mixes.
var jsonKinds = map[protoreflect.FullName]string{"brokerd.v1.Lock": "lock", "brokerd.v1.LockTicket": "ticket"}

// writeJSON writes a message of the API as one line.
//
// protojson would not do: it quotes 64-bit numbers, leaves payloads quoted inside strings, and
// spells enums with their prefix in capitals. Here names are the proto's, every field is shown in
// the order of the proto, absent messages and unset enums are null, of a oneof only the field that
// is set appears, times are RFC 3339 in UTC and durations like "1m30s".
func writeJSON(w io.Writer, m proto.Message) error {
	var b bytes.Buffer
	if err := appendMessage(&b, m.ProtoReflect()); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

func appendMessage(b *bytes.Buffer, m protoreflect.Message) error {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return appendString(b, stamp(v))
	case *durationpb.Duration:
		return appendString(b, units(v.AsDuration()))
	case *pb.StateValue: // plain, whatever its type
		f := m.WhichOneof(m.Descriptor().Oneofs().ByName("value"))
		if f == nil {
			b.WriteString("null")
			return nil
		}
		return appendField(b, m, f)
	case *pb.Names: // a list that is a message only to be told from an absent one
		names := m.Descriptor().Fields().ByName("names")
		return appendList(b, names, m.Get(names).List())
	}
	b.WriteByte('{')
	first := true
	if kind := jsonKinds[m.Descriptor().FullName()]; kind != "" {
		first = false
		fmt.Fprintf(b, `"kind":%q`, kind)
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Name() == "next_page_token" {
			continue // brokerctl reads all pages itself
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

// stamp says a time as JSON has it.
func stamp(t *timestamppb.Timestamp) string { return t.AsTime().UTC().Format(time.RFC3339Nano) }

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
	case jsonText[f.FullName()]:
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
		name := enumName(f.Enum(), v.Enum())
		if name == "" {
			b.WriteString("null")
			return nil
		}
		return appendString(b, name)
	case protoreflect.StringKind:
		return appendString(b, v.String())
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		b.WriteString(strconv.FormatInt(v.Int(), 10))
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
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the newline that Encode adds
	return nil
}

// enumName returns a value's short name as options take it, acked for DELIVERY_STATE_ACKED, and ""
// for the unset one.
func enumName(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	if n == 0 {
		return ""
	}
	v := e.Values().ByNumber(n)
	if v == nil { // of a newer broker
		return strconv.Itoa(int(n))
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), enumPrefix(e)))
}

// enumPrefix returns DELIVERY_STATE_ for the enum DeliveryState.
func enumPrefix(e protoreflect.EnumDescriptor) string {
	return strings.TrimSuffix(string(e.Values().ByNumber(0).Name()), "UNSPECIFIED")
}

// enumOf is enumName for a generated enum.
func enumOf(v protoreflect.Enum) string { return enumName(v.Descriptor(), v.Number()) }

// enumNames returns the short names of an enum's values, the unset one left out.
func enumNames(e protoreflect.EnumDescriptor) []string {
	var names []string
	for i := range e.Values().Len() {
		if n := enumName(e, e.Values().Get(i).Number()); n != "" {
			names = append(names, n)
		}
	}
	return names
}

// parseEnum returns the number of the value with this short name, in any case; 0 for "".
func parseEnum(flag string, e protoreflect.EnumDescriptor, name string) (protoreflect.EnumNumber, error) {
	if name == "" {
		return 0, nil
	}
	full := enumPrefix(e) + strings.ToUpper(name)
	v := e.Values().ByName(protoreflect.Name(full))
	if v == nil || v.Number() == 0 {
		return 0, usagef("--%s %q is none of %s", flag, name, strings.Join(enumNames(e), ", "))
	}
	return v.Number(), nil
}
