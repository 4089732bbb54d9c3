package postgres_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"brokerd/internal/testkit"
)

// listen listens in place of the server of a URL, and returns the URL for its own socket. connect makes a connection to
// the server.
func listen(t *testing.T, address string, serve func(client net.Conn, connect func() net.Conn)) (own string) {
	t.Helper()
	u, err := url.Parse(address)
	testkit.NoError(t, err)
	q := u.Query()
	server := filepath.Join(q.Get("host"), ".s.PGSQL.5432")
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	testkit.NoError(t, err)
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
						t.Error(err)
					}
					return c
				})
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	return u.String()
}

// frame reads a message of the protocol. first is the first message of a client, which has no type.
func frame(r io.Reader, first bool) ([]byte, error) {
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

// A proxy forwards connections to a server, and cuts one of them when asked to.
type proxy struct {
	url string
	mu  sync.Mutex // guards cut
	cut string     // at the next commit: "before" it reaches the server, or "after"
}

func newProxy(t *testing.T, address string) *proxy {
	p := &proxy{}
	p.url = listen(t, address, p.serve)
	return p
}

// cutAtCommit cuts the connection with the next commit, once this has reached the server if arrives is true.
func (p *proxy) cutAtCommit(arrives bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = "before"
	if arrives {
		p.cut = "after"
	}
}

func (p *proxy) take() (cut string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut, p.cut = p.cut, ""
	return cut
}

func (p *proxy) serve(client net.Conn, connect func() net.Conn) {
	server := connect()
	defer func() { _ = server.Close() }()
	silent := make(chan struct{}) // closed when answers are kept back
	var answers sync.WaitGroup
	answers.Go(func() {
		defer func() { _ = client.Close() }()
		for {
			f, err := frame(server, false)
			if err != nil {
				return
			}
			select {
			case <-silent:
				if f[0] == 'Z' { // the server has finished
					return
				}
			default:
				if _, err := client.Write(f); err != nil {
					return
				}
			}
		}
	})
	for first := true; ; first = false {
		f, err := frame(client, first)
		if err != nil {
			break
		}
		if f[0] == 'P' && strings.Contains(string(f), "\x00COMMIT\x00") {
			switch p.take() {
			case "before":
				_ = server.Close()
			case "after":
				close(silent)
			}
		}
		if _, err := server.Write(f); err != nil {
			break
		}
	}
	_ = server.Close()
	answers.Wait()
}

// A pooler gives the connections that it has to whoever begins a transaction, as PgBouncer does with pool_mode =
// transaction.
type pooler struct {
	url  string
	mu   sync.Mutex // guards idle
	idle []net.Conn // the one used last at the end
}

func newPooler(t *testing.T, address string) *pooler {
	p := &pooler{}
	t.Cleanup(func() { // after the clients have ended, for which listen waits
		for _, c := range p.idle {
			_ = c.Close()
		}
	})
	p.url = listen(t, address, p.serve)
	return p
}

func (p *pooler) serve(client net.Conn, connect func() net.Conn) {
	startup, err := frame(client, true)
	if err != nil {
		return
	}
	// The client is welcomed as the server welcomes the pooler.
	server := connect()
	_, _ = server.Write(startup)
	for {
		f, err := frame(server, false)
		if err != nil {
			return
		}
		_, _ = client.Write(f)
		if f[0] == 'Z' {
			break
		}
	}
	p.mu.Lock()
	p.idle = append(p.idle, server)
	p.mu.Unlock()
	server = nil
	for {
		var request []byte
		for {
			f, err := frame(client, false)
			if err != nil || f[0] == 'X' {
				if server != nil {
					_ = server.Close()
				}
				return
			}
			request = append(request, f...)
			if f[0] == 'Q' || f[0] == 'S' {
				break
			}
		}
		if server == nil {
			p.mu.Lock()
			server = p.idle[len(p.idle)-1]
			p.idle = slices.Delete(p.idle, len(p.idle)-1, len(p.idle))
			p.mu.Unlock()
		}
		_, _ = server.Write(request)
		for {
			f, err := frame(server, false)
			if err != nil {
				return
			}
			_, _ = client.Write(f)
			if f[0] == 'Z' {
				if f[5] == 'I' { // no transaction is open
					p.mu.Lock()
					p.idle = append(p.idle, server)
					p.mu.Unlock()
					server = nil
				}
				break
			}
		}
	}
}
