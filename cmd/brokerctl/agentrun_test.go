package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"brokerd/internal/apptest"
)

func TestAgentRun_ReportsBecomeCallsAndTheRestPassesThrough(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	t.Setenv("BROKERD_INCARNATION", "99") // of whoever called
	seen := pipe(t)
	script := `echo building
echo '{"type":"status","status":"active","activity":"running tests","progress":0.4,"task_id":"t1","counters":{"turns":3},"last_tool":"go","last_file":"a.go"}'
echo '{"type":"other","path":"out.bin"}'
echo ' {"type":"status","status":"lazy"}'
printf '{"not json'; echo
until brokerctl_get | grep -q '"activity":"running tests"'; do sleep 0.02; done
brokerctl_get > ` + seen + `
echo '{"type":"dependency","on":"builder-2","reason":"the schema","blocked":true}'
echo '{"type":"complete","summary":"Login works","result":{"branch":"login"},"task_id":"t1","to":"lead"}'
printf end; exit 3`
	done := make(chan result, 1)
	go func() {
		done <- t.invoke(t.Context(), "", nil, "agent", "run", "--agent", "builder-1", "--role", "builder", "--deregister", "--", "sh", "-c", asShell(script))
	}()
	shown, err := os.ReadFile(seen)
	apptest.NoError(t, err)
	agent := at(t, decode(t, string(shown)), "agent").(map[string]any)
	for field, want := range map[string]any{
		"status": "active", "task_id": "t1", "progress": json.Number("0.4"), "role": "builder", "lease": "1m30s", "incarnation": json.Number("1"),
	} {
		if agent[field] != want {
			t.Errorf("%s is %v, want %v", field, agent[field], want)
		}
	}
	got := <-done
	t.Setenv("BROKERD_INCARNATION", "")
	want := "building\n{\"type\":\"other\",\"path\":\"out.bin\"}\n {\"type\":\"status\",\"status\":\"lazy\"}\n{\"not json\nend"
	if got.code != 3 || got.out != want || !strings.Contains(got.err, `"lazy" is none of initializing, `) {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "agent", "get", "builder-1"); got.code != 3 {
		t.Errorf("it is still registered: %+v", got)
	}
	mail := fields(t, "--agent", "lead", "inbox")
	if at(t, mail, "message", "subject") != "Login works" || at(t, mail, "message", "payload", "branch") != "login" || at(t, mail, "message", "type") != "work_completed" {
		t.Errorf("the lead got %v", mail)
	}
	event := fields(t, "event", "list", "--type", "work.completed")
	if at(t, event, "source") != "builder-1" || at(t, event, "details", "result", "branch") != "login" || at(t, event, "task_id") != "t1" {
		t.Errorf("the event is %v", event)
	}
	statuses := must0(t, "event", "list", "--type", "agent.status", "-o", "json")
	if i, j := strings.Index(statuses, "blocked by builder-2: the schema"), strings.Index(statuses, "Login works"); i < 0 || j < i {
		t.Errorf("the statuses were %s", statuses)
	}
}

