package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// A Health has what the bridge cannot do at present. It is safe for concurrent use.
type Health struct {
	key    string // of the report in the session's state
	about  Report // the folder and its format
	folder *Folder
	state  *State
	saved  string // the value in the session's state; used by the goroutine of Run

	mu    sync.Mutex // guards waits
	waits map[[2]string]Wait
}

// A Wait is an action that the bridge tries again until it succeeds.
type Wait struct {
	Agent  string    `json:"agent,omitempty"` // empty = the folder
	Action string    `json:"action"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
}

// A Report is what `brokerctl explain` reads: the JSON text under the key health/FOLDER-ID of
// setting.BridgeNamespace. The key exists while there is a wait or a rejected file.
type Report struct {
	Folder   string `json:"folder"`
	Format   string `json:"format"`
	Waits    []Wait `json:"waits,omitempty"`    // the oldest ones, at most maxWaits
	Rejected int    `json:"rejected,omitempty"` // files in rejected/ with a reason beside them
	Newest   string `json:"newest,omitempty"`   // the last one of these, with its reason
	Reason   string `json:"reason,omitempty"`
}

const (
	maxWaits  = 20
	maxReason = 400 // bytes
)

func newHealth(about Report, key string, f *Folder, s *State) *Health {
	return &Health{key: key, about: about, folder: f, state: s, waits: map[[2]string]Wait{}}
}

// Note keeps the error of an action, or removes it after a success, and reports whether the error is a new one.
func (h *Health) Note(agent, action string, err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := [2]string{agent, action}
	before, waits := h.waits[key]
	if err == nil {
		delete(h.waits, key)
		return false
	}
	reason := mailfile.OneLine(Plain(err), maxReason)
	now := Wait{Agent: agent, Action: action, Reason: reason, Since: time.Now().UTC()}
	if waits {
		now.Since = before.Since
	}
	h.waits[key] = now
	return reason != before.Reason
}

// forget removes the errors of an agent for which no goroutine works any more.
func (h *Health) forget(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key := range h.waits {
		if key[0] == agent {
			delete(h.waits, key)
		}
	}
}

// list returns the oldest waits.
func (h *Health) list() []Wait {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []Wait
	for _, w := range h.waits {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b Wait) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Action, b.Action))
	})
	return all[:min(len(all), maxWaits)]
}

// read reads what an earlier run has reported.
func (h *Health) read(ctx context.Context) error {
	found, err := h.state.List(ctx, h.key)
	h.saved = found[h.key]
	return err
}

// report writes the report into the session's state if it has changed.
func (h *Health) report(ctx context.Context) error {
	r := h.about
	r.Waits = h.list()
	if err := h.countRejected(&r); err != nil {
		return err
	}
	text := ""
	if len(r.Waits) > 0 || r.Rejected > 0 {
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		text = string(data)
	}
	if text == h.saved {
		return nil
	}
	change := PutChange(h.key, text)
	if text == "" {
		change = deleteChange(h.key)
	}
	if err := h.state.Change(ctx, []*pb.StateChange{change}); err != nil {
		return err
	}
	h.saved = text
	return nil
}

// countRejected counts the rejected files that are still there.
func (h *Health) countRejected(r *Report) error {
	names, err := h.folder.List(rejectedDir)
	if err != nil {
		return err
	}
	var newest time.Time
	for _, reason := range names {
		name, ok := strings.CutSuffix(reason, errorExt)
		if _, there := slices.BinarySearch(names, name); !ok || !there {
			continue
		}
		r.Rejected++
		info, err := h.folder.Lstat(path.Join(rejectedDir, reason))
		if err == nil && info.ModTime().After(newest) {
			newest, r.Newest = info.ModTime(), name
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if r.Newest != "" {
		if text, err := h.folder.Read(path.Join(rejectedDir, r.Newest+errorExt)); err == nil {
			r.Reason = mailfile.OneLine(strings.TrimSpace(string(text)), maxReason)
		}
	}
	return nil
}
