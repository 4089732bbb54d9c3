package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/prompt"
)

// The files and the unit of a broker in the background, and how long up and down wait.
const (
	lockName = "brokerd.lock"    // in the data folder: a broker keeps it locked while it runs, and it has the process id
	LogName  = "brokerd.log"     // in the data folder, of a broker that runs in the background
	UnitName = "brokerd.service" // of the user's systemd

	upPatience   = 30 * time.Second // until a new broker answers
	downPatience = 30 * time.Second // until a broker has ended; calls under way get 5 s of it
)

// A Background is a broker that runs for this user, as up and down print it.
type Background struct {
	Data    string `json:"data"`
	PID     int    `json:"pid"`           // 0 = none runs
	Started bool   `json:"started"`       // by this command
	Stopped bool   `json:"stopped"`       // by this command
	Log     string `json:"log,omitempty"` // the file or command that shows the log; empty if it is not known
}

// UpCommand is brokerctl up.
var UpCommand = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "up",
		Short: "Start a broker in the background, unless one runs",
		Long: `Start a broker in the background, unless one runs, and return when it answers.
Where systemd runs for the user, it becomes the user's service brokerd, which starts
at each login and reads ~/.config/brokerd/brokerd.yaml. Elsewhere, and with
BROKERD_DATA, it is a process that no terminal holds.`,
		Example: `  brokerctl up
  brokerctl up --listen 127.0.0.1:7420`,
	},
	Options: []command.Option{{Name: "listen", Type: "strings",
		Usage: "also listen there, for a browser or other machines: HOST:PORT, as brokerd --listen; repeatable"}},
	Run: func(g *command.Given, _ command.None) error {
		b, err := Up(g.Caller, g.Cmd.Context(), g.Texts("listen"))
		if err != nil {
			return err
		}
		text := fmt.Sprintf("a broker runs already: process %d, data in %s", b.PID, b.Data)
		if b.Started {
			text = fmt.Sprintf("started a broker: process %d, data in %s\n%s shows its log; brokerctl down stops it",
				b.PID, b.Data, b.Log)
		}
		return g.ShowValue(g.Cmd, b, text)
	},
}

// DownCommand is brokerctl down.
var DownCommand = command.Procedure[command.None]{
	Page: command.Page{
		Use:   "down",
		Short: "Stop the broker of this user",
		Long: `Stop the broker of this user on this machine, however it was started, and return when
it has ended. A service of the user's systemd no longer starts at a login.`,
		Example: "  brokerctl down",
	},
	Run: func(g *command.Given, _ command.None) error {
		b, err := down(g.Caller, g.Cmd.Context())
		if err != nil {
			return err
		}
		text := prompt.Either(b.Stopped, fmt.Sprintf("stopped the broker: process %d, data in %s", b.PID, b.Data),
			"no broker runs on "+b.Data)
		return g.ShowValue(g.Cmd, b, text)
	},
}

// localData returns the data folder of this user's broker. It refuses settings that name another broker.
func localData(c *command.Caller) (string, error) {
	s, err := c.Settings()
	if err != nil {
		return "", err
	}
	if s.Addr.Value != "" {
		return "", problem.Usagef("%s names the broker at %s, and this command is about the local one: leave the address out",
			s.Addr.From, s.Addr.Value)
	}
	return c.Env.Client().DataDir()
}

