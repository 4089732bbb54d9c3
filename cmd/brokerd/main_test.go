package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
)

const patience = 5 * time.Minute

// asProgram makes the test binary run main, so that tests can have a real process and signal it.
// The name is no setting of brokerd, so that exec leaves it to the daemon that it starts.
const asProgram = "TEST_AS_BROKERD"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	for _, v := range os.Environ() { // whoever runs the tests may have a broker
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "BROKERD_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(postgrestest.Tests{M: m}.Run())
}

// settle returns the settings of a command line.
func settle(t *testing.T, args ...string) (settings, error) {
	t.Helper()
	var s settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.addFlags(flags)
	apptest.NoError(t, flags.Parse(args))
	err := s.complete(flags)
	return s, err
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "brokerd.yaml")
	apptest.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestSettings_Defaults(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/state")
	got, err := settle(t)
	want := settings{Data: "/state/brokerd", Sync: "full", Checkpoint: "internal", LogLevel: "info", LogFormat: "auto", TraceSample: 1}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "/home/me")
	if got, err := settle(t); err != nil || got.Data != "/home/me/.local/state/brokerd" {
		t.Errorf("%q %v", got.Data, err)
	}
}

func TestSettings_FlagsWinOverEnvironmentAndThatOverTheFile(t *testing.T) {
	file := write(t, "data: /file\nsync: normal\nlisten: ['127.0.0.1:1', '127.0.0.1:2']\nlog_level: warn\nlog_format: json\n")
	t.Setenv("BROKERD_CONFIG", file)
	t.Setenv("BROKERD_DATA", "/environment")
	t.Setenv("BROKERD_LOG_LEVEL", "error")
	got, err := settle(t, "--log-level", "debug")
	want := settings{File: file, Data: "/environment", Sync: "normal", Checkpoint: "internal",
		Listen: []string{"127.0.0.1:1", "127.0.0.1:2"}, LogLevel: "debug", LogFormat: "json", TraceSample: 1}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	t.Setenv("BROKERD_LISTEN", "127.0.0.1:3,unix:/x")
	if got, err := settle(t); err != nil || cmp.Diff([]string{"127.0.0.1:3", "unix:/x"}, got.Listen) != "" {
		t.Errorf("%q %v", got.Listen, err)
	}
	got, err = settle(t, "--listen", "127.0.0.1:4", "--listen", "127.0.0.1:5")
	if err != nil || cmp.Diff([]string{"127.0.0.1:4", "127.0.0.1:5"}, got.Listen) != "" {
		t.Errorf("%q %v", got.Listen, err)
	}
}

func TestHelp_FitsIntoEightyColumns(t *testing.T) {
	t.Parallel()
	commands := append(newRoot().Commands(), newRoot())
	for _, command := range newRoot().Commands() {
		commands = append(commands, command.Commands()...)
	}
	for _, command := range commands {
		root := newRoot()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(append(strings.Fields(strings.TrimPrefix(command.CommandPath(), "brokerd")), "--help"))
		if err := root.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s: %v", command.CommandPath(), err)
		}
		for line := range strings.Lines(out.String()) {
			if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
				t.Errorf("%s: longer than 80 columns: %s", command.CommandPath(), line)
			}
		}
	}
}

func TestProgram_AWrongCommandLineSaysWhatIsMeant(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"start":                   `unknown command "start"; did you mean serve? (see brokerd --help)`,
		"restroe":                 `unknown command "restroe"; did you mean restore? (see brokerd --help)`,
		"xyzzy":                   `unknown command "xyzzy" (see brokerd --help)`,
		"serve now":               `brokerd serve takes no argument, and "now" is one`,
		"--port 1":                `unknown flag: --port; did you mean --listen? (see brokerd --help)`,
		"serve --lisen x":         `unknown flag: --lisen; did you mean --listen? (see brokerd serve --help)`,
		"--tls-cert /nowhere.pem": "--tls-cert has no effect without a TCP address: give --listen HOST:PORT",
	} {
		root := newRoot()
		root.SetArgs(append(strings.Fields(args), "--data", filepath.Join(t.TempDir(), "data")))
		err := root.ExecuteContext(t.Context())
		if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", args, err, want)
		}
	}
}

