package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"brokerd/cmd/brokerctl/internal/setting"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

// idOf returns the first match of a pattern in a text.
func idOf(t testing.TB, pattern, text string) string {
	t.Helper()
	id := regexp.MustCompile(pattern).FindString(text)
	if id == "" {
		t.Fatalf("no %s in %s", pattern, text)
	}
	return id
}

func TestMCP_TwoAgentsWorkTogetherWithoutAShell(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	lead := startModel(t, "--agent", "lead", "--role", "lead")
	builder := startModel(t, "--agent", "builder-1", "--role", "builder")
	builder.call("turn", `{}`, "nothing to claim")
	lead.call("task",
		`{"action":"create","id":"schema","title":"Write the schema","role":"builder","text":"A table of users"}`,
		"created schema, ready")
	lead.call("task", `{"action":"create","id":"api","title":"Write the API","role":"builder","depends_on":"schema"}`,
		"created api, waiting")
	builder.call("turn", `{"wait":30}`, "task schema: attempt 1 of 3", "A table of users",
		`settle {"id":"schema","text":"RESULT"} when done`,
		`task {"action":"block","id":"schema","text":"REASON"}`)
	builder.call("lock", `{"action":"acquire","paths":"schema.sql"}`, "locked schema.sql",
		`lock {"action":"release","paths":["`)
	lead.refused("lock", `{"action":"acquire","paths":["schema.sql"]}`, "schema.sql is held by builder-1",
		`the same call with "wait":50 waits for it`)
	lead.call("lock", `{"action":"list"}`, "owner builder-1")
	builder.call("lock", `{"action":"extend","paths":"schema.sql","for":"1h"}`, "extended")
	builder.call("lock", `{"action":"release","paths":"all"}`, "released 1 path")
	builder.call("task", `{"action":"update","progress":0.5,"text":"half"}`, "updated schema")
	lead.call("task", `{"action":"list","state":["claimed"]}`, "schema claimed, builder-1", "half")
	builder.call("settle", `{"text":"See schema.sql","next":30}`, "completed schema; now ready: api",
		"Title: Write the API")
	builder.call("settle", `{}`, "completed api")
	lead.call("task", `{"action":"show","id":"schema"}`, "See schema.sql")

	var asking sync.WaitGroup
	asking.Go(func() {
		lead.call("send", `{"to":"builder-1","text":"How far?","ask":50}`, "Nearly done")
	})
	builder.call("turn", `{"wait":50}`, "Subject: How far?", "an answer is due")
	builder.call("settle", `{"text":"Nearly done"}`, "the waiting call of the asker received it")
	asking.Wait()
	builder.call("send",
		`{"to":"lead","subject":"News","text":"Two tables","data":{"tables":2},"files":["a.go:3"],`+
			`"priority":"high","type":"progress_update"}`, "sent ")
	news := lead.call("turn", `{}`, "progress_update from builder-1 (builder) to lead", "Two tables", `{"tables":2}`,
		"Files: a.go:3")
	lead.call("turn", `{"read":"inbox"}`, "Two tables")
	lead.call("turn", `{"read":`+strings.TrimPrefix(idOf(t, `message [0-9]+`, news), "message ")+`}`, "Two tables")
	lead.call("settle", `{"as":"release","next":0}`, "released ", "Two tables")
	lead.call("settle", `{"as":"extend"}`, "extended")
	lead.call("settle", `{"as":"fail","text":"unclear","final":true}`, "now a dead letter")
}

