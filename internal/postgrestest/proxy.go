package postgrestest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Listen listens in place of the server of a URL, and returns the URL for its own socket. connect makes a connection to
// the server, and returns nil if that takes none.
func Listen(t testing.TB, address string, serve func(client net.Conn, connect func() net.Conn)) (own string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	server := filepath.Join(q.Get("host"), ".s.PGSQL.5432")
	dir, err := os.MkdirTemp("", "proxy") // short: the path of a socket has a limit
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = client.Close() }()
				serve(client, func() net.Conn {
					c, err := net.Dial("unix", server)
					if err != nil {
						return nil
					}
					return c
				})
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait(); _ = os.RemoveAll(dir) })
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	return u.String()
}

// Frame reads a message of the protocol. first is the first message of a client, which has no type.
func Frame(r io.Reader, first bool) ([]byte, error) {
	n := 5
	if first {
		n = 4
	}
	head := make([]byte, n)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[n-4:])-4)
	_, err := io.ReadFull(r, body)
	return append(head, body...), err
}

// A Proxy forwards connections to a server, and cuts or freezes them when asked to.
type Proxy struct {
	URL string

	mu     sync.Mutex    // guards the fields below
	frozen chan struct{} // closed by Thaw; nil = nothing is frozen
	cut    string        // at the commit of a transaction: "before" it reaches the server, or "after"
	of     string        // that is sent in that transaction
	done   chan struct{}
	closed bool // it makes no further connections
}

// NewProxy returns a proxy in front of the server of a URL, which has another URL.
func NewProxy(t testing.TB, address string) *Proxy {
	t.Helper()
	p := &Proxy{}
	p.URL = Listen(t, address, p.serve)
	t.Cleanup(p.Thaw)
	return p
}

// Freeze has no byte pass in either direction until Thaw, as when a network loses everything. Connections stay.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// Thaw has everything pass again, what was held back first.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

// pass returns when bytes may pass.
func (p *Proxy) pass() {
	p.mu.Lock()
	frozen := p.frozen
	p.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

// CutAtCommit cuts the connection with the next commit of a transaction in which a text is sent: once the server has
// carried it out if arrives is true, else before it reaches the server. It returns a channel that is closed then.
func (p *Proxy) CutAtCommit(arrives bool, of string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.of, p.done = "before", of, make(chan struct{})
	if arrives {
		p.cut = "after"
	}
	return p.done
}

// Close refuses further connections.
func (p *Proxy) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// take returns how the commit of a transaction is cut in which some bytes were sent; empty if it is not.
func (p *Proxy) take(transaction []byte) (cut string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == "" || !bytes.Contains(transaction, []byte(p.of)) {
		return ""
	}
	cut, p.cut = p.cut, ""
	return cut
}

// parses reports whether a message of a client has the server parse a word.
func parses(f []byte, word string) bool {
	return f[0] == 'P' && bytes.Contains(f, []byte("\x00"+word+"\x00"))
}

func (p *Proxy) serve(client net.Conn, connect func() net.Conn) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return
	}
	server := connect()
	if server == nil {
		return
	}
	defer func() { _ = server.Close() }()
	silent := make(chan struct{}) // closed when answers are kept back
	var answers sync.WaitGroup
	answers.Go(func() {
		defer func() { _ = client.Close() }()
		for {
			f, err := Frame(server, false)
			if err != nil {
				return
			}
			select {
			case <-silent:
				if f[0] == 'Z' { // the server has finished
					close(p.done)
					return
				}
			default:
				p.pass()
				if _, err := client.Write(f); err != nil {
					return
				}
			}
		}
	})
	var transaction []byte
	for first := true; ; first = false {
		f, err := Frame(client, first)
		if err != nil {
			break
		}
		if parses(f, "BEGIN") {
			transaction = nil
		}
		transaction = append(transaction, f...)
		if parses(f, "COMMIT") {
			switch p.take(transaction) {
			case "before":
				_ = server.Close()
				close(p.done)
			case "after":
				close(silent)
			}
		}
		p.pass()
		if _, err := server.Write(f); err != nil {
			break
		}
	}
	_ = server.Close()
	answers.Wait()
}
