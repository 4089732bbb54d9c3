package main

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

// environment is what brokerctl takes from the process that it runs in. Several runs in one process
// have their own variables, working folders and clocks.
type environment struct {
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

// get returns the value of a variable, "" if it is not set.
func (e environment) get(name string) string {
	for i := len(e.Variables) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(e.Variables[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// dir returns the working folder.
func (e environment) dir() (string, error) {
	if e.Dir == "" {
		return "", errors.New("find the working folder: it does not exist any more")
	}
	return e.Dir, nil
}

// path returns where a file is that the caller names, perhaps relative to the working folder.
func (e environment) path(name string) string {
	if name == "" || filepath.IsAbs(name) || e.here() {
		return name
	}
	return filepath.Join(e.Dir, name)
}

// here reports whether the process itself is in the working folder. Names then keep the form that the
// caller gave them, and a command inherits the folder, even if its path cannot be reached.
func (e environment) here() bool {
	dir, err := os.Getwd()
	return err != nil || e.Dir == "" || dir == e.Dir
}

// childDir is the working folder for a command, as in exec.Cmd.
func (e environment) childDir() string {
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

// open opens a file that the caller names.
func (e environment) open(name string) (*os.File, error) {
	f, err := os.Open(e.path(name))
	return f, named(err, name)
}

// readFile reads a file that the caller names.
func (e environment) readFile(name string) ([]byte, error) {
	text, err := os.ReadFile(e.path(name))
	return text, named(err, name)
}

// lookPath finds a program as exec.LookPath does, with the PATH and the working folder of this run.
func (e environment) lookPath(program string) (string, error) {
	failed := func(err error) (string, error) { return "", &exec.Error{Name: program, Err: err} }
	if strings.Contains(program, "/") {
		if _, err := exec.LookPath(e.path(program)); err != nil {
			if of := (*exec.Error)(nil); errors.As(err, &of) {
				err = of.Err
			}
			return failed(named(err, program))
		}
		return program, nil // a command runs in the working folder
	}
	for _, dir := range filepath.SplitList(e.get("PATH")) {
		found, err := exec.LookPath(filepath.Join(cmp.Or(e.path(dir), "."), program))
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

// tempDir returns the folder for temporary files.
func (e environment) tempDir() string { return cmp.Or(e.path(e.get("TMPDIR")), "/tmp") }

// homeDir returns the user's home folder.
func (e environment) homeDir() (string, error) {
	if home := e.get("HOME"); home != "" {
		return e.path(home), nil
	}
	return "", errors.New("find the home folder: $HOME is not defined")
}

// userDir returns a folder for the user's files: the one that a variable of the XDG specification
// names, else the given one in the home folder.
func (e environment) userDir(variable, linux, darwin string) (string, error) {
	if dir := e.get(variable); dir != "" && runtime.GOOS != "darwin" {
		if !filepath.IsAbs(dir) {
			return "", errors.New(variable + " is not an absolute path")
		}
		return dir, nil
	}
	home, err := e.homeDir()
	return filepath.Join(home, prompt.Either(runtime.GOOS == "darwin", darwin, linux)), err
}

// cacheDir returns the folder of os.UserCacheDir.
func (e environment) cacheDir() (string, error) {
	return e.userDir("XDG_CACHE_HOME", ".cache", "Library/Caches")
}

// client is the environment for the package client.
func (e environment) client() client.Environment {
	return client.Environment{Getenv: e.get, Dir: e.Dir}
}
