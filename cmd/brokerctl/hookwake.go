package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

// mostWakes is how often mail wakes a session between two calls of tools: two agents that only write to each other must
// not go on for ever.
const mostWakes = 5

// wakeUp waits in the background until mail for the agent arrives, and then wakes its session: Claude Code passes what
// such a hook writes to standard error to the model if its exit code is 2. In every other case the exit code is 0:
// without a text, the session would wake again and again. Each session has one listener; a new one ends the one before.
// A run without a screen has none: Claude Code would wait for it.
func (h *hook) wakeUp(ctx context.Context, errs io.Writer) error {
	if h.c.env.get("CLAUDE_CODE_ENTRYPOINT") == "sdk-cli" || h.in.AgentID != "" {
		return nil
	}
	l, err := h.listener()
	if err != nil || l.begin() != nil {
		return nil
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	go h.endWithAgent(ctx, end, errs)
	go l.endWithNext(ctx, end)
	if l.wakes >= mostWakes {
		<-ctx.Done() // the next event of the session has a new listener
		return nil
	}
	for ctx.Err() == nil {
		var n news
		err := h.as(ctx, func(*client.Client) (err error) {
			n, err = h.await(ctx, pb.OfferWay_OFFER_WAY_WAKE, func(*pb.InboxItem) bool { return true })
			return err
		})
		switch {
		case ctx.Err() != nil:
		case err != nil && !away(err):
			return nil
		case err != nil: // the broker may come back
			pause := time.NewTimer(agentCheck)
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
			pause.Stop()
		case !n.empty():
			if _, err := io.WriteString(errs, h.reason(n)); err != nil {
				h.giveBack(context.WithoutCancel(ctx))
				return nil
			}
			l.wakes++
			_ = l.write() // then the next listener permits a few wakes more
			return &failure{code: exitBlock}
		}
	}
	return nil
}

// A listener is the file of the listener of a session: its process, and how often it has woken the session since the last
// call of a tool.
type listener struct {
	file  string
	pid   int
	wakes int
}

// listener reads the file of the session; one that is not there or makes no sense is that of no listener.
func (h *hook) listener() (*listener, error) {
	dir, err := h.c.env.cacheDir()
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256([]byte(h.session()))
	l := &listener{file: filepath.Join(dir, "brokerctl", fmt.Sprintf("wake-%x", key[:8]))}
	l.read()
	return l, nil
}

func (l *listener) read() {
	l.pid, l.wakes = 0, 0
	if text, err := os.ReadFile(l.file); err == nil {
		_, _ = fmt.Sscan(string(text), &l.pid, &l.wakes)
	}
}

func (l *listener) write() error {
	return os.WriteFile(l.file, fmt.Appendf(nil, "%d %d\n", l.pid, l.wakes), 0o600)
}

// begin takes the place of the listener before this one.
func (l *listener) begin() error {
	if err := os.MkdirAll(filepath.Dir(l.file), 0o700); err != nil {
		return err
	}
	l.pid = os.Getpid()
	return l.write()
}

// endWithNext calls end when another listener has taken the place of this one, or the session has ended. It returns when
// ctx ends.
func (l *listener) endWithNext(ctx context.Context, end func()) {
	check := time.NewTicker(agentCheck)
	defer check.Stop()
	now := listener{file: l.file}
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			if now.read(); now.pid != l.pid {
				end()
				return
			}
		}
	}
}

// awake permits as many wakes again: a tool was called, or the user has sent a prompt.
func (h *hook) awake() {
	if l, err := h.listener(); err == nil && l.wakes > 0 {
		l.wakes = 0
		_ = l.write() // the next call does it
	}
}

// sleep ends the listener of a session that has ended.
func (h *hook) sleep() {
	if l, err := h.listener(); err == nil {
		_ = os.Remove(l.file) // which ends it; there is none without --wake
	}
}
