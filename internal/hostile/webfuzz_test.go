package hostile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/internal/apptest"
	"brokerd/internal/jsonform"
)

func TestFuzz_NoHTTPRequestBreaksTheDaemon(t *testing.T) {
	t.Parallel()
	s := launch(t, nil, "--metrics", "127.0.0.1:0", "--log-level", "info", "--sync", "normal")
	b := s.bystander()
	for _, agent := range []string{"alice", "bob"} {
		s.agent("default", agent)
	}
	routes := s.routes()
	before := s.use()
	stop := b.work(t)
	seed := time.Now().UnixNano()
	t.Logf("the seed is %d", seed)
	end := time.Now().Add(fromEnvironment(t, "HOSTILE_TIME", 5*time.Second))
	var requests, served atomic.Int64
	answered := make([]atomic.Bool, len(routes))
	var fuzzing sync.WaitGroup
	for i := range fuzzers {
		fuzzing.Go(func() {
			f := fuzzer{Rand: rand.New(rand.NewPCG(uint64(seed), uint64(i)))}
			// Half of the fuzzers act as operators.
			c := s.browser(s.transports()[0], party{session: "default", agent: []string{"", "alice"}[i%2]})
			defer c.client.CloseIdleConnections()
			for round := 0; round == 0 || time.Now().Before(end); round++ {
				for at, r := range routes {
					status, what := f.visit(c, r)
					if failed(status) {
						t.Errorf("%s: %d", what, status)
					}
					requests.Add(1)
					if status != 0 {
						answered[at].Store(true)
					}
					if status == http.StatusOK {
						served.Add(1)
					}
				}
			}
		})
	}
	fuzzing.Wait()
	// On a slow machine, the few requests of a route may all have ended before their answers.
	ctx, f := patient(t), fuzzer{Rand: rand.New(rand.NewPCG(uint64(seed), fuzzers))}
	c := s.browser(s.transports()[0], party{session: "default"})
	for at, r := range routes {
		for !answered[at].Load() && ctx.Err() == nil {
			status, _ := f.visit(c, r)
			answered[at].Store(status != 0)
		}
	}
	c.client.CloseIdleConnections()
	stop()
	s.settled(before)
	t.Logf("%d requests of %d routes, of which %d succeeded; the bystander made %d rounds",
		requests.Load(), len(routes), served.Load(), len(b.took))
	if served.Load() == 0 {
		t.Error("no request succeeded")
	}
	for at, r := range routes {
		if !answered[at].Load() {
			t.Errorf("no answer of %s %s", r.verb, r.path)
		}
	}
}

// failed reports whether a status says that the daemon has a defect.
func failed(status int) bool {
	return status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable
}

// A webRoute is a method and a path of the daemon; input is the request of its RPC, nil if it has none.
type webRoute struct {
	verb, path string
	input      protoreflect.MessageDescriptor
}

// routes returns the routes that the daemon describes, /v1/call of every RPC, and paths of no RPC.
func (s *target) routes() []webRoute {
	s.t.Helper()
	var description struct {
		Paths map[string]map[string]struct {
			RPC string `json:"x-rpc"`
		}
	}
	c := s.browser(s.transports()[0], party{})
	r, err := http.NewRequestWithContext(patient(s.t), http.MethodGet, c.base+"/v1/openapi.json", http.NoBody)
	apptest.NoError(s.t, err)
	answer, err := c.client.Do(r)
	apptest.NoError(s.t, err)
	defer func() { _ = answer.Body.Close() }()
	apptest.NoError(s.t, json.NewDecoder(answer.Body).Decode(&description))
	inputs := map[string]protoreflect.MessageDescriptor{}
	all := []webRoute{
		{"GET", "/", nil}, {"GET", "/ui/{name}", nil}, {"GET", "/login", nil},
		{"POST", "/{name}", nil}, {"{name}", "/v1/{name}", nil},
	}
	for _, m := range methods() {
		name := string(m.Parent().Name()) + "/" + string(m.Name())
		inputs[name] = m.Input()
		all = append(all, webRoute{"POST", "/v1/call/" + name, m.Input()})
	}
	for _, path := range slices.Sorted(maps.Keys(description.Paths)) {
		for _, verb := range slices.Sorted(maps.Keys(description.Paths[path])) {
			if input := inputs[description.Paths[path][verb].RPC]; input != nil {
				all = append(all, webRoute{strings.ToUpper(verb), path, input})
			}
		}
	}
	if len(all) < 2*len(inputs) {
		s.t.Errorf("%d routes of %d RPCs", len(all), len(inputs))
	}
	return all
}

