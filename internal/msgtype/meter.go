package msgtype

import (
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The limits of one validation. A step is the application of one subschema to one value, about 1 µs.
const (
	// baseSteps is how many steps every payload may take; each byte adds stepsPerByte.
	baseSteps    = 10_000
	stepsPerByte = 2
	// faultSteps is how many steps the search for the places of the faults may take. Each fault keeps
	// its place, up to 100 levels, in memory until the end of the search.
	faultSteps = 20_000
)

const (
	// maxInstructions is how many instructions all patterns of a schema may have. A pattern of n
	// characters without a repetition such as {100} has about n instructions.
	maxInstructions = 20_000
	// instructionBytes is how many bytes of a string, times the instructions of a pattern, a match
	// tests in one step.
	instructionBytes = 300
	// stringBytes is how many bytes of a string a check other than a pattern reads in one step.
	stringBytes = 1 << 10
	// patternSteps is how many steps a byte of a payload's pattern takes. Parsing 1 KiB takes up to 0.4 s:
	// that of a class of large ranges that ignores the case.
	patternSteps = 10
	// listed is how many names of properties a check looks up in one step.
	listed = 4
)

// A meter counts down the steps of a validation. The library has no such bound, so each subschema
// gets a format that spends the steps of its application before the library applies it. A meter is
// for one goroutine at a time.
type meter struct {
	left         int
	instructions int // of the patterns that were compiled
	uneval       int // 1 if a subschema has a keyword for unevaluated properties or items, else 0
	heaviest     int // the largest weight of a subschema
}

// tooManySteps is the panic that ends a validation.
type tooManySteps struct{}

func (m *meter) spend(steps int) {
	if m.left -= steps; m.left < 0 {
		panic(tooManySteps{})
	}
}

// run validates a value within a number of steps. ended is false if they do not suffice.
func (m *meter) run(schema *jsonschema.Schema, value any, steps int) (ended bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, over := p.(tooManySteps); !over {
				panic(p)
			}
		}
	}()
	m.left = steps
	err = schema.Validate(value)
	return true, err
}

// attach meters a schema and all schemas that it can apply.
func (m *meter) attach(root *jsonschema.Schema) {
	all := map[*jsonschema.Schema]int{} // with their weight
	for waiting := []*jsonschema.Schema{root}; len(waiting) > 0; {
		s := waiting[len(waiting)-1]
		waiting = waiting[:len(waiting)-1]
		if _, known := all[s]; known {
			continue
		}
		all[s] = weight(s)
		m.heaviest = max(m.heaviest, all[s])
		if s.UnevaluatedItems != nil || s.UnevaluatedProperties != nil {
			m.uneval = 1
		}
		waiting = slices.Concat(waiting, ofValue(s), ofNames(s), ofOthers(s), ofItems(s))
	}
	for s := range all {
		if s.Bool == nil {
			m.meter(s, all)
		}
	}
}

// meter makes a subschema spend steps before the library applies it. The steps of its own type, const
// and enum, which the library checks first, count for the schema that applies it.
func (m *meter) meter(s *jsonschema.Schema, weights map[*jsonschema.Schema]int) {
	sum := func(of []*jsonschema.Schema) (n int) {
		for _, t := range of {
			n += weights[t]
		}
		return n
	}
	onValue, onOthers, onItem := sum(ofValue(s)), sum(ofOthers(s)), sum(ofItems(s))
	if s.DynamicRef != nil {
		onValue += m.heaviest
	}
	onName := 1
	for _, t := range ofNames(s) { // one of them at most applies to a property
		onName = max(onName, weights[t])
	}
	names := (len(s.Required) + len(s.Dependencies) + len(s.DependentRequired) + len(s.DependentSchemas)) / listed
	for _, required := range s.DependentRequired {
		names += len(required) / listed
	}
	format := jsonschema.Format{Validate: func(any) error { return nil }}
	if s.Format != nil {
		format = *s.Format
	}
	check := format.Validate
	if format.Name == "regex" {
		check = m.isPattern
	}
	format.Validate = func(value any) error {
		steps := 1 + onValue
		switch v := value.(type) {
		case map[string]any:
			steps += m.uneval*onValue*len(v) + names + len(v)*(onName+onOthers)
		case []any:
			steps += m.uneval*onValue*len(v) + len(v)*onItem
			if s.UniqueItems {
				steps += 10 * size(v)
			}
		case string:
			steps += len(v) / stringBytes
		}
		m.spend(steps)
		return check(value)
	}
	s.Format = &format
}

