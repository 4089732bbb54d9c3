package hook

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"brokerd/cmd/brokerctl/harness"
	"brokerd/cmd/brokerctl/internal/setting"
)

// A codexSession is a session of Codex, a thread in its words, as its program keeps it in its home folder.
type codexSession struct {
	home       string // of Codex
	id         string
	transcript string
}

var aThread = regexp.MustCompile(`^[0-9A-Za-z-]{1,64}$`)

// codexSession returns the session of the hook; ok is false if it has none that could be woken.
func (h *Hook) codexSession() (s *codexSession, ok bool) {
	home, err := codexFolder(h.C.Env)
	if err != nil {
		return nil, false
	}
	return &codexSession{home, h.In.SessionID, h.In.Transcript}, aThread.MatchString(h.In.SessionID) && h.In.Transcript != ""
}

// alive reports whether a program has the session open: it holds the lock of the thread's writer then. The file of the
// lock stays when the program ends.
func (s *codexSession) alive() bool {
	held, err := harness.Locked(codexLock(s.home, s.id))
	return held && err == nil
}

const (
	metaBytes = 1 << 20   // bytes of the line that begins the file of a conversation, with the instructions of the model
	lastBytes = 256 << 10 // bytes at the end of the file that are searched
)

// source returns how the session was started: exec is a run without a screen. It is empty as long as the file of the
// conversation does not say so, and for sessions of subagents.
func (s *codexSession) source() string {
	f, err := os.Open(s.transcript)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it is only read
	line, err := bufio.NewReader(io.LimitReader(f, metaBytes)).ReadBytes('\n')
	var meta struct {
		Type    string `json:"type"`
		Payload struct {
			Source json.RawMessage `json:"source"`
		} `json:"payload"`
	}
	var source string
	if err != nil || json.Unmarshal(line, &meta) != nil || meta.Type != "session_meta" ||
		json.Unmarshal(meta.Payload.Source, &source) != nil {
		return ""
	}
	return source
}

// idle reports whether the last turn has ended, by the file of the conversation.
func (s *codexSession) idle() bool {
	f, err := os.Open(s.transcript)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // it is only read
	info, err := f.Stat()
	if err != nil {
		return false
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-lastBytes), lastBytes))
	if err != nil {
		return false
	}
	lines := bytes.Split(text, []byte("\n"))
	for i := len(lines) - 1; i >= 0; i-- {
		var event struct {
			Type    string `json:"type"`
			Payload struct {
				Type string `json:"type"`
			} `json:"payload"`
		}
		if json.Unmarshal(lines[i], &event) != nil || event.Type != "event_msg" {
			continue
		}
		switch event.Payload.Type {
		case "task_started":
			return false
		case "task_complete", "turn_aborted":
			return true
		}
	}
	return false
}

// A codexThread is what Codex's server says about a session.
type codexThread struct {
	ID     string `json:"id"`
	Status struct {
		Type string `json:"type"` // notLoaded, idle, active or systemError
	} `json:"status"`
}

func (t *codexThread) rests() bool { return t.Status.Type == "idle" || t.Status.Type == "systemError" }

// server returns a connection to Codex's server as soon as the session is idle there. Without an error, the connection
// is nil if the server does not have the session.
func (s *codexSession) server(ctx context.Context) (*codexServer, error) {
	server, err := dialCodex(ctx, s.home)
	if err != nil {
		return nil, ctx.Err() // there is no server
	}
	params := map[string]any{"threadId": s.id}
	var answer struct {
		Thread codexThread `json:"thread"`
	}
	if err := server.call(ctx, "thread/read", params, &answer); err != nil || answer.Thread.Status.Type == "notLoaded" {
		server.close()
		return nil, ctx.Err()
	}
	for t := answer.Thread; !t.rests(); {
		err := server.await(ctx, func(n *codexNote) bool {
			var changed struct {
				ID     string          `json:"threadId"`
				Status json.RawMessage `json:"status"`
			}
			return n.Method == "thread/status/changed" && json.Unmarshal(n.Params, &changed) == nil && changed.ID == s.id &&
				json.Unmarshal(changed.Status, &t.Status) == nil
		})
		if err != nil || t.Status.Type == "notLoaded" {
			server.close()
			return nil, ctx.Err()
		}
	}
	return server, nil
}

// start starts a turn with a text, whose message has the mark as its name.
func (s *codexSession) start(ctx context.Context, server *codexServer, mark, text string) error {
	ctx, cancel := context.WithTimeout(ctx, codexHello)
	defer cancel()
	// Only a client that has joined the session receives its items.
	if err := server.call(ctx, "thread/resume", map[string]any{"threadId": s.id, "excludeTurns": true}, nil); err != nil {
		return err
	}
	return server.call(ctx, "turn/start", map[string]any{
		"threadId": s.id, "clientUserMessageId": mark,
		"input": []any{map[string]any{"type": "text", "text": text, "text_elements": []any{}}},
	}, nil)
}

// codexEvidence is how long Codex may take until a message that it has accepted is in the conversation: hooks of the
// user may run before.
const codexEvidence = 50 * time.Second

// entered returns as soon as the message with the mark is in the conversation.
func (s *codexSession) entered(ctx context.Context, server *codexServer, mark string) error {
	ctx, cancel := context.WithTimeout(ctx, codexEvidence)
	defer cancel()
	return server.await(ctx, func(n *codexNote) bool {
		var item struct {
			ID   string `json:"threadId"`
			Item struct {
				Type   string `json:"type"`
				Client string `json:"clientId"`
			} `json:"item"`
		}
		return n.Method == "item/started" && json.Unmarshal(n.Params, &item) == nil && item.ID == s.id &&
			item.Item.Type == "userMessage" && item.Item.Client == mark
	})
}

// codexFolder returns the folder of Codex.
func codexFolder(env setting.Environment) (string, error) {
	if home := env.Get("CODEX_HOME"); home != "" {
		return home, nil
	}
	dir, err := env.HomeDir()
	return filepath.Join(dir, ".codex"), err
}

// codexLock returns the file that Codex keeps locked while a program has a session open.
func codexLock(home, id string) string {
	return filepath.Join(home, "thread-writer-locks", filepath.Base(id)+".lock")
}
