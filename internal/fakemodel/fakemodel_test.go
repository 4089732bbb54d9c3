package fakemodel

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The script of a prompt is followed in each API, and its end is a text.
func TestServer_FollowsTheScriptInEachAPI(t *testing.T) {
	t.Parallel()
	const script = `RUN: true\nRUN: ls`
	for name, c := range map[string]struct {
		path, first, second, third string // bodies: no result yet, one, two
		call                       string // how an answer begins that calls the tool with the second command
	}{
		"Messages": {"/v1/messages",
			`{"stream":true,"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"` + script + `"}]}`,
			`{"stream":true,"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":[{"type":"text","text":"` + script + `"}]},
				{"role":"assistant","content":[{"type":"tool_use","input":{"command":"true"}}]},
				{"role":"user","content":[{"type":"tool_result","content":[{"type":"text","text":"mark one"}]}]}]}`,
			`{"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"` + script + `"},
				{"role":"user","content":[{"type":"tool_result","content":"mark one"},{"type":"tool_result","content":""}]}]}`,
			`\"command\":\"ls\"`},
		"Responses": {"/v1/responses",
			`{"stream":true,"tools":[{"name":"exec_command"}],"input":"` + script + `"}`,
			`{"stream":true,"tools":[{"name":"exec_command"}],"input":[{"type":"message","role":"user","content":[{"text":"` + script + `"}]},
				{"type":"function_call","arguments":"{}"},{"type":"function_call_output","output":"mark one"}]}`,
			`{"tools":[{"name":"exec_command"}],"input":[{"role":"user","content":"` + script + `"},
				{"type":"function_call_output","output":"mark one"},{"type":"function_call_output","output":""}]}`,
			`\"cmd\":\"ls\"`},
		"Chat Completions": {"/v1/chat/completions",
			`{"stream":true,"tools":[{"function":{"name":"bash"}}],"messages":[{"role":"user","content":"` + script + `"}]}`,
			`{"stream":true,"tools":[{"function":{"name":"bash"}}],"messages":[{"role":"user","content":"` + script + `"},
				{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]},{"role":"tool","content":"mark one"}]}`,
			`{"tools":[{"function":{"name":"bash"}}],"messages":[{"role":"user","content":"` + script + `"},
				{"role":"tool","content":"mark one"},{"role":"tool","content":"done"}]}`,
			`\"command\":\"ls\"`},
		"Gemini": {"/v1beta/models/m:streamGenerateContent",
			`{"tools":[{"functionDeclarations":[{"name":"run_shell_command"}]}],"contents":[{"role":"user","parts":[{"text":"` + script + `"}]}]}`,
			`{"tools":[{"functionDeclarations":[{"name":"run_shell_command"}]}],"contents":[{"role":"user","parts":[{"text":"` + script + `"}]},
				{"role":"model","parts":[{"functionCall":{}}]},{"role":"user","parts":[{"functionResponse":{"response":{"output":"mark one"}}}]}]}`,
			`{"tools":[{"functionDeclarations":[{"name":"run_shell_command"}]}],"contents":[{"role":"user","parts":[{"text":"` + script + `"},
				{"functionResponse":{"response":{"output":"mark one"}}},{"functionResponse":{"response":{}}}]}]}`,
			`"command":"ls"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New(time.Now)
			defer s.Close()
			ask := func(body, want string) {
				t.Helper()
				answer, err := http.Post(s.URL()+c.path, "application/json", strings.NewReader(body)) //nolint:noctx // on loopback
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close() //nolint:errcheck // it is read to its end
				text, err := io.ReadAll(answer.Body)
				if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
					t.Errorf("%d %v: no %s in %s", answer.StatusCode, err, want, text)
				}
			}
			ask(c.first, strings.Replace(c.call, "ls", "true", 1))
			if _, saw := s.Saw("mark one"); saw {
				t.Error("it saw what was not sent")
			}
			ask(c.second, c.call)
			ask(c.third, "Done.")
			found, err := s.Await(t.Context(), func(r *Request) bool { return r.Has("mark one") })
			if err != nil || found.Path != c.path || len(s.Requests()) != 3 {
				t.Errorf("%v, %v, %d requests", found, err, len(s.Requests()))
			}
		})
	}
}

// An answer waits for the test, once for each name; other requests do not.
func TestServer_WaitsForTheTest(t *testing.T) {
	t.Parallel()
	s := New(time.Now)
	defer s.Close()
	ask := func(prompt, tools string, done chan<- string) {
		body := `{"tools":[` + tools + `],"input":"` + prompt + `"}`
		answer, err := http.Post(s.URL()+"/v1/responses", "application/json", strings.NewReader(body)) //nolint:noctx // on loopback
		if err != nil {
			done <- err.Error()
			return
		}
		defer answer.Body.Close() //nolint:errcheck // it is read to its end
		text, _ := io.ReadAll(answer.Body)
		done <- string(text)
	}
	const tool = `{"name":"exec_command"}`
	waiting, done := make(chan string, 1), make(chan string, 1)
	go ask("RUN: true ;; WAIT: a", tool, done) // which calls the tool first
	if got := <-done; !strings.Contains(got, `\"cmd\":\"true\"`) {
		t.Errorf("%s", got)
	}
	go ask("WAIT: a", tool, waiting)
	if _, err := s.Await(t.Context(), func(r *Request) bool { return len(s.Requests()) == 2 }); err != nil {
		t.Fatal(err)
	}
	for _, other := range []struct{ prompt, tools string }{{"WAIT: b", ""}, {"hello", tool}} {
		go ask(other.prompt, other.tools, done)
		if got := <-done; !strings.Contains(got, "Done.") {
			t.Errorf("%v: %s", other, got)
		}
	}
	if len(waiting) > 0 {
		t.Error("it did not wait")
	}
	if err := s.GoOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-waiting; !strings.Contains(got, "Done.") {
		t.Errorf("%s", got)
	}
	go ask("WAIT: a", tool, done)
	if got := <-done; !strings.Contains(got, "Done.") {
		t.Errorf("again: %s", got)
	}
}