// weight is how many steps a subschema takes before it is metered.
func weight(s *jsonschema.Schema) int {
	n := 1
	if s.Enum != nil {
		n += size(s.Enum.Values)
	}
	if s.Const != nil {
		n += size(*s.Const)
	}
	return n
}

// size is the number of values in a JSON value.
func size(value any) int {
	n := 1
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			n += size(item)
		}
	case map[string]any:
		for _, item := range v {
			n += size(item)
		}
	}
	return n
}

// ofValue returns the subschemas that apply to the value itself.
func ofValue(s *jsonschema.Schema) []*jsonschema.Schema {
	all := slices.Concat(s.AllOf, s.AnyOf, s.OneOf, slices.Collect(maps.Values(s.DependentSchemas)),
		[]*jsonschema.Schema{s.Ref, s.RecursiveRef, s.Not, s.If, s.Then, s.Else})
	for _, d := range s.Dependencies {
		all = append(all, schemaOf(d))
	}
	if s.DynamicRef != nil {
		all = append(all, s.DynamicRef.Ref)
	}
	return present(all)
}

// ofNames returns the subschemas of which at most one applies to a property.
func ofNames(s *jsonschema.Schema) []*jsonschema.Schema {
	return present(append(slices.Collect(maps.Values(s.Properties)), schemaOf(s.AdditionalProperties)))
}

// ofOthers returns the subschemas that may all apply to a property, or its name.
func ofOthers(s *jsonschema.Schema) []*jsonschema.Schema {
	return present(append(slices.Collect(maps.Values(s.PatternProperties)), s.PropertyNames, s.UnevaluatedProperties))
}

// ofItems returns the subschemas that apply to items of a list.
func ofItems(s *jsonschema.Schema) []*jsonschema.Schema {
	items, _ := s.Items.([]*jsonschema.Schema)
	return present(slices.Concat(items, s.PrefixItems, []*jsonschema.Schema{
		schemaOf(s.Items), schemaOf(s.AdditionalItems), s.Items2020, s.Contains, s.UnevaluatedItems,
	}))
}

// schemaOf returns what a field of the library has that is a subschema or something else.
func schemaOf(field any) *jsonschema.Schema {
	s, _ := field.(*jsonschema.Schema)
	return s
}

func present(all []*jsonschema.Schema) []*jsonschema.Schema {
	return slices.DeleteFunc(all, func(s *jsonschema.Schema) bool { return s == nil })
}

// A pattern is a regular expression that spends steps.
type pattern struct {
	*regexp.Regexp
	meter        *meter
	instructions int
}

// compile is the engine for the patterns of a schema.
func (m *meter) compile(text string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if m.instructions += len(program.Inst); m.instructions > maxInstructions {
		return nil, fmt.Errorf("the patterns of the schema have more than %d instructions", maxInstructions)
	}
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return pattern{compiled, m, len(program.Inst)}, nil
}

// isPattern is the check of the format "regex", in place of the library's, which compiles the value
// as if it were a pattern of the schema.
func (m *meter) isPattern(value any) error {
	text, _ := value.(string)
	m.spend(patternSteps * len(text))
	_, err := syntax.Parse(text, syntax.Perl)
	return err
}

// MatchString implements jsonschema.Regexp.
func (p pattern) MatchString(s string) bool {
	p.meter.spend(1 + len(s)*p.instructions/instructionBytes)
	return p.Regexp.MatchString(s)
}
