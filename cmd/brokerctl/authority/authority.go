// Package authority keeps a small certificate authority in a folder, for people who have no other one:
//
//	ca.pem, ca.key                      the root
//	server.pem, server.key              the daemon's certificate
//	agents/SESSION/AGENT.pem and .key   one certificate per agent
//
// All keys are ECDSA P-256, which every TLS library accepts. Key files have mode 0600.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	rootValidity = 10 * 365 * 24 * time.Hour

	// DefaultValidity is the validity of server and agent certificates.
	DefaultValidity = 365 * 24 * time.Hour

	// clockSkew is how far the clock of another machine may be behind.
	clockSkew = 5 * time.Minute
)

// ErrExists is the cause of an error about a certificate that the folder already has, with other
// contents.
var ErrExists = errors.New("the certificate exists")

// An Authority is the root in a folder. It is for one goroutine at a time.
type Authority struct {
	dir  string
	now  time.Time
	root *x509.Certificate
	key  crypto.Signer
}

// A Certificate is one certificate of the folder.
type Certificate struct {
	Kind    string // root, server or agent
	Session string // of an agent
	Agent   string
	Hosts   []string // of a server: names and addresses
	File    string   // the certificate
	Key     string   // the file with its key
	Expires time.Time
	Written bool // by this call
}

// A Term says for how long a certificate is valid, and whether it replaces the existing one.
type Term struct {
	Validity time.Duration
	Replace  bool
}

// Open returns the authority in dir. It creates the folder and the root if they do not exist. It
// returns an error if the root has expired at the time now.
func Open(dir string, now time.Time) (*Authority, Certificate, error) {
	a := &Authority{dir: dir, now: now}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, Certificate{}, err
	}
	listed := Certificate{Kind: "root", File: filepath.Join(dir, "ca.pem"), Key: filepath.Join(dir, "ca.key")}
	pair, err := readPair(listed)
	if errors.Is(err, fs.ErrNotExist) {
		listed.Written = true
		pair, err = a.createRoot(listed)
	}
	if err != nil {
		return nil, listed, fmt.Errorf("root: %w", err)
	}
	a.root, a.key = pair.Leaf, pair.PrivateKey.(crypto.Signer)
	listed.Expires = a.root.NotAfter
	switch {
	case !a.root.IsCA:
		return nil, listed, fmt.Errorf("root: %s is not the certificate of an authority", listed.File)
	case !now.Before(a.root.NotAfter):
		return nil, listed, fmt.Errorf("root: %s has expired; make another authority in a new folder", listed.File)
	}
	return a, listed, nil
}

// Server issues the daemon's certificate, for names and addresses. Without any, a new certificate is
// for this machine, and a replacement has those of its predecessor. An existing certificate stays
// unless the term says to replace it; an existing one that lacks a host is ErrExists.
func (a *Authority) Server(hosts []string, term Term) (Certificate, error) {
	listed := Certificate{Kind: "server", File: filepath.Join(a.dir, "server.pem"), Key: filepath.Join(a.dir, "server.key")}
	had, err := readLeaf(listed.File)
	if err == nil {
		listed.Hosts, listed.Expires = hostsOf(had), had.NotAfter
	}
	if !term.Replace {
		if _, err := readPair(listed); !errors.Is(err, fs.ErrNotExist) {
			return listed, errors.Join(err, covers(listed, hosts))
		}
	}
	switch {
	case len(hosts) > 0:
		listed.Hosts = hosts
	case len(listed.Hosts) == 0:
		listed.Hosts = thisMachine()
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: clip(listed.Hosts[0])},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range listed.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if !hostName.MatchString(host) {
			return listed, fmt.Errorf("%q is neither the name nor the address of a host", host)
		}
		template.DNSNames = append(template.DNSNames, host)
	}
	return a.issue(listed, template, term)
}

// covers returns ErrExists if an existing certificate lacks one of the hosts.
func covers(c Certificate, hosts []string) error {
	for _, host := range hosts {
		if !slices.Contains(c.Hosts, host) {
			return fmt.Errorf("%w: %s is for %s, not for %s", ErrExists, c.File, strings.Join(c.Hosts, ", "), host)
		}
	}
	return nil
}

// Agent issues the certificate of an agent, which identifies it with the URI
// brokerd:///sessions/SESSION/agents/AGENT. An existing certificate stays unless the term says to
// replace it.
func (a *Authority) Agent(session, agent string, term Term) (Certificate, error) {
	listed := Certificate{Kind: "agent", Session: session, Agent: agent}
	for _, name := range []string{session, agent} {
		if !brokerName.MatchString(name) {
			return listed, fmt.Errorf("%q is not a name: 1 to 128 letters, digits, '.', '_', ':' or '-', beginning with a letter or digit", name)
		}
	}
	folder := filepath.Join(a.dir, "agents", session)
	listed.File, listed.Key = filepath.Join(folder, agent+".pem"), filepath.Join(folder, agent+".key")
	if !term.Replace {
		had, err := readPair(listed)
		if err == nil {
			listed.Expires = had.Leaf.NotAfter
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return listed, err
		}
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return listed, err
	}
	return a.issue(listed, &x509.Certificate{
		Subject:     pkix.Name{CommonName: clip(agent)},
		URIs:        []*url.URL{{Scheme: "brokerd", Path: "/sessions/" + session + "/agents/" + agent}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, term)
}

// Issued returns the agents that have certificates, in order, each as [session, agent].
func (a *Authority) Issued() ([][2]string, error) {
	files, err := filepath.Glob(filepath.Join(a.dir, "agents", "*", "*.pem"))
	var agents [][2]string
	for _, file := range files {
		folder, name := filepath.Split(file)
		agents = append(agents, [2]string{filepath.Base(folder), strings.TrimSuffix(name, ".pem")})
	}
	return agents, err
}

// brokerName is the form of the names of agents and sessions, and hostName that of hosts.
var (
	brokerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
	hostName   = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$`)
)

// createRoot creates the root, which never replaces another one.
func (a *Authority) createRoot(listed Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "brokerd authority of " + a.now.UTC().Format(time.DateOnly)},
		NotBefore:             a.now.Add(-clockSkew),
		NotAfter:              a.now.Add(rootValidity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	if err := writePair(listed, der, key, false); err != nil {
		return tls.Certificate{}, err
	}
	return readPair(listed)
}

// issue completes the template, signs it with a new key and writes both.
func (a *Authority) issue(listed Certificate, template *x509.Certificate, term Term) (Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return listed, err
	}
	template.NotBefore = a.now.Add(-clockSkew)
	template.NotAfter = a.now.Add(term.Validity).Truncate(time.Second)
	if template.NotAfter.After(a.root.NotAfter) {
		template.NotAfter = a.root.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, a.root, key.Public(), a.key)
	if err != nil {
		return listed, err
	}
	listed.Expires, listed.Written = template.NotAfter, true
	return listed, writePair(listed, der, key, term.Replace)
}

// thisMachine returns the names under which programs on this machine reach it, and its own name.
func thisMachine() []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil && hostName.MatchString(name) && name != hosts[0] {
		hosts = append(hosts, name)
	}
	return hosts
}

func hostsOf(c *x509.Certificate) []string {
	hosts := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// clip shortens a name to the 64 characters of an X.509 common name, which is for people alone.
func clip(name string) string { return name[:min(len(name), 64)] }