func TestMCP_DecisionsNeedNoShell(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	lead := startModel(t, "--agent", "lead", "--role", "lead")
	builder := startModel(t, "--agent", "builder-1", "--role", "builder")
	lead.call("turn", `{}`)
	answer := func(id, verdict, text string) {
		lead.call("decide", `{"action":"answer","id":"`+id+`","answer":"`+verdict+`","text":"`+text+`"}`)
	}
	review := idOf(t, `d-[0-9]+`, builder.call("decide",
		`{"action":"review","about":"login","to":"lead","text":"See the diff"}`, `decide {"action":"show"`))
	lead.call("turn", `{}`, "See the diff",
		`Next: decide {"action":"answer","id":"`+review+`","answer":"approve"} or "revise" or "reject"`)
	answer(review, "revise", "Add tests")
	builder.call("decide", `{"action":"show","id":"`+review+`"}`, "Add tests",
		`decide {"action":"resubmit","id":"d-4","text":"TEXT"}`)
	builder.call("decide", `{"action":"review","about":"login","text":"With tests"}`, "round 2")
	answer(review, "approve", "Good")
	plan := idOf(t, `d-[0-9]+`, builder.call("decide",
		`{"action":"plan","about":"search","to":"lead","text":"Three steps"}`))
	answer(plan, "reject", "Too much")
	question := idOf(t, `d-[0-9]+`, builder.call("decide",
		`{"action":"question","to":"lead","about":"Which database?","options":["sqlite","postgres"]}`))
	answer(question, "sqlite", "One file")
	builder.call("decide", `{"action":"show","id":"`+question+`","wait":30}`, "sqlite", "One file")
	vote := idOf(t, `v-[0-9]+`, builder.call("decide", `{"action":"vote","about":"Name?","options":["x","y"]}`,
		"2 electors"))
	answer(vote, "y", "short")
	builder.call("decide", `{"action":"answer","id":"`+vote+`","answer":"y"}`)
	builder.call("decide", `{"action":"show","id":"`+vote+`"}`, "closed")
	blocker := idOf(t, `b-[0-9]+`, builder.call("decide", `{"action":"blocker","text":"No access","on":"lead"}`,
		"notified role:lead"))
	lead.call("turn", `{}`, `decide {"action":"answer","id":"`+blocker+`","answer":"ack"}`)
	answer(blocker, "resolve", "Granted")
	builder.call("task", `{"action":"create","id":"page","title":"Login page"}`)
	builder.call("task", `{"action":"claim","id":"page"}`)
	handoff := idOf(t, `h-[0-9]+`, builder.call("decide",
		`{"action":"handoff","to":"lead","about":"Login page","task":"page","text":"Only CSS is left"}`))
	answer(handoff, "accept", "Mine")
	lead.call("settle", `{"id":"page","text":"Done"}`, "completed page")
	shutdown := idOf(t, `d-[0-9]+`, lead.call("decide", `{"action":"shutdown","to":"builder-1","text":"We are done"}`))
	builder.call("turn", `{}`, "We are done",
		`decide {"action":"answer","id":"`+shutdown+`","answer":"defer","wait":1800}`)
	builder.call("decide", `{"action":"answer","id":"`+shutdown+`","answer":"defer","wait":600}`)
}

func TestMCP_StateTasksAndTheTeamNeedNoShell(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	m := startModel(t, "--agent", "lead", "--role", "lead")
	revision := idOf(t, `[0-9]+$`, m.call("state", `{"action":"put","key":"step","value":3}`,
		"put step, version 1, revision "))
	m.call("state", `{"action":"put","key":"step","value":{"n":4},"revision":"`+revision+`"}`, "version 2")
	m.refused("state", `{"action":"put","key":"step","value":5,"revision":`+revision+`}`, "step")
	m.call("state", `{"action":"get","key":"step"}`, "json", `{"n":4}`)
	m.call("state", `{"action":"append","key":"notes","value":"@home is a word"}`, "added entry 1")
	m.call("state", `{"action":"get","key":"notes"}`, "@home is a word")
	m.call("state", `{"action":"list"}`, "step", "notes")
	m.call("state", `{"action":"delete","key":"step"}`)
	m.call("task", `{"action":"create","id":"a","title":"-x is a flag","priority":"high"}`)
	m.call("task", `{"action":"claim"}`, "Title: -x is a flag")
	m.call("task", `{"action":"block","text":"no key"}`, "blocked a")
	m.call("task", `{"action":"unblock"}`, "unblocked a")
	m.call("task", `{"action":"fail","text":"no"}`, "failed a, attempt 1")
	m.call("task", `{"action":"cancel","id":"a","text":"no need"}`, "cancelled a")
	m.call("task", `{"action":"create","id":"b","title":"B","assignee":"lead"}`)
	m.call("task", `{"action":"decline","id":"b","text":"no time"}`, "declined b")
	m.call("task", `{"action":"create","id":"c","title":"C"}`)
	m.call("task", `{"action":"wait","id":"c","wait":0.01}`, "not done within")
	m.call("task", `{"action":"claim","id":"c"}`)
	m.call("task", `{"action":"complete"}`, "completed c")
	m.call("task", `{"action":"wait","id":["c"]}`, "c")
	m.refused("task", `{"action":"retry","id":"c"}`, "c")
	m.call("team", `{"action":"status","text":"plans the work"}`)
	m.call("team", ``, "agent lead, role lead", "plans the work")
	m.call("team", `{"about":"task c"}`, "task c")
	m.call("team", `{"action":"explain"}`, "nothing that concerns lead is stuck")
	register(t, "builder-1/builder")
	for _, action := range []string{"nudge", "halt", "resume"} {
		m.call("team", `{"action":"`+action+`","to":"builder-1","text":"please"}`, "sent ")
	}
	must0(t, "--agent", "", "agent", "terminate", "lead")
	m.call("turn", `{}`, `deregister with team {"action":"leave"}, and stop`)
	m.call("team", `{"action":"leave","text":"done"}`, "deregistered lead")
	m.refused("turn", `{}`, `you have left; team {"action":"join"}`)
	m.call("team", `{"action":"join"}`, "You are the agent lead (lead)")
}

