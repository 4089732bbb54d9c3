package output

import (
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// IsTerminal reports whether a reader or writer of the command is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// WithoutSIGPIPE returns a writer to the same place. If the reader of a pipe has ended, a write to
// descriptor 1 or 2 ends a Go process by SIGPIPE, whatever it still has to stop or release; a write
// to another descriptor returns EPIPE.
func WithoutSIGPIPE(w io.Writer) io.Writer {
	f, ok := w.(*os.File)
	if !ok {
		return w
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return w
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// A LockedWriter is a writer that several commands share.
type LockedWriter struct {
	Mu sync.Mutex
	W  io.Writer // guarded by mu
}

// Write implements io.Writer.
func (l *LockedWriter) Write(p []byte) (int, error) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.W.Write(p)
}

// SharedOutput returns a writer for brokerctl and the commands that it runs: a file as it is, so that they write to it
// themselves, anything else with a lock.
func SharedOutput(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return &LockedWriter{W: w}
}
