package jsonform

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/fault"
	"brokerd/internal/nearest"
)

// The kinds of jsontext.Kind that decoding distinguishes.
const (
	aNull, aFalse, aTrue, aText, aNumber        = 'n', 'f', 't', '"', '0'
	objectBegin, objectEnd, listBegin, listEnds = '{', '}', '[', ']'
)

// Decode reads one JSON object into an empty message. An empty text is an empty object. Its error is
// fault.Invalid and names the field, for example messages[3].priority.
func Decode(data []byte, m proto.Message) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	if err := DecodeNext(d, m); err != nil {
		return err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return malformed(cause(err, "more follows the object"))
	}
	return nil
}

// DecodeNext reads the next JSON object of a sequence. It returns io.EOF after the last one; its other
// errors are those of Decode, and those of the decoder's reader.
func DecodeNext(from *jsontext.Decoder, m proto.Message) error {
	d := &reader{from, 0}
	if d.PeekKind() == 0 {
		_, err := d.ReadToken()
		if !errors.As(err, new(*jsontext.SyntacticError)) {
			return err
		}
		return malformed(err)
	}
	return readMessage(d, m.ProtoReflect(), "")
}

// A reader reads the tokens of one object. It counts those that become part of the message, not those
// inside of a JSON text.
type reader struct {
	*jsontext.Decoder
	tokens int
}

// ReadToken returns the next token.
func (r *reader) ReadToken() (jsontext.Token, error) {
	if r.tokens++; r.tokens > fault.MaxAllItems {
		return jsontext.Token{}, fault.TooManyItems("items, entries and tokens")
	}
	return r.Decoder.ReadToken()
}

// malformed returns the error of a text that is not JSON.
func malformed(err error) error {
	e := fault.New(fault.Invalid, "MALFORMED_REQUEST", "the request is not one JSON object: %v", err)
	e.Cause = err
	return e
}

func cause(err error, otherwise string) error {
	if err == nil {
		return errors.New(otherwise)
	}
	return err
}

// broken returns the error of a decoder: that of its reader, or of a text that is not JSON.
func broken(err error) error {
	if errors.As(err, new(*jsontext.SyntacticError)) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed(err)
	}
	return err
}

// misfit returns the error of a value of the wrong kind; an empty path is the whole request.
func misfit(path, want string) error {
	if path == "" {
		return malformed(errors.New("it must be " + want))
	}
	return fault.Field(path, "must be %s", want)
}

// readMessage reads the next value, which is the message at a path.
func readMessage(d *reader, m protoreflect.Message, path string) error {
	fields := m.Descriptor().Fields()
	switch m.Descriptor().FullName() {
	case timestamp, duration:
		text, err := readText(d, path, what(m.Descriptor()))
		if err != nil {
			return err
		}
		return setText(m, path, text)
	case names:
		return readField(d, m, fields.ByName("names"), path)
	case stateValue:
		return readStateValue(d, m, path)
	}
	if err := begin(d, objectBegin, path, "an object"); err != nil {
		return err
	}
	for {
		name, err := d.ReadToken()
		switch {
		case err != nil:
			return broken(err)
		case name.Kind() == objectEnd:
			return nil
		}
		f := fields.ByName(protoreflect.Name(name.String()))
		if f == nil {
			return unknown(join(path, name.String()), m.Descriptor())
		}
		at := join(path, string(f.Name()))
		if d.PeekKind() == aNull {
			if _, err := d.ReadToken(); err != nil {
				return broken(err)
			}
			continue
		}
		if err := alone(m, f, at); err != nil {
			return err
		}
		if err := readField(d, m, f, at); err != nil {
			return err
		}
	}
}

// begin reads the token that an object or a list begins with.
func begin(d *reader, kind jsontext.Kind, path, want string) error {
	if found := d.PeekKind(); found != kind && found != 0 {
		return misfit(path, want)
	}
	_, err := d.ReadToken()
	return broken(err)
}

// join returns the path of a field of the message at a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// unknown returns the error of a field that a message does not have.
func unknown(path string, m protoreflect.MessageDescriptor) error {
	var all []string
	for i := range m.Fields().Len() {
		all = append(all, string(m.Fields().Get(i).Name()))
	}
	text := fmt.Sprintf("is not a field of %s", m.Name())
	if hint := nearest.Hint(path[strings.LastIndexByte(path, '.')+1:], all); hint != "" {
		text += "; " + hint
	}
	return fault.Field(path, "%s", text)
}

// alone refuses a second field of a oneof.
func alone(m protoreflect.Message, f protoreflect.FieldDescriptor, path string) error {
	o := f.ContainingOneof()
	if o == nil || o.IsSynthetic() {
		return nil
	}
	if other := m.WhichOneof(o); other != nil && other != f {
		return fault.Field(path, "excludes %s: give one of them", other.Name())
	}
	return nil
}

func readField(d *reader, m protoreflect.Message, f protoreflect.FieldDescriptor, path string) error {
	switch {
	case f.IsMap():
		return readMap(d, f, m.Mutable(f).Map(), path)
	case f.IsList():
		return readList(d, f, m.Mutable(f).List(), path)
	case f.Message() != nil:
		return readMessage(d, m.Mutable(f).Message(), path)
	}
	v, err := readScalar(d, f, path)
	if err == nil {
		m.Set(f, v)
	}
	return err
}

