package postgres_test

import (
	"net"
	"slices"
	"sync"
	"testing"

	"brokerd/internal/postgrestest"
)

// A pooler gives its connections to each client that begins a transaction, as PgBouncer does with pool_mode =
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
	p.url = postgrestest.Listen(t, address, p.serve)
	return p
}

func (p *pooler) serve(client net.Conn, connect func() net.Conn) {
	startup, err := postgrestest.Frame(client, true)
	if err != nil {
		return
	}
	// The client is welcomed as the server welcomes the pooler.
	server := connect()
	_, _ = server.Write(startup)
	for {
		f, err := postgrestest.Frame(server, false)
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
			f, err := postgrestest.Frame(client, false)
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
			f, err := postgrestest.Frame(server, false)
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
