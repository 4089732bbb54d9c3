package mailfile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	pb "brokerd/gen/brokerd/v1"
)

// TypeName returns the type of a message as its sender wrote it.
func TypeName(m *pb.Message) string { return cmp.Or(m.GetTypeAsSent(), m.GetType()) }

// Quote returns a text as JSON.
func Quote(text string) json.RawMessage {
	quoted, _ := json.Marshal(text) // of a string, there is no error
	return quoted
}

// OneLine returns text as a single line of at most n bytes.
func OneLine(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	for len(text) > n {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

// JSONString returns the text of a JSON string.
func JSONString(value json.RawMessage) (text string, ok bool) {
	return text, bytes.HasPrefix(value, []byte{'"'}) && json.Unmarshal(value, &text) == nil
}

// TextOf returns the text of a JSON string; "" for other values.
func TextOf(value json.RawMessage) string {
	text, _ := JSONString(value)
	return text
}

// Compact returns JSON text without space between its parts.
func Compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return text
	}
	return b.String()
}

// Letters returns a type in lower case and without separators, so that all its spellings are equal.
func Letters(kind string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '.' || r == '-' {
			return -1
		}
		return unicode.ToLower(r)
	}, kind)
}
