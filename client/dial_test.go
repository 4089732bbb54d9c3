package client_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// sent returns what a call of the client carried.
func sent(t *testing.T, f *fake, c *client.Client) metadata.MD {
	t.Helper()
	apptest.NoError(t, apptest.Err(c.Agents().Heartbeat(t.Context(), &pb.HeartbeatRequest{})))
	return next(t, f.headers)
}

func wantHeaders(t *testing.T, md metadata.MD, want map[string]string) {
	t.Helper()
	for _, key := range []string{"brokerd-agent", "brokerd-session", "brokerd-incarnation", "authorization"} {
		if got := strings.Join(md.Get(key), ","); got != want[key] {
			t.Errorf("%s is %q, want %q", key, got, want[key])
		}
	}
}

func TestDial_EveryCallCarriesTheIdentity(t *testing.T) {
	t.Parallel()
	f, c := newFake(t, client.WithCredential("secret"), client.WithSession("s"), client.WithAgent("a"), client.WithIncarnation(3))
	wantHeaders(t, sent(t, f, c), map[string]string{
		"brokerd-agent": "a", "brokerd-session": "s", "brokerd-incarnation": "3", "authorization": "Bearer secret"})
	wantHeaders(t, sent(t, f, c.As("b")), map[string]string{
		"brokerd-agent": "b", "brokerd-session": "s", "authorization": "Bearer secret"})
	wantHeaders(t, sent(t, f, c.In("t")), map[string]string{
		"brokerd-agent": "a", "brokerd-session": "t", "authorization": "Bearer secret"})
	wantHeaders(t, sent(t, f, c.As("b").AtIncarnation(7)), map[string]string{
		"brokerd-agent": "b", "brokerd-session": "s", "brokerd-incarnation": "7", "authorization": "Bearer secret"})
}

func TestReadCredential_RefusesASecretOfAnotherProgram(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "credential")
	for _, secret := range []string{"ghp_ONE_LINE_SECRET", strings.Repeat("k", 44), strings.Repeat("k", 42) + "=", "two\nlines"} {
		apptest.NoError(t, os.WriteFile(file, []byte(secret), 0o600))
		_, err := client.ReadCredential(file)
		if err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", secret, err)
		}
	}
}

func TestEnvironment_IsThatOfAPartOfTheProgram(t *testing.T) {
	t.Parallel()
	f, _ := newFake(t)
	dir := t.TempDir()
	apptest.NoError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	apptest.NoError(t, os.WriteFile(filepath.Join(dir, "data", "endpoint"), []byte("unix://"+f.address+"\n"), 0o600))
	variables := map[string]string{"BROKERD_DATA": "data", "BROKERD_AGENT": "a"} // relative to Dir
	env := client.Environment{Getenv: func(name string) string { return variables[name] }, Dir: dir}
	opts, err := env.Options()
	apptest.NoError(t, err)
	c, err := client.Dial(t.Context(), opts...)
	apptest.NoError(t, err)
	defer c.Close()
	wantHeaders(t, sent(t, f, c), map[string]string{"brokerd-agent": "a"})
	paths, err := env.Paths("")
	if root, _ := filepath.EvalSymlinks(dir); err != nil || paths.Root() != root {
		t.Errorf("%v, %v", paths, err)
	}
}

