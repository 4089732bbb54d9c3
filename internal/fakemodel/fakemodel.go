package fakemodel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Request is one that a coding agent has made to the model.
type Request struct {
	Path  string
	At    time.Time // it has arrived
	Parts []Part    // the conversation, in order; none for other calls of the API
	Tools []string  // that the model may call
}

// Has reports whether the conversation has a text that the model reads. What the model itself has written does not
// count.
func (r *Request) Has(text string) bool {
	return slices.ContainsFunc(r.Parts, func(p Part) bool { return p.Kind != Call && strings.Contains(p.Text, text) })
}

// Kind is what a part of a conversation is.
type Kind string

// The kinds of parts.
const (
	Text   Kind = "text"
	Call   Kind = "call"   // of a tool
	Result Kind = "result" // of a tool
)

// A Part is one part of a conversation.
type Part struct {
	Kind Kind
	Role string // as the API names it
	Text string
}

// A Server is the model. Its methods may be called concurrently.
type Server struct {
	http *httptest.Server
	now  func() time.Time

	closing chan struct{}
	goOn    chan struct{} // one for each answer that may end its turn

	mu       sync.Mutex // guards the fields below
	requests []Request
	changed  chan struct{}   // closed and replaced with each request
	waited   map[string]bool // names of the waits of scripts
}

// New starts a server on loopback, which has the time from now. The caller must call Close.
func New(now func() time.Time) *Server {
	s := &Server{now: now, changed: make(chan struct{}), closing: make(chan struct{}), goOn: make(chan struct{}), waited: map[string]bool{}}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	return s
}

// URL is the address of the server, without the path of an API.
func (s *Server) URL() string { return s.http.URL }

// Close ends the server and the answers under way.
func (s *Server) Close() {
	close(s.closing)
	s.http.CloseClientConnections()
	s.http.Close()
}

// GoOn lets the answer that waits, by the script of its prompt, end its turn. It blocks until there is one.
func (s *Server) GoOn(ctx context.Context) error {
	select {
	case s.goOn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no answer waits: %w", ctx.Err())
	}
}

// Requests returns the requests so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Saw returns the first request whose conversation has a text.
func (s *Server) Saw(text string) (Request, bool) {
	for _, r := range s.Requests() {
		if r.Has(text) {
			return r, true
		}
	}
	return Request{}, false
}

// Await returns the first request for which holds returns true, as soon as there is one.
func (s *Server) Await(ctx context.Context, holds func(r *Request) bool) (Request, error) {
	for n := 0; ; {
		s.mu.Lock()
		all, changed := s.requests, s.changed
		s.mu.Unlock()
		for ; n < len(all); n++ {
			if holds(&all[n]) {
				return all[n], nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("no such request among %d: %w", n, ctx.Err())
		}
	}
}

func (s *Server) keep(r *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, *r)
	close(s.changed)
	s.changed = make(chan struct{})
}

// An api is one of the APIs.
type api struct {
	path  *regexp.Regexp
	parse func(body object) []Part
	tools func(body object) []string
	write func(w *writer, body object, a answer)
}

// serve answers a request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	var body object
	_ = json.Unmarshal(raw, &body) // what is no object has no conversation
	kept := Request{Path: r.URL.Path, At: s.now()}
	i := slices.IndexFunc(apis, func(a api) bool { return r.Method == http.MethodPost && a.path.MatchString(r.URL.Path) })
	if i < 0 {
		s.keep(&kept)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, cond(strings.HasSuffix(r.URL.Path, "/models"), `{"object":"list","data":[{"id":"fake","object":"model"}],"models":[]}`,
			`{"input_tokens":10,"totalTokens":10}`))
		return
	}
	a := apis[i]
	kept.Parts, kept.Tools = a.parse(body), a.tools(body)
	s.keep(&kept)
	reply := next(kept.Parts, kept.Tools)
	if reply.tool == "" && len(kept.Tools) > 0 && s.waits(kept.Parts) {
		select {
		case <-s.goOn:
		case <-s.closing:
		case <-r.Context().Done(): // the client has gone
		}
	}
	stream := body["stream"] == true || strings.Contains(r.URL.Path, "stream")
	w.Header().Set("Content-Type", cond(stream, "text/event-stream", "application/json"))
	a.write(&writer{w, stream}, body, reply)
}

