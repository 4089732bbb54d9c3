package msgtype

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// maxFaults is how many faults of a payload are reported.
const maxFaults = 10

// maxProblem is how many bytes of the place, and of the description, of a fault are reported.
const maxProblem = 200

// schemaURL names a schema to the compiler. A reference inside the schema is relative to it.
const schemaURL = "brokerd:schema"

// A Fault is a place at which a payload does not fit a schema.
type Fault struct {
	Pointer string // JSON pointer; empty = the payload as a whole
	Problem string
}

// String returns the place and the problem.
func (f Fault) String() string {
	if f.Pointer == "" {
		return "the top: " + f.Problem
	}
	return f.Pointer + ": " + f.Problem
}

// A Schema checks payloads. It may be used concurrently.
type Schema struct{ compiled *jsonschema.Schema }

// CompileSchema returns the checks of a JSON Schema, draft 2020-12, given as JSON text. The schema
// may refer to itself and to the drafts; it cannot refer to other documents. The error is for the
// author of the schema.
func CompileSchema(text string) (*Schema, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	if far := tooFar(document, nil); far != nil {
		return nil, fmt.Errorf("has a number that is out of range: at %s", far)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	if err := compiler.AddResource(schemaURL, document); err != nil {
		return nil, err
	}
	compiled, err := compiler.Compile(schemaURL)
	var wrong *jsonschema.SchemaValidationError
	var invalid *jsonschema.ValidationError
	if errors.As(err, &wrong) && errors.As(wrong.Err, &invalid) {
		return nil, errors.New("is no JSON Schema: at " + Join(faultsOf(invalid)))
	}
	if err != nil {
		return nil, err
	}
	return &Schema{compiled}, nil
}

// noLoader loads no document: a schema must not make the broker read files.
type noLoader struct{}

// Load implements jsonschema.URLLoader.
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("refers to the document %.100q; a schema must be complete in itself", url)
}

// Validate returns the faults of a payload, which is valid JSON. There are none if it fits.
func (s *Schema) Validate(payload string) []Fault {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(payload))
	if err != nil {
		return []Fault{{"", "not JSON: " + err.Error()}}
	}
	if far := tooFar(value, nil); far != nil {
		return []Fault{*far}
	}
	var invalid *jsonschema.ValidationError
	if errors.As(s.compiled.Validate(value), &invalid) {
		return faultsOf(invalid)
	}
	return nil
}

// maxExponent is the largest exponent of a number, and its negative the smallest.
const maxExponent = 400

// tooFar returns the first number of a JSON value with an exponent that is out of range, nil if
// there is none. The library computes with exact fractions: a number such as 1e999999 takes it
// milliseconds, and larger exponents make it panic.
func tooFar(value any, place []string) *Fault {
	switch v := value.(type) {
	case json.Number:
		i := strings.IndexAny(v.String(), "eE")
		if i < 0 {
			return nil
		}
		if n, err := strconv.Atoi(v.String()[i+1:]); err != nil || n > maxExponent || n < -maxExponent {
			return &Fault{pointer(place), fmt.Sprintf("%.40s is out of range: exponents of %d to %d are allowed", v, -maxExponent, maxExponent)}
		}
	case []any:
		for i, item := range v {
			if far := tooFar(item, append(place, strconv.Itoa(i))); far != nil {
				return far
			}
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if far := tooFar(v[key], append(place, key)); far != nil {
				return far
			}
		}
	}
	return nil
}

// faultsOf returns the innermost causes of an error, by place.
func faultsOf(err *jsonschema.ValidationError) []Fault {
	var faults []Fault
	printer := message.NewPrinter(language.English)
	var visit func(e *jsonschema.ValidationError)
	visit = func(e *jsonschema.ValidationError) {
		switch e.ErrorKind.(type) {
		case *kind.AnyOf, *kind.OneOf, *kind.Not: // one of the causes alone would mislead
			if len(e.Causes) > 0 {
				faults = append(faults, alternatives(e, printer))
				return
			}
		}
		for _, cause := range e.Causes {
			visit(cause)
		}
		if len(e.Causes) == 0 {
			faults = append(faults, Fault{pointer(e.InstanceLocation), clip(e.ErrorKind.LocalizedString(printer))})
		}
	}
	visit(err)
	slices.SortFunc(faults, func(a, b Fault) int {
		if a.Pointer == b.Pointer {
			return compare(a.Problem, b.Problem)
		}
		return compare(a.Pointer, b.Pointer)
	})
	faults = slices.Compact(faults)
	return faults[:min(len(faults), maxFaults)]
}

// alternatives describes the failure of all alternatives as one fault.
func alternatives(e *jsonschema.ValidationError, printer *message.Printer) Fault {
	var texts []string
	for _, cause := range e.Causes {
		for _, f := range faultsOf(cause) {
			if f.Pointer == pointer(e.InstanceLocation) {
				f.Pointer = ""
			}
			text := f.Problem
			if f.Pointer != "" {
				text = f.String()
			}
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 {
		texts = []string{e.ErrorKind.LocalizedString(printer)}
	}
	return Fault{pointer(e.InstanceLocation), clip("no alternative fits: " + strings.Join(texts, ", or "))}
}

// pointer returns a place as a JSON pointer (RFC 6901), shortened if it is long.
func pointer(place []string) string {
	var b strings.Builder
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for _, token := range place {
		b.WriteByte('/')
		_, _ = escape.WriteString(&b, token) // a Builder does not fail
	}
	return shorten(b.String())
}

// clip shortens a text, and turns the single quotes of the library into double ones.
func clip(s string) string { return shorten(strings.ReplaceAll(s, "'", `"`)) }

func shorten(s string) string {
	if len(s) <= maxProblem {
		return s
	}
	return strings.ToValidUTF8(s[:maxProblem], "") + "…"
}
