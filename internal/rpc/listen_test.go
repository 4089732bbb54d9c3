package rpc_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/fault"
	"brokerd/internal/rpc"
	"brokerd/internal/testkit"
)

func TestListen_BeyondLoopbackIsRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:7070", "[2001:db8::1]:7070"} {
		l, err := rpc.Listen(address, rpc.Loopback)
		if err == nil {
			_ = l.Close()
		}
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "TLS") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestListen_WhatIsNoAddressIsRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "7070", "127.0.0.1", "unix:", "unix:" + strings.Repeat("x", 101)} {
		l, err := rpc.Listen(address, rpc.Loopback)
		if err == nil {
			_ = l.Close()
		}
		if fault.KindOf(err) != fault.Invalid {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestListen_Loopback(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "localhost:0"} {
		l, err := rpc.Listen(address, rpc.Loopback)
		testkit.NoError(t, err)
		if !l.Addr().(*net.TCPAddr).IP.IsLoopback() || strings.HasSuffix(rpc.Address(l), ":0") {
			t.Errorf("%s: %s", address, rpc.Address(l))
		}
		_ = l.Close()
	}
}

func TestListen_SocketIsForItsUserAlone(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	path := filepath.Join(dir, "x.sock")
	for _, address := range []string{"unix:" + path, "unix://" + path} {
		l, err := rpc.Listen(address, rpc.Loopback)
		testkit.NoError(t, err)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		if got := rpc.Address(l); got != "unix://"+path {
			t.Error(got)
		}
		_ = l.Close()
		if _, err := os.Stat(path); err == nil {
			t.Error("the socket is still there after it was closed")
		}
	}
}

func TestListen_DeadSocketIsReplacedAndALiveOneIsNot(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "x.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	testkit.NoError(t, err)
	dead.SetUnlinkOnClose(false) // as if its process had been killed
	_ = dead.Close()
	live, err := rpc.Listen("unix:"+path, rpc.Loopback)
	testkit.NoError(t, err)
	defer func() { _ = live.Close() }()
	if _, err := rpc.Listen("unix:"+path, rpc.Loopback); fault.KindOf(err) != fault.Precondition {
		t.Errorf("a second listener: %v", err)
	}
}

func TestListen_FileInThePlaceOfTheSocketStays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(shortDir(t), "notes.txt")
	testkit.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := rpc.Listen("unix:"+path, rpc.Loopback); fault.KindOf(err) != fault.Invalid {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("%q %v", text, err)
	}
}

func TestListenDefault_InTheDataFolder(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	l, err := rpc.ListenDefault(dir)
	testkit.NoError(t, err)
	defer func() { _ = l.Close() }()
	if got := rpc.Address(l); got != "unix://"+filepath.Join(dir, rpc.SocketFile) {
		t.Error(got)
	}
}

func TestListenDefault_LongPathMovesAndStaysTheSame(t *testing.T) {
	long := filepath.Join(shortDir(t), strings.Repeat("x", 100))
	other := filepath.Join(shortDir(t), strings.Repeat("x", 100))
	runtime, temporary := shortDir(t), shortDir(t)
	t.Setenv("TMPDIR", temporary)
	for _, base := range []string{runtime, temporary} {
		address := func(dir string) string {
			l, err := rpc.ListenDefault(dir)
			testkit.NoError(t, err)
			defer func() { _ = l.Close() }()
			path := l.Addr().String()
			if !strings.HasPrefix(path, base+"/brokerd-") {
				t.Errorf("%s is not in %s", path, base)
			}
			if folder, err := os.Stat(filepath.Dir(path)); err != nil || folder.Mode().Perm() != 0o700 {
				t.Errorf("%v %v", folder, err)
			}
			return path
		}
		t.Setenv("XDG_RUNTIME_DIR", map[bool]string{true: runtime}[base == runtime])
		if first, again := address(long), address(long); first != again {
			t.Errorf("%s, then %s", first, again)
		}
		if address(long) == address(other) {
			t.Error("two data folders share a socket")
		}
	}
}

func TestListenDefault_TemporaryFolderThatOthersMayEnterIsRefused(t *testing.T) {
	long := filepath.Join(shortDir(t), strings.Repeat("x", 100))
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", shortDir(t))
	l, err := rpc.ListenDefault(long)
	testkit.NoError(t, err)
	folder := filepath.Dir(l.Addr().String())
	_ = l.Close()
	if _, err := os.Stat(folder); err == nil {
		t.Error("the folder is still there after the socket was closed")
	}
	testkit.NoError(t, os.Mkdir(folder, 0o700))
	testkit.NoError(t, os.Chmod(folder, 0o777))
	if _, err := rpc.ListenDefault(long); fault.KindOf(err) != fault.Precondition {
		t.Error(err)
	}
}

// shortDir is a temporary folder whose path leaves room for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rpc")
	testkit.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
