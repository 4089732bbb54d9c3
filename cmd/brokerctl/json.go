package main

import (
	"bytes"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"brokerd/internal/jsonform"
)

// pageToken is the field that brokerctl leaves out of what it prints: it reads all pages itself.
const pageToken = "next_page_token"

// writeJSON writes a message of the API as one line.
func writeJSON(w io.Writer, m proto.Message) error {
	var b bytes.Buffer
	if err := jsonform.Append(&b, m, pageToken); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// stamp says a time as JSON has it.
func stamp(t *timestamppb.Timestamp) string { return jsonform.Time(t) }

// enumOf returns the short name of an enum's value as options take it, and "" for the unset one.
func enumOf(v protoreflect.Enum) string { return jsonform.EnumName(v.Descriptor(), v.Number()) }

// enumNames returns the short names of an enum's values, without the unset one.
func enumNames(e protoreflect.EnumDescriptor) []string { return jsonform.EnumNames(e) }

// parseEnum returns the number of the value with this short name, in any case; 0 for "".
func parseEnum(flag string, e protoreflect.EnumDescriptor, name string) (protoreflect.EnumNumber, error) {
	if name == "" {
		return 0, nil
	}
	n, ok := jsonform.ParseEnum(e, name)
	if !ok {
		return 0, usagef("--%s %q is none of %s", flag, name, strings.Join(enumNames(e), ", "))
	}
	return n, nil
}
