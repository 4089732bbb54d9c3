package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// asAgent makes the test program a coding agent, which ends with its standard input. An argument is a file that
// it keeps locked.
const asAgent = "HARNESS_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) == "" {
		os.Exit(m.Run())
	}
	if len(os.Args) > 1 {
		f, err := os.OpenFile(os.Args[1], os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil || syscall.Flock(int(f.Fd()), syscall.LOCK_EX) != nil {
			os.Exit(1)
		}
	}
	_, _ = os.Stdout.WriteString("ready\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// A coding is a coding agent, as a process.
type coding struct {
	t   testing.TB
	cmd *exec.Cmd
	Process
}

// start starts a coding agent; with a file, it keeps that locked.
func start(t testing.TB, lock ...string) *coding {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], lock...)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	in, err := cmd.StdinPipe() // which ends with the test
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	c := &coding{t, cmd, At(cmd.Process.Pid)}
	t.Cleanup(func() { _ = in.Close(); c.kill() })
	return c
}

// kill kills it.
func (c *coding) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait() // it was killed
}

// A desk is a folder of sessions in a test.
type desk struct {
	t testing.TB
	*Sessions
	clock time.Time
}

func newDesk(t *testing.T) *desk {
	t.Parallel()
	d := &desk{t: t, clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	d.Sessions = Open(filepath.Join(t.TempDir(), "sessions"), func() time.Time {
		d.clock = d.clock.Add(time.Second)
		return d.clock
	})
	return d
}

var names = []string{"builder", "builder-2", "builder-3"}

// take gives a session its name and wants a certain one.
func (d *desk) take(wanted Session, name string) {
	d.t.Helper()
	wanted.Broker, wanted.Base = "b", "builder"
	got, err := d.Take(wanted, names, nil)
	if err != nil || got.Name != name {
		d.t.Errorf("the session %q gets %q, want %q: %v", wanted.ID, got.Name, name, err)
	}
}

func TestTake_EachLiveSessionHasANameOfItsOwn(t *testing.T) {
	d := newDesk(t)
	a, b := start(t), start(t)
	d.take(Session{ID: "a", Process: a.Process}, "builder")
	d.take(Session{ID: "b", Process: b.Process}, "builder-2")
	d.take(Session{ID: "a", Process: a.Process}, "builder")
	other, err := d.Take(Session{ID: "c", Broker: "another", Base: "builder", Process: start(t).Process}, names, nil)
	if err != nil || other.Name != "builder" {
		t.Errorf("at another broker: %v, %v", other, err)
	}
	if found, ok := d.Of("b"); !ok || found.Name != "builder-2" {
		t.Errorf("the session b is %v", found)
	}
	if found, ok := d.Of(""); ok {
		t.Errorf("no session is %v", found)
	}
	a.kill()
	d.take(Session{ID: "d", Process: start(t).Process}, "builder")
	d.End("b")
	d.take(Session{ID: "e", Process: start(t).Process}, "builder-2")
}

func TestTake_AResumedSessionHasItsNameAgain(t *testing.T) {
	d := newDesk(t)
	a, b := start(t), start(t)
	d.take(Session{ID: "a", Process: a.Process}, "builder")
	d.take(Session{ID: "b", Process: b.Process}, "builder-2")
	a.kill()
	b.kill()
	again := start(t)
	d.take(Session{ID: "b", Process: again.Process}, "builder-2")
	d.take(Session{ID: "c", Process: start(t).Process}, "builder")
	d.take(Session{ID: "a", Process: start(t).Process}, "builder-3") // c has its name
}

func TestTake_AProcessKeepsItsNameWithItsNextSession(t *testing.T) {
	d := newDesk(t)
	a := start(t)
	d.take(Session{ID: "a", Process: a.Process}, "builder")
	d.take(Session{ID: "after /clear", Process: a.Process}, "builder")
	d.take(Session{ID: "b", Process: start(t).Process}, "builder-2")
	if now, ok := d.In([]Known{{a.Process, "agent"}}); !ok || now.ID != "after /clear" {
		t.Errorf("it runs %v", now)
	}
}

// A server that starts first and is not told its session has the name of it all the same, also if it is resumed.
func TestTake_AServerThatIsNotToldItsSessionFollowsIt(t *testing.T) {
	d := newDesk(t)
	old := start(t)
	d.take(Session{ID: "other", Process: start(t).Process}, "builder")
	d.take(Session{ID: "a", Process: old.Process}, "builder-2")
	old.kill()
	d.End("other")

	a, server := start(t), start(t)
	d.take(Session{Process: a.Process, Server: server.Process}, "builder")
	d.take(Session{Process: a.Process, Server: server.Process}, "builder") // and once more
	if now, ok := d.In([]Known{{a.Process, "agent"}}); !ok || now.Name != "builder" {
		t.Errorf("before the first event: %v", now)
	}
	d.take(Session{ID: "a", Process: a.Process}, "builder-2")
	now, ok := d.In([]Known{{start(t).Process, "unknown"}, {a.Process, "agent"}})
	if !ok || now.ID != "a" || now.Name != "builder-2" {
		t.Errorf("the server finds %v", now)
	}
	d.take(Session{Process: a.Process, Server: server.Process}, "builder-2")
	d.take(Session{ID: "b", Process: start(t).Process}, "builder") // which the server does not keep
	second := start(t)
	d.take(Session{Process: a.Process, Server: second.Process}, "builder-3") // another server of the same program
	second.kill()
	d.take(Session{ID: "c", Process: start(t).Process}, "builder-3")
}

// Codex runs many sessions in one process: a lock tells which of them it still has.
func TestTake_ManySessionsOfOneProcess(t *testing.T) {
	d := newDesk(t)
	daemon := start(t)
	locks := []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
	writers := []*coding{start(t, locks[0]), start(t, locks[1])}
	d.take(Session{ID: "a", Process: daemon.Process, Lock: locks[0]}, "builder")
	d.take(Session{ID: "b", Process: daemon.Process, Lock: locks[1]}, "builder-2")
	if now, ok := d.In([]Known{{daemon.Process, "codex"}}); ok {
		t.Errorf("it cannot be known that it is %v", now)
	}
	writers[0].kill()
	if now, ok := d.In([]Known{{daemon.Process, "codex"}}); !ok || now.ID != "b" {
		t.Errorf("the one that lives is %v", now)
	}
	d.take(Session{ID: "c", Process: daemon.Process, Lock: filepath.Join(t.TempDir(), "none")}, "builder")
}

func TestTake_NamesThatOthersHave(t *testing.T) {
	d := newDesk(t)
	var asked []string
	elsewhere := func(name string) (bool, error) {
		asked = append(asked, name)
		return name == "builder", nil
	}
	a := start(t)
	wanted := Session{Broker: "b", Base: "builder", ID: "a", Process: a.Process}
	for range 2 {
		got, err := d.Take(wanted, names, elsewhere)
		if err != nil || got.Name != "builder-2" || len(asked) != 2 {
			t.Errorf("%v, %v, asked for %q", got, err, asked)
		}
	}
	unreachable := errors.New("unreachable")
	wanted.ID, wanted.Process = "b", start(t).Process
	if _, err := d.Take(wanted, names, func(string) (bool, error) { return false, unreachable }); !errors.Is(err, unreachable) {
		t.Errorf("the error is lost: %v", err)
	}
	if _, err := d.Take(wanted, names[:2], elsewhere); !errors.Is(err, ErrTaken) {
		t.Errorf("all are taken: %v", err)
	}
}

func TestSessions_KeepThoseThatLiveAndTheLastUsed(t *testing.T) {
	d := newDesk(t)
	if d.Any() {
		t.Error("there are sessions before the first")
	}
	alive := start(t)
	d.take(Session{ID: "alive", Process: alive.Process}, "builder")
	for i := range most + 5 {
		id := fmt.Sprint("s", i)
		d.take(Session{ID: id, Process: start(t).Process}, "builder-2")
		d.End(id)
	}
	if !d.Any() {
		t.Error("there are none")
	}
	if _, ok := d.Of("alive"); !ok {
		t.Error("a session that is alive is forgotten")
	}
	if _, ok := d.Of("s0"); ok {
		t.Error("an old session that has ended is kept")
	}
	if n := len(d.all()); n > most+1 {
		t.Errorf("%d sessions are kept", n)
	}
	before := len(d.all())
	if err := os.WriteFile(filepath.Join(d.dir, "x"+suffix), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(d.all()); n != before {
		t.Errorf("%d sessions", n)
	}
	d.take(Session{ID: "last", Process: start(t).Process}, "builder-2")
}

func TestAncestors_AreTheProgramsAboveWithoutShells(t *testing.T) {
	t.Parallel()
	found := Ancestors()
	if len(found) == 0 {
		t.Fatal("none")
	}
	for _, p := range found {
		if !p.Alive() {
			t.Errorf("%v does not live", p)
		}
	}
	gone := start(t)
	if !gone.Alive() {
		t.Error("it lives")
	}
	gone.kill()
	later := Process{ID: os.Getpid(), Start: 1}
	if gone.Alive() || later.Alive() || (Process{}).Alive() {
		t.Error("what has ended lives")
	}
}
