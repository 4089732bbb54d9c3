package web_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"brokerd/internal/apptest"
)

// description returns the OpenAPI document.
func description(t *testing.T, b *apptest.Broker) map[string]any {
	t.Helper()
	a := onSocket(t, b, "").must("GET", "/v1/openapi.json", "")
	if a.words("openapi") != "3.1.0" || a.words("info.version") != "test" {
		t.Errorf("got %v, %v", a.object["openapi"], a.object["info"])
	}
	return a.object
}

// operations returns the operations of a description by METHOD PATH.
func operations(document map[string]any) map[string]map[string]any {
	all := map[string]map[string]any{}
	for path, item := range document["paths"].(map[string]any) {
		for verb, operation := range item.(map[string]any) {
			all[strings.ToUpper(verb)+" "+path] = operation.(map[string]any)
		}
	}
	return all
}

func TestOpenAPI_HasEveryRPCWithItsComments(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	document := description(t, b)
	routed, ids := map[string]bool{}, map[string]string{}
	for at, operation := range operations(document) {
		routed[operation["x-rpc"].(string)] = true
		id := operation["operationId"].(string)
		if other := ids[id]; other != "" {
			t.Errorf("%s and %s are both %s", at, other, id)
		}
		ids[id] = at
		if operation["description"] == "" {
			t.Errorf("%s has no description", at)
		}
		_, path, _ := strings.Cut(at, " ")
		var named []string
		for _, p := range operation["parameters"].([]any) {
			if p := p.(map[string]any); p["in"] == "path" {
				named = append(named, p["name"].(string))
			}
		}
		for _, found := range regexp.MustCompile(`{(\w+)}`).FindAllStringSubmatch(path, -1) {
			if !slices.Contains(named, found[1]) {
				t.Errorf("%s: the parameter %s is not described", at, found[1])
			}
		}
	}
	for _, rpc := range rpcs() {
		if !routed[rpc] {
			t.Errorf("%s is not described", rpc)
		}
	}
	schemas := at(document, "components.schemas").(map[string]any)
	for path, want := range map[string]string{
		"Message.properties.payload.description":        "JSON text of any JSON value",
		"Message.description":                           "",
		"PutStateRequest.properties.value.description":  "",
		"Target.properties.agent.description":           "",
		"SendMessagesRequest.properties.messages.items": "",
	} {
		if got := at(schemas, path); got == nil && want != "" || want != "" && !strings.Contains(textOf(got), want) {
			t.Errorf("%s is %v, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"RegisterAgentRequest.properties.worktree.maxLength":             "1024",
		"RegisterAgentRequest.properties.capabilities.maxItems":          "64",
		"RegisterAgentRequest.properties.capabilities.items.maxLength":   "128",
		"ExtendLocksRequest.properties.fences.items.minimum":             "1",
		"RevokeTokenRequest.properties.ticket.minimum":                   "0",
		"ConfigureChannelRequest.properties.message_retention.maxLength": "<nil>",
		"CloseSessionRequest.required":                                   "[name]",
		"HeartbeatRequest.properties.progress.maximum":                   "1",
		"TransactStateRequest.properties.changes.maxItems":               "1000",
	} {
		if got := fmt.Sprint(at(schemas, path)); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	references := regexp.MustCompile(`"\$ref":"#/components/(\w+)/(\w+)"`)
	text, err := json.Marshal(document)
	apptest.NoError(t, err)
	for _, found := range references.FindAllStringSubmatch(string(text), -1) {
		if at(document, "components."+found[1]+"."+found[2]) == nil {
			t.Errorf("%s leads nowhere", found[0])
		}
	}
}

// rpcs returns the RPCs of the API by service and method.
func rpcs() (all []string) {
	for _, service := range apiServices() {
		for i := range service.Methods().Len() {
			all = append(all, string(service.Name())+"/"+string(service.Methods().Get(i).Name()))
		}
	}
	return all
}

// Every answer of the steps through all routes has the schema that the document gives for it.
func TestOpenAPI_DescribesTheAnswers(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	document := description(t, b)
	compiler := jsonschema.NewCompiler()
	text, err := json.Marshal(document)
	apptest.NoError(t, err)
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(strict(text)))
	apptest.NoError(t, err)
	apptest.NoError(t, compiler.AddResource("openapi.json", parsed))
	all := operations(document)
	used := map[string]bool{}
	follow(t, b, func(s step, path string, a answer) {
		for route, operation := range all {
			if !matches(route, s.method, path) {
				continue
			}
			used[route] = true
			ref, _ := at(operation, "responses.200.content").(map[string]any)["application/json"].(map[string]any)
			if ref == nil { // bytes
				continue
			}
			schema, err := compiler.Compile("openapi.json" + ref["schema"].(map[string]any)["$ref"].(string))
			apptest.NoError(t, err)
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(a.text))
			apptest.NoError(t, err)
			if err := schema.Validate(value); err != nil {
				t.Errorf("%s: %v", route, err)
			}
		}
	})
	for _, route := range slices.Sorted(maps.Keys(all)) {
		streams := at(all[route], "responses.200.content").(map[string]any)["text/event-stream"] != nil
		if !used[route] && !streams && !strings.Contains(route, "/v1/call/") &&
			!strings.HasPrefix(route, "GET /v1/artifacts/") {
			t.Errorf("no step uses %s", route)
		}
	}
}

// strict makes the schemas of a document refuse fields that they do not list.
func strict(document []byte) []byte {
	return bytes.ReplaceAll(document, []byte(`"properties":{`), []byte(`"additionalProperties":false,"properties":{`))
}

// matches reports whether a request is one of a route.
func matches(route, method, path string) bool {
	verb, pattern, _ := strings.Cut(route, " ")
	path, _, _ = strings.Cut(path, "?")
	pattern = strings.NewReplacer("{key}", ".+", "{name}", ".+").Replace(pattern)
	pattern = regexp.MustCompile(`{\w+}`).ReplaceAllString(pattern, "[^/]+")
	return verb == method && regexp.MustCompile("^"+pattern+"$").MatchString(path)
}

func TestOpenAPI_NeedsNoCredential(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	if a := overTCP(t, b, "").do("GET", "/v1/openapi.json", ""); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.text)
	}
}

func TestOpenAPI_ThePageHasEveryRoute(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	page, err := os.ReadFile("../../docs/http.md")
	apptest.NoError(t, err)
	has := func(path string) bool { return bytes.Contains(page, []byte("`"+path+"`")) }
	for route := range operations(description(t, b)) {
		_, path, _ := strings.Cut(route, " ")
		parts := strings.Split(path, "/") // "", v1, agents, …
		last := parts[len(parts)-1]
		if action := !strings.HasPrefix(last, "{"); !has(path) && (!has("/v1/"+parts[2]) || action && !has("/"+last)) &&
			parts[2] != "call" {
			t.Errorf("docs/http.md does not have %s", route)
		}
	}
}
