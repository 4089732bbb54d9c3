package supervise

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"brokerd/cmd/brokerctl/internal/output"
)

// A pseudoTerminal is the terminal of a program that brokerctl runs. It connects the program with
// brokerctl's own standard input and output.
type pseudoTerminal struct {
	Outer, Inner *os.File // the program has inner
	in           io.Reader
	out          io.Writer
	typist       *Typist // which notes keys and output

	restore func() // of brokerctl's own terminal
	resized chan os.Signal
	closing *os.File // closed when reading keys must end
	stop    *os.File // read end of closing

	inputs, outputs sync.WaitGroup
}

// OpenPseudoTerminal returns a terminal of the size of brokerctl's own, 80 by 24 without one. It puts
// brokerctl's own terminal into raw mode: all keys go to the program. Call close.
func OpenPseudoTerminal(in io.Reader, out io.Writer, t *Typist) (*pseudoTerminal, error) {
	p := &pseudoTerminal{in: in, out: out, typist: t, restore: func() {}, resized: make(chan os.Signal, 1)}
	var err error
	if p.Outer, p.Inner, err = pty.Open(); err != nil {
		return nil, err
	}
	if p.stop, p.closing, err = os.Pipe(); err != nil {
		_, _ = p.Outer.Close(), p.Inner.Close()
		return nil, err
	}
	t.terminal = p.Outer
	p.resize()
	signal.Notify(p.resized, syscall.SIGWINCH)
	if f, ok := in.(*os.File); ok && output.IsTerminal(f) {
		if before, err := term.MakeRaw(int(f.Fd())); err == nil {
			p.restore = func() { _ = term.Restore(int(f.Fd()), before) }
		}
	}
	return p, nil
}

// resize sets the size of the program's terminal.
func (p *pseudoTerminal) resize() {
	for _, own := range []any{p.out, p.in} {
		if f, ok := own.(*os.File); ok && output.IsTerminal(f) {
			_ = pty.InheritSize(f, p.Outer)
			return
		}
	}
	_ = pty.Setsize(p.Outer, &pty.Winsize{Rows: 24, Cols: 80})
}

// connect starts to pass keys, output and changes of the size. close ends it.
func (p *pseudoTerminal) connect() {
	p.outputs.Go(p.CopyOutput)
	p.inputs.Go(func() {
		for range p.resized {
			p.resize()
		}
	})
	p.inputs.Go(p.copyKeys)
}

// CopyOutput passes on the program's output until no process has its terminal open. It reads also if
// no process reads brokerctl's output: the program must not wait for that.
func (p *pseudoTerminal) CopyOutput() {
	b := make([]byte, 32<<10)
	for {
		n, err := p.Outer.Read(b)
		p.show(b[:n])
		if err != nil {
			break
		}
	}
	// On a busy machine, the time of close may end before this goroutine has read what the program
	// wrote before its end. A terminal buffers 64 KiB at most.
	if c, err := p.Outer.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			for range 64<<10/len(b) + 1 {
				if ready, err := unix.Poll(poll, 0); err != nil || ready == 0 || poll[0].Revents&unix.POLLIN == 0 {
					return
				}
				n, err := unix.Read(int(fd), b)
				if err != nil || n <= 0 {
					return
				}
				p.show(b[:n])
			}
		})
	}
}

// show passes some output on.
func (p *pseudoTerminal) show(output []byte) {
	if len(output) > 0 {
		p.typist.wrote()
		_, _ = p.out.Write(output)
	}
}

// copyKeys passes keys on until standard input or the program ends. If standard input is not a
// terminal and ends after some input, the program sees the end of its input.
func (p *pseudoTerminal) copyKeys() {
	b := make([]byte, 4<<10)
	last := byte(0)
	for p.readable() {
		n, err := p.in.Read(b)
		if n > 0 {
			if p.typist.pass(b[:n]) != nil {
				return
			}
			last = b[n-1]
		}
		if err == nil {
			continue
		}
		if f, ok := p.in.(*os.File); last != 0 && !(ok && output.IsTerminal(f)) {
			_ = p.typist.pass([]byte{keyEnd})
			if last != '\n' { // the first one ends only the line
				_ = p.typist.pass([]byte{keyEnd})
			}
		}
		return
	}
}

// readable waits until standard input can be read; false when the terminal is closed.
func (p *pseudoTerminal) readable() bool {
	f, ok := p.in.(*os.File)
	if !ok {
		return true
	}
	poll := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}, {Fd: int32(p.stop.Fd()), Events: unix.POLLIN}}
	for {
		switch _, err := unix.Poll(poll, -1); {
		case err == unix.EINTR:
		case err != nil || poll[1].Revents != 0:
			return false
		case poll[0].Revents != 0:
			return true
		}
	}
}

// Close waits for the rest of the output, at most pipeGrace for what the program left running, and
// restores brokerctl's own terminal.
func (p *pseudoTerminal) Close() {
	_ = p.Outer.SetDeadline(time.Now().Add(pipeGrace))
	p.outputs.Wait()
	signal.Stop(p.resized)
	close(p.resized)
	_ = p.closing.Close()
	p.inputs.Wait()
	_ = p.stop.Close()
	_ = p.Outer.Close()
	p.restore()
}
