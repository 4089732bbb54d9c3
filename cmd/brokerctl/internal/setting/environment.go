package setting

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"brokerd/client"
	"brokerd/cmd/brokerctl/harness"
	"brokerd/internal/prompt"
)

// Environment is what brokerctl takes from the process that it runs in. Several runs in one process
// have their own variables, working folders and clocks.
type Environment struct {
	In       io.Reader
	Out, Err io.Writer

	Columns     int  // the width of the terminal that Out is; 0 if it is none
	ErrTerminal bool // Err is a terminal

	Variables []string // NAME=VALUE, as of os.Environ; of two with one name, the last one counts
	Dir       string   // the working folder, an absolute path; "" if it has none any more
	Now       func() time.Time
	Mark      func() string          // returns a new mark for a text for a language model, as prompt.NewMark
	Ancestors func() []harness.Known // the processes above this one; nil = none
	Signals   <-chan os.Signal       // the first asks to finish, a second one other than SIGHUP to stop at once
}

// Get returns the value of a variable, "" if it is not set.
func (e Environment) Get(name string) string {
	for i := len(e.Variables) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(e.Variables[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// WorkingDir returns the working folder.
func (e Environment) WorkingDir() (string, error) {
	if e.Dir == "" {
		return "", errors.New("find the working folder: it does not exist any more")
	}
	return e.Dir, nil
}

// Path returns where a file is that the caller names, perhaps relative to the working folder.
func (e Environment) Path(name string) string {
	if name == "" || filepath.IsAbs(name) || e.here() {
		return name
	}
	return filepath.Join(e.Dir, name)
}

// here reports whether the process itself is in the working folder. Names then keep the form that the
// caller gave them, and a command inherits the folder, even if its path cannot be reached.
func (e Environment) here() bool {
	dir, err := os.Getwd()
	return err != nil || e.Dir == "" || dir == e.Dir
}

// ChildDir is the working folder for a command, as in exec.Cmd.
func (e Environment) ChildDir() string {
	if e.here() {
		return ""
	}
	return e.Dir
}

// named gives an error about a file the name that the caller has for it.
func named(err error, name string) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		of.Path = name
	}
	return err
}

// Open opens a file that the caller names.
func (e Environment) Open(name string) (*os.File, error) {
	f, err := os.Open(e.Path(name))
	return f, named(err, name)
}

// ReadFile reads a file that the caller names.
func (e Environment) ReadFile(name string) ([]byte, error) {
	text, err := os.ReadFile(e.Path(name))
	return text, named(err, name)
}

// LookPath finds a program as exec.LookPath does, with the PATH and the working folder of this run.
func (e Environment) LookPath(program string) (string, error) {
	failed := func(err error) (string, error) { return "", &exec.Error{Name: program, Err: err} }
	if strings.Contains(program, "/") {
		if _, err := exec.LookPath(e.Path(program)); err != nil {
			if of := (*exec.Error)(nil); errors.As(err, &of) {
				err = of.Err
			}
			return failed(named(err, program))
		}
		return program, nil // a command runs in the working folder
	}
	for _, dir := range filepath.SplitList(e.Get("PATH")) {
		found, err := exec.LookPath(filepath.Join(cmp.Or(e.Path(dir), "."), program))
		switch {
		case err != nil:
		case !filepath.IsAbs(dir):
			return failed(exec.ErrDot)
		default:
			return found, nil
		}
	}
	return failed(exec.ErrNotFound)
}

// TempDir returns the folder for temporary files.
func (e Environment) TempDir() string { return cmp.Or(e.Path(e.Get("TMPDIR")), "/tmp") }

// HomeDir returns the user's home folder.
func (e Environment) HomeDir() (string, error) {
	if home := e.Get("HOME"); home != "" {
		return e.Path(home), nil
	}
	return "", errors.New("find the home folder: $HOME is not defined")
}

// userDir returns a folder for the user's files: the one that a variable of the XDG specification
// names, else the given one in the home folder.
func (e Environment) userDir(variable, linux, darwin string) (string, error) {
	if dir := e.Get(variable); dir != "" && runtime.GOOS != "darwin" {
		if !filepath.IsAbs(dir) {
			return "", errors.New(variable + " is not an absolute path")
		}
		return dir, nil
	}
	home, err := e.HomeDir()
	return filepath.Join(home, prompt.Either(runtime.GOOS == "darwin", darwin, linux)), err
}

// CacheDir returns the folder of os.UserCacheDir.
func (e Environment) CacheDir() (string, error) {
	return e.userDir("XDG_CACHE_HOME", ".cache", "Library/Caches")
}

// Client is the environment for the package client.
func (e Environment) Client() client.Environment {
	return client.Environment{Getenv: e.Get, Dir: e.Dir}
}