func TestMCP_AnArtifactIsReadWithoutAShell(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	file := filepath.Join(t.TempDir(), "plan.md")
	apptest.NoError(t, os.WriteFile(file, []byte("three steps"), 0o600))
	register(t, "lead")
	must0(t, "--agent", "lead", "artifact", "upload", file, "plan.md")
	m := startModel(t, "--agent", "builder-1")
	awaitRegistered(t, "builder-1")
	sent(t, "--agent", "lead", "builder-1", "The plan", "--artifact", "plan.md")
	m.call("turn", `{}`, `Artifacts (turn {"artifact":"NAME"}): plan.md`)
	m.call("turn", `{"artifact":"plan.md"}`, "three steps")
}

func TestMCP_ServersOnOneMachineHaveDifferentNames(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	folder := func() string {
		dir := filepath.Join(t.TempDir(), "My Web")
		apptest.NoError(t, os.Mkdir(dir, 0o700))
		return dir
	}
	here, elsewhere := folder(), folder()
	first := startModelIn(t, here)
	first.call("turn", `{}`, "You are the agent my-web in")
	second := startModelIn(t, here)
	second.call("turn", `{}`, "You are the agent my-web-2 in", "Another coding agent on this machine has the name my-web.")
	first.end()
	third := startModelIn(t, here)
	third.call("turn", `{}`, "You are the agent my-web in")
	third.end()
	startModelIn(t, elsewhere).call("turn", `{}`, "You are the agent my-web-3 in")
	startModelIn(t, elsewhere, "--agent", "builder-1").call("turn", `{}`, "You are the agent builder-1 in")
	startModelIn(t, here, "--agent", "builder-1").call("turn", `{}`, "You are the agent builder-1-2 in")
}

func TestMCP_AnAgentThatAnotherProcessHasRegisteredStops(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	m := startModel(t, "--agent", "builder-1", "--role", "builder")
	m.call("turn", `{}`, "nothing to claim")
	must0(t, "--agent", "", "agent", "deregister", "builder-1")
	m.call("turn", `{}`, "You are the agent builder-1 (builder)", "nothing to claim") // no other server has the name
	register(t, "builder-1/critic")
	m.refused("turn", `{}`, "another process has registered as builder-1", `take it back: team {"action":"join"}`)
	m.refused("settle", `{}`, "another process has registered as builder-1")
	m.call("team", `{"action":"join"}`, "You are the agent builder-1 (builder)")
	m.call("turn", `{}`, "nothing to claim")
}

func TestMCP_AnAgentWhoseLeaseHasEndedReturns(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead")
	m := startModel(t, "--agent", "builder-1", "--lease", "3s")
	awaitRegistered(t, "builder-1")
	sent(t, "--agent", "lead", "builder-1", "Look")
	m.call("turn", `{}`, "Subject: Look")
	apptest.NoError(t, m.server.Process.Signal(syscall.SIGSTOP))
	must0(t, "--agent", "", "event", "follow", "--type", "agent_failed", "--after", "0", "--limit", "1")
	apptest.NoError(t, m.server.Process.Signal(syscall.SIGCONT))
	if text := m.call("turn", `{"wait":30}`); !regexp.MustCompile(`(?i)lost.*: claim`).MatchString(text) {
		t.Errorf("%s", text)
	}
}