var parameters = regexp.MustCompile(`{\w+}`)

// visit makes a random request to a route. It returns the status, 0 if the client has ended the request
// or cannot make it, and the request.
func (f fuzzer) visit(c *browser, r webRoute) (status int, what string) {
	ctx, cancel := context.WithTimeout(context.Background(), fuzzedCall)
	defer cancel()
	path := parameters.ReplaceAllStringFunc(r.path, func(string) string {
		text := f.text()
		return url.PathEscape(text)
	})
	if f.IntN(30) == 0 {
		at := f.IntN(len(path) + 1)
		path = path[:at] + pick(f, "/", "//", "/..", "/%2e%2e/", "%00", ";", "%2F", "{", "\\", "follow") + path[at:]
	}
	verb, body := r.verb, ""
	reads := verb == "GET" || verb == "DELETE"
	if strings.HasPrefix(verb, "{") || f.IntN(20) == 0 {
		verb = pick(f, "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "BREW")
	}
	if r.input != nil && (reads || f.IntN(8) == 0) {
		path += f.query(r.input)
	}
	if r.input != nil && (!reads || f.IntN(8) == 0) {
		lines := pick(f, 1, 1, 1, f.IntN(mostFrames))
		for range lines {
			body += string(f.json(r)) + "\n"
		}
	}
	headers := []string{"Accept", pick(f, "application/json", "text/event-stream", "*/*", "")}
	for _, name := range []string{
		"Range", "If-Match", "If-None-Match", "Last-Event-ID", "Idempotency-Key", "Content-Type", "Content-Encoding",
		"Authorization", "Brokerd-Agent", "Brokerd-Session", "Brokerd-Fence", "Brokerd-Incarnation",
		"Host", "Origin", "Sec-Fetch-Site", "Expect", "Connection", "Traceparent",
	} {
		if f.IntN(60) == 0 {
			headers = append(headers, name, pick(f, "0", `"17"`, "bytes=5-9", "bytes=-", "-1", "9223372036854775808",
				"01935f2e-7c5b-7000-8000-000000000001", "Bearer x", "http://evil.example", "evil.example", "cross-site",
				"gzip", "100-continue", "close", "Upgrade", "alice", "\xff", "<img src=x>", strings.Repeat("x", 20_000)))
		}
	}
	status, _ = c.do(ctx, verb, path, body, headers...)
	return status, verb + " " + path + " " + body
}

// query returns a random query for the fields of a message.
func (f fuzzer) query(d protoreflect.MessageDescriptor) string {
	values := url.Values{}
	for i := range d.Fields().Len() {
		if f.IntN(8) == 0 {
			name := string(d.Fields().Get(i).Name()) + pick(f, "", "", "", ".a", ".", ".agent")
			values.Add(name, pick(f, f.text(), "true", "1", "-1", "1s", "agent"))
		}
	}
	return "?" + values.Encode() + pick(f, "", "", "", "", "", "", "", "&%zz", "&=")
}

// json returns the JSON of a random request to a route, without the fields that its path has. Many of
// them are mutated.
func (f fuzzer) json(r webRoute) []byte {
	if f.IntN(50) == 0 {
		return bytes.Repeat([]byte(pick(f, "[", `{"a":`, "{\"messages\":[", "9")), f.IntN(20_000))
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(r.input.FullName())
	if err != nil {
		panic(err) // the API is linked
	}
	m := kind.New().Interface()
	wire, err := proto.MarshalOptions{AllowPartial: true}.Marshal(f.message(r.input, 0))
	if err != nil || proto.Unmarshal(wire, m) != nil {
		return f.bytes(20) // a text of it is not UTF-8
	}
	for _, name := range parameters.FindAllString(r.path, -1) {
		if field := r.input.Fields().ByName(protoreflect.Name(strings.Trim(name, "{}"))); field != nil {
			m.ProtoReflect().Clear(field)
		}
	}
	var b bytes.Buffer
	if err := jsonform.Append(&b, m); err != nil {
		return f.bytes(20)
	}
	return f.mutate(b.Bytes())
}