// An answer is a call of a tool, or a text that ends the turn.
type answer struct {
	tool      string // empty = the text
	arguments object
	text      string
}

var (
	order = regexp.MustCompile(`(RUN|USE): ([^\n"]+?)( ;;|["\n]|$)`)
	pause = regexp.MustCompile(`WAIT: ([a-z-]+)`)
)

// waits reports whether the newest prompt with a wait has one that was not kept yet.
func (s *Server) waits(parts []Part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(parts) {
		if m := pause.FindStringSubmatch(p.Text); m != nil && p.Kind == Text && p.Role == "user" {
			first := !s.waited[m[1]]
			s.waited[m[1]] = true
			return first
		}
	}
	return false
}

// next returns the answer to a conversation: the first order of its newest script that has no result yet.
func next(parts []Part, tools []string) answer {
	last := -1
	for i, p := range parts {
		if p.Kind == Text && p.Role == "user" && order.MatchString(p.Text) {
			last = i
		}
	}
	if last >= 0 {
		done := 0
		for _, p := range parts[last:] {
			if p.Kind == Result {
				done++
			}
		}
		if orders := order.FindAllStringSubmatch(parts[last].Text, -1); done < len(orders) {
			what := strings.TrimSpace(orders[done][2])
			if tool := served(tools, what); orders[done][1] == "USE" && tool != "" {
				return answer{tool: tool, arguments: object{}}
			}
			if tool, arguments := shell(tools, what); tool != "" {
				return answer{tool: tool, arguments: arguments}
			}
		}
	}
	return answer{text: "Done."}
}

// served returns the name that a coding agent gives a tool of an MCP server; "" if it offers none.
func served(tools []string, name string) string {
	i := slices.IndexFunc(tools, func(tool string) bool { return tool == name || strings.HasSuffix(tool, "_"+name) })
	switch {
	case i >= 0:
		return tools[i]
	case slices.Contains(tools, "ToolSearch"): // Claude Code does not list them, and takes their calls
		return "mcp__brokerd__" + name
	}
	return ""
}

// shell returns a call of the shell tool of a coding agent; "" if it has none that the package knows.
func shell(tools []string, command string) (string, object) {
	for _, known := range []struct {
		tool      string
		arguments object
	}{
		{"Bash", object{"command": command, "description": "run"}},              // Claude Code
		{"bash", object{"command": command, "description": "run"}},              // opencode
		{"run_shell_command", object{"command": command, "description": "run"}}, // Gemini CLI
		{"exec_command", object{"cmd": command, "yield_time_ms": 30_000}},       // Codex
		{"shell_command", object{"command": command}},                           // older ones of Codex
		{"shell", object{"command": []string{"bash", "-c", command}}},           //
	} {
		if slices.Contains(tools, known.tool) {
			return known.tool, known.arguments
		}
	}
	return "", nil
}

// A writer writes an answer, whole or as server-sent events.
type writer struct {
	w      http.ResponseWriter
	stream bool
}

// event writes one event; with an empty name, only its data.
func (w *writer) event(name string, data object) {
	if name != "" {
		data["type"] = name
		fmt.Fprintf(w.w, "event: %s\n", name)
	}
	text, _ := json.Marshal(data) // always encodes
	fmt.Fprintf(w.w, "data: %s\n\n", text)
}

func (w *writer) whole(data object) {
	text, _ := json.Marshal(data) // always encodes
	_, _ = w.w.Write(text)
}

func cond[T any](c bool, yes, no T) T {
	if c {
		return yes
	}
	return no
}
