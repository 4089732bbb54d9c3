package vendortest

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	pb "brokerd/gen/brokerd/v1"
)

// trustHooks approves the hooks of the project, as the user does with /hooks: it asks Codex for their hashes.
func (r *run) trustHooks() {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), r.path(), "app-server")
	cmd.Dir, cmd.Env = r.project, r.variables
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	write := func(message map[string]any) {
		message["jsonrpc"] = "2.0"
		text, err := json.Marshal(message)
		if err == nil {
			_, err = in.Write(append(text, '\n'))
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	call := func(id int, method string, params, result any) {
		write(map[string]any{"id": id, "method": method, "params": params})
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				r.t.Fatal(method, err)
			}
			var answer struct {
				ID     *int            `json:"id"`
				Result json.RawMessage `json:"result"`
				Error  json.RawMessage `json:"error"`
			}
			if err := json.Unmarshal(line, &answer); err != nil || answer.ID == nil || *answer.ID != id {
				continue // a notification
			}
			if err := json.Unmarshal(answer.Result, result); err != nil {
				r.t.Fatalf("%s: %s, %v", method, line, err)
			}
			return
		}
	}
	call(1, "initialize", map[string]any{"clientInfo": map[string]any{"name": "tests", "version": "0"}}, &struct{}{})
	write(map[string]any{"method": "initialized"})
	var found struct {
		Data []struct {
			Hooks []struct {
				Key         string `json:"key"`
				CurrentHash string `json:"currentHash"`
			} `json:"hooks"`
		} `json:"data"`
	}
	call(2, "hooks/list", map[string]any{"cwds": []string{r.project}}, &found)
	var edits []any
	for _, h := range found.Data[0].Hooks {
		edits = append(edits, map[string]any{"keyPath": "hooks.state", "mergeStrategy": "upsert",
			"value": map[string]any{h.Key: map[string]any{"trusted_hash": h.CurrentHash}}})
	}
	if len(edits) == 0 {
		r.t.Fatal("Codex finds no hooks")
	}
	call(3, "config/batchWrite", map[string]any{"edits": edits}, &struct{}{})
	_ = in.Close()
	_ = cmd.Wait() // it ends with its input
	r.cleanup(r.endDaemon)
}

// endDaemon ends the daemon that Codex starts for its terminals, and its updater.
func (r *run) endDaemon() {
	for _, name := range []string{"daemon-updater.pid", "daemon.pid"} {
		text, err := os.ReadFile(filepath.Join(r.home, ".codex", "app-server-daemon", name))
		var process struct {
			ID int `json:"pid"`
		}
		if err == nil && json.Unmarshal(text, &process) == nil && process.ID > 1 {
			kill(process.ID)
		}
	}
}

// A session of Codex that is not on its daemon gets its mail by the queue.
func TestScreen_CodexWithoutItsServerUsesItsQueue(t *testing.T) {
	for i := range vendors {
		if vendors[i].name != "codex" {
			continue
		}
		r := newRun(t, &vendors[i])
		r.screen = r.open("--dangerously-bypass-hook-trust")
		r.turn("hello ", "PROMPT-first")
		for _, mail := range []string{"MAIL-queue-1", "MAIL-queue-2"} {
			began, idle := time.Now(), r.busy()
			id := r.send(mail)
			r.reached(mail)
			r.noteTime(mail, began)
			r.arrives(id, pb.OfferWay_OFFER_WAY_QUEUE)
			idle()
		}
		r.truthful()
	}
}
