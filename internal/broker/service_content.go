package broker

import (
	"fmt"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonline"
)

// Numbers of the fields of a message's content, in message.proto.
const (
	fieldTarget           = 10
	fieldReach            = 11
	fieldType             = 12
	fieldVersion          = 13
	fieldSubject          = 14
	fieldBody             = 15
	fieldPayload          = 16
	fieldPriority         = 17
	fieldChannel          = 18
	fieldThread           = 19
	fieldCorrelation      = 20
	fieldInReplyTo        = 21
	fieldTask             = 22
	fieldOrderingKey      = 28
	fieldMaxAttempts      = 29
	fieldRequiresResponse = 30
	fieldTraceParent      = 33
	fieldTypeAsSent       = 34
	pastFields            = 35

	plainTexts = 1<<fieldType | 1<<fieldVersion | 1<<fieldSubject | 1<<fieldBody | 1<<fieldPayload | 1<<fieldChannel | 1<<fieldThread |
		1<<fieldCorrelation | 1<<fieldInReplyTo | 1<<fieldTask | 1<<fieldOrderingKey | 1<<fieldTraceParent | 1<<fieldTypeAsSent
	plainNumbers = 1<<fieldReach | 1<<fieldPriority | 1<<fieldMaxAttempts | 1<<fieldRequiresResponse
)

// contentFields are the fields of a message's content: if it has none but texts, numbers and a plain target, as most have, without the
// detour over protobuf's structs.
type contentFields struct {
	text   [pastFields]string // of the target as the wire has it
	number [pastFields]uint64
	rest   *pb.Message // that all fields are in; nil if there are no others
}

// parseContent takes apart what content has made, or several of these, one after the other: as protobuf has it, the last value counts.
func parseContent(b []byte) (c contentFields, err error) {
	// Nobody changes these bytes: see store.Rows.
	if c.plain(unsafe.String(unsafe.SliceData(b), len(b))) {
		return c, nil
	}
	c = contentFields{rest: &pb.Message{}}
	if err := proto.Unmarshal(b, c.rest); err != nil {
		return c, fmt.Errorf("read content: %w", err)
	}
	m := c.rest.ProtoReflect()
	for n := range protowire.Number(pastFields) {
		switch f := m.Descriptor().Fields().ByNumber(n); {
		case 1<<n&plainTexts != 0:
			c.text[n] = m.Get(f).String()
		case 1<<n&plainNumbers == 0:
		case f.Kind() == protoreflect.EnumKind:
			c.number[n] = uint64(m.Get(f).Enum())
		case f.Kind() == protoreflect.Int32Kind:
			c.number[n] = uint64(m.Get(f).Int())
		case m.Get(f).Bool():
			c.number[n] = 1
		}
	}
	return c, nil
}

// plain takes content apart that has nothing but plain fields, and reports whether that is so.
func (c *contentFields) plain(s string) bool {
	for s != "" {
		var tag, n uint64
		if tag, s = cutVarint(s); s == "" {
			return false
		}
		n, rest := cutVarint(s)
		number := tag >> 3
		switch {
		case len(rest) == len(s), number >= pastFields:
			return false
		case 1<<number&plainNumbers != 0 && protowire.Type(tag&7) == protowire.VarintType:
			c.number[number] = n
			s = rest
			continue
		case protowire.Type(tag&7) != protowire.BytesType, n > uint64(len(rest)):
			return false
		}
		text := rest[:n]
		if 1<<number&plainTexts == 0 && !c.plainTarget(number, text) {
			return false
		}
		c.text[number] = text
		s = rest[n:]
	}
	return true
}

// plainTarget reports whether a field is the first target, and just a name.
func (c *contentFields) plainTarget(number uint64, text string) bool {
	kind, _ := plainTarget(text)
	return number == fieldTarget && c.text[number] == "" && kind != ""
}

// cutVarint returns the number that a text begins with, and what comes after it; that is the same text if there is none.
func cutVarint(s string) (n uint64, rest string) {
	for i := 0; i < len(s) && i < 10; i++ {
		if n |= uint64(s[i]&0x7f) << (7 * i); s[i] < 0x80 {
			return n, s[i+1:]
		}
	}
	return 0, s
}

// plainTarget takes apart a target as the wire has it; kind is empty if it is not just a name.
func plainTarget(s string) (kind, name string) {
	const agent, role, channel, pattern = 1<<3 | 2, 2<<3 | 2, 3<<3 | 2, 4<<3 | 2
	tag, rest := cutVarint(s)
	n, name := cutVarint(rest)
	if len(rest) == len(s) || len(name) == len(rest) || n != uint64(len(name)) {
		return "", ""
	}
	switch tag {
	case agent:
		return "agent", name
	case role:
		return "role", name
	case channel:
		return "channel", name
	case pattern:
		return "pattern", name
	}
	return "", ""
}

// appendTarget writes the target.
func (c *contentFields) appendTarget(b []byte) []byte {
	if c.rest != nil || c.text[fieldTarget] == "" {
		return appendTarget(b, c.rest.GetTarget())
	}
	kind, name := plainTarget(c.text[fieldTarget])
	b = append(append(append(b, '{', '"'), kind...), '"', ':')
	return append(jsonline.Text(b, name), '}')
}
