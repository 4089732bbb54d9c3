package main

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// asProgram makes the test binary run brokerctl itself, for tests that need a process of their own.
const asProgram = "BROKERCTL_TEST_AS_PROGRAM"

// asDaemon makes the test binary run a daemon on the folder that it names, for tests that need its
// process.
const asDaemon = "BROKERCTL_TEST_AS_DAEMON"

// patience bounds what should come at once.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	if dir := os.Getenv(asDaemon); dir != "" {
		ready := func(app.Daemon) { _, _ = os.Stdout.WriteString("ready\n") }
		if err := app.Run(context.Background(), app.Config{Dir: dir}, ready); err != nil {
			panic(err)
		}
		return
	}
	// A shell ignores SIGINT in what it starts in the background. The commands of the tests must not inherit that.
	if signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	goleak.VerifyTestMain(postgrestest.Tests{M: m})
}

// startBroker runs a daemon that brokerctl finds by itself. At the end its database must be sound.
func startBroker(t *shell) {
	t.Helper()
	startBrokerWith(t, func(*app.Config) {})
}

// startBrokerWith is startBroker for a daemon that runs otherwise.
func startBrokerWith(t *shell, change func(*app.Config)) {
	t.Helper()
	config := app.Config{Dir: isolate(t), Sync: "normal"} // as in apptest
	change(&config)
	found := &shell{T: t.T, variables: maps.Clone(t.variables), dir: "/"} // as the broker is found, whatever the test changes
	a, err := app.Start(t.Context(), config)
	apptest.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if got := found.invoke(ctx, "", nil, "admin", "check"); got.code != 0 {
			t.Errorf("admin check: %+v", got)
		}
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

// result is what one run of brokerctl left.
type result struct {
	code     int
	out, err string
}

// ctl runs brokerctl and returns what it left, whatever that is.
func ctl(t *shell, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return t.invoke(ctx, "", nil, args...)
}

// must0 runs brokerctl, wants success, and returns its output.
func must0(t *shell, args ...string) string {
	t.Helper()
	got := ctl(t, args...)
	if got.code != 0 {
		t.Fatalf("brokerctl %q: exit code %d, %s", args, got.code, got.err)
	}
	return got.out
}

// recently replaces every age of some seconds by "now": a busy machine may take seconds between a change and
// the command that shows it.
func recently(text string) string {
	return regexp.MustCompile(`\b[0-9]+s ago\b`).ReplaceAllString(text, "now")
}

// fields runs brokerctl -o json and returns the first line it prints, numbers as they are written.
func fields(t *shell, args ...string) map[string]any {
	t.Helper()
	return decode(t, must0(t, append([]string{"-o", "json"}, args...)...))
}

func decode(t testing.TB, line string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%q is no JSON object: %v", line, err)
	}
	return m
}

// at walks into decoded JSON: keys of objects, and numbers of items.
func at(t testing.TB, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("no object at %v in %v: %v", step, path, v)
			}
			if v, ok = m[step]; !ok {
				t.Fatalf("no field %q in %v", step, m)
			}
		case int:
			l, ok := v.([]any)
			if !ok || step >= len(l) {
				t.Fatalf("no item %d in %v", step, v)
			}
			v = l[step]
		}
	}
	return v
}

// register registers agents, each as NAME or NAME/ROLE.
func register(t *shell, agents ...string) {
	t.Helper()
	for _, a := range agents {
		args := []string{"agent", "register"}
		name, role, hasRole := strings.Cut(a, "/")
		if args = append(args, name); hasRole {
			args = append(args, "--role", role)
		}
		must0(t, args...)
	}
}

// sent sends a message and returns its revision.
func sent(t *shell, args ...string) string {
	t.Helper()
	return at(t, fields(t, append([]string{"send"}, args...)...), "revision").(json.Number).String()
}

// delivery returns the state of a message's only delivery.
func delivery(t *shell, id string) map[string]any {
	t.Helper()
	return at(t, fields(t, "message", "get", id), "deliveries", 0).(map[string]any)
}

// testMark is the mark of every text for a language model in these tests.
func testMark() string { return "c0ffee00" }
