package store

import (
	"errors"

	"go.uber.org/zap"

	"brokerd/internal/fault"
)

// A Checkpoint names the program that copies the write-ahead log into the database.
type Checkpoint int

const (
	// CheckpointInternal is the store itself.
	CheckpointInternal Checkpoint = iota
	// CheckpointExternal is another process, such as Litestream, that must see every commit in the log
	// before a checkpoint permits SQLite to overwrite it. The store then never runs a checkpoint: not
	// at Open, not while it runs, and not at Close, which leaves the log in place.
	CheckpointExternal
)

// ParseCheckpoint returns the Checkpoint of the given name, "internal" or "external".
func ParseCheckpoint(name string) (Checkpoint, error) {
	switch name {
	case "internal":
		return CheckpointInternal, nil
	case "external":
		return CheckpointExternal, nil
	}
	return 0, fault.Field("checkpoint", "must be internal or external, not %q", name)
}

// SQLite appends commits to a log and copies it back into the database from time to time; a commit
// after everything was copied starts the log over. Done at once, copying stops the writer for as
// long as it takes, so here it is done in two steps: the checkpointer copies most of the log beside
// the running writer, then the writer copies the little that was added meanwhile.
const (
	copyLog   = 16 << 20  // bytes of log to begin copying at
	retryLog  = 4 << 20   // bytes more to try again at, when readers stood in the way
	leaveLog  = 1 << 20   // bytes that may be left to the writer
	warnLog   = 256 << 20 // bytes of log to warn of
	frameSize = pageSize + 24

	lookEvery  = 8 // commits
	copyRounds = 4 // of the checkpointer, until it leaves the rest to the writer
)

// How long, in milliseconds, the writer's step waits for readers to finish: hardly, or longer once they have let the log grow
// beyond its usual size.
const (
	readerWait = "20"
	longWait   = "250"
)

// A logState is SQLite's report about its log.
type logState struct {
	busy           bool // another connection prevented the checkpoint
	frames, copied int64
}

func (l logState) bytes() int64 { return l.frames * frameSize }

// missing is how many bytes are not in the database yet.
func (l logState) missing() int64 { return (l.frames - l.copied) * frameSize }

// checkpoint runs a checkpoint of the given mode; NOOP only looks.
func (c *conn) checkpoint(mode string) (logState, error) {
	var l logState
	err := c.queryRow(`PRAGMA wal_checkpoint(`+mode+`)`).Scan(&l.busy, &l.frames, &l.copied)
	return l, err
}

// A checkpointer copies the log back beside the writer.
type checkpointer struct {
	conn    *conn
	ask     chan struct{} // capacity 1
	result  chan error    // capacity 1
	stopped chan struct{}
}

func newCheckpointer(c *conn) *checkpointer {
	return &checkpointer{conn: c, ask: make(chan struct{}, 1), result: make(chan error, 1), stopped: make(chan struct{})}
}

// run copies whenever it is asked to, and tells the writer afterwards. It ends with stop.
func (cp *checkpointer) run(tell func()) {
	defer close(cp.stopped)
	for range cp.ask {
		cp.result <- cp.copy()
		tell()
	}
}

// copy goes on until little is left, or the writer proves to be faster.
func (cp *checkpointer) copy() error {
	for range copyRounds {
		if _, err := cp.conn.checkpoint("PASSIVE"); err != nil {
			return err
		}
		l, err := cp.conn.checkpoint("NOOP")
		if err != nil || l.missing() <= leaveLog {
			return err
		}
	}
	return nil
}

func (cp *checkpointer) stop() {
	close(cp.ask)
	<-cp.stopped
}

// tidy keeps the log short. The writer calls it between two batches.
func (w *writer) tidy() {
	if w.copying {
		select {
		case err := <-w.checkpointer.result:
			w.copying = false
			w.startOver(err)
		default:
		}
		return
	}
	if w.grown < lookEvery || w.conn.sqlite == nil {
		return
	}
	w.grown = 0
	l, err := w.conn.checkpoint("NOOP")
	if err != nil {
		w.log.Error("look at the write-ahead log", zap.Error(err))
		return
	}
	w.reportLog(l)
	if w.checkpointer != nil && l.bytes() >= w.copyAt && w.held.Load() == 0 {
		w.copying = true
		w.checkpointer.ask <- struct{}{}
	}
}

// startOver copies the rest of the log, so that the next commit restarts it. It leaves the log alone
// while a reader holds it: the writer would only wait for that reader.
func (w *writer) startOver(err error) {
	if err == nil && w.held.Load() > 0 {
		return
	}
	var l logState
	begun := w.clock.Now()
	wait := readerWait
	if w.copyAt > maxLogFile/2 {
		wait = longWait
	}
	if err == nil {
		err = w.conn.script("PRAGMA busy_timeout = " + wait)
	}
	if err == nil {
		l, err = w.conn.checkpoint("RESTART")
		err = errors.Join(err, w.conn.script("PRAGMA busy_timeout = "+busyTimeout))
	}
	w.copyAt = copyLog
	if err != nil || l.busy {
		w.copyAt = max(copyLog, l.bytes()) + retryLog
	}
	if err != nil {
		w.log.Error("copy the write-ahead log into the database", zap.Error(err))
	}
	if syncFailed(err) {
		w.syncFailed(err)
	}
	w.countCheckpoint(w.clock.Since(begun))
}

// reportLog notes the size of the log, and warns when it grows far beyond its usual size.
func (w *writer) reportLog(l logState) {
	w.mu.Lock()
	w.stats.LogBytes = l.bytes()
	w.mu.Unlock()
	switch {
	case l.bytes() >= w.warnAt:
		cause := "a reader keeps an old snapshot, or the disk is too slow"
		if w.checkpointer == nil {
			cause = "the program that runs the checkpoints (--checkpoint external), such as Litestream, has stopped or lags"
		}
		w.log.Warn("the write-ahead log grows: "+cause,
			zap.Int64("bytes", l.bytes()), zap.Int64("copied", l.copied*frameSize))
		w.warnAt = 2 * l.bytes()
	case l.bytes() < warnLog:
		w.warnAt = warnLog
	}
}