// The four lines of earlier tools work as they are.
func TestAgentRun_LinesOfEarlierToolsWorkLiterally(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "agent_researcher_001/researcher", "lead/lead")
	must0(t, "--agent", "lead", "channel", "subscribe", "event/artifact_shared")
	t.Chdir(t.TempDir())
	path := filepath.Join("shared", "context", "architecture")
	apptest.NoError(t, os.MkdirAll(t.path(path), 0o700))
	apptest.NoError(t, os.WriteFile(filepath.Join(t.path(path), "api-spec.yaml"), []byte("openapi: 3.1.0\n"), 0o600))
	seen, resume := pipe(t), pipe(t)
	script := `cat <<'LINES'
{"type": "status", "message": "Starting API design", "progress": 0.1}
{"type": "artifact", "path": "shared/context/architecture/api-spec.yaml", "description": "REST API specification"}
{"type": "artifact", "path": "missing.yaml"}
{"type": "dependency", "waiting_for": "agent_researcher_001", "reason": "Need database recommendations"}
{"type": "dependency", "waiting_for": "agent_researcher_001", "reason": "Need database recommendations"}
LINES
until brokerctl_get | grep -q '"status":"waiting"'; do sleep 0.02; done
brokerctl_get > ` + seen + `
cat ` + resume + `
cat <<'LINES'
{"type": "complete", "result": "success", "outputs": ["api-spec.yaml", "system-design.md"]}
LINES`
	done := make(chan result, 1)
	go func() {
		done <- t.invoke(t.Context(), "", nil, "agent", "run", "--agent", "architect", "--role", "architect", "--", "sh", "-c", asShell(script))
	}()
	shown, err := os.ReadFile(seen)
	apptest.NoError(t, err)
	agent := decode(t, string(shown))
	if at(t, agent, "agent", "activity") != "waiting for agent_researcher_001: Need database recommendations" || at(t, agent, "agent", "progress") != json.Number("0.1") {
		t.Errorf("%v", agent)
	}
	if got := must0(t, "artifact", "download", "shared/context/architecture/api-spec.yaml", "--to", "-"); got != "openapi: 3.1.0\n" {
		t.Errorf("%q", got)
	}
	if got := fields(t, "artifact", "get", "shared/context/architecture/api-spec.yaml"); at(t, got, "artifact", "description") != "REST API specification" || at(t, got, "artifact", "author") != "architect" {
		t.Errorf("%v", got)
	}
	if got := fields(t, "--agent", "lead", "inbox"); at(t, got, "message", "payload", "type") != "artifact_shared" {
		t.Errorf("the lead got %v", got)
	}
	var blocker map[string]any
	for deadline := time.Now().Add(patience); blocker == nil; { // the heartbeat comes before the blocker
		if got := must0(t, "blocker", "list", "-o", "json"); strings.Count(got, "\n") == 1 {
			blocker = decode(t, got)
		} else if time.Now().After(deadline) {
			t.Fatalf("the blockers are %q", got)
		}
	}
	if at(t, blocker, "agent") != "architect" || at(t, blocker, "reason") != "Need database recommendations" || at(t, blocker, "awaited", "agent") != "agent_researcher_001" {
		t.Errorf("%v", blocker)
	}
	must0(t, "--agent", "agent_researcher_001", "agent", "heartbeat", "--status", "completed")
	if got := ctl(t, "blocker", "list", "-o", "json"); got.out != "" {
		t.Errorf("the blocker is still open: %s", got.out)
	}
	apptest.NoError(t, os.WriteFile(resume, []byte("go\n"), 0o600))
	got := <-done
	if got.code != 0 || got.out != "go\n" || !strings.Contains(got.err, "the artifact is not uploaded: open missing.yaml") {
		t.Errorf("%+v", got)
	}
	full := fields(t, "agent", "get", "architect", "--full")
	if at(t, full, "agent", "status") != "completed" || at(t, full, "checkpoints", 0, "data", "result") != "success" || at(t, full, "checkpoints", 0, "data", "outputs", 1) != "system-design.md" {
		t.Errorf("%v", full)
	}
}

// asShell gives a script a way to look at its own agent.
func asShell(script string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return "brokerctl_get() { " + asProgram + "=1 " + self + " agent get -o json; }\n" + script
}

// running starts agent run on a script that writes to the pipe once it is ready.
func running(t *shell, script string, flags ...string) (signals chan os.Signal, ended <-chan result) {
	t.Helper()
	signals = make(chan os.Signal, 2)
	done, ready := make(chan result, 1), pipe(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	args := append(append([]string{"agent", "run", "--agent", "builder-1"}, flags...), "--", "sh", "-c", strings.ReplaceAll(script, "READY", "echo > "+ready))
	go func() { done <- t.invoke(ctx, "", signals, args...) }()
	await(t, ready)
	return signals, done
}

func TestAgentRun_RegisteringElsewhereStopsTheProgram(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	_, ended := running(t, `READY; exec sleep 60`, "--lease", "6s", "-o", "prompt")
	register(t, "builder-1")
	if got := <-ended; got.code != 6 || !strings.Contains(got.err, "the agent was lost, and the program was stopped\n=== ") {
		t.Errorf("%+v", got)
	}
	if got := fields(t, "agent", "get", "builder-1"); at(t, got, "agent", "incarnation") != json.Number("2") {
		t.Errorf("the newer registration was ended too: %v", got)
	}
}

func TestAgentRun_BeatsAndPassesSignalsOn(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	signals, ended := running(t, `trap 'exit 7' INT; READY; while :; do sleep 0.01; done`, "--lease", "6s")
	deadline, pause := time.Now().Add(patience), time.NewTicker(100*time.Millisecond)
	defer pause.Stop()
	for ; ; <-pause.C { // the first beat, of which no event tells
		got := fields(t, "agent", "get", "builder-1")
		seen, err1 := time.Parse(time.RFC3339, at(t, got, "agent", "last_seen").(string))
		registered, err2 := time.Parse(time.RFC3339, at(t, got, "agent", "registered_at").(string))
		if err := errors.Join(err1, err2); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v: %v", err, got)
		}
		if seen.Sub(registered) > time.Second {
			break
		}
	}
	signals <- os.Interrupt
	if got := <-ended; got.code != 7 {
		t.Errorf("%+v", got)
	}
	must0(t, "agent", "get", "builder-1")
}

