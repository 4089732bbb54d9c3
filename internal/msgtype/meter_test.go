package msgtype_test

import (
	"fmt"
	"strings"
	"testing"

	"brokerd/internal/msgtype"
)

// doubled returns a schema whose levels each apply the next level twice.
func doubled(levels int, twice string) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/l0","$defs":{`)
	for i := range levels {
		next := fmt.Sprintf(`{"$ref":"#/$defs/l%d"}`, i+1)
		fmt.Fprintf(&b, `"l%d":%s,`, i, strings.ReplaceAll(twice, "NEXT", next))
	}
	fmt.Fprintf(&b, `"l%d":{"type":"integer"}}}`, levels)
	return b.String()
}

func compiled(t *testing.T, schema string) *msgtype.Schema {
	t.Helper()
	s, err := msgtype.CompileSchema(schema)
	if err != nil {
		t.Fatalf("%.200s: %v", schema, err)
	}
	return s
}

// Each schema would need more steps than there are nanoseconds in a year.
func TestValidate_EndsAtItsLimitOfSteps(t *testing.T) {
	nested := strings.Repeat(`{"x":`, 90) + `"s"` + strings.Repeat("}", 90)
	lists := strings.Repeat("[", 90) + `"s"` + strings.Repeat("]", 90)
	for name, c := range map[string]struct{ schema, payload string }{
		"alternatives of one value":       {doubled(60, `{"anyOf":[NEXT,NEXT]}`), `"s"`},
		"all of one value":                {doubled(60, `{"allOf":[NEXT,NEXT]}`), `7`},
		"one of one value":                {doubled(60, `{"oneOf":[{"not":NEXT},NEXT]}`), `"s"`},
		"a condition and its consequence": {doubled(60, `{"if":NEXT,"then":NEXT}`), `7`},
		"dependent schemas": {
			doubled(60, `{"dependentSchemas":{"x":NEXT},"anyOf":[NEXT]}`), `{"x":1}`,
		},
		"properties": {`{"properties":{"x":{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}},"type":"object"}`, nested},
		"patterns of properties below not": {
			`{"not":{"$ref":"#/$defs/a"},"$defs":{"a":{"type":"object",` +
				`"patternProperties":{"x":{"$ref":"#/$defs/a"},"^x":{"$ref":"#/$defs/a"}}}}}`, nested,
		},
		"items and contains": {
			`{"type":"array","prefixItems":[{"$ref":"#"}],"contains":{"$ref":"#"}}`, lists,
		},
		"unevaluated properties": {
			`{"type":"object","anyOf":[{"unevaluatedProperties":{"$ref":"#"}}],"unevaluatedProperties":{"$ref":"#"}}`,
			nested,
		},
		"an old draft": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object",` +
				`"properties":{"x":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}}}`, nested,
		},
	} {
		t.Run(name, func(t *testing.T) {
			faults := compiled(t, c.schema).Validate(c.payload)
			if len(faults) != 1 || !strings.Contains(faults[0].Problem, "steps") {
				t.Errorf("faults %v", faults)
			}
		})
	}
}

// Each check of one long list or text takes long, and the schema asks for many.
func TestValidate_CountsTheSizeOfValuesAsSteps(t *testing.T) {
	list := "[" + strings.Repeat("1,", 100_000) + "1]"
	text := `"` + strings.Repeat("a", 200_000) + `"`
	many := func(schema string, n int) string {
		return `{"allOf":[` + strings.TrimSuffix(strings.Repeat(schema+",", n), ",") + `]}`
	}
	words := `{"enum":["` + strings.Repeat(`w","`, 3000) + `w"]}`
	for name, c := range map[string]struct{ schema, payload string }{
		"items":            {many(`{"items":{"minimum":0}}`, 600), list},
		"items below not":  {many(`{"not":{"items":false}}`, 600), list},
		"unique items":     {many(`{"uniqueItems":true}`, 600), list},
		"pattern":          {many(`{"pattern":"(a|aa)*b"}`, 600), text},
		"length of a text": {many(`{"maxLength":300000}`, 1900), `["` + strings.Repeat("a", 200) + `"]`},
		"enum of items":    {`{"items":` + words + `}`, list},
		"format regex":     {`{"$schema":"http://json-schema.org/draft-07/schema#","format":"regex"}`, text},
	} {
		t.Run(name, func(t *testing.T) {
			faults := compiled(t, c.schema).Validate(c.payload)
			if name == "length of a text" {
				if len(faults) > 0 {
					t.Errorf("a short text: %v", faults)
				}
				return
			}
			if len(faults) != 1 || !strings.Contains(faults[0].Problem, "steps") {
				t.Errorf("faults %v", faults)
			}
		})
	}
}

