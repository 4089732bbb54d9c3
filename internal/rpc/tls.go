package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"

	"brokerd/internal/fault"
)

// The names of protocols in their negotiation. Clients of gRPC offer only HTTP/2, and the first
// protocol of protocols that a client offers is chosen. A browser or curl offers both, and gets
// HTTP/1.1.
const http2 = "h2"

var protocols = []string{"http/1.1", http2}

// recheck is the least time between two checks of the certificates' files.
const recheck = time.Second

// TLSFiles name the files that TLS needs, in PEM.
type TLSFiles struct {
	Cert string // the server's certificate, followed by those of intermediate authorities
	Key  string
	// ClientCA has the authorities of the certificates that identify agents; empty: none does.
	ClientCA string
}

// Given reports whether the settings ask for TLS.
func (f TLSFiles) Given() bool { return f != TLSFiles{} }

// Certificates are the certificates with which a server speaks TLS 1.3. A handshake reads the files
// again after they have changed, and checks them at most once a second. If a changed file cannot be
// used, the previous certificates stay in use. The methods may be called concurrently.
type Certificates struct {
	files TLSFiles
	clock clockwork.Clock
	log   *zap.Logger

	mu      sync.Mutex // guards the fields below
	latest  *tls.Config
	read    stamps // of the files when they were last read
	checked time.Time
}

// stamps tell versions of the files apart.
type stamps [3]struct {
	inode, modified, size int64
}

// LoadCertificates reads the files. Its error is fault.Invalid.
func LoadCertificates(files TLSFiles, clock clockwork.Clock, log *zap.Logger) (*Certificates, error) {
	c := &Certificates{files: files, clock: clock, log: log, checked: clock.Now()}
	c.read = files.stamps()
	var err error
	if c.latest, err = c.load(); err != nil {
		e := fault.New(fault.Invalid, "TLS_UNREADABLE", "the certificates for TLS cannot be used: %v", err)
		e.Cause = err
		return nil, e
	}
	return c, nil
}

// Reload reads the files again, whether or not they have changed.
func (c *Certificates) Reload() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reload(c.files.stamps())
}

// config returns the configuration of a connection.
func (c *Certificates) config() *tls.Config { return &tls.Config{GetConfigForClient: c.current} }

// current returns the configuration for a handshake.
func (c *Certificates) current(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if now.Sub(c.checked) < recheck {
		return c.latest, nil
	}
	c.checked = now
	if found := c.files.stamps(); found != c.read {
		c.reload(found)
	}
	return c.latest, nil
}

// reload reads the files, whose stamps were taken before. A file that changes in between therefore
// has another stamp at the next check. The caller holds the mutex.
func (c *Certificates) reload(found stamps) {
	c.read = found
	config, err := c.load()
	if err != nil {
		c.log.Error("the certificates for TLS cannot be used; the previous ones stay in use", zap.Error(err))
		return
	}
	c.latest = config
	c.log.Info("the certificates for TLS were read again", zap.Time("expires", config.Certificates[0].Leaf.NotAfter))
}

func (c *Certificates) load() (*tls.Config, error) {
	if c.files.Cert == "" || c.files.Key == "" {
		return nil, errors.New("TLS needs both the certificate of the server and its key")
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", c.files.Cert, c.files.Key, err)
	}
	if usages := pair.Leaf.ExtKeyUsage; len(usages) > 0 && !slices.Contains(usages, x509.ExtKeyUsageServerAuth) &&
		!slices.Contains(usages, x509.ExtKeyUsageAny) {
		return nil, fmt.Errorf("%s is not the certificate of a server", c.files.Cert)
	}
	if now := c.clock.Now(); now.After(pair.Leaf.NotAfter) {
		c.log.Warn("the server's certificate has expired, and clients refuse it", zap.Time("expired", pair.Leaf.NotAfter))
	}
	authorities, err := c.authorities()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientAuth:   clientAuth(authorities),
		ClientCAs:    authorities,
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			_, _, err := agentOf(state.PeerCertificates[0])
			return err
		},
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		Time:       c.clock.Now,
		// Every connection presents and checks certificates, also after they have changed.
		SessionTicketsDisabled: true,
	}, nil
}

// authorities reads the authorities of clients; nil if certificates do not identify clients.
func (c *Certificates) authorities() (*x509.CertPool, error) {
	if c.files.ClientCA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.files.ClientCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", c.files.ClientCA)
	}
	return pool, nil
}

// clientAuth returns how a handshake treats the client's certificate. A client may have a credential
// instead of a certificate.
func clientAuth(authorities *x509.CertPool) tls.ClientAuthType {
	if authorities == nil {
		return tls.NoClientCert
	}
	return tls.VerifyClientCertIfGiven
}

// stamps reads the stamps of the files. A file that cannot be read has the zero stamp.
func (f TLSFiles) stamps() stamps {
	var s stamps
	for i, path := range []string{f.Cert, f.Key, f.ClientCA} {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		s[i].modified, s[i].size = info.ModTime().UnixNano(), info.Size()
		if system, ok := info.Sys().(*syscall.Stat_t); ok {
			s[i].inode = int64(system.Ino)
		}
	}
	return s
}