func TestMCP_TheServerDeregistersOnlyOnRequest(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	for _, flag := range []string{"--deregister=false", "--deregister"} {
		m := startModel(t, "--agent", "builder-1", flag)
		m.call("turn", `{}`, "nothing to claim")
		m.end()
		if m.server.ProcessState == nil || !m.server.ProcessState.Success() {
			t.Errorf("%s: the server ended with %v", flag, m.server.ProcessState)
		}
		want := map[string]int{"--deregister=false": 0, "--deregister": 3}[flag]
		if got := ctl(t, "agent", "get", "builder-1"); got.code != want {
			t.Errorf("%s: %+v", flag, got)
		}
	}
}

func TestMCP_AClientThatCallsNoToolLeavesNoAgent(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead")
	startModel(t, "--agent", "builder-1").end()
	if got := ctl(t, "agent", "get", "builder-1"); got.code != 3 {
		t.Errorf("%+v", got)
	}
	m := startModel(t, "--agent", "builder-1")
	awaitRegistered(t, "builder-1")
	sent(t, "--agent", "lead", "builder-1", "Look")
	m.end()
	must0(t, "agent", "get", "builder-1")
	startModel(t, "--agent", "lead").end()
	must0(t, "agent", "get", "lead")
}

func TestMCP_ACancelledWaitLosesNoMessage(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "lead")
	m := startModel(t, "--agent", "builder-1")
	m.call("turn", `{}`, "nothing to claim")
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		waiting.Go(func() {
			params := &mcp.CallToolParams{Name: "turn", Arguments: map[string]any{"wait": 50}}
			if _, err := m.session.CallTool(ctx, params); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
		id := sent(t, "--agent", "lead", "builder-1", "Look")
		cancel()
		waiting.Wait()
		m.call("turn", `{"wait":30}`, "message "+id+":", "attempt 1 of 3")
		m.call("settle", `{}`, "acked")
	}
}

func TestMCP_TheServerOutlivesTheBroker(tt *testing.T) {
	t := newShell(tt)
	d := processtest.New(t, processtest.Build(t))
	isolate(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("BROKERD_DATA", d.Dir())
	start := func() {
		t.Helper()
		apptest.NoError(t, d.Start(t.Context()))
	}
	m := startModel(t, "--agent", "builder-1")
	m.refused("turn", `{}`, "no broker is running at "+d.Dir(), "start one with `brokerctl up`")
	start()
	register(t, "lead")
	m.call("turn", `{}`, "You are the agent builder-1")

	var waiting sync.WaitGroup
	waiting.Go(func() { m.call("turn", `{"wait":50}`, "Subject: Look") })
	d.Kill()
	start()
	id := sent(t, "--agent", "lead", "builder-1", "Look")
	waiting.Wait()
	d.Kill()
	waiting.Go(func() { m.call("settle", `{"id":"`+id+`","text":"Done"}`, "acked the message that was answered") })
	start()
	waiting.Wait()
	if got := fields(t, "--agent", "lead", "inbox"); at(t, got, "message", "body") != "Done" {
		t.Errorf("%v", got)
	}
	if got := ctl(t, "--agent", "lead", "inbox", "-o", "json"); strings.Count(got.out, "\n") != 1 {
		t.Errorf("the answer came more than once: %s", got.out)
	}
	apptest.NoError(t, d.Signal(syscall.SIGTERM))
}

func TestMCP_TheFileOfTheFolderNamesTheAgents(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	settings := "agents:\n  builder-1: {role: builder}\n  critic-1: {role: critic}\n"
	apptest.NoError(t, os.WriteFile(t.path(setting.ConfigFile), []byte(settings), 0o600))
	startModel(t).call("turn", `{}`, "You are the agent builder-1 (builder)")
	startModel(t).call("turn", `{}`, "You are the agent critic-1 (critic)",
		"Another coding agent on this machine has the name builder-1.")
}

func TestMCP_AnAgentThatItsParentHasRegisteredStaysAsItIs(tt *testing.T) {
	t := newShell(tt)
	startTeam(t)
	register(t, "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	t.Setenv("BROKERD_INCARNATION", "1")
	startModel(t).call("turn", `{}`, "nothing to claim")
	if got := fields(t, "agent", "get"); at(t, got, "agent", "incarnation") != json.Number("1") ||
		at(t, got, "agent", "role") != "builder" {
		t.Errorf("%v", got)
	}
}
