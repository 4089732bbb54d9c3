package main

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"brokerd/internal/apptest"
)

// hangUp sends SIGHUP and waits until the daemon has written the text for the n-th time.
func (p *program) hangUp(t *testing.T, text string, n int) {
	t.Helper()
	apptest.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	p.stderr.await(t, text, n)
}

// end stops the daemon, which must end without an error.
func (p *program) end(t *testing.T) {
	t.Helper()
	apptest.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, p.stderr.String())
	}
}

func TestProgram_HangupReadsTheLogLevelAgainAndChangesNothingElse(t *testing.T) {
	t.Parallel()
	file := write(t, "log_level: error\nmetrics: 127.0.0.1:0\n")
	p := launch(t, "--config", file)
	setLevel := func(level string) {
		t.Helper()
		apptest.NoError(t, os.WriteFile(file, []byte("log_level: "+level+"\nlog_format: json\nsync: none\n"), 0o600))
	}
	const reread = "SIGHUP: the log level was read again\t{\"log_level\": "
	setLevel("debug")
	p.hangUp(t, reread+`"debug"`, 1)
	setLevel("error")
	p.hangUp(t, reread+`"error"`, 1)
	setLevel("loud")
	p.hangUp(t, "the settings are faulty\t{\"error\": \"log-level: must be debug", 1)
	p.watch(t)
	setLevel("info")
	p.hangUp(t, reread+`"info"`, 1)
	p.end(t)
}

func TestProgram_ALogLevelByFlagOutlivesAHangup(t *testing.T) {
	t.Parallel()
	p := launch(t, "--config", write(t, "log_level: error\n"), "--log-level", "debug")
	for n := range 2 { // the second report shows that the first SIGHUP left the level
		p.hangUp(t, "the flag --log-level gives it", n+1)
	}
	p.end(t)
}

func TestProgram_StopsAtTheEndOfStandardInputAndRemovesATemporaryFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, args := range [][]string{{"--data", t.TempDir() + "/new"}, {"--data", t.TempDir()}, {"--data", ""}} {
		p, stdin := launchWithInput(t, append(args, "--temporary", "--stop-on-stdin-eof")...)
		_, dir, _ := strings.Cut(p.line, "data ")
		dir, _, _ = strings.Cut(dir, ",")
		if _, err := os.Stat(dir + "/brokerd.db"); err != nil || args[1] != "" && dir != args[1] {
			t.Errorf("%q: the data are not in %s: %v", args, dir, err)
		}
		apptest.NoError(t, stdin.Close())
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, p.stderr.String())
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: the folder remains: %v", args, err)
		}
	}
}

func TestProgram_TheEndOfItsLogsReaderDoesNotEndIt(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	apptest.NoError(t, err)
	p := &program{dir: t.TempDir()}
	p.cmd = command(t, "--data", p.dir, "--log-level", "debug", "--log-format", "console")
	p.cmd.Stderr = writer
	p.start(t)
	apptest.NoError(t, errors.Join(writer.Close(), reader.Close()))
	for range 2 {
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil { // it logs a line
			t.Fatal(err)
		}
	}
	p.end(t)
}
