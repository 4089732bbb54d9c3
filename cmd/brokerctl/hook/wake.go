package hook

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	pb "brokerd/gen/brokerd/v1"
)

// MostWakes is how often mail wakes a session between two calls of tools: two agents that only write to each other must
// not go on for ever.
const MostWakes = 5

// wakeUp waits in the background until mail for the agent arrives, and then wakes its session: Claude Code passes what
// such a hook writes to standard error to the model if its exit code is 2. In every other case the exit code is 0:
// without a text, the session would wake again and again. Each session has one listener; a new one ends the one before.
// A run without a screen has none: Claude Code would wait for it. For Codex, see wakeCodex.
func (h *Hook) wakeUp(ctx context.Context, errs io.Writer) error {
	if h.C.Env.Get("CLAUDE_CODE_ENTRYPOINT") == "sdk-cli" || h.In.AgentID != "" {
		return nil
	}
	l, err := h.Listener()
	if err != nil || l.begin() != nil {
		return nil // without its files, a session might wake again and again
	}
	whole := ctx
	ctx, end := context.WithCancel(ctx)
	defer end()
	var gone atomic.Bool
	go h.endWithAgent(ctx, func() { gone.Store(true); end() }, errs)
	defer func() {
		if gone.Load() { // no other hook of a program that was killed says it
			h.until = h.C.Env.Now().Add(h.within)
			_ = h.briefly(whole, func(ctx context.Context) error {
				return h.beat(ctx, &pb.HeartbeatRequest{Harness: h.presence(pb.HarnessState_HARNESS_STATE_ENDED)})
			})
		}
	}()
	go l.endWithNext(ctx, end)
	if h.vendor.server {
		return h.wakeCodex(ctx, end, l)
	}
	if l.wakes >= MostWakes {
		_ = h.listens(ctx, pb.OfferWay_OFFER_WAY_UNSPECIFIED)
		<-ctx.Done() // the next event of the session has a new listener
		return nil
	}
	way := pb.OfferWay_OFFER_WAY_WAKE
	if h.vendor.plugin {
		way = pb.OfferWay_OFFER_WAY_PLUGIN
	}
	for ctx.Err() == nil {
		var n news
		err := h.as(ctx, func(*client.Client) (err error) {
			if err = h.listens(ctx, way); err != nil {
				return err
			}
			n, err = h.await(ctx, way, func(*pb.InboxItem) bool { return true })
			return err
		})
		switch {
		case ctx.Err() != nil:
		case err != nil && !command.Away(err):
			return nil
		case err != nil: // the broker may come back
			rest(ctx)
		case !n.empty():
			err := h.pass(ctx, n, nil, func(text string) error { _, err := io.WriteString(errs, text); return err })
			if err != nil {
				return nil
			}
			_ = os.WriteFile(l.count, fmt.Append(nil, l.wakes+1), 0o600) // otherwise a few wakes more are permitted
			return &problem.Failure{Code: ExitBlock}
		}
	}
	return nil
}

// A listener is the listener of a session, by two files: one has its process, and one how often mail has woken the
// session since the last call of a tool. Hooks of one event run at the same time, so each file has one kind of writer.
type listener struct {
	File  string
	count string
	wakes int
}

// Listener reads the file of the session; one that is not there or makes no sense is that of no listener.
func (h *Hook) Listener() (*listener, error) {
	dir, err := h.C.Env.CacheDir()
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256([]byte(h.session()))
	file := filepath.Join(dir, "brokerctl", fmt.Sprintf("wake-%x", key[:8]))
	return &listener{file, file + ".count", FileNumber(file + ".count")}, nil
}

// FileNumber returns the number in a file, 0 without one.
func FileNumber(file string) (n int) {
	if text, err := os.ReadFile(file); err == nil {
		_, _ = fmt.Sscan(string(text), &n)
	}
	return n
}

// begin takes the place of the listener before this one.
func (l *listener) begin() error {
	if err := os.MkdirAll(filepath.Dir(l.File), 0o700); err != nil {
		return err
	}
	return os.WriteFile(l.File, fmt.Append(nil, os.Getpid()), 0o600)
}

// endWithNext calls end when another listener has taken the place of this one, or the session has ended. It
// returns when ctx ends.
func (l *listener) endWithNext(ctx context.Context, end func()) {
	check := time.NewTicker(agentCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			if FileNumber(l.File) != os.Getpid() {
				end()
				return
			}
		}
	}
}

// awake permits as many wakes again: a tool was called, or the user has sent a prompt.
func (h *Hook) awake() {
	if l, err := h.Listener(); err == nil {
		_ = os.Remove(l.count) // there is none if mail has not woken the session
	}
}

// sleep ends the listener of a session that has ended.
func (h *Hook) sleep() {
	if l, err := h.Listener(); err == nil {
		_, _ = os.Remove(l.File), os.Remove(l.count) // which ends it; there are none without --wake
	}
}