func TestSettings_FaultsInTheFileAreNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"data: /x\nlistne: [a]\n":    `line 2: unknown key "listne"; known are archive, artifacts, checkpoint, data, listen`,
		"config: /other.yaml\n":      `unknown key "config"`,
		"log-level: debug\n":         `unknown key "log-level"`,
		"sync: [full]\n":             "sync: must be one value",
		"data: /x\ndata: /y\n":       "already defined",
		"- data\n":                   "cannot unmarshal",
		"data: {folder: /x}\n":       "data: must be one value",
		"listen: {tcp: 127.0.0.1}\n": "listen: must be",
	} {
		if _, err := settle(t, "--config", write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := settle(t, "--config", "/no/such/file.yaml"); err == nil {
		t.Error("a file that is not there was accepted")
	}
	if got, err := settle(t, "--data", "/x", "--config", write(t, "# nothing yet\n")); err != nil || got.Sync != "full" {
		t.Errorf("an empty file: %v %v", got, err)
	}
}

func TestSettings_CheckIgnoresTheKeysOfServe(t *testing.T) {
	t.Parallel()
	var s settings
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.addFolderFlags(flags)
	s.File = write(t, "data: /file\nsync: normal\n")
	if err := s.complete(flags); err != nil || s.Data != "/file" || s.Sync != "" {
		t.Errorf("%+v %v", s, err)
	}
}

func TestCommand_UsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"srve"}, {"serve", "extra"}, {"--nonsense"}, {"--log-level", "loud"}, {"--log-format", "xml"}} {
		root := newRoot()
		root.SetArgs(append(args, "--data", t.TempDir()))
		if args[0] == "--nonsense" {
			root.SetArgs(args)
		}
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		var usage usageError
		if err := root.ExecuteContext(t.Context()); !errors.As(err, &usage) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// fileVersion returns the content of the file VERSION.
func fileVersion(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../VERSION")
	apptest.NoError(t, err)
	return strings.TrimSpace(string(text))
}

func TestVersion_IsThatOfTheFileVERSION(t *testing.T) {
	t.Parallel()
	want := "brokerd " + fileVersion(t) + "\n"
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		root := newRoot()
		root.SetArgs([]string{arg})
		root.SetOut(&out)
		if err := root.ExecuteContext(t.Context()); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", arg, out.String(), err)
		}
	}
}

func TestExplain_AddsHiddenCauses(t *testing.T) {
	t.Parallel()
	err := hiding{"the database is damaged", io.ErrUnexpectedEOF}
	if got := explain(err); got != "the database is damaged: unexpected EOF" {
		t.Error(got)
	}
}

type hiding struct {
	text  string
	cause error
}

func (h hiding) Error() string { return h.text }
func (h hiding) Unwrap() error { return h.cause }

// A program is a daemon in a process of its own.
type program struct {
	cmd    *exec.Cmd
	line   string // what it said when it was ready
	stderr transcript
	dir    string
}

// A transcript keeps what a process writes, and can be waited on.
type transcript struct {
	mu    sync.Mutex
	text  bytes.Buffer  // guarded by mu
	grown chan struct{} // guarded by mu; closed at the next write
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grown != nil {
		close(s.grown)
		s.grown = nil
	}
	return s.text.Write(p)
}

func (s *transcript) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// await waits until the text has been written n times.
func (s *transcript) await(t *testing.T, text string, n int) {
	t.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		if strings.Count(s.text.String(), text) >= n {
			s.mu.Unlock()
			return
		}
		if s.grown == nil {
			s.grown = make(chan struct{})
		}
		grown := s.grown
		s.mu.Unlock()
		select {
		case <-grown:
		case <-timeout:
			t.Fatalf("%q was not written: %s", text, s)
		}
	}
}

// command returns the command line of a daemon, which is killed if it takes too long.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(processtest.Environment(t), asProgram+"=1")
	return cmd
}

// launch starts the daemon and waits until it says that it listens.
func launch(t *testing.T, args ...string) *program {
	t.Helper()
	dir, err := os.MkdirTemp("", "brokerd")
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &program{dir: dir}
	p.cmd = command(t, append([]string{"--data", dir, "--log-format", "console"}, args...)...)
	p.cmd.Stderr = &p.stderr
	p.start(t)
	return p
}

// launchWithInput starts a daemon whose standard input the test holds.
func launchWithInput(t *testing.T, args ...string) (*program, io.Closer) {
	t.Helper()
	p := &program{}
	p.cmd = command(t, append(args, "--log-format", "console")...)
	p.cmd.Stderr = &p.stderr
	stdin, err := p.cmd.StdinPipe()
	apptest.NoError(t, err)
	p.start(t)
	return p, stdin
}

