package mailfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	pb "brokerd/gen/brokerd/v1"
)

// Labels of a message that came from a file. A field of the file for which a message has no field
// has the label "file.NAME" with its JSON.
const (
	FieldPrefix = "file."
	// moreLabel marks a payload {"file": {"fields": {…}, "labels": {…}}, "payload": …} with the fields
	// that fit into no label, and the message's payload.
	moreLabel = "file..more"
)

// The broker's limits for labels.
const (
	maxLabels = 64
	maxLabel  = 256 // bytes of a key, and of a value
)

// Fields are the fields of a message in a file that have not been read yet.
type Fields map[string]json.RawMessage

// Parse reads the JSON object of a file. The error is ErrIncomplete or a refusal.
func Parse(data []byte) (Fields, error) {
	data = []byte(strings.TrimPrefix(string(data), "\ufeff"))
	if !utf8.Valid(data) {
		return nil, Refusal("it is not UTF-8")
	}
	var f Fields
	err := json.Unmarshal(data, &f)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("%w: %s", ErrIncomplete, err.Error())
	case err != nil || f == nil:
		return nil, Refusal("it is not a JSON object")
	}
	return f, nil
}

// Take reads a field and removes it. An absent field and null leave into as it is.
func (f Fields) Take(name string, into any) error {
	raw, ok := f[name]
	delete(f, name)
	if !ok || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return Refusalf("%s is %s; it must be %s", name, OneLine(string(raw), 60), wanted(into))
	}
	return nil
}

func wanted(into any) string {
	switch into.(type) {
	case *string:
		return "a string"
	case *bool:
		return "true or false"
	case *map[string]string:
		return "an object of strings"
	}
	return "a value of another type"
}

// more is what a message has beyond the limits of labels.
type more struct {
	Fields Fields            `json:"fields,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// wrapped is the payload of a message that has more.
type wrapped struct {
	More    more            `json:"file"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// Keep puts the labels of a file, and the fields that have not been read, into the labels of a
// message, or into its payload if they exceed the limits of labels.
func (f Fields) Keep(m *pb.Message, labels map[string]string) error {
	beyond := more{Fields: Fields{}, Labels: map[string]string{}}
	m.Labels = map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		var text bytes.Buffer
		if err := json.Compact(&text, f[name]); err != nil {
			return err
		}
		if k, v := FieldPrefix+name, text.String(); Fits(m.Labels, k, v) {
			m.Labels[k] = v
		} else {
			beyond.Fields[name] = f[name]
		}
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if v := labels[k]; !strings.HasPrefix(k, FieldPrefix) && Fits(m.Labels, k, v) {
			m.Labels[k] = v
		} else {
			beyond.Labels[k] = v
		}
	}
	if len(beyond.Fields)+len(beyond.Labels) == 0 {
		return nil
	}
	text, err := json.Marshal(wrapped{More: beyond, Payload: json.RawMessage(m.GetPayload())})
	m.Payload, m.Labels[moreLabel] = string(text), "true"
	return err
}

// Kept returns what Keep has put into a message: the labels, the fields, and the payload of the
// message itself.
func Kept(m *pb.Message) (labels map[string]string, f Fields, payload string) {
	var w wrapped
	payload = m.GetPayload()
	if m.GetLabels()[moreLabel] != "" && json.Unmarshal([]byte(payload), &w) == nil {
		payload = string(w.Payload)
	}
	labels, f = map[string]string{}, Fields{}
	maps.Copy(labels, w.More.Labels)
	maps.Copy(f, w.More.Fields)
	for k, v := range m.GetLabels() {
		name, field := strings.CutPrefix(k, FieldPrefix)
		switch {
		case k == moreLabel:
		case field && name != "" && json.Valid([]byte(v)):
			f[name] = json.RawMessage(v)
		default:
			labels[k] = v
		}
	}
	return labels, f, payload
}

// Fits reports whether a label can be added within the broker's limits.
func Fits(labels map[string]string, k, v string) bool {
	return len(labels) < maxLabels-1 && k != "" && len(k) <= maxLabel && len(v) <= maxLabel &&
		!strings.ContainsFunc(k+v, unicode.IsControl)
}

// Set writes a field, unless it has the zero value.
func (f Fields) Set(name string, value any) {
	if text, err := json.Marshal(value); err == nil && !reflect.ValueOf(value).IsZero() {
		f[name] = text
	}
}
