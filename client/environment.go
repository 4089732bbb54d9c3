package client

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// FromEnvironment connects as the environment says:
//
//	BROKERD_ADDR             the broker: unix:///path, tls://host:port or host:port
//	BROKERD_SESSION          the session
//	BROKERD_AGENT            the agent that calls
//	BROKERD_INCARNATION      its incarnation
//	BROKERD_FENCE            the lock or token that must be held for its calls to be carried out
//	BROKERD_CREDENTIAL_FILE  the file with the credential
//	BROKERD_TLS_CA           the file with the authorities of the broker's certificate; with it, host:port means TLS
//	BROKERD_TLS_CERT         the file with the client's certificate
//	BROKERD_TLS_KEY          the file with its key
//	BROKERD_TLS_SERVER_NAME  the name in the broker's certificate
//	TRACEPARENT              the W3C traceparent of the span that its calls belong to
//
// (BROKERD_ROOT, the folder that the paths of locks are relative to, is read by NewPaths.)
//
// Without BROKERD_ADDR it is the local broker, found by the file "endpoint" in the data folder: $BROKERD_DATA,
// else $XDG_STATE_HOME/brokerd, else ~/.local/state/brokerd. Further options come after these and win.
// Errors are those of Dial.
func FromEnvironment(ctx context.Context, opts ...Option) (*Client, error) {
	env, err := EnvironmentOptions()
	if err != nil {
		return nil, err
	}
	return Dial(ctx, append(env, opts...)...)
}

// EnvironmentOptions returns what the environment variables of FromEnvironment say, for programs that
// have further places to look before they dial.
func EnvironmentOptions() ([]Option, error) { return Environment{}.Options() }

// An Environment is where a part of a program finds its settings. The zero value is the environment
// of the process. It may be used concurrently if Getenv may be called concurrently.
type Environment struct {
	Getenv func(name string) string // nil: os.Getenv
	Dir    string                   // the working folder, an absolute path; "": that of the process
}

func (e Environment) get(name string) string {
	if e.Getenv == nil {
		return os.Getenv(name)
	}
	return e.Getenv(name)
}

// file returns the path of a file or folder that a variable names, "" if it names none.
func (e Environment) file(name string) string {
	path := e.get(name)
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(e.Dir, path)
}

// Options returns what the variables of FromEnvironment say. With these options, Dial also finds the
// local broker by the variables.
func (e Environment) Options() ([]Option, error) {
	opts := []Option{
		func(o *options) { o.environment = e },
		WithAddress(e.get("BROKERD_ADDR")),
		WithSession(e.get("BROKERD_SESSION")),
		WithAgent(e.get("BROKERD_AGENT")),
		WithTLS(TLS{
			CA:         e.file("BROKERD_TLS_CA"),
			Cert:       e.file("BROKERD_TLS_CERT"),
			Key:        e.file("BROKERD_TLS_KEY"),
			ServerName: e.get("BROKERD_TLS_SERVER_NAME"),
		}),
		WithTraceParent(e.get("TRACEPARENT")),
	}
	for _, v := range []struct {
		name string
		with func(int64) Option
	}{{"BROKERD_INCARNATION", WithIncarnation}, {"BROKERD_FENCE", WithFence}} {
		s := e.get(v.name)
		if s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s is %q; it must be a whole number, 0 or above", v.name, s)
		}
		opts = append(opts, v.with(n))
	}
	if file := e.file("BROKERD_CREDENTIAL_FILE"); file != "" {
		secret, err := ReadCredential(file)
		if err != nil {
			return nil, fmt.Errorf("BROKERD_CREDENTIAL_FILE: %w", err)
		}
		opts = append(opts, WithCredential(secret))
	}
	return opts, nil
}

// credentialBytes is the number of random bytes of a credential, which is their base64url.
const credentialBytes = 32

// ReadCredential reads a credential from a file; white space around it does not count. It refuses a text
// that does not have the form of a credential, such as a secret of another program: a client must not send
// it.
func ReadCredential(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read credential: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("read credential: %s is empty", file)
	}
	if raw, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(raw) != credentialBytes {
		return "", fmt.Errorf("read credential: the content of %s does not have the form of a credential, so it is not sent",
			file)
	}
	return secret, nil
}

// DataDir returns the data folder of the local broker: $BROKERD_DATA, else $XDG_STATE_HOME/brokerd, else
// ~/.local/state/brokerd.
func DataDir() (string, error) { return Environment{}.DataDir() }

// DataDir returns the data folder of the local broker, as the function DataDir does.
func (e Environment) DataDir() (string, error) {
	if dir := e.file("BROKERD_DATA"); dir != "" {
		return dir, nil
	}
	if dir := e.file("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "brokerd"), nil
	}
	home := e.file("HOME")
	if home == "" {
		return "", errors.New("find the data folder: $HOME is not defined; set BROKERD_DATA or BROKERD_ADDR")
	}
	return filepath.Join(home, ".local", "state", "brokerd"), nil
}

// local is how to reach the broker of this user on this machine.
type local struct {
	address    string
	credential string // for a broker that listens on TCP only
}

// localBroker reads the endpoint file, which a broker writes when it listens.
func (e Environment) localBroker() (local, error) {
	dir, err := e.DataDir()
	if err != nil {
		return local{}, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "endpoint"))
	if errors.Is(err, fs.ErrNotExist) {
		return local{}, &UnreachableError{Address: dir, Err: noEndpoint("there is no endpoint file")}
	}
	if err != nil {
		return local{}, fmt.Errorf("find the broker: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	found := local{address: strings.TrimSpace(line)}
	if found.address == "" {
		return local{}, &UnreachableError{Address: dir, Err: noEndpoint("the endpoint file is empty")}
	}
	if !strings.HasPrefix(found.address, "unix:") {
		secret, err := ReadCredential(filepath.Join(dir, "operator.credential"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return local{}, err
		}
		found.credential = secret
	}
	return found, nil
}