// Up starts a broker in the background, unless one runs, and returns when it answers. listen are its addresses beside the
// socket.
func Up(c *command.Caller, ctx context.Context, listen []string) (Background, error) {
	dir, err := localData(c)
	if err != nil {
		return Background{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, upPatience)
	defer cancel()
	b := Background{Data: dir}
	if held, err := lockHeld(dir); err != nil {
		return b, err
	} else if held { // it may be starting
		if b.PID = holder(dir); len(listen) > 0 {
			return b, problem.Failf(problem.ExitConflict, "a broker runs already, process %d, and --listen is for a new one: "+
				"stop it with brokerctl down first", b.PID)
		}
		return b, awaitBroker(c, ctx, dir, nil)
	}
	program, err := command.FindDaemon(c)
	if err != nil {
		return Background{}, problem.Failf(problem.ExitError, "%v", err)
	}
	b.Started = true
	words := []string{program, "serve"}
	for _, address := range listen {
		words = append(words, "--listen", address)
	}
	ended := make(chan error, 1)
	if systemctl := systemctl(c); systemctl != "" {
		b.Log = "journalctl --user -u brokerd"
		err = startService(c, ctx, systemctl, words)
	} else {
		b.Log = "tail " + prompt.ShellWord(filepath.Join(dir, LogName))
		err = startProcess(c, dir, words, ended)
	}
	if err != nil {
		return Background{}, err
	}
	if err := awaitBroker(c, ctx, dir, ended); err != nil {
		return Background{}, problem.Failf(problem.ExitUnreachable,
			"the new broker does not answer: %v; %s shows its log", err, b.Log)
	}
	b.PID = holder(dir)
	return b, nil
}

// startProcess starts brokerd as a process that outlives this one and its terminal. ended receives how it ends.
func startProcess(c *command.Caller, dir string, words []string, ended chan<- error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(dir, LogName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the daemon writes to it, and this process does not
	daemon := exec.Command(words[0], append(words[1:], "--data", dir)...)
	daemon.Env, daemon.Dir = c.Env.Variables, "/"
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := daemon.Start(); err != nil {
		return fmt.Errorf("start %s: %w", words[0], err)
	}
	go func() { ended <- daemon.Wait() }() // this process may end first: the daemon continues
	return nil
}

// awaitBroker returns when the broker answers. ended receives how the process ends that was started for it, if one was.
func awaitBroker(c *command.Caller, ctx context.Context, dir string, ended <-chan error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := command.Ping(c, ctx, upPatience)
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case err := <-ended:
		if held, lockErr := lockHeld(dir); lockErr == nil && held { // another process has started one at the same time
			return <-answered
		}
		cancel()
		return cmp.Or(err, <-answered, errors.New("it has ended"))
	}
}

// down stops the broker that holds the data folder, and returns when it has ended.
func down(c *command.Caller, ctx context.Context) (Background, error) {
	dir, err := localData(c)
	if err != nil {
		return Background{}, err
	}
	b := Background{Data: dir}
	if held, err := lockHeld(dir); err != nil || !held {
		return b, err
	}
	b.PID, b.Stopped = holder(dir), true
	ctx, cancel := context.WithTimeout(ctx, downPatience)
	defer cancel()
	systemctl := systemctl(c)
	if systemctl != "" && runProgram(c, ctx, systemctl, "--user", "is-enabled", "--quiet", UnitName) == nil {
		if err := runProgram(c, ctx, systemctl, "--user", "disable", "--now", UnitName); err != nil {
			return b, err
		}
	}
	if held, err := lockHeld(dir); err != nil || !held {
		return b, err
	}
	if err := syscall.Kill(b.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return b, fmt.Errorf("stop process %d: %w", b.PID, err)
	}
	free := make(chan error, 1)
	go func() { free <- awaitLock(dir) }()
	select {
	case err := <-free:
		return b, err
	case <-ctx.Done():
		return b, problem.Failf(problem.ExitError,
			"process %d has been told to stop, and has not ended within %v", b.PID, downPatience)
	}
}

// openLock opens the file that a broker keeps locked while it runs on a data folder; nil if there is none.
func openLock(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// lockHeld reports whether a broker runs on a data folder. It tries the lock only while the process exists that the file
// names: a broker that starts at that moment would be refused.
func lockHeld(dir string) (bool, error) {
	if pid := holder(dir); pid == 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false, nil
	}
	f, err := openLock(dir)
	if f == nil || err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // closing releases the lock
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// awaitLock returns when no broker runs on a data folder.
func awaitLock(dir string) error {
	f, err := openLock(dir)
	if f == nil || err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // closing releases the lock
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// holder returns the process that holds a data folder; 0 if the folder does not say.
func holder(dir string) int {
	f, err := openLock(dir)
	if f == nil || err != nil {
		return 0
	}
	defer f.Close() //nolint:errcheck // it is only read
	text, _ := io.ReadAll(io.LimitReader(f, 32))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// systemctl returns the program that starts services of this user; "" where no systemd runs for the user, and for a data
// folder that BROKERD_DATA names: the service has the default one.
func systemctl(c *command.Caller) string {
	if c.Env.Get("BROKERD_DATA") != "" {
		return ""
	}
	if _, err := os.Stat(filepath.Join(c.Env.Get("XDG_RUNTIME_DIR"), "systemd", "private")); err != nil {
		return ""
	}
	path, err := c.Env.LookPath("systemctl")
	if err != nil {
		return ""
	}
	return path
}

// unit is the user's service, with the words of its command and the file with the user's settings.
const unit = `# Written by brokerctl up. Changes stay: it writes this file only if there is none.
[Unit]
Description=brokerd, the message broker for the agents of this user

[Service]
Type=exec
ExecStart=%s
Environment=%s
Restart=on-failure
RestartSec=1s
TimeoutStopSec=15s
UMask=0077
LimitNOFILE=65536

[Install]
WantedBy=default.target
`

// startService makes brokerd a service of the user's systemd, which starts it now and at each login.
func startService(c *command.Caller, ctx context.Context, systemctl string, words []string) error {
	home, err := c.Env.HomeDir()
	if err != nil {
		return err
	}
	config := c.Env.Get("XDG_CONFIG_HOME")
	if !filepath.IsAbs(config) {
		config = filepath.Join(home, ".config")
	}
	file, settings := filepath.Join(config, "systemd", "user", UnitName), filepath.Join(config, "brokerd", "brokerd.yaml")
	text := unit
	if _, err := os.Stat(settings); err != nil {
		text = strings.Replace(text, "Environment=%s\n", "%.0s", 1)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	switch {
	case errors.Is(err, fs.ErrExist) && len(words) > 2:
		return problem.Failf(problem.ExitConflict,
			"%s exists, and up does not change it: write the addresses there, or as listen into %s",
			file, settings)
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return err
	default:
		for i, word := range words {
			words[i] = unitWord(strings.ReplaceAll(word, "$", "$$")) // a dollar sign begins a variable in a command only
		}
		_, err = fmt.Fprintf(f, text, strings.Join(words, " "), unitWord("BROKERD_CONFIG="+settings))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if err := runProgram(c, ctx, systemctl, "--user", "daemon-reload"); err != nil {
		return err
	}
	return runProgram(c, ctx, systemctl, "--user", "enable", "--now", UnitName)
}

// unitWord quotes a word for a unit file.
func unitWord(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(s) + `"`
}

// runProgram runs a program. The error has what it has printed.
func runProgram(c *command.Caller, ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env, cmd.WaitDelay = c.Env.Variables, time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return problem.Failf(problem.ExitError, "%s %s: %v: %s", filepath.Base(program), strings.Join(args, " "), err,
			prompt.OneLine(string(out)))
	}
	return nil
}