func readList(d *reader, f protoreflect.FieldDescriptor, l protoreflect.List, path string) error {
	if err := begin(d, listBegin, path, "a list"); err != nil {
		return err
	}
	for d.PeekKind() != listEnds {
		if l.Len() == fault.MaxItems && !strings.ContainsAny(path, ".[") {
			return fault.LongList(path)
		}
		at := fmt.Sprintf("%s[%d]", path, l.Len())
		if f.Message() == nil {
			v, err := readScalar(d, f, at)
			if err != nil {
				return err
			}
			l.Append(v)
			continue
		}
		if err := readMessage(d, l.AppendMutable().Message(), at); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return broken(err)
}

// readMap reads a map of texts to scalars, the only kind of map in the API.
func readMap(d *reader, f protoreflect.FieldDescriptor, m protoreflect.Map, path string) error {
	if err := begin(d, objectBegin, path, "an object"); err != nil {
		return err
	}
	for {
		key, err := d.ReadToken()
		switch {
		case err != nil:
			return broken(err)
		case key.Kind() == objectEnd:
			return nil
		}
		name := key.String()
		v, err := readScalar(d, f.MapValue(), join(path, name))
		if err != nil {
			return err
		}
		m.Set(protoreflect.ValueOfString(name).MapKey(), v)
	}
}

// readScalar reads a value that is no message.
func readScalar(d *reader, f protoreflect.FieldDescriptor, path string) (protoreflect.Value, error) {
	if IsJSONText(f) {
		raw, err := d.ReadValue()
		return protoreflect.ValueOfString(string(raw)), broken(err)
	}
	var fits bool
	switch kind := d.PeekKind(); f.Kind() {
	case protoreflect.BoolKind:
		fits = kind == aTrue || kind == aFalse
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.EnumKind:
		fits = kind == aText
	case protoreflect.Int64Kind:
		fits = kind == aNumber || kind == aText // as protojson writes it
	default:
		fits = kind == aNumber
	}
	if !fits && d.PeekKind() != 0 {
		return protoreflect.Value{}, misfit(path, wanted(f))
	}
	token, err := d.ReadToken()
	if err != nil {
		return protoreflect.Value{}, broken(err)
	}
	return parse(f, path, token.String())
}

// readText reads a value that must be a text.
func readText(d *reader, path, want string) (string, error) {
	if kind := d.PeekKind(); kind != aText && kind != 0 {
		return "", misfit(path, want)
	}
	token, err := d.ReadToken()
	if err != nil {
		return "", broken(err)
	}
	return token.String(), nil
}

// readStateValue reads a value of the state. Its type follows from the JSON: text, truth values and
// whole numbers of 64 bits have their own types; every other value is JSON.
func readStateValue(d *reader, m protoreflect.Message, path string) error {
	fields := m.Descriptor().Fields()
	kind := d.PeekKind()
	raw, err := d.ReadValue()
	if err != nil {
		return broken(err)
	}
	name, value := protoreflect.Name("json_value"), protoreflect.ValueOfString(string(raw))
	switch kind {
	case aText:
		text, err := jsontext.AppendUnquote(nil, raw)
		if err != nil {
			return malformed(err)
		}
		name, value = "string_value", protoreflect.ValueOfString(string(text))
	case aTrue, aFalse:
		name, value = "boolean_value", protoreflect.ValueOfBool(kind == aTrue)
	case aNumber:
		if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			name, value = "integer_value", protoreflect.ValueOfInt64(n)
		}
	}
	f := fields.ByName(name)
	if f == nil {
		return fault.Field(path, "cannot be of this type")
	}
	m.Set(f, value)
	return nil
}

// parse reads a scalar that is no JSON text from its text.
func parse(f protoreflect.FieldDescriptor, path, text string) (protoreflect.Value, error) {
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	case protoreflect.BoolKind:
		if text == "true" || text == "false" {
			return protoreflect.ValueOfBool(text == "true"), nil
		}
	case protoreflect.EnumKind:
		if n, ok := ParseEnum(f.Enum(), strings.TrimPrefix(text, enumPrefix(f.Enum()))); ok {
			return protoreflect.ValueOfEnum(n), nil
		}
	case protoreflect.Int32Kind:
		if n, err := strconv.ParseInt(text, 10, 32); err == nil {
			return protoreflect.ValueOfInt32(int32(n)), nil
		}
	case protoreflect.Int64Kind:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return protoreflect.ValueOfInt64(n), nil
		}
	case protoreflect.DoubleKind:
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return protoreflect.ValueOfFloat64(n), nil
		}
	case protoreflect.BytesKind:
		if data, err := base64.StdEncoding.DecodeString(text); err == nil {
			return protoreflect.ValueOfBytes(data), nil
		}
	default: // the API has no other kinds: TestDecode_ReadsEveryFieldOfTheAPI
	}
	return protoreflect.Value{}, misfit(path, wanted(f))
}

// wanted describes the values that a scalar field takes.
func wanted(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return "text"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.EnumKind:
		return "one of " + strings.Join(EnumNames(f.Enum()), ", ")
	case protoreflect.Int32Kind:
		return "a whole number of 32 bits"
	case protoreflect.Int64Kind:
		return "a whole number of 64 bits"
	case protoreflect.DoubleKind:
		return "a number"
	default:
		return "bytes in base64"
	}
}

// what describes the texts of a time or a duration.
func what(m protoreflect.MessageDescriptor) string {
	if m.FullName() == timestamp {
		return "a time such as 2026-01-02T15:04:05Z"
	}
	return "a duration such as 1m30s"
}

// setText reads a time or a duration from its text.
func setText(m protoreflect.Message, path, text string) error {
	switch v := m.Interface().(type) {
	case *timestamppb.Timestamp:
		if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
			proto.Merge(v, timestamppb.New(t))
			return nil
		}
	case *durationpb.Duration:
		if length, err := time.ParseDuration(text); err == nil {
			proto.Merge(v, durationpb.New(length))
			return nil
		}
	}
	return misfit(path, what(m.Descriptor()))
}
