package rpc

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"brokerd/internal/fault"
)

// SocketFile is the Unix socket in a data folder.
const SocketFile = "brokerd.sock"

// maxSocketPath is what every system allows, in bytes: Linux takes 107, macOS 103.
const maxSocketPath = 100

// A Reach says which TCP addresses a listener may have.
type Reach int

const (
	// Loopback permits only loopback, because the server has no certificates for TLS.
	Loopback Reach = iota
	// LoopbackAlways permits only loopback, because the server serves all users of the machine there.
	LoopbackAlways
	// Everywhere permits all addresses, because the server speaks TLS there.
	Everywhere
)

// refusals are the reasons why an address beyond loopback is refused.
var refusals = map[Reach]string{
	Loopback: "other machines can reach it, which needs TLS: give --tls-cert and --tls-key " +
		"(`brokerctl credential tls` makes certificates), or listen on 127.0.0.1, [::1] or a Unix socket",
	LoopbackAlways: "other machines can reach it, and callers there need no credential: use 127.0.0.1, [::1] or a Unix socket",
}

// Listen opens an address, unix:PATH or HOST:PORT. Port 0 is any that is free. An address beyond the
// reach is refused as fault.Invalid, and so is a socket at which another process answers. The
// message continues a sentence that begins with the address.
func Listen(address string, reach Reach) (net.Listener, error) {
	if path, ok := socketPath(address); ok {
		return listenSocket(path)
	}
	tcp, err := reach.resolve(address)
	if err != nil {
		return nil, err
	}
	return net.ListenTCP("tcp", tcp)
}

// CheckAddress returns the error that Listen returns for an address that it never opens. It opens
// nothing.
func CheckAddress(address string, reach Reach) error {
	if path, ok := socketPath(address); ok {
		return checkSocketPath(path)
	}
	_, err := reach.resolve(address)
	return err
}

// Address returns what a client dials to reach the listener: unix:///PATH or HOST:PORT.
func Address(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix://" + l.Addr().String()
	}
	return l.Addr().String()
}

// ListenDefault opens the Unix socket of a data folder: in the folder itself, or, where that
// path would be too long for a socket, in $XDG_RUNTIME_DIR or a folder of the user's own among
// the temporary files. The caller must hold the lock on the data folder: what a dead daemon has left
// behind is removed.
func ListenDefault(dir string) (net.Listener, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, SocketFile)
	if len(path) <= maxSocketPath {
		return listenSocket(path)
	}
	path, folder, err := shorterPath(dir)
	if err != nil {
		return nil, err
	}
	l, err := listenSocket(path)
	if err != nil || folder == "" {
		return l, err
	}
	return &inFolder{l, folder}, nil
}

// inFolder is a listener whose socket has a folder of its own, which goes with it.
type inFolder struct {
	net.Listener
	folder string
}

// Close implements net.Listener.
func (l *inFolder) Close() error {
	err := l.Listener.Close()
	_ = os.Remove(l.folder) // stays if something else is in it
	return err
}

// shorterPath returns the same path for the same data folder, so that clients find it after a restart, and
// the folder that was made for it, if any.
func shorterPath(dir string) (path, folder string, err error) {
	name := fmt.Sprintf("brokerd-%x", sha256.Sum256([]byte(dir)))[:len("brokerd-")+16]
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); runtime != "" {
		if path := filepath.Join(runtime, name+".sock"); len(path) <= maxSocketPath {
			return path, "", nil
		}
	}
	for _, temporary := range []string{os.TempDir(), "/tmp"} {
		own := filepath.Join(temporary, fmt.Sprintf("%s-%d", name, os.Getuid()))
		if path := filepath.Join(own, SocketFile); len(path) <= maxSocketPath {
			return path, own, ownFolder(own)
		}
	}
	return "", "", fault.New(fault.Precondition, "PATH_TOO_LONG", "the path of %s is too long for a Unix socket; choose a shorter data folder", dir)
}

// ownFolder makes a folder that only this user may enter. Everybody may write where it lies, so
// one that is there already must be just that.
func ownFolder(path string) error {
	if err := os.Mkdir(path, 0o700); err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Getuid() {
		return fault.New(fault.Precondition, "FOLDER_EXPOSED", "%s must be a folder that is yours alone (mode 0700): remove it", path)
	}
	return nil
}

func socketPath(address string) (string, bool) {
	path, ok := strings.CutPrefix(address, "unix:")
	if rest, double := strings.CutPrefix(path, "//"); double {
		path = rest
	}
	return path, ok
}

func checkSocketPath(path string) error {
	if path == "" || len(path) > maxSocketPath {
		return refuse("the path of a socket has 1 to %d bytes", maxSocketPath)
	}
	return nil
}

func listenSocket(path string) (net.Listener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Whoever connects before the mode is set is refused all the same, by user.
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// removeStale removes a socket that nobody listens on, and nothing else.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return refuse("there is a file of that name that is no socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return fault.New(fault.Precondition, "ADDRESS_IN_USE", "another process listens there already")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// resolve resolves an address and refuses it if it is beyond the reach.
func (r Reach) resolve(address string) (*net.TCPAddr, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, refuse("it is neither unix:PATH nor HOST:PORT")
	}
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	if r != Everywhere && !tcp.IP.IsLoopback() {
		return nil, refuse("%s", refusals[r])
	}
	return tcp, nil
}

func refuse(format string, args ...any) error {
	return fault.New(fault.Invalid, "ADDRESS_REFUSED", format, args...)
}