func TestValidate_PatternsInPayloadsDoNotAddUp(t *testing.T) {
	schema := compiled(t, `{"$schema":"http://json-schema.org/draft-07/schema#","format":"regex"}`)
	for i := range 5000 {
		if faults := schema.Validate(`"^[a-z]+$"`); len(faults) > 0 {
			t.Fatalf("payload %d: %v", i, faults)
		}
	}
	if faults := schema.Validate(`"` + strings.Repeat("a|", 500) + `b"`); len(faults) > 0 {
		t.Errorf("a long pattern: %v", faults)
	}
	if faults := schema.Validate(`7`); len(faults) > 0 {
		t.Errorf("a number: %v", faults)
	}
	if faults := schema.Validate(`"("`); len(faults) != 1 || !strings.Contains(faults[0].Problem, "regex") {
		t.Errorf("no pattern: %v", faults)
	}
}

func TestValidate_LargePayloadsFitOrdinarySchemas(t *testing.T) {
	object := `{"name":"` + strings.Repeat("n", 20) + `","size":17,"tags":["a","b"],"state":"open"},`
	objects := "[" + strings.TrimSuffix(strings.Repeat(object, 3000), ",") + "]"
	schema := compiled(t, `{"type":"array","items":{"$ref":"#/$defs/file"},"$defs":{"file":{"type":"object",
		"required":["name","size"],"additionalProperties":false,"properties":{
			"name":{"type":"string","pattern":"^[a-z]+$","maxLength":100},"size":{"type":"integer","minimum":0},
			"tags":{"type":"array","items":{"type":"string"}},"state":{"enum":["open","closed"]}}}}}`)
	if faults := schema.Validate(objects); len(faults) > 0 {
		t.Errorf("objects: %v", faults)
	}
	numbers := compiled(t, `{"items":{"type":"number","minimum":0}}`)
	if faults := numbers.Validate("[" + strings.Repeat("1,", 130_000) + "1]"); len(faults) > 0 {
		t.Errorf("numbers: %v", faults)
	}
	tree := compiled(t, `{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","required":["v"],"properties":{
		"v":{"type":"integer"},"left":{"$ref":"#/$defs/node"},"right":{"$ref":"#/$defs/node"}}}}}`)
	if faults := tree.Validate(node(12)); len(faults) > 0 {
		t.Errorf("tree: %v", faults)
	}
	if faults := tree.Validate(strings.Replace(node(5), `{"v":0}`, `{"v":"x"}`, 1)); len(faults) != 1 ||
		faults[0].Pointer != "/left/left/left/left/left/v" {
		t.Errorf("broken tree: %v", faults)
	}
}

// node returns a full binary tree.
func node(levels int) string {
	if levels == 0 {
		return `{"v":0}`
	}
	below := node(levels - 1)
	return fmt.Sprintf(`{"v":%d,"left":%s,"right":%s}`, levels, below, below)
}

func TestValidate_RunsConcurrently(t *testing.T) {
	schema := compiled(t, `{"items":{"pattern":"^a*$"}}`)
	hard := compiled(t, doubled(60, `{"anyOf":[NEXT,NEXT]}`))
	done := make(chan int)
	for range 8 {
		go func() {
			n := 0
			for range 20 {
				n += len(schema.Validate(`["a","aa",7]`)) + len(schema.Validate(`["ab"]`)) + len(hard.Validate(`"s"`))
			}
			done <- n
		}()
	}
	for range 8 {
		if n := <-done; n != 40 {
			t.Errorf("%d faults, want 40", n)
		}
	}
}

// A broker of another version may have stored a schema that this one refuses.
func TestCheck_SchemaThatCannotBeAppliedIsAWarning(t *testing.T) {
	set := msgtype.NewSet([]*msgtype.Type{{Name: "old", Schema: `{"allOf":[true` + strings.Repeat(",true", 2000) + `]}`}})
	_, doubt := set.Check("old", `7`)
	warnings, err := doubt.Judge(msgtype.Rules{Invalid: msgtype.Refuse})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "not checked") {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	if warnings, err := doubt.Judge(msgtype.Rules{Invalid: msgtype.Allow}); err != nil || len(warnings) > 0 {
		t.Errorf("with the policy allow: %q, %v", warnings, err)
	}
	if _, doubt := set.Check("old", ""); doubt != nil {
		t.Errorf("without a payload: %+v", doubt)
	}
}
