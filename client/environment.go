package client

import (
	"context"
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
func EnvironmentOptions() ([]Option, error) {
	opts := []Option{
		WithAddress(os.Getenv("BROKERD_ADDR")),
		WithSession(os.Getenv("BROKERD_SESSION")),
		WithAgent(os.Getenv("BROKERD_AGENT")),
		WithTLS(TLS{
			CA:         os.Getenv("BROKERD_TLS_CA"),
			Cert:       os.Getenv("BROKERD_TLS_CERT"),
			Key:        os.Getenv("BROKERD_TLS_KEY"),
			ServerName: os.Getenv("BROKERD_TLS_SERVER_NAME"),
		}),
		WithTraceParent(os.Getenv("TRACEPARENT")),
	}
	for _, v := range []struct {
		name string
		with func(int64) Option
	}{{"BROKERD_INCARNATION", WithIncarnation}, {"BROKERD_FENCE", WithFence}} {
		s := os.Getenv(v.name)
		if s == "" {
			continue
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("%s is %q; it must be a whole number, 0 or above", v.name, s)
		}
		opts = append(opts, v.with(n))
	}
	if file := os.Getenv("BROKERD_CREDENTIAL_FILE"); file != "" {
		secret, err := ReadCredential(file)
		if err != nil {
			return nil, fmt.Errorf("BROKERD_CREDENTIAL_FILE: %w", err)
		}
		opts = append(opts, WithCredential(secret))
	}
	return opts, nil
}

// ReadCredential reads a credential from a file; white space around it does not count.
func ReadCredential(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read credential: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("read credential: %s is empty", file)
	}
	return secret, nil
}

// DataDir returns the data folder of the local broker: $BROKERD_DATA, else $XDG_STATE_HOME/brokerd, else
// ~/.local/state/brokerd.
func DataDir() (string, error) {
	if dir := os.Getenv("BROKERD_DATA"); dir != "" {
		return dir, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "brokerd"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find the data folder: %w; set BROKERD_DATA or BROKERD_ADDR", err)
	}
	return filepath.Join(home, ".local", "state", "brokerd"), nil
}

// local is how to reach the broker of this user on this machine.
type local struct {
	address    string
	credential string // for a broker that listens on TCP only
}

// localBroker reads the endpoint file, which a broker writes when it listens.
func localBroker() (local, error) {
	dir, err := DataDir()
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
