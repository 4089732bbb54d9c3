package replica

import (
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"

	"brokerd/internal/rpc"
)

// maxGreeting is the size of the largest greeting in bytes. A certificate has a few thousand.
const maxGreeting = 64 << 10

// A greeting is what a follower says of a client before the client's bytes: its length in four bytes, and its JSON.
type greeting struct {
	Probe       bool   `json:"probe,omitempty"` // there is no client: the follower asks whether the leader answers
	Local       bool   `json:"local,omitempty"`
	TLS         bool   `json:"tls,omitempty"`
	HTTP2       bool   `json:"http2,omitempty"`
	Certificate []byte `json:"certificate,omitempty"` // in DER
	Client      string `json:"client,omitempty"`      // address HOST:PORT; empty for a Unix socket
	Server      string `json:"server,omitempty"`

	Replica   string   `json:"replica"` // that forwards
	Dir       string   `json:"dir"`     // its data folder
	Addresses []string `json:"addresses,omitempty"`
}

// accepted is what the leader answers to a greeting. A replica that does not lead closes the connection.
const accepted = 'L'

// greet returns the greeting for a client.
func (r *Replica) greet(facts rpc.Facts, conn net.Conn) greeting {
	g := greeting{
		Local: facts.Local, TLS: facts.TLS, HTTP2: facts.HTTP2, Client: hostPort(conn.RemoteAddr()),
		Server: hostPort(conn.LocalAddr()), Replica: r.me.Address, Dir: r.dir, Addresses: r.addresses(),
	}
	if facts.Certificate != nil {
		g.Certificate = facts.Certificate.Raw
	}
	return g
}

// facts returns what a greeting says.
func (g greeting) facts() (rpc.Facts, error) {
	via := &rpc.Via{Replica: g.Replica, Dir: g.Dir, Addresses: g.Addresses}
	f := rpc.Facts{Local: g.Local, TLS: g.TLS, HTTP2: g.HTTP2, Via: via}
	if g.Certificate == nil {
		return f, nil
	}
	var err error
	if f.Certificate, err = x509.ParseCertificate(g.Certificate); err != nil {
		return f, fmt.Errorf("certificate of a client of %s: %w", g.Replica, err)
	}
	return f, nil
}

func (g greeting) write(w io.Writer) error {
	text, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// readGreeting reads a greeting and nothing after it.
func readGreeting(r io.Reader) (g greeting, err error) {
	var head [4]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return g, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxGreeting {
		return g, fmt.Errorf("a greeting has %d bytes", size)
	}
	text := make([]byte, size)
	if _, err = io.ReadFull(r, text); err != nil {
		return g, err
	}
	return g, json.Unmarshal(text, &g)
}

// hostPort returns an address of TCP as a text; empty for one of a Unix socket.
func hostPort(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.String()
	}
	return ""
}

// address is the reverse of hostPort.
func address(text string) net.Addr {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return net.TCPAddrFromAddrPort(ap)
	}
	return &net.UnixAddr{Net: "unix"}
}
