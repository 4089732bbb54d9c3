package agentmessages

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// withField returns a JSON object with a new value of a field. All other bytes stay as they are. A
// field that the object does not have becomes its last one. Of a field that appears several times,
// the last one counts. The object must have a field.
func withField(object []byte, name string, value json.RawMessage) ([]byte, error) {
	d := jsontext.NewDecoder(bytes.NewReader(object), jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil { // the brace
		return nil, err
	}
	var from, to, end int64 // the old value, and the end of the last value
	var indent []byte       // the space before the last name
	for d.PeekKind() != '}' {
		before := d.InputOffset()
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		found := token.String() == name
		quoted := bytes.TrimLeft(object[before:d.InputOffset()], ", \t\r\n")
		indent = object[before : d.InputOffset()-int64(len(quoted))]
		old, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		if end = d.InputOffset(); found {
			from, to = end-int64(len(old)), end
		}
	}
	if to > 0 {
		return slices.Concat(object[:from], value, object[to:]), nil
	}
	quoted, err := json.Marshal(name)
	if err != nil {
		return nil, err
	}
	indent = indent[bytes.IndexByte(indent, ',')+1:]
	return slices.Concat(object[:end], []byte(","), indent, quoted, []byte(": "), value, object[end:]), nil
}
