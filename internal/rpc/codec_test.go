package rpc_test

import (
	"bytes"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// lenient is the codec of a client that sends text without looking whether it is UTF-8. Go's own
// looks, so the text goes in as 'a', 0x01 and is broken afterwards.
type lenient struct{}

func (lenient) Marshal(v any) ([]byte, error) {
	b, err := proto.Marshal(v.(proto.Message))
	return bytes.ReplaceAll(b, []byte{'a', 0x01}, []byte{'a', 0xff}), err
}

func (lenient) Unmarshal(data []byte, v any) error { return proto.Unmarshal(data, v.(proto.Message)) }

func (lenient) Name() string { return "proto" }

// raw is the codec of a client that sends bytes as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return v.(*wrapperspb.BytesValue).GetValue(), nil }

func (raw) Unmarshal(data []byte, v any) error { return proto.Unmarshal(data, v.(proto.Message)) }

func (raw) Name() string { return "proto" }
