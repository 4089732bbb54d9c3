package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/cmd/brokerctl/supervise"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

func TestLock_IsNamedByPathFenceOrTicketInEveryCommand(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	t.Chdir(t.TempDir())
	register(t, "builder-1/builder", "builder-2/builder")
	one, two := []string{"--agent", "builder-1", "lock"}, []string{"--agent", "builder-2", "lock"}
	as := func(who []string, args ...string) []string { return append(slices.Clone(who), args...) }
	fence := number(at(t, fields(t, as(one, "acquire", "a.go", "b.go")...), "fence"))
	if got := ctl(t, as(two, "acquire", "a.go", "--wait", "10ms", "--keep")...); got.code != 4 {
		t.Fatalf("%+v", got)
	}
	for _, name := range []string{"a.go", "b.go", fence} {
		out := must0(t, "lock", "get", name)
		if !strings.Contains(out, fence) || !strings.Contains(out, "a.go b.go") || !strings.Contains(out, "builder-1") ||
			strings.Contains(out, "place 1 behind builder-1, kept") != (name != "b.go") {
			t.Errorf("lock get %s:\n%s", name, out)
		}
		if out := must0(t, as(one, "extend", name, "--for", "1d12h")...); !strings.HasPrefix(out, "extended "+name+", ends in 36h") {
			t.Errorf("lock extend %s: %s", name, out)
		}
	}
	for _, args := range [][]string{as(two, "extend", "a.go"), as(one, "extend", "c.go"), as(one, "extend", "a.go", "--holder", "x")} {
		if got := ctl(t, args...); got.code != 6 || !strings.Contains(got.err, "does not hold ") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	for _, name := range []string{"c.go", "4711"} {
		if got := ctl(t, "lock", "get", name); got.code != 3 || !strings.Contains(got.err, "there is no lock on "+name) {
			t.Errorf("lock get %s: %+v", name, got)
		}
	}
	ticket := number(at(t, fields(t, "lock", "get", "a.go"), "tickets", 0, "ticket"))
	if out := must0(t, as(two, "release", ticket)...); out != "cancelled 1 request\n" {
		t.Errorf("%s", out)
	}
	if out := must0(t, "lock", "revoke", fence, "--reason", "x"); !strings.HasPrefix(out, "took a.go b.go from builder-1, fence "+fence) {
		t.Errorf("%s", out)
	}
	must0(t, as(one, "acquire", "./4711")...) // a file
	if got := ctl(t, "lock", "get", "./4711"); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestLock_IsTakenListedExtendedAndGivenBack(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder", "builder-2/builder")
	one, two := []string{"--agent", "builder-1"}, []string{"--agent", "builder-2"}
	as := func(who []string, args ...string) []string { return append(who[:len(who):len(who)], args...) }

	first := fields(t, as(one, "lock", "acquire", "src/", "go.mod", "--reason", "refactoring")...)
	fence := at(t, first, "fence").(json.Number).String()
	if at(t, first, "outcome") != "granted" || at(t, first, "already_held") != false {
		t.Errorf("%v", first)
	}
	if again := fields(t, as(one, "lock", "acquire", "src/", "go.mod")...); at(t, again, "fence").(json.Number).String() != fence || at(t, again, "already_held") != true {
		t.Errorf("%v", again)
	}
	if got := ctl(t, as(two, "lock", "acquire", "src/a.go")...); got.code != 5 || !strings.Contains(got.err, "src/ is held by builder-1, ends in 30m (refactoring)") {
		t.Errorf("busy: %+v", got)
	}
	if got := ctl(t, as(two, "lock", "acquire", "src/a.go", "--dry-run")...); got.code != 5 {
		t.Errorf("dry run: %+v", got)
	}
	if got := ctl(t, as(two, "lock", "acquire", "src/a.go", "--wait", "20ms", "--keep")...); got.code != 4 || !strings.Contains(got.err, "place 1 in the queue, ticket ") {
		t.Errorf("waited: %+v", got)
	}
	list := must0(t, "lock", "list", "src/b.go")
	if !strings.Contains(list, fence+" ") || !strings.Contains(list, "held, 1 waiting") || !strings.Contains(list, "go.mod src/") && !strings.Contains(list, "src/ go.mod") {
		t.Errorf("%s", list)
	}
	if list := must0(t, "lock", "list", "--waiting", "-o", "json"); strings.Count(list, "\n") != 1 ||
		!strings.Contains(list, `"kind":"ticket"`) {
		t.Errorf("%s", list)
	}
	if list := must0(t, "lock", "list", "--owner", "builder-2"); !strings.Contains(list, "place 1 behind builder-1, kept") || strings.Contains(list, "held,") {
		t.Errorf("%s", list)
	}
	if out := must0(t, as(one, "lock", "extend", fence, "--for", "1h")...); out != "extended "+fence+", ends in 1h\n" {
		t.Errorf("%s", out)
	}
	if out := must0(t, as(one, "lock", "release", "go.mod")...); out != "released 1 path\n" {
		t.Errorf("%s", out)
	}
	if out := must0(t, as(one, "lock", "release", fence)...); out != "released 1 path\n" {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as(one, "lock", "release", fence)...); got.code != 6 || got.out != "" {
		t.Errorf("%+v", got)
	}
	if out := must0(t, as(one, "lock", "release", "--all")...); out != "nothing was held\n" {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as(one, "lock", "extend", fence)...); got.code != 6 {
		t.Errorf("extended what was released: %+v", got)
	}
	// The kept place has become a grant.
	if out := must0(t, as(two, "-o", "prompt", "lock", "acquire", "src/a.go")...); !strings.Contains(out, "Next: brokerctl --agent builder-2 lock release ") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, as(one, "lock", "revoke", "src/", "--reason", "x")...); got.code != 7 {
		t.Errorf("an agent forced: %+v", got)
	}
	if out := must0(t, "lock", "revoke", "src/", "--reason", "builder-2 hangs"); !strings.HasPrefix(out, "took src/a.go from builder-2, fence ") {
		t.Errorf("%s", out)
	}
	if mail := fields(t, as(two, "inbox", "--type", "lock_revoked")...); !strings.Contains(at(t, mail, "message", "subject").(string)+at(t, mail, "message", "payload", "reason").(string), "builder-2 hangs") {
		t.Errorf("%v", mail)
	}
}

func TestLock_ADeadlockIsExitCode5(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a", "b")
	must0(t, "--agent", "a", "lock", "acquire", "x")
	must0(t, "--agent", "b", "lock", "acquire", "y")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	waits := make(chan result, 1)
	go func() { waits <- t.invoke(ctx, "", nil, "--agent", "a", "lock", "acquire", "y", "--wait", "20s") }()
	awaitEvent(t, "lock.queued")
	if got := ctl(t, "--agent", "b", "lock", "acquire", "x", "--wait", "20s"); got.code != 5 || !strings.Contains(got.err, "would never end") {
		t.Errorf("%+v", got)
	}
	must0(t, "--agent", "b", "lock", "release", "--all")
	if got := <-waits; got.code != 0 {
		t.Errorf("%+v", got)
	}
}

// awaitEvent waits until an event of the type is in the log.
func awaitEvent(t *shell, kind string) {
	t.Helper()
	must0(t, "event", "follow", "--after", "0", "--type", kind, "--limit", "1")
}

// holdingRun starts a run on a script that writes to the pipe once it is ready.
func holdingRun(t *shell, command []string, script string) (signals chan os.Signal, ended <-chan result) {
	t.Helper()
	signals = make(chan os.Signal, 2)
	done, ready := make(chan result, 1), pipe(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	args := append(append([]string{"--agent", "builder-1"}, command...), "--", "sh", "-c", strings.ReplaceAll(script, "READY", "echo > "+ready))
	go func() { done <- t.invoke(ctx, "", signals, args...) }()
	await(t, ready)
	return signals, done
}

func TestLockRun_TheCommandHasTheLockWhileItRuns(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1/builder")
	got := ctl(t, "--agent", "builder-1", "lock", "run", "a b.go", "src/", "--", "sh", "-c", `echo "$BROKERD_LOCK_PATHS"; echo "$BROKERD_FENCE" "$BROKERD_HOLDER"; cat; `+
		asShell("")+`brokerctl() { `+asProgram+`=1 `+self(t)+` "$@"; }; brokerctl lock list -o json; brokerctl lock acquire other >/dev/null; exit 9`)
	if got.code != 9 {
		t.Fatalf("%+v", got)
	}
	lines := strings.Split(got.out, "\n")
	lock := decode(t, lines[3])
	if lines[0]+lines[1] != "a b.gosrc/" || lines[2] != at(t, lock, "fence").(json.Number).String()+" "+at(t, lock, "holder").(string) ||
		!strings.HasPrefix(at(t, lock, "holder").(string), "run-") || at(t, lock, "max_hold") != "30m" {
		t.Errorf("%s", got.out)
	}
	if out := must0(t, "lock", "list", "-o", "json"); out != "" {
		t.Errorf("still held: %s", out)
	}
}

// self is the program under test.
func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	apptest.NoError(t, err)
	return path
}

func TestLockRun_TwoUnderOneNameExcludeEachOther(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	signals, ended := holdingRun(t, []string{"lock", "run", "a.go"}, `trap 'exit 3' TERM; READY; while :; do sleep 0.01; done`)
	if got := ctl(t, "--agent", "builder-1", "lock", "run", "a.go", "--", "true"); got.code != 5 || !strings.Contains(got.err, "a.go is held by builder-1 (run-") {
		t.Errorf("busy: %+v", got)
	}
	if got := ctl(t, "--agent", "builder-1", "lock", "run", "a.go", "--wait", "20ms", "--", "true"); got.code != 4 {
		t.Errorf("waited: %+v", got)
	}
	if list := must0(t, "lock", "list", "-o", "json"); strings.Contains(list, "ticket") {
		t.Errorf("nobody waits: %s", list)
	}
	next := make(chan result, 1)
	go func() {
		next <- t.invoke(t.Context(), "", nil, "--agent", "builder-1", "lock", "run", "a.go", "--wait", "20s", "--", "echo", "mine")
	}()
	signals <- syscall.SIGTERM
	if got := <-ended; got.code != 3 {
		t.Errorf("%+v", got)
	}
	if got := <-next; got.code != 0 || got.out != "mine\n" {
		t.Errorf("%+v", got)
	}
}

func TestLockRun_ItsOwnFailureIsExitCode125(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	for _, args := range [][]string{
		{"--agent", "stranger", "lock", "run", "a", "--", "true"},
		{"--addr", "127.0.0.1:1", "--agent", "builder-1", "lock", "run", "a", "--", "true"},
	} {
		if got := ctl(t, args...); got.code != 125 {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := ctl(t, "--agent", "builder-1", "lock", "run", "a", "--timeout", "30ms", "--", "sleep", "60"); got.code != 124 {
		t.Errorf("%+v", got)
	}
	if out := must0(t, "lock", "list", "-o", "json"); out != "" {
		t.Errorf("still held: %s", out)
	}
}

func TestLockRun_ALostLockStopsTheCommandAtOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	for _, take := range [][]string{
		{"lock", "revoke", "a.go", "--reason", "builder-1 hangs"},
		{"--agent", "builder-1", "agent", "deregister"},
	} {
		register(t, "builder-1")
		_, ended := holdingRun(t, []string{"lock", "run", "a.go"}, `READY; exec sleep 1000`)
		must0(t, take...)
		if got := <-ended; got.code != 6 || !strings.Contains(got.err, "the lock on a.go was lost, and the command was stopped: ") {
			t.Errorf("%q: %+v", take, got)
		}
	}
}

func TestLockRun_AModelReadsWhyALockWasLostInAFrame(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	_, ended := holdingRun(t, []string{"-o", "prompt", "lock", "run", "a.go"}, `READY; exec sleep 1000`)
	must0(t, "lock", "revoke", "a.go", "--reason", hostileLine)
	got := <-ended
	if got.code != problem.ExitLost || !strings.HasPrefix(got.err, "brokerctl: the lock on a.go was lost, and the command was stopped\n=== ") {
		t.Errorf("%+v", got)
	}
	wantFramed(t, "lock run", got.err, true)
}

func TestLockRun_ACommandThatWillNotEndIsKilledInTime(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	_, ended := holdingRun(t, []string{"lock", "run", "a.go", "--for", "8s"},
		`trap '' TERM; READY; while :; do sleep 0.01; done`)
	began := time.Now()
	must0(t, "lock", "revoke", "a.go", "--reason", "builder-1 hangs")
	if got := <-ended; got.code != 6 {
		t.Errorf("%+v", got)
	}
	if took := time.Since(began); took >= supervise.KillAfter { // a command without a lock has this time
		t.Errorf("it was killed after %s", took)
	}
}

func TestLockRun_GivenBackByItsOwnAgentIsNotLost(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "builder-1")
	got := ctl(t, "--agent", "builder-1", "lock", "run", "a.go", "--", "sh", "-c",
		`brokerctl() { `+asProgram+`=1 `+self(t)+` "$@"; }; brokerctl lock release --all; exit 4`)
	if got.code != 4 {
		t.Errorf("%+v", got)
	}
}

// stoppableBroker runs a daemon that brokerctl finds by itself, and returns what stops it and what starts it again.
func stoppableBroker(t *shell) (stop, start func()) {
	t.Helper()
	dir := isolate(t)
	var running *app.App
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := running.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	start = func() {
		var err error
		if running, err = app.Start(t.Context(), app.Config{Dir: dir}); err != nil {
			t.Fatal(err)
		}
	}
	start()
	return stop, start
}

func TestLockRun_ABrokerThatIsAwayIsWaitedForUntilTheTimeIsOver(tt *testing.T) {
	t := newShell(tt)
	stop, start := stoppableBroker(t)
	register(t, "builder-1")
	_, ended := holdingRun(t, []string{"lock", "run", "a.go", "--for", "6s"}, `READY; exec sleep 1000`)
	stop()
	got := <-ended
	start()
	defer stop()
	if got.code != 6 || !strings.Contains(got.err, "the broker is away, and did not extend it in time") {
		t.Errorf("%+v", got)
	}
}

func TestLockRun_ABrokerThatComesBackInTimeCostsNothing(tt *testing.T) {
	t := newShell(tt)
	stop, start := stoppableBroker(t)
	register(t, "builder-1")
	goOn := pipe(t)
	_, ended := holdingRun(t, []string{"lock", "run", "a.go", "--for", "16s"}, `READY; cat `+goOn+`; exit 3`)
	stop()
	start()
	defer stop()
	awaitEvent(t, "lock.extended")
	apptest.NoError(t, os.WriteFile(goOn, []byte("on\n"), 0o600))
	if got := <-ended; got.code != 3 {
		t.Errorf("%+v", got)
	}
	if out := must0(t, "lock", "list", "-o", "json"); out != "" {
		t.Errorf("still held: %s", out)
	}
}
