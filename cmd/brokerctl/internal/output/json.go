package output

import (
	"bytes"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/jsonform"
)

// PageToken is the field that brokerctl leaves out of what it prints: it reads all pages itself.
const PageToken = "next_page_token"

// WriteJSON writes a message of the API as one line.
func WriteJSON(w io.Writer, m proto.Message) error {
	var b bytes.Buffer
	if err := jsonform.Append(&b, m, PageToken); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// ParseEnum returns the number of the value with this short name, in any case; 0 for "".
func ParseEnum(flag string, e protoreflect.EnumDescriptor, name string) (protoreflect.EnumNumber, error) {
	if name == "" {
		return 0, nil
	}
	n, ok := jsonform.ParseEnum(e, name)
	if !ok {
		return 0, problem.Usagef("--%s %q is none of %s", flag, name, strings.Join(jsonform.EnumNames(e), ", "))
	}
	return n, nil
}
