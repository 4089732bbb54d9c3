package messagesrpc

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/archive"
	"brokerd/internal/channels"
	"brokerd/internal/store"
	"brokerd/internal/work"
)

// ChannelRecords returns the channels of a session after a name, each as one line of JSON, and the name of the last
// one.
func ChannelRecords(q store.Querier, session int64, after string, limit int) (lines [][]byte, last string, err error) {
	found, _, err := channels.Of(q, session, "", after, limit)
	if err != nil {
		return nil, "", err
	}
	for i := range found {
		line, err := recordOf(channel(&found[i]))
		if err != nil {
			return nil, "", err
		}
		lines, last = append(lines, line), found[i].Name
	}
	return lines, last, nil
}

// recordOf writes a message of the API as JSON, with names in snake_case, nested JSON as such, times in RFC 3339 and
// durations in seconds. protojson would quote 64-bit numbers and nested JSON.
func recordOf(m proto.Message) ([]byte, error) {
	var b bytes.Buffer
	if err := recordMessage(&b, m.ProtoReflect()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func recordMessage(b *bytes.Buffer, m protoreflect.Message) error {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		b.WriteString(v.AsTime().Format(`"` + time.RFC3339Nano + `"`))
		return nil
	case *durationpb.Duration:
		b.WriteString(strconv.FormatFloat(v.AsDuration().Seconds(), 'f', -1, 64))
		return nil
	}
	fields := m.Descriptor().Fields()
	separator := byte('{')
	for i := range fields.Len() {
		f := fields.Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() && !m.Has(f) {
			continue // of a oneof, only the field that is set
		}
		b.WriteByte(separator)
		separator = ','
		b.WriteString(strconv.Quote(string(f.Name())) + ":")
		if err := recordField(b, m, f); err != nil {
			return err
		}
	}
	if separator == '{' {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return nil
}

func recordField(b *bytes.Buffer, m protoreflect.Message, f protoreflect.FieldDescriptor) error {
	v := m.Get(f)
	switch {
	case f.IsMap():
		labels := map[string]string{} // the only kind of map in the API
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			labels[k.String()] = v.String()
			return true
		})
		return recordJSON(b, labels)
	case f.IsList():
		b.WriteByte('[')
		for i := range v.List().Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := recordValue(b, f, v.List().Get(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	case f.HasPresence() && !m.Has(f), slices.Contains(nested, f.FullName()) && v.String() == "":
		b.WriteString("null")
		return nil
	case slices.Contains(nested, f.FullName()):
		return json.Compact(b, []byte(v.String()))
	}
	return recordValue(b, f, v)
}

// nested has the fields that contain JSON. The broker has checked it when it took the message.
var nested = []protoreflect.FullName{"brokerd.v1.Message.payload"}

func recordValue(b *bytes.Buffer, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return recordMessage(b, v.Message())
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		if v.Enum() == 0 || values.ByNumber(v.Enum()) == nil {
			b.WriteString("null")
			return nil
		}
		prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
		b.WriteString(strconv.Quote(strings.TrimPrefix(string(values.ByNumber(v.Enum()).Name()), prefix)))
		return nil
	}
	return recordJSON(b, v.Interface())
}

func recordJSON(b *bytes.Buffer, v any) error {
	text, err := json.Marshal(v)
	b.Write(text)
	return err
}

// ChannelData is what the keeper exports and removes of the channels of a session, with the other
// mailboxes.
func ChannelData(m *archive.Messages) work.Data {
	return work.Data{File: "channels.jsonl", Lines: ChannelRecords, Erase: m.EraseMailboxes}
}
