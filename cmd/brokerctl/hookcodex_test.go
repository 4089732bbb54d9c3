package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/hook"
	"brokerd/internal/apptest"
)

// A codexHome is the home folder of Codex with one open session, s1.
type codexHome struct {
	t          *shell
	dir        string
	transcript string
	lock       *os.File
}

func newCodexHome(t *shell, source string, events ...string) *codexHome {
	t.Helper()
	dir, err := os.MkdirTemp("", "codex") // a socket's path must be short
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &codexHome{t: t, dir: dir, transcript: filepath.Join(dir, "s1.jsonl")}
	text := `{"type":"session_meta","payload":{"source":` + source + "}}\n"
	for _, e := range events {
		text += `{"type":"event_msg","payload":{"type":"` + e + `"}}` + "\n"
	}
	apptest.NoError(t, os.WriteFile(h.transcript, []byte(text), 0o600))
	locks := filepath.Join(dir, "thread-writer-locks")
	apptest.NoError(t, os.MkdirAll(locks, 0o700))
	if h.lock, err = os.Create(filepath.Join(locks, "s1.lock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.lock.Close() })
	apptest.NoError(t, unix.Flock(int(h.lock.Fd()), unix.LOCK_EX))
	t.Setenv("CODEX_HOME", dir)
	return h
}

// end ends the session, as far as others see it.
func (h *codexHome) end() {
	apptest.NoError(h.t, unix.Flock(int(h.lock.Fd()), unix.LOCK_UN))
}

// event calls the hook of Codex with an event of the session.
func (h *codexHome) event(event, prompt string, args ...string) result {
	input := fmt.Sprintf(`{"session_id":"s1","transcript_path":%q,"cwd":"DIR","hook_event_name":%q,"prompt":%s,"turn_id":"t"}`,
		h.transcript, event, jsonText(prompt))
	return hookedBy(h.t, "codex", input, "s1", append([]string{"--agent", "builder-1"}, args...)...)
}

// listen begins the listener of the session.
func (h *codexHome) listen() <-chan result {
	done := make(chan result, 1)
	go func() { done <- h.event("UserPromptSubmit", "hello", "--wake") }()
	return done
}

// A codexFake is the server of Codex for one connection at a time.
type codexFake struct {
	calls  chan codexCall
	status string        // of the thread
	idle   chan struct{} // sends that the thread is idle
	refuse string        // the error of turn/start
}

type codexCall struct {
	ID     int    `json:"id"`
	Method string `json:"method"`
	Params struct {
		Thread string `json:"threadId"`
		Client string `json:"clientUserMessageId"`
		Input  []struct {
			Text string `json:"text"`
		} `json:"input"`
	} `json:"params"`
}

func (h *codexHome) serve(f *codexFake) *codexFake {
	h.t.Helper()
	f.calls, f.idle = make(chan codexCall, 100), make(chan struct{})
	dir := filepath.Join(h.dir, "app-server-control")
	apptest.NoError(h.t, os.MkdirAll(dir, 0o700))
	l, err := net.Listen("unix", filepath.Join(h.dir, "s"))
	if err == nil {
		err = os.Symlink(filepath.Join(h.dir, "s"), filepath.Join(dir, "app-server-control.sock"))
	}
	apptest.NoError(h.t, err)
	ended := make(chan struct{})
	h.t.Cleanup(func() { _ = l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.talk(conn)
			_ = conn.Close()
		}
	}()
	return f
}

// talk answers the calls of a connection until it ends.
func (f *codexFake) talk(conn net.Conn) {
	in := bufio.NewReader(conn)
	if _, err := http.ReadRequest(in); err != nil {
		return
	}
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
	send := func(text string) { // unmasked, in two frames with a question between them
		frame := func(head byte, data string) []byte {
			return append(binary.BigEndian.AppendUint16([]byte{head, 126}, uint16(len(data))), data...)
		}
		out := append(frame(0x01, text[:3]), 0x89, 0)
		_, _ = conn.Write(append(out, frame(0x80, text[3:])...))
	}
	note := func(method, params string) { send(`{"method":"` + method + `","params":` + params + `}`) }
	for {
		call, err := readCall(in)
		if err != nil {
			return
		}
		f.calls <- call
		switch call.Method {
		case "":
			continue
		case "initialized":
			continue
		case "thread/read":
			send(fmt.Sprintf(`{"id":%d,"result":{"thread":{"id":"s1","status":{"type":%q}}}}`, call.ID, f.status))
			if f.status == "active" {
				<-f.idle
				note("thread/status/changed", `{"threadId":"another","status":{"type":"idle"}}`)
				note("thread/status/changed", `{"threadId":"s1","status":{"type":"idle"}}`)
			}
		case "turn/start":
			if f.refuse != "" {
				send(fmt.Sprintf(`{"id":%d,"error":{"code":-32600,"message":%q}}`, call.ID, f.refuse))
				continue
			}
			send(fmt.Sprintf(`{"id":%d,"result":{}}`, call.ID))
			item := func(client string) {
				note("item/started", fmt.Sprintf(`{"threadId":"s1","item":{"type":"userMessage","clientId":%q}}`, client))
			}
			item("another")
			item(call.Params.Client)
		default:
			send(fmt.Sprintf(`{"id":%d,"result":{}}`, call.ID))
		}
	}
}

// readCall reads one masked frame; a pong is a call without a method.
func readCall(in io.Reader) (call codexCall, err error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(in, head); err != nil {
		return call, err
	}
	size := int(head[1] & 0x7f)
	if size == 126 {
		long := make([]byte, 2)
		if _, err := io.ReadFull(in, long); err != nil {
			return call, err
		}
		size = int(binary.BigEndian.Uint16(long))
	}
	data := make([]byte, 4+size)
	if _, err := io.ReadFull(in, data); err != nil || head[0]&0x0f == 10 {
		return call, err
	}
	text := data[4:]
	for i := range text {
		text[i] ^= data[i%4]
	}
	return call, json.Unmarshal(text, &call)
}

// started returns the call that starts a turn.
func (f *codexFake) started() codexCall {
	for call := range f.calls {
		if call.Method == "turn/start" {
			return call
		}
	}
	panic("the channel stays open")
}

func TestHookCodex_MailStartsATurnOfAnIdleSession(tt *testing.T) {
	for _, status := range []string{"idle", "active"} {
		tt.Run(status, func(tt *testing.T) {
			t := newShell(tt)
			startBroker(t)
			register(t, "lead/lead", "builder-1/builder")
			h := newCodexHome(t, `"vscode"`)
			f := h.serve(&codexFake{status: status})
			done := h.listen()
			id := sent(t, "--agent", "lead", "builder-1", "Add login")
			if status == "active" { // hooks pass mail on in a turn
				until(t, "the listener asks for the session", func() bool { return (<-f.calls).Method == "thread/read" })
				if at(t, delivery(t, id), "delivered_at") != nil {
					t.Error("it was offered in a turn")
				}
				f.idle <- struct{}{}
			}
			call := f.started()
			text := call.Params.Input[0].Text
			if call.Params.Thread != "s1" || !strings.HasPrefix(text, "1 message came for you") ||
				!strings.Contains(text, "=== "+call.Params.Client+" message") || !strings.Contains(text, "Subject: Add login") {
				t.Errorf("%+v", call)
			}
			until(t, "it is accepted", func() bool { return at(t, delivery(t, id), "read_at") != nil })
			if d := delivery(t, id); at(t, d, "offers", 0, "way") != "app_server" || at(t, d, "offers", 0, "harness") != "s1" {
				t.Errorf("%v", d)
			}
			h.end()
			if got := <-done; got.code != 0 || got.out+got.err != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestHookCodex_ATurnThatDoesNotStartReturnsItsMail(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	h := newCodexHome(t, `"vscode"`)
	f := h.serve(&codexFake{status: "idle", refuse: "thread not found"})
	done := h.listen()
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	for range hook.MostWakes {
		f.started()
	}
	until(t, "the last one is returned", func() bool { return fmt.Sprint(at(t, delivery(t, id), "offers", hook.MostWakes-1, "why")) != "" })
	if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "why") != "the hook failed before the coding agent had it" {
		t.Errorf("%v", d)
	}
	h.end()
	if got := <-done; got.code != 0 || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
	if d := delivery(t, id); len(at(t, d, "offers").([]any)) != hook.MostWakes { // a prompt of the user permits more
		t.Errorf("%v", d)
	}
}

// Without a server, the session gets its mail by the queue, and the prompt's hook is the evidence.
func TestHookCodex_TheQueueReachesASessionWithoutAServer(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	h := newCodexHome(t, `"cli"`, "task_started", "task_complete", "token_count")
	bin, queued := t.TempDir(), filepath.Join(t.TempDir(), "queued")
	script := "#!/bin/sh\nprintf '%s\\n' \"$@\" >" + queued + ".new && mv " + queued + ".new " + queued + "\n"
	apptest.NoError(t, os.WriteFile(filepath.Join(bin, "codex"), []byte(script), 0o700))
	t.Setenv("PATH", bin+":"+t.Getenv("PATH")+":/usr/bin:/bin")
	done := h.listen()
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	var text string
	until(t, "codex queue", func() bool {
		b, err := os.ReadFile(queued)
		text = string(b)
		return err == nil
	})
	args := "queue\n--thread\ns1\n--message="
	if !strings.HasPrefix(text, args+"1 message came for you") || !strings.Contains(text, "Subject: Add login") {
		t.Errorf("%q", text)
	}
	if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "way") != "queue" {
		t.Errorf("%v", d)
	}
	h.event("UserPromptSubmit", "another prompt comes first")
	if d := delivery(t, id); at(t, d, "offers", 0, "returned_at") != nil {
		t.Errorf("it is on its way: %v", d)
	}
	h.event("UserPromptSubmit", strings.TrimPrefix(text, args))
	if d := delivery(t, id); at(t, d, "read_at") == nil {
		t.Errorf("%v", d)
	}
	h.end()
	<-done
}

func TestHookCodex_ARunWithoutAScreenHasNoListener(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	id := sent(t, "--agent", "lead", "builder-1", "Add login")
	h := newCodexHome(t, `"exec"`, "task_complete")
	if got := h.event("UserPromptSubmit", "hello", "--wake"); got.code != 0 || got.out+got.err != "" {
		t.Errorf("%+v", got)
	}
	if d := delivery(t, id); at(t, d, "delivered_at") != nil {
		t.Errorf("%v", d)
	}
}

// What comes while the session is idle also reaches the model with the user's prompt, and the turn shows that it did.
func TestHook_TheUsersPromptBringsMail(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	for vendor, events := range map[string]struct{ prompt, after, end string }{
		"codex":  {"UserPromptSubmit", "PostToolUse", "Stop"},
		"gemini": {"BeforeAgent", "AfterTool", "AfterAgent"},
	} {
		for _, next := range []string{events.after, events.end} {
			id := sent(t, "--agent", "lead", "builder-1", "Add login")
			text := contextOf(t, hookedBy(t, vendor, eventOf("s1", events.prompt), ""), events.prompt)
			if !strings.HasPrefix(text, "1 message came for you") || strings.Count(text, "Subject: Add login") != 1 {
				t.Errorf("%s: %q", vendor, text)
			}
			if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "way") != "prompt" {
				t.Errorf("%s: %v", vendor, d)
			}
			hookedBy(t, vendor, eventOf("s1", events.prompt), "") // after Esc, it is offered again
			if d := delivery(t, id); at(t, d, "read_at") != nil || at(t, d, "offers", 0, "returned_at") == nil {
				t.Errorf("%s: %v", vendor, d)
			}
			hookedBy(t, vendor, eventOf("s1", next), "")
			if d := delivery(t, id); at(t, d, "offers", 1, "accepted_at") == nil {
				t.Errorf("%s, %s: %v", vendor, next, d)
			}
			must0(t, "ack", id)
		}
	}
}
