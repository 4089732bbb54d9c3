package web

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/protobuf/reflect/protoreflect"

	"brokerd/internal/rpc"
	"brokerd/proto"
)

// An object is a JSON object of the description.
type object = map[string]any

// A description is the OpenAPI document of the routes, while it is made.
type description struct {
	comments map[protoreflect.FullName]string
	schemas  object          // of messages, by name
	ids      map[string]bool // of operations
}

// openAPI serves the description of the API in OpenAPI 3.1.
func (s *Server) openAPI(w http.ResponseWriter, r *http.Request) {
	text, err := s.described()
	if err != nil {
		fail(w, r, rpc.Error(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	timed(w, func() { _, _ = w.Write(text) })
}

// describe makes the description of all routes, and of /v1/call for each RPC that has none.
func (s *Server) describe() ([]byte, error) {
	all, err := proto.Comments()
	if err != nil {
		return nil, err
	}
	d := &description{comments: all, schemas: object{"Problem": problemSchema}, ids: map[string]bool{}}
	paths, routed := object{}, map[string]bool{}
	for _, r := range routes {
		verb, path, _ := strings.Cut(strings.ReplaceAll(r.pattern, "...", ""), " ")
		add(paths, path, verb, d.operation(s.methods[r.rpc].at(r), verb, path))
		routed[r.rpc] = true
	}
	for _, name := range slices.Sorted(maps.Keys(s.methods)) {
		if !routed[name] {
			path := "/v1/call/" + name
			add(paths, path, http.MethodPost, d.operation(s.methods[name], http.MethodPost, path))
		}
	}
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "brokerd", "version": s.version,
			"description": "The HTTP/JSON form of the API of brokerd. POST /v1/call/SERVICE/METHOD reaches every RPC. " +
				"A request may leave out every field; an unknown field or parameter is an error. An answer shows every field.",
		},
		"servers":  []object{{"url": "/"}},
		"security": []object{{}, {"credential": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas":         d.schemas,
			"parameters":      callerHeaders,
			"securitySchemes": object{"credential": object{"type": "http", "scheme": "bearer"}},
			"responses": object{"Problem": object{
				"description": "The call failed.",
				"content":     jsonContent(object{"$ref": "#/components/schemas/Problem"}),
			}},
		},
	})
}

// callerHeaders are the headers that say in whose name a call is made.
var callerHeaders = object{
	"Agent":       header("Brokerd-Agent", "The agent that makes the call.", "string"),
	"Session":     header("Brokerd-Session", "The session; the default is the credential's, else default.", "string"),
	"Incarnation": header("Brokerd-Incarnation", "The registration that the agent acts for; not a stale one.", "integer"),
	"Fence":       header("Brokerd-Fence", "The lock or token that the call depends on, by its fence.", "integer"),
}

func header(name, text, kind string) object {
	return object{"name": name, "in": "header", "description": text, "schema": object{"type": kind}}
}

// add adds an operation to a path.
func add(paths object, path, verb string, operation object) {
	item, ok := paths[path].(object)
	if !ok {
		item = object{}
		paths[path] = item
	}
	item[strings.ToLower(verb)] = operation
}

func jsonContent(schema any) object { return object{"application/json": object{"schema": schema}} }

// operation describes an endpoint.
func (d *description) operation(e *endpoint, verb, path string) object {
	service := string(e.method.Parent().Name())
	text := d.comments[e.method.FullName()]
	op := object{
		"operationId": d.id(e, verb, path),
		"tags":        []string{service},
		"x-rpc":       service + "/" + string(e.method.Name()),
		"description": text,
		"parameters":  d.parameters(e, verb),
		"responses": object{
			"200":     object{"description": "The call succeeded.", "content": d.answer(e)},
			"default": object{"$ref": "#/components/responses/Problem"},
		},
	}
	if end := strings.IndexAny(text, ".\n"); end > 0 {
		op["summary"] = text[:end]
	}
	switch {
	case e.name == uploadMethod && e.parameters != nil:
		op["requestBody"] = object{"content": object{"application/octet-stream": object{}}}
	case hasBody(verb):
		schema := d.refer(e.method.Input())
		kind := "application/json"
		if e.method.IsStreamingClient() {
			kind = jsonLines
		}
		op["requestBody"] = object{"content": object{kind: object{"schema": schema}}}
	}
	return op
}

// hasBody reports whether a request has its fields in a body. The others have them in the query.
func hasBody(verb string) bool { return verb != http.MethodGet && verb != http.MethodDelete }

// id returns the name of an operation: that of its RPC, or of its path if another route has taken it.
func (d *description) id(e *endpoint, verb, path string) string {
	name := string(e.method.Name())
	id := strings.ToLower(name[:1]) + name[1:]
	if d.ids[id] {
		id = strings.ToLower(verb)
		separates := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }
		for _, word := range strings.FieldsFunc(path, separates) {
			id += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	d.ids[id] = true
	return id
}

// answer describes the answer of an endpoint.
func (d *description) answer(e *endpoint) object {
	switch {
	case e.name == downloadMethod && e.parameters != nil:
		return object{"application/octet-stream": object{}}
	case e.method.IsStreamingServer() && !e.first:
		frame := object{"schema": d.refer(e.method.Output())}
		return object{serverSentEvents: frame, jsonLines: frame}
	}
	return jsonContent(d.refer(e.method.Output()))
}

// parameters describes the parameters of an endpoint.
func (d *description) parameters(e *endpoint, verb string) []object {
	var all []object
	input := e.method.Input()
	if e.name == uploadMethod && e.parameters != nil {
		input = input.Fields().ByName("header").Message()
	}
	for _, name := range e.parameters {
		p := object{"name": name, "in": "path", "required": true, "schema": object{"type": "string"}}
		if f := input.Fields().ByName(protoreflect.Name(name)); f != nil {
			p["description"] = d.comments[f.FullName()]
		} else {
			p["description"] = "As the header " + callParameters[name] + "."
		}
		all = append(all, p)
	}
	for _, name := range slices.Sorted(maps.Keys(callerHeaders)) {
		all = append(all, object{"$ref": "#/components/parameters/" + name})
	}
	if input.Fields().ByName(keyField) != nil {
		all = append(all, header(keyHeader, "As the field request_id.", "string"))
	}
	if input.Fields().ByName(matchField) != nil {
		all = append(all, header(matchHeader, "As the field compare_revision.", "string"))
	}
	if input.Fields().ByName(resumeField) != nil && e.method.IsStreamingServer() {
		all = append(all, header(resumeHeader, "As the field after_revision.", "integer"))
	}
	if !hasBody(verb) || input != e.method.Input() {
		all = append(all, d.query(e, input)...)
	}
	return all
}

// query describes the fields of a message that a query can have.
func (d *description) query(e *endpoint, m protoreflect.MessageDescriptor) []object {
	var all []object
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		name := string(f.Name())
		switch {
		case slices.Contains(e.parameters, name) || e.preset.Has(name) || f.IsMap() || name == "size":
			continue
		case name == "filter":
			all = append(all, d.query(e, f.Message())...)
			continue
		case f.Message() != nil && !isText(f.Message()):
			continue
		}
		all = append(all, object{
			"name": name, "in": "query", "description": d.comments[f.FullName()], "schema": d.value(f, false),
		})
	}
	return all
}

// isText reports whether the form of a message is a text.
func isText(m protoreflect.MessageDescriptor) bool {
	return m.FullName() == "google.protobuf.Timestamp" || m.FullName() == "google.protobuf.Duration"
}
