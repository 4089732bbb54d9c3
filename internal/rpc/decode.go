package rpc

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one extends
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/fault"
)

// codec is gRPC's own codec for protobuf, except for answers. The server decodes requests itself: see
// receiver.
type codec struct {
	encoding.CodecV2
	large mem.BufferPool // of the answers that are large frames
}

func newCodec() codec { return codec{encoding.GetCodecV2("proto"), newLargeFrames()} }

// TooLarge returns the error of a request that has more bytes than it may have.
func TooLarge(most int64) error { return tooLarge(fmt.Sprintf("more than %d bytes", most), most) }

func tooLarge(size string, most int64) error {
	return fault.New(fault.Exhausted, "MESSAGE_TOO_LARGE",
		"the request has %s; at most %d are allowed: send less at a time, and large content as an artifact", size, most).
		With("limit", "request").With("request", strconv.FormatInt(most, 10))
}

// undecodable returns the fault for bytes that are no message of that type.
func undecodable(d protoreflect.MessageDescriptor, data []byte, cause error) error {
	if field := badText(d, data); field != "" {
		return fault.Field(field, "is not valid UTF-8")
	}
	e := fault.New(fault.Invalid, "MALFORMED_REQUEST", "the bytes sent are no %s", d.FullName())
	e.Cause = cause
	return e
}

// badText returns the path of the first string that is not UTF-8, such as messages[3].subject; empty if
// there is none, or none that can be reached.
func badText(d protoreflect.MessageDescriptor, data []byte) string {
	seen := map[protowire.Number]int{}
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return ""
		}
		data = data[n:]
		size := protowire.ConsumeFieldValue(number, kind, data)
		if size < 0 {
			return ""
		}
		field := d.Fields().ByNumber(number)
		if field != nil && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(data)
			if path := badField(field, value, seen[number]); path != "" {
				return path
			}
			seen[number]++
		}
		data = data[size:]
	}
	return ""
}

func badField(field protoreflect.FieldDescriptor, value []byte, index int) string {
	path := string(field.Name())
	if field.IsList() {
		path = fmt.Sprintf("%s[%d]", path, index)
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		if !utf8.Valid(value) {
			return path
		}
	case protoreflect.MessageKind:
		inner := badText(field.Message(), value)
		switch {
		case inner == "":
		case field.IsMap(): // inner is its key or value; neither can be named by itself
			return path
		default:
			return path + "." + inner
		}
	}
	return ""
}
