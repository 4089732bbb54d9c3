package msgtype

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

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

// verdictURL names the schema that asks whether a payload fits the schema.
const verdictURL = "brokerd:verdict"

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

// Limits of a schema. An object or boolean may be a subschema, which takes about 1 KiB of memory.
const (
	maxSubschemas = 2000
	maxDigits     = 1000 // characters of a number, in payloads as well
)

// largePayload is from how many bytes on a payload waits until other validations of such payloads end.
// The limit of steps grows with the payload, and so does the memory that a validation takes.
const largePayload = 16 << 10

// A Schema checks payloads. It may be used concurrently.
type Schema struct {
	text string

	mu   sync.Mutex // guards free
	free []*checker // that no validation uses, at most one for each processor
}

// A checker is a compiled schema with the meter of its validations. It is for one goroutine at a
// time.
type checker struct {
	meter    meter
	verdict  *jsonschema.Schema // fits what the schema fits, but keeps no faults in memory
	detailed *jsonschema.Schema
}

// CompileSchema returns the checks of a JSON Schema, draft 2020-12, given as JSON text. The schema
// may refer to itself and to the drafts; it cannot refer to other documents. The error is for the
// author of the schema.
func CompileSchema(text string) (*Schema, error) {
	s := &Schema{text: text}
	c, err := s.compile()
	if err != nil {
		return nil, err
	}
	s.give(c)
	return s, nil
}

func (s *Schema) compile() (*checker, error) {
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(s.text))
	if err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	subschemas := 0
	if wrong := unfit(document, nil, &subschemas); wrong != nil {
		return nil, fmt.Errorf("cannot be applied: at %s", wrong)
	}
	c := &checker{}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	compiler.UseRegexpEngine(c.meter.compile)
	if err := compiler.AddResource(schemaURL, document); err != nil {
		return nil, err
	}
	// Below "not", the library only asks whether a value fits.
	twice := map[string]any{"not": map[string]any{"not": map[string]any{"$ref": schemaURL}}}
	if err := compiler.AddResource(verdictURL, twice); err != nil {
		return nil, err
	}
	c.detailed, err = compiler.Compile(schemaURL)
	var wrong *jsonschema.SchemaValidationError
	var invalid *jsonschema.ValidationError
	if errors.As(err, &wrong) && errors.As(wrong.Err, &invalid) {
		return nil, errors.New("is no JSON Schema: at " + Join(faultsOf(invalid)))
	}
	if err != nil {
		return nil, err
	}
	if c.verdict, err = compiler.Compile(verdictURL); err != nil {
		return nil, err
	}
	c.meter.attach(c.verdict)
	return c, nil
}

// noLoader loads no document: a schema must not make the broker read files.
type noLoader struct{}

// Load implements jsonschema.URLLoader.
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("refers to the document %.100q; a schema must be complete in itself", url)
}

// Validate returns the faults of a payload, which is valid JSON. There are none if it fits. A payload
// that takes more than 10,000 steps, and 2 for each of its bytes, does not fit.
func (s *Schema) Validate(payload string) []Fault {
	if len(payload) > largePayload {
		large := builtin().large
		large <- struct{}{}
		defer func() { <-large }()
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(payload))
	if err != nil {
		return []Fault{{"", "not JSON: " + err.Error()}}
	}
	if wrong := unfit(value, make([]string, 0, 16), nil); wrong != nil {
		return []Fault{*wrong}
	}
	c, err := s.take()
	if err != nil {
		return []Fault{{"", "the schema " + err.Error()}}
	}
	defer s.give(c)
	steps := baseSteps + stepsPerByte*len(payload)
	ended, err := c.meter.run(c.verdict, value, steps)
	switch {
	case !ended:
		return []Fault{{"", fmt.Sprintf("the check against the schema takes more than %d steps, "+
			"which is the limit for a payload of %d bytes: register a schema with fewer alternatives", steps, len(payload))}}
	case err == nil:
		return nil
	}
	ended, err = c.meter.run(c.detailed, value, faultSteps)
	var invalid *jsonschema.ValidationError
	if !ended || !errors.As(err, &invalid) {
		return []Fault{{"", fmt.Sprintf("does not fit the schema; to find the places takes more than %d steps", faultSteps)}}
	}
	return faultsOf(invalid)
}

// take returns a checker that no other validation uses.
func (s *Schema) take() (*checker, error) {
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		c := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		return c, nil
	}
	s.mu.Unlock()
	return s.compile()
}

// give returns a checker.
func (s *Schema) give(c *checker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) < runtime.GOMAXPROCS(0) {
		s.free = append(s.free, c)
	}
}

// maxExponent is the largest exponent of a number, and its negative the smallest.
const maxExponent = 400

// unfit returns the first place of a JSON value that the library cannot handle, in the order of keys; nil if there is
// none.
// The library computes with exact fractions: a number such as 1e999999 takes it milliseconds, and
// larger exponents make it panic. For a schema, subschemas counts what may be a subschema.
func unfit(value any, place []string, subschemas *int) *Fault {
	if subschemas != nil {
		switch v := value.(type) {
		case bool:
			*subschemas++
		case map[string]any:
			*subschemas++
			if _, dynamic := v["$dynamicAnchor"].(string); dynamic {
				return &Fault{pointer(place), "has a $dynamicAnchor, which the broker does not support: use $anchor"}
			}
		}
		if *subschemas > maxSubschemas {
			return &Fault{pointer(place), fmt.Sprintf("has more than %d objects and booleans", maxSubschemas)}
		}
	}
	switch v := value.(type) {
	case json.Number:
		if wrong := unfitNumber(v.String()); wrong != "" {
			return &Fault{pointer(place), wrong}
		}
	case []any:
		for i, item := range v {
			if wrong := unfit(item, append(place, strconv.Itoa(i)), subschemas); wrong != nil {
				return wrong
			}
		}
	case map[string]any:
		var first *Fault
		at := ""
		for key, item := range v {
			if first != nil && key > at {
				continue
			}
			if wrong := unfit(item, append(place, key), subschemas); wrong != nil {
				first, at = wrong, key
			}
		}
		return first
	}
	return nil
}

// unfitNumber says why a number is out of range.
func unfitNumber(v string) string {
	if len(v) > maxDigits {
		return fmt.Sprintf("%.40s… is out of range: it has %d characters; at most %d are allowed", v, len(v), maxDigits)
	}
	i := strings.IndexAny(v, "eE")
	if i < 0 {
		return ""
	}
	if n, err := strconv.Atoi(v[i+1:]); err != nil || n > maxExponent || n < -maxExponent {
		return fmt.Sprintf("%.40s is out of range: exponents of %d to %d are allowed", v, -maxExponent, maxExponent)
	}
	return ""
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