// start starts the process and waits until it says that it listens.
func (p *program) start(t *testing.T) {
	t.Helper()
	out, err := p.cmd.StdoutPipe()
	apptest.NoError(t, err)
	apptest.NoError(t, p.cmd.Start())
	if p.line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = p.cmd.Wait()
		t.Fatalf("it does not start: %v: %s", err, p.stderr.String())
	}
}

// watch opens a stream that lasts as long as the daemon.
func (p *program) watch(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+p.dir+"/brokerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(stream.Recv()))
	t.Cleanup(func() {
		for err == nil {
			_, err = stream.Recv()
		}
	})
}

func TestProgram_SaysWhereItIsAndStopsCleanly(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		p := launch(t, "--listen", "127.0.0.1:0", "--sync", "normal")
		for _, want := range []string{"brokerd ", " unix://" + p.dir + "/brokerd.sock 127.0.0.1:", "data " + p.dir + ",", "sync normal"} {
			if !strings.Contains(p.line, want) {
				t.Errorf("%q does not say %q", p.line, want)
			}
		}
		apptest.NoError(t, p.cmd.Process.Signal(signal))
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%v: %v: %s", signal, err, p.stderr.String())
		}
		if _, err := os.Stat(filepath.Join(p.dir, "endpoint")); err == nil {
			t.Error("the endpoint file is still there")
		}
	}
}

func TestProgram_SecondSignalEndsItAtOnce(t *testing.T) {
	t.Parallel()
	p := launch(t)
	p.watch(t) // so that a graceful stop takes its five seconds
	apptest.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	endpoint := filepath.Join(p.dir, "endpoint")
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for { // the endpoint file goes when the first signal has arrived
		if _, err := os.Stat(endpoint); err != nil {
			break
		}
		<-ticker.C
	}
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	for { // again and again: the program may still be busy with the first one
		select {
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != -1 {
				t.Errorf("%v, want the end by a signal", err)
			}
			return
		case <-ticker.C:
			_ = p.cmd.Process.Signal(os.Interrupt)
		}
	}
}

func TestProgram_RefusalsSayWhy(t *testing.T) {
	t.Parallel()
	p := launch(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--data", p.dir}, 1, "in use by another brokerd"},
		{[]string{"check", "--data", p.dir}, 1, "use 'brokerctl admin check' while it runs"},
		{[]string{"--data", t.TempDir(), "--listen", "0.0.0.0:7070"}, 2, "which needs TLS: give --tls-cert and --tls-key"},
		{[]string{"--data", t.TempDir(), "--metrics", "0.0.0.0:7070"}, 2, "callers there need no credential"},
		{[]string{"--data", t.TempDir(), "--sync", "fast"}, 2, "full or normal"},
		{[]string{"--data", t.TempDir(), "--log-level", "loud"}, 2, "log-level"},
		{[]string{"--data", t.TempDir(), "--store", t.TempDir()}, 2, "must be the URL of a PostgreSQL database"},
		{[]string{"--data", t.TempDir(), "--store", "postgres://me:secret@localhost/x"}, 2, "--store-password-file"},
		{[]string{"--data", t.TempDir(), "--store", "postgres://localhost/x?password=secret"}, 2, "--store-password-file"},
		{[]string{"--data", t.TempDir(), "--store", "postgres://localhost/x", "--store-password-file", p.dir + "/none"}, 2, "no such file"},
		{[]string{"--data", t.TempDir(), "--archive", p.dir + "/none/archive"}, 2, "no such file"},
		{[]string{"--data", t.TempDir(), "--artifacts", p.dir + "/none/artifacts"}, 2, "no such file"},
		{[]string{"--data", p.dir, "--temporary"}, 2, "is not empty"},
		{[]string{"check", "--data", t.TempDir()}, 1, "no database"},
	} {
		cmd := exec.Command(os.Args[0], c.args...)
		cmd.Env = append(processtest.Environment(t), asProgram+"=1")
		text, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(text), c.want) {
			t.Errorf("%q: exit code %d, want %d; %q, want %q", c.args, code, c.code, text, c.want)
		}
	}
	apptest.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestProgram_CheckAfterwards(t *testing.T) {
	t.Parallel()
	p := launch(t)
	apptest.NoError(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
	cmd := exec.Command(os.Args[0], "check", "--data", p.dir)
	cmd.Env = append(processtest.Environment(t), asProgram+"=1")
	text, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(text), "sound: 0 messages") {
		t.Errorf("%v: %s", err, text)
	}
}
