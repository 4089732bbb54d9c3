package postgres_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"

	"brokerd/internal/fault"
	"brokerd/internal/postgrestest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// setting returns what a setting is on a connection that reads.
func setting(t *testing.T, s *store.Store, name string) (value string) {
	t.Helper()
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`SELECT current_setting(?)`, name).Scan(&value)
	}))
	return value
}

// with adds options to a URL.
func with(t *testing.T, address string, options ...string) string {
	t.Helper()
	u, err := url.Parse(address)
	testkit.NoError(t, err)
	q := u.Query()
	for i := 0; i < len(options); i += 2 {
		q.Set(options[i], options[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// What a role or a database has been given for its connections does not disturb the broker.
func TestConnect_SettingsOfTheDatabaseDoNotCount(t *testing.T) {
	t.Parallel()
	address := postgrestest.Database(t)
	name := admin(t, address, `SELECT current_database()`)[0]
	for _, given := range []string{
		`statement_timeout = '1h'`, `lock_timeout = '1h'`, `idle_session_timeout = '1h'`, `synchronous_commit = off`,
		`default_transaction_isolation = 'serializable'`,
	} {
		admin(t, address, `ALTER DATABASE `+name+` SET `+given)
	}
	s := open(t, address)
	testkit.NoError(t, add(s, "a"))
	for name, want := range map[string]string{
		"statement_timeout": "0", "lock_timeout": "0", "idle_session_timeout": "0", "synchronous_commit": "on",
		"transaction_isolation": "read committed",
	} {
		testkit.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			var got string
			err := tx.QueryRow(`SELECT current_setting(?)`, name).Scan(&got)
			if err == nil && got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
			return err
		}))
	}
}

// A host of several that is silent costs no more than the patience with it.
func TestConnect_GoesOnToTheNextHost(t *testing.T) {
	t.Parallel()
	address := postgrestest.Database(t)
	silent := postgrestest.Listen(t, address, func(client net.Conn, _ func() net.Conn) {
		_, _ = io.Copy(io.Discard, client)
	})
	u, err := url.Parse(silent)
	testkit.NoError(t, err)
	v, err := url.Parse(address)
	testkit.NoError(t, err)
	hosts := u.Query().Get("host") + "," + v.Query().Get("host")
	s := open(t, with(t, address, "host", hosts, "connect_timeout", "3"))
	testkit.NoError(t, add(s, "a"))
}

// What waiting does not mend has a reason of its own.
func TestConnect_NamesMistakes(t *testing.T) {
	t.Parallel()
	address := postgrestest.Database(t)
	name := admin(t, address, `SELECT current_database()`)[0]
	_, err := try(t, strings.Replace(address, "/"+name, "/nothing", 1))
	wantReason(t, err, fault.Unavailable, "NO_DATABASE")

	admin(t, address, `CREATE ROLE guest_`+name+` LOGIN; REVOKE CONNECT ON DATABASE `+name+` FROM PUBLIC`)
	_, err = try(t, strings.Replace(address, "broker@", "guest_"+name+"@", 1))
	wantReason(t, err, fault.Unavailable, "DATABASE_DENIED")
}

// A connection over TCP with TLS verifies the server, which ends it when it is silent.
func TestConnect_OverTLS(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	server := postgrestest.Own(t, "listen_addresses=127.0.0.1", "port="+port)
	certificate, key := selfSigned(t)
	testkit.NoError(t, server.Keep("server.crt", certificate))
	testkit.NoError(t, server.Keep("server.key", key))
	ca := filepath.Join(t.TempDir(), "ca.crt")
	testkit.NoError(t, os.WriteFile(ca, certificate, 0o600))
	address := with(t, server.URL("postgres"), "port", port)
	admin(t, address, `ALTER SYSTEM SET ssl = on`)
	admin(t, address, `SELECT pg_reload_conf()`)
	address = with(t, address, "host", "127.0.0.1", "sslmode", "verify-full")

	s := open(t, with(t, address, "sslrootcert", ca))
	testkit.NoError(t, add(s, "a"))
	var encrypted string
	testkit.NoError(t, s.Read(t.Context(), func(snap *store.Snapshot) error {
		return snap.QueryRow(`SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted)
	}))
	if !strings.HasPrefix(encrypted, "TLS") {
		t.Errorf("the connection has the protocol %q", encrypted)
	}
	for name, want := range map[string]string{
		"tcp_user_timeout": "30000", "tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	} {
		if got := setting(t, s, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}

	other, _ := selfSigned(t)
	testkit.NoError(t, os.WriteFile(ca, other, 0o600))
	_, err := try(t, with(t, address, "sslrootcert", ca))
	wantReason(t, err, fault.Unavailable, "DATABASE_DENIED")
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	defer func() { testkit.NoError(t, l.Close()) }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	testkit.NoError(t, err)
	return port
}

// selfSigned returns a certificate of 127.0.0.1 and its key, as PEM.
func selfSigned(t *testing.T) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	now := clockwork.NewRealClock().Now()
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	testkit.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

// Where the network has lost the connection of the writer, and the server does not know, the writer ends the process of
// the server that has its lock.
func TestConnect_GetsItsLockBack(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var clients []net.Conn
	address := postgrestest.Listen(t, postgrestest.Database(t), func(client net.Conn, connect func() net.Conn) {
		mu.Lock()
		clients = append(clients, client)
		mu.Unlock()
		server := connect() // which stays open when the client's connection ends, until the test does
		t.Cleanup(func() { _ = server.Close() })
		go func() { _, _ = io.Copy(client, server) }()
		_, _ = io.Copy(server, client)
	})
	s := open(t, address)
	testkit.NoError(t, add(s, "before"))
	mu.Lock()
	for _, c := range clients {
		_ = c.Close()
	}
	mu.Unlock()
	testkit.NoError(t, add(s, "after"))
	wantNames(t, s, "before", "after")
}

// A pooler is refused before anything of the broker stays with a connection that it gives to others.
func TestConnect_LeavesNothingWithAPooler(t *testing.T) {
	t.Parallel()
	address := postgrestest.Database(t)
	p := newPooler(t, address)
	for range 2 {
		_, err := try(t, p.url)
		wantReason(t, err, fault.Precondition, "TRANSACTION_POOLER")
	}
	if left := admin(t, address, `SELECT pid FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); len(left) > 0 {
		t.Error("the pooler has a connection with a lock")
	}
	testkit.NoError(t, add(open(t, address), "a"))
}
