package msgtype_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"brokerd/internal/fault"
	"brokerd/internal/msgtype"
)

func TestFold(t *testing.T) {
	for spelling, want := range map[string]string{
		"":                  "",
		"task_complete":     "task_complete",
		"TaskCompleted":     "task_completed",
		"taskCompleted":     "task_completed",
		"TASK_COMPLETE":     "task_complete",
		"task.complete":     "task_complete",
		"task-complete":     "task_complete",
		"Task-Complete":     "task_complete",
		"Task.Complete":     "task_complete",
		"Task_Complete":     "task_complete",
		"shutdown.request":  "shutdown_request",
		"HTTPRequestFailed": "http_request_failed",
		"V2Ready":           "v2_ready",
		"ready2Go":          "ready2_go",
		"a--b..c__d":        "a_b_c_d",
		"done.":             "done",
		"build:Linux":       "build:linux",
		"x":                 "x",
	} {
		if got := msgtype.Fold(spelling); got != want {
			t.Errorf("Fold(%q) = %q, want %q", spelling, got, want)
		}
	}
}

func TestFold_FoldedNamesStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._:-]{0,40}`).Draw(t, "name")
		folded := msgtype.Fold(name)
		if again := msgtype.Fold(folded); again != folded {
			t.Errorf("Fold(%q) = %q, and folded again %q", name, folded, again)
		}
		if folded == "" || len(folded) > 2*len(name) {
			t.Errorf("Fold(%q) = %q", name, folded)
		}
	})
}

// spellings returns a name as different tools write it.
func spellings(name string) []string {
	var pascal strings.Builder
	for word := range strings.SplitSeq(name, "_") {
		pascal.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	camel := pascal.String()
	return []string{
		name, pascal.String(), strings.ToLower(camel[:1]) + camel[1:], strings.ToUpper(name),
		strings.ReplaceAll(name, "_", "."), strings.ReplaceAll(name, "_", "-"),
	}
}

func TestCanonical_EveryAliasInEverySpelling(t *testing.T) {
	for _, family := range msgtype.Families() {
		for _, kind := range family.Types {
			for _, name := range append([]string{kind.Name}, kind.Aliases...) {
				for _, spelling := range spellings(name) {
					if got := msgtype.Canonical(spelling); got != kind.Name {
						t.Errorf("Canonical(%q) = %q, want %q", spelling, got, kind.Name)
					}
				}
			}
		}
	}
}

func TestFamilies_EveryFileIsComplete(t *testing.T) {
	for _, family := range msgtype.Families() {
		if family.Title == "" || family.Text == "" {
			t.Errorf("family %s has no title or no text", family.Name)
		}
		for _, kind := range family.Types {
			if kind.Title == "" || kind.Sender == "" || kind.Recipient == "" || kind.Family != family.Name {
				t.Errorf("type %s lacks a title, a sender or a recipient", kind.Name)
			}
			if !slices.IsSorted(kind.Aliases) {
				t.Errorf("the aliases of %s are not sorted", kind.Name)
			}
			for _, name := range append([]string{kind.Name}, kind.Aliases...) {
				if msgtype.Fold(name) != name {
					t.Errorf("%s of type %s is not in snake_case", name, kind.Name)
				}
			}
		}
	}
}

func TestValidate_EveryTypeFitsItsExampleAndRefusesTheBrokenOne(t *testing.T) {
	for _, family := range msgtype.Families() {
		for _, kind := range family.Types {
			if kind.Schema == "" {
				if kind.Broken.Payload != "" {
					t.Errorf("%s has a broken example and no schema", kind.Name)
				}
				continue
			}
			if _, err := msgtype.CompileSchema(kind.Schema); err != nil {
				t.Errorf("schema of %s: %v", kind.Name, err)
				continue
			}
			if kind.Example == "" || kind.Broken.Payload == "" {
				t.Errorf("%s lacks an example or a broken one", kind.Name)
				continue
			}
			if faults, _ := kind.Validate(kind.Example); len(faults) > 0 {
				t.Errorf("the example of %s does not fit: %v", kind.Name, faults)
			}
			faults, _ := kind.Validate(kind.Broken.Payload)
			if len(faults) != 1 || faults[0].Pointer != kind.Broken.At || faults[0].Problem == "" {
				t.Errorf("faults of the broken example of %s: %v, want one at %q", kind.Name, faults, kind.Broken.At)
			}
		}
	}
}

func TestEventTypes_FindsWhatAgentsPublishAndTheBrokersOwn(t *testing.T) {
	for spelling, want := range map[string][]string{
		"TaskCompleted":      {"task.complete", "task.completed", "task_complete", "task_completed"},
		"BlockerEncountered": {"blocker.encountered", "blocker_encountered"},
		"build.finished":     {"build.finished", "build_finished"},
		"BuildFinished":      {"build.finished", "build_finished"},
	} {
		got := msgtype.EventTypes(spelling)
		for _, name := range want {
			if !slices.Contains(got, name) {
				t.Errorf("EventTypes(%q) = %v, want %q in it", spelling, got, name)
			}
		}
	}
}

func TestCheck_UnknownTypesHaveAHint(t *testing.T) {
	set := msgtype.NewSet(nil)
	name, doubt := set.Check("TaskComplet", `{}`)
	if name != "task_complet" || doubt == nil || !doubt.Unknown {
		t.Fatalf("Check = %q, %+v", name, doubt)
	}
	warnings, err := doubt.Judge(msgtype.Rules{})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "did you mean task_complete?") {
		t.Errorf("warnings %q, %v", warnings, err)
	}
	if warnings, err := doubt.Judge(msgtype.Rules{Unknown: msgtype.Allow}); len(warnings) > 0 || err != nil {
		t.Errorf("allowed, and yet: %q, %v", warnings, err)
	}
	_, err = doubt.Judge(msgtype.Rules{Unknown: msgtype.Refuse})
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid || f.Reason != "TYPE_UNKNOWN" {
		t.Errorf("refused with %v", err)
	}
}

func TestCheck_InvalidPayloadsNameThePlace(t *testing.T) {
	set := msgtype.NewSet(nil)
	name, doubt := set.Check("TaskProgress", `{"task_id":7,"progress":"half"}`)
	if name != "task_progress" || doubt == nil || len(doubt.Faults) != 2 {
		t.Fatalf("Check = %q, %+v", name, doubt)
	}
	warnings, err := doubt.Judge(msgtype.Rules{})
	const want = "the payload does not fit the type task_progress: " +
		"at /progress: got string, want number; /task_id: got number, want string"
	if err != nil || len(warnings) != 1 || warnings[0] != want {
		t.Errorf("warnings %q, %v, want %q", warnings, err, want)
	}
	_, err = doubt.Judge(msgtype.Rules{Invalid: msgtype.Refuse})
	var f *fault.Error
	if !errors.As(err, &f) || f.Reason != "PAYLOAD_INVALID" || len(f.Violations) != 2 ||
		f.Violations[0].Field != "payload" {
		t.Errorf("refused with %#v", err)
	}
	if _, doubt := set.Check("task_progress", ""); doubt != nil {
		t.Errorf("a message without a payload: %+v", doubt)
	}
}

func TestCheck_AReferenceToAnArtifactFitsEveryType(t *testing.T) {
	own := &msgtype.Type{
		Name: "deploy_finished", Family: msgtype.SessionFamily, Schema: `{"type":"object","required":["host"]}`,
	}
	set := msgtype.NewSet([]*msgtype.Type{own})
	const reference = `{"artifact":"payloads/plan.json@1","sha256":"00ff","size":20480}`
	for _, name := range set.Names() {
		if _, doubt := set.Check(name, reference); doubt != nil {
			t.Errorf("%s: %+v", name, doubt)
		}
	}
	for _, payload := range []string{
		`{"artifact":"plan.json@1","sha256":"00ff"}`, `{"artifact":"plan.json@1","sha256":"00ff","size":"20 KiB"}`,
		`{"artifact":"plan.json@1","sha256":"00ff","size":1,"more":1}`, `"plan.json@1"`, `[]`, `null`,
	} {
		if _, doubt := set.Check("deploy_finished", payload); doubt == nil {
			t.Errorf("%s is no reference, and yet fits deploy_finished", payload)
		}
	}
}

func TestSet_TypesOfASession(t *testing.T) {
	own := &msgtype.Type{
		Name: "deploy_finished", Aliases: []string{"deploy_done"}, Family: msgtype.SessionFamily,
		Schema: `{"required":["host"]}`,
	}
	shadowed := &msgtype.Type{Name: "text", Family: msgtype.SessionFamily}
	set := msgtype.NewSet([]*msgtype.Type{own, shadowed})
	for _, spelling := range []string{"DeployFinished", "deploy.done"} {
		if name, kind := set.Lookup(spelling); name != "deploy_finished" || kind != own {
			t.Errorf("Lookup(%q) = %q, %v", spelling, name, kind)
		}
	}
	if _, kind := set.Lookup("text"); kind == shadowed {
		t.Error("a type of a session has replaced a built-in one")
	}
	if got := set.Types(msgtype.SessionFamily); len(got) != 1 || got[0] != own {
		t.Errorf("types of the session: %v", got)
	}
	want := []string{"deploy_finished", "deploy_done", "DeployDone"}
	if got := set.Spellings([]string{"DeployDone"}); !slices.Equal(got, want) {
		t.Errorf("spellings %v, want %v", got, want)
	}
	_, doubt := set.Check("deploy-done", `{}`)
	if doubt == nil || len(doubt.Faults) != 1 || doubt.Faults[0].Problem != `missing property "host"` {
		t.Errorf("doubt %+v", doubt)
	}
}

func TestCompileSchema_Refuses(t *testing.T) {
	for name, schema := range map[string]string{
		"no JSON":            `{`,
		"no schema":          `{"type":"strange"}`,
		"another document":   `{"$ref":"file:///etc/passwd"}`,
		"a remote document":  `{"$ref":"http://127.0.0.1:1/x.json"}`,
		"a missing part":     `{"$ref":"#/$defs/none"}`,
		"an invalid pattern": `{"pattern":"("}`,
		"a large exponent":   `{"properties":{"n":{"enum":[1e999999]}}}`,
		"a larger exponent":  `{"multipleOf":1e-10000000}`,
		"a long number":      `{"minimum":` + strings.Repeat("1", 1001) + `}`,
		"many subschemas":    `{"allOf":[true` + strings.Repeat(",true", 2000) + `]}`,
		"large patterns":     `{"patternProperties":{"a{1000}":{},"b{1000}":{},"(c{999}d){20}":{}}}`,
		"a dynamic anchor":   `{"$defs":{"a":{"$dynamicAnchor":"a"}},"$dynamicRef":"#a"}`,
	} {
		if _, err := msgtype.CompileSchema(schema); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

func TestValidate_SchemaThatRefersToItselfEnds(t *testing.T) {
	cycle, err := msgtype.CompileSchema(`{"$ref":"#"}`)
	if err != nil {
		t.Fatal(err)
	}
	if faults := cycle.Validate(`{}`); len(faults) != 1 {
		t.Errorf("faults of a cycle: %v", faults)
	}
	tree, err := msgtype.CompileSchema(`{"properties":{"left":{"$ref":"#"},"value":{"type":"integer"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	faults := tree.Validate(`{"left":{"left":{"value":"x"}}}`)
	if len(faults) != 1 || faults[0].Pointer != "/left/left/value" {
		t.Errorf("faults %v", faults)
	}
}

func TestValidate_RefusesNumbersWithLargeExponents(t *testing.T) {
	schema, err := msgtype.CompileSchema(`{"properties":{"list":{"items":{"type":"integer","minimum":0}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, number := range []string{"1e10000000", "1E+999999", "1e-401", "1e99999999999999999999"} {
		if faults := schema.Validate(`{"list":[1e400,` + number + `]}`); len(faults) != 1 || faults[0].Pointer != "/list/1" {
			t.Errorf("faults of %s: %v", number, faults)
		}
	}
}

func TestValidate_NamesTheFirstOfSeveralNumbers(t *testing.T) {
	t.Parallel()
	schema, err := msgtype.CompileSchema(`true`)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // the order of a map is random
		faults := schema.Validate(`{"c":1e999,"b":{"z":1e999,"y":[0,1e999]},"d":1e999}`)
		if len(faults) != 1 || faults[0].Pointer != "/b/y/1" {
			t.Fatalf("%v, want one fault at /b/y/1", faults)
		}
	}
}

func TestValidate_ShortensLongPlaces(t *testing.T) {
	schema, err := msgtype.CompileSchema(`{"additionalProperties":{"type":"integer"}}`)
	if err != nil {
		t.Fatal(err)
	}
	if faults := schema.Validate(`{"` + strings.Repeat("x", 1000) + `":"a"}`); len(faults) != 1 || len(faults[0].Pointer) > 210 {
		t.Errorf("faults %v", faults)
	}
}
