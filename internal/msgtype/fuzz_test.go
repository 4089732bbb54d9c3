package msgtype_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"brokerd/internal/msgtype"
)

// Whatever a schema and a payload are, the check ends and reports few and short faults.
func FuzzSchema(f *testing.F) {
	for _, s := range [][2]string{
		{`{"type":"object","properties":{"n":{"minimum":0}},"required":["n"]}`, `{"n":-1}`},
		{`{"minimum":0}`, `1e10000000`},
		{`{"multipleOf":1e-10000000}`, `3`},
		{`{"items":{"type":"integer"}}`, `[1e999999,1e999999]`},
		{`{"$ref":"#"}`, `1`},
		{`{"anyOf":[{"type":"string"},{"not":{}}],"uniqueItems":true}`, `[1,1]`},
		{`{"pattern":"a+$","$id":"x:y"}`, `"b"`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, schema, payload string) {
		if !json.Valid([]byte(payload)) || len(schema) > 4<<10 || len(payload) > 4<<10 {
			t.Skip() // the service refuses it
		}
		compiled, err := msgtype.CompileSchema(schema)
		if err != nil {
			return
		}
		faults := compiled.Validate(payload)
		if len(faults) > 10 {
			t.Errorf("%d faults", len(faults))
		}
		for _, fault := range faults {
			if len(fault.Pointer) > 210 || len(fault.Problem) > 210 || utf8.ValidString(payload) && !utf8.ValidString(fault.String()) {
				t.Errorf("fault %q", fault)
			}
		}
	})
}