func TestAgentRun_ItsOwnFailureIsExitCode125(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	for _, args := range [][]string{
		{"agent", "run", "--agent", "all", "--", "true"},
		{"--addr", "127.0.0.1:1", "agent", "run", "--agent", "builder-1", "--", "true"},
	} {
		if got := ctl(t, args...); got.code != 125 {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := ctl(t, "agent", "run", "--", "true"); got.code != 2 || !strings.Contains(got.err, "give --agent NAME") {
		t.Errorf("%+v", got)
	}
}

func TestAgentRun_ReportsWaitForABrokerThatIsAway(tt *testing.T) {
	t := newShell(tt)
	stop, start := stoppableBroker(t)
	goOn, reported := pipe(t), pipe(t)
	_, ended := running(t, `READY; cat `+goOn+`
echo '{"type":"complete","summary":"all done"}'; echo > `+reported+`
cat `+goOn)
	resume := func() {
		t.Helper()
		apptest.NoError(t, os.WriteFile(goOn, nil, 0o600))
	}
	stop()
	resume()
	await(t, reported)
	start()
	defer stop()
	awaitEvent(t, "work.completed") // only then the program ends: its reports wait for 5 s beyond its end
	resume()
	if got := <-ended; got.code != 0 || got.out != "" {
		t.Errorf("%+v", got)
	}
	if e := fields(t, "event", "list", "--type", "work.completed"); at(t, e, "summary") != "all done" {
		t.Errorf("%v", e)
	}
	if got := fields(t, "agent", "get", "builder-1"); at(t, got, "agent", "status") != "completed" || at(t, got, "agent", "completed_at") == nil {
		t.Errorf("afterwards: %v", got)
	}
}

func TestAgentRun_KeepsTheAgentAndItsMailUnlessToldToDeregister(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	must0(t, "agent", "run", "--agent", "builder-1", "--", "true")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	must0(t, "agent", "run", "--agent", "builder-1", "--", "true")
	mail := fields(t, "--agent", "builder-1", "inbox")
	if at(t, mail, "message", "subject") != "Add login" || at(t, mail, "delivery", "state") != "pending" {
		t.Errorf("its mail is %v", mail)
	}
	must0(t, "agent", "run", "--agent", "builder-1", "--deregister", "--", "true")
	if got := ctl(t, "agent", "get", "builder-1"); got.code != 3 {
		t.Errorf("it is still registered: %+v", got)
	}
}

func TestRun_TheCommandsEnvironmentNamesRoleDataFolderAndRoot(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	apptest.NoError(t, err)
	t.Chdir(root) // which is no repository, so it is the root
	t.Setenv("BROKERD_ROLE", "of the caller")
	register(t, "lead/lead", "plain")
	for who, role := range map[string]string{"lead": "lead", "plain": ""} {
		sent(t, who, "Go")
		for name, run := range map[string][]string{
			"agent run": {"agent", "run", "--agent", who},
			"lock run":  {"--agent", who, "lock", "run", "a.go"},
			"token run": {"--agent", who, "token", "run", "review", "x"},
			"work":      {"--agent", who, "work", "--once"},
		} {
			out := must0(t, append(run, "--", "sh", "-c", `cat > /dev/null; echo "$BROKERD_ROLE|$BROKERD_DATA|$BROKERD_ROOT"`)...)
			if want := role + "|" + t.Getenv("BROKERD_DATA") + "|" + root + "\n"; out != want {
				t.Errorf("%s as %s: %q, want %q", name, who, out, want)
			}
		}
	}
}

func TestAgent_KeepsItsRoleAndCapabilities(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	configure(t, `agents:
  gemini-1: {role: reviewer, capabilities: "go, sql", labels: "team=web, area=ui"}
`)
	must0(t, "agent", "register", "zed", "--role", "critic", "--capability", "x", "--label", "team=web")
	must0(t, "agent", "run", "--agent", "zed", "--", "true")
	must0(t, "agent", "register", "zed")
	got := at(t, fields(t, "agent", "get", "zed"), "agent")
	if at(t, got, "role") != "critic" || at(t, got, "capabilities", 0) != "x" || at(t, got, "labels", "team") != "web" {
		t.Errorf("%v", got)
	}
	must0(t, "agent", "register", "zed", "--replace")
	if got := at(t, fields(t, "agent", "get", "zed"), "agent"); at(t, got, "role") != "" {
		t.Errorf("%v", got)
	}
	must0(t, "agent", "run", "--agent", "gemini-1", "--", "true")
	if got := at(t, fields(t, "agent", "get", "gemini-1"), "agent"); at(t, got, "role") != "reviewer" {
		t.Errorf("the role of the file: %v", got)
	} else if at(t, got, "capabilities", 1) != "sql" || at(t, got, "labels", "area") != "ui" {
		t.Errorf("capabilities and labels of the file: %v", got)
	}
	must0(t, "agent", "register", "gemini-1", "--capability", "rust", "--label", "area=api")
	got = at(t, fields(t, "agent", "get", "gemini-1"), "agent")
	if at(t, got, "capabilities", 0) != "rust" || at(t, got, "labels", "area") != "api" || at(t, got, "labels", "team") != "web" {
		t.Errorf("flags beside the file: %v", got)
	}
}