func TestDial_NobodyThereSaysHowToStartABroker(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{
		"no socket":   "unix://" + filepath.Join(t.TempDir(), "none"),
		"closed port": "127.0.0.1:1", // one that is free may be another test's next
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Dial(t.Context(), client.WithAddress(address))
			var unreachable *client.UnreachableError
			if !errors.As(err, &unreachable) || unreachable.Address != address {
				t.Fatalf("got %v", err)
			}
			wantCode(t, err, codes.Unavailable)
			if !strings.Contains(err.Error(), "no broker is running at "+address) || !strings.Contains(err.Error(), "start one") {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestDial_APortOfAnotherProgramIsNoBroker(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	where := server.Listener.Addr().String()
	_, err := client.Dial(t.Context(), client.WithAddress(where))
	wantCode(t, err, codes.Unavailable)
	if !errors.Is(err, client.ErrNoBroker) || !strings.HasPrefix(err.Error(), where+" is not the address of a broker") {
		t.Error(err)
	}
}

func TestDial_RefusesToSendACredentialInTheClearToAnotherMachine(t *testing.T) {
	t.Parallel()
	_, err := client.Dial(t.Context(), client.WithAddress("192.0.2.1:7777"), client.WithCredential("secret"))
	if err == nil || !strings.Contains(err.Error(), "TLS") || strings.Contains(err.Error(), "secret") {
		t.Fatalf("got %v", err)
	}
}

func TestDial_RefusesAnAddressThatIsNone(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"unix://", "unix:", "nonsense", "/a/path"} {
		if _, err := client.Dial(t.Context(), client.WithAddress(address)); err == nil || !strings.Contains(err.Error(), "unix:///path/of/socket") {
			t.Errorf("%q: got %v", address, err)
		}
	}
}

func TestFromEnvironment_TakesEverythingFromTheVariables(t *testing.T) {
	f, _ := newFake(t)
	credential := strings.Repeat("k", 42) + "A"
	file := filepath.Join(t.TempDir(), "credential")
	apptest.NoError(t, os.WriteFile(file, []byte("  "+credential+"\n"), 0o600))
	setEnvironment(t, map[string]string{"BROKERD_ADDR": "unix://" + f.address, "BROKERD_SESSION": "s", "BROKERD_AGENT": "a",
		"BROKERD_INCARNATION": "2", "BROKERD_CREDENTIAL_FILE": file})
	c, err := client.FromEnvironment(t.Context())
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	wantHeaders(t, sent(t, f, c), map[string]string{
		"brokerd-agent": "a", "brokerd-session": "s", "brokerd-incarnation": "2", "authorization": "Bearer " + credential})
}

func TestFromEnvironment_FindsTheLocalBrokerByItsEndpointFile(t *testing.T) {
	f, _ := newFake(t)
	for name, place := range map[string]func(root string) (variables map[string]string, data string){
		"BROKERD_DATA": func(root string) (map[string]string, string) {
			return map[string]string{"BROKERD_DATA": root}, root
		},
		"XDG_STATE_HOME": func(root string) (map[string]string, string) {
			return map[string]string{"XDG_STATE_HOME": root}, filepath.Join(root, "brokerd")
		},
		"home": func(root string) (map[string]string, string) {
			return map[string]string{"HOME": root}, filepath.Join(root, ".local", "state", "brokerd")
		},
	} {
		t.Run(name, func(t *testing.T) {
			variables, data := place(t.TempDir())
			setEnvironment(t, variables)
			_, err := client.FromEnvironment(t.Context())
			wantCode(t, err, codes.Unavailable)
			if !strings.Contains(err.Error(), data) {
				t.Fatalf("the folder is not named: %v", err)
			}
			apptest.NoError(t, os.MkdirAll(data, 0o700))
			apptest.NoError(t, os.WriteFile(filepath.Join(data, "endpoint"), []byte("unix://"+f.address+"\n"), 0o600))
			c, err := client.FromEnvironment(t.Context())
			apptest.NoError(t, err)
			c.Close()
		})
	}
}

func TestFromEnvironment_RefusesBadVariables(t *testing.T) {
	for name, value := range map[string]string{"BROKERD_INCARNATION": "two", "BROKERD_CREDENTIAL_FILE": filepath.Join(t.TempDir(), "none")} {
		t.Run(name, func(t *testing.T) {
			setEnvironment(t, map[string]string{name: value})
			if _, err := client.FromEnvironment(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// setEnvironment sets these variables and empties all others that matter.
func setEnvironment(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, name := range []string{"BROKERD_ADDR", "BROKERD_SESSION", "BROKERD_AGENT", "BROKERD_INCARNATION",
		"BROKERD_CREDENTIAL_FILE", "BROKERD_TLS_CA", "BROKERD_TLS_CERT", "BROKERD_TLS_KEY", "BROKERD_TLS_SERVER_NAME", "BROKERD_DATA",
		"XDG_STATE_HOME"} {
		t.Setenv(name, "")
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

func TestDial_WithWaitOutlastsABrokerThatIsNotReadyYet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []client.Option
		ok   bool
	}{"with": {[]client.Option{client.WithWait()}, true}, "without": {nil, false}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			apptest.NoError(t, err)
			server, done := grpc.NewServer(), make(chan error, 1)
			go func() {
				conn, err := l.Accept() // the first one gets nothing
				if err == nil {
					_ = conn.Close()
				}
				done <- server.Serve(l)
			}()
			dialled, err := client.Dial(t.Context(), append(c.opts, client.WithAddress(l.Addr().String()))...)
			if c.ok != (err == nil) {
				t.Errorf("got %v", err)
			}
			if err == nil {
				dialled.Close()
			}
			server.Stop()
			_ = l.Close()
			if err := next(t, done); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				t.Error(err)
			}
		})
	}
}

func TestDial_ACommaInTheFolderOfASocketSeparatesNothing(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "a,b")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &daemon{dir: dir}
	d.start(t)
	t.Cleanup(func() { d.stop(t) })
	c, err := client.Dial(t.Context(), client.WithAddress("unix:///nowhere/brokerd.sock,"+d.app.Addresses()[0]))
	apptest.NoError(t, err)
	c.Close()
}

func TestDial_AClientOfSeveralReplicasGoesOnWithAnotherAddress(t *testing.T) {
	t.Parallel()
	first, second := newDaemon(t), newDaemon(t)
	address := "unix:///nowhere/brokerd.sock," + first.app.Addresses()[0] + ", " + second.app.Addresses()[0]
	c, err := client.Dial(t.Context(), client.WithAddress(address))
	apptest.NoError(t, err)
	defer c.Close()
	folder := func() string {
		t.Helper()
		for {
			out, err := c.Admin().GetStatus(t.Context(), &pb.GetStatusRequest{}, grpc.WaitForReady(true))
			if status.Code(err) == codes.Unavailable { // the call under way is lost with its connection
				continue
			}
			apptest.NoError(t, err)
			return out.GetDataDir()
		}
	}
	if got := folder(); got != first.dir {
		t.Errorf("at first, the broker in %s answers, not that in %s", got, first.dir)
	}
	first.stop(t)
	if got := folder(); got != second.dir {
		t.Errorf("then the broker in %s answers, not that in %s", got, second.dir)
	}
}
