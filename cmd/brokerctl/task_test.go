package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"brokerd/cmd/brokerctl/work"
	"brokerd/internal/apptest"
)

// planned creates the tasks of a plan and returns their lines.
func planned(t *shell, plan string) []string {
	t.Helper()
	got := t.invoke(t.Context(), plan, nil, "--agent", "lead", "task", "create", "-f", "-")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	return strings.Split(strings.TrimSpace(got.out), "\n")
}

// taskState returns the state of a task.
func taskState(t *shell, id string) any {
	t.Helper()
	return at(t, fields(t, "--agent", "", "task", "get", id), "task", "state")
}

const smallPlan = `
tasks:
- {id: schema, title: Write the schema, role: builder}
- {id: api, title: Write the API, depends_on: [schema], priority: high}
`

func TestTask_FromItsCreationToItsEnd(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	if lines := planned(t, smallPlan); lines[0] != "created schema, ready" || lines[1] != "created api, waiting" {
		t.Errorf("%q", lines)
	}
	got := fields(t, "--agent", "lead", "task", "create", "Test it", "--depends-on", "api,schema", "--assignee", "builder-1", "--label", "area=api",
		"--description", "All of it.", "--capability", "go", "--max-attempts", "5", "--stale-after", "30m", "--parent", "api", "--artifact", "spec")
	id := at(t, got, "tasks", 0, "id").(string)
	task := at(t, fields(t, "task", "get", id, "--full"), "task")
	for _, c := range []struct {
		want any
		path []any
	}{
		{"Test it", []any{"title"}}, {"All of it.", []any{"description"}}, {"builder-1", []any{"assignee"}}, {"api", []any{"labels", "area"}},
		{"go", []any{"capabilities", 0}}, {"api", []any{"depends_on", 0}}, {"schema", []any{"depends_on", 1}}, {"api", []any{"parent"}},
		{json.Number("5"), []any{"max_attempts"}}, {"30m", []any{"stale_after"}}, {"spec", []any{"artifacts", 0}},
		{json.Number("5"), []any{"priority"}}, {"waiting", []any{"state"}}, {"lead", []any{"creator"}},
	} {
		if got := at(t, task, c.path...); got != c.want {
			t.Errorf("%v is %v, want %v", c.path, got, c.want)
		}
	}
	if out := must0(t, "task", "claim"); !strings.Contains(out, "\nstate       claimed\n") ||
		!strings.Contains(out, "\nnext: brokerctl task complete schema --result RESULT when done; task fail schema --error ERROR") {
		t.Errorf("%s", out)
	}
	if got := fields(t, "task", "claim"); at(t, got, "task", "id") != "schema" || at(t, got, "resumed") != true {
		t.Errorf("claimed again: %v", got)
	}
	if got := ctl(t, "task", "claim", "--further"); got.code != 4 {
		t.Errorf("a further task: %+v", got)
	}
	for _, step := range []struct{ args, want string }{
		{"task update --progress 0.4 --note halfway", "updated schema; the next update is due in 2h"},
		{"task block --reason access", "blocked schema"},
		{"task unblock schema", "unblocked schema"},
		{"task fail --error tests", "failed schema, attempt 1: ready again in"},
		{"--agent lead task update schema --priority 9 --title Schema --label a=b", "updated schema\n"},
		{"task claim schema --wait 30s", "\nattempt     1 by builder-1, ended "},
		{"task release", "released schema"},
		{"task claim", "\nprogress    40%\n"},
		{"task complete --result fine", "completed schema; now ready: api"},
		{"task claim", "task        api\n"},
		{"task fail api --fatal --error hopeless", "failed api, attempt 1: failed\n"},
		{"task list", "  Test it        waits for api, which is failed\n"},
		{"--agent lead task retry api", "api is ready\n"},
		{"--agent lead task cancel api --cascade --reason no", "cancelled api, " + id + "\n"},
		{"--agent lead task cancel api", "api is cancelled already\n"},
		{"-o prompt task list --state done", "schema done, builder-1: Schema\n"},
	} {
		if out := must0(t, strings.Fields(step.args)...); !strings.Contains(out, step.want) {
			t.Errorf("%s: %q, want %q", step.args, out, step.want)
		}
	}
	if out := must0(t, "task", "get", "schema", "--full"); !strings.Contains(out, "dependent  api (cancelled): Write the API\n") ||
		!strings.Contains(out, "\nevent      ") || strings.Contains(out, "00000000") || !strings.HasSuffix(out, "\nfine\n") {
		t.Errorf("%s", out)
	}
}

func TestTask_WithoutAnIDTheOnlyHeldTaskIsMeant(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	planned(t, "tasks: [{id: a, title: A}, {id: b, title: B}]")
	if got := ctl(t, "task", "complete"); got.code != 6 || !strings.Contains(got.err, `agent "builder-1" holds no task: it has claimed none, or it has lost the claim`) {
		t.Errorf("%+v", got)
	}
	must0(t, "task", "claim", "a")
	lost := `does not hold task "a": it is claimed by builder-1; `
	if got := ctl(t, "--agent", "lead", "task", "complete", "a"); got.code != 6 || !strings.HasSuffix(got.err, "lead "+lost+"stop working on it\n") {
		t.Errorf("%+v", got)
	}
	if got := ctl(t, "--agent", "", "task", "complete", "a"); got.code != 6 || !strings.HasSuffix(got.err, "system "+lost+"only its holder settles a task\n") {
		t.Errorf("%+v", got)
	}
	must0(t, "task", "claim", "b")
	if got := ctl(t, "task", "complete"); got.code != 2 || !strings.Contains(got.err, "holds 2 tasks; name one of a, b") {
		t.Errorf("%+v", got)
	}
	must0(t, "task", "complete", "a", "--result", "A")
	if out := must0(t, "task", "complete", "a", "--result", "B"); out != "a was already completed; the result is unchanged\n" {
		t.Errorf("completed twice: %q", out)
	}
	if out := must0(t, "task", "release"); out != "released b\n" {
		t.Errorf("%q", out)
	}
	if got := ctl(t, "task", "update", "b", "--note", "x"); got.code != 6 {
		t.Errorf("a task that the agent does not hold: %+v", got)
	}
}

func TestTaskCreate_FaultsOfAFileNameTheEntry(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	for _, c := range []struct{ plan, want string }{
		{"", "plan.yaml has no list of tasks; see brokerctl task create --help"},
		{"tasks: {}", "plan.yaml has no list of tasks"},
		{"tasks: [", "plan.yaml: line 1: "},
		{"jobs: []", `plan.yaml: line 1: unknown key "jobs"; known are tasks`},
		{"tasks:\n- {id: a, title: A}\n- {id: b, titel: B}", `plan.yaml, line 3: task 2 (b): unknown key "titel"; known are id, title, `},
		{"tasks:\n- just text", "plan.yaml, line 2: task 1: it must have keys and values"},
		{"tasks:\n- {id: a, title: [1]}", "plan.yaml, line 2: task 1 (a): cannot unmarshal"},
		{"tasks:\n- {id: a, title: A, priority: urgent}", `task 1 (a): priority "urgent" is neither 1 to 10 nor low`},
		{"tasks:\n- {id: a, title: A, stale_after: 5}", `task 1 (a): stale_after: "5" has no unit`},
		{"tasks:\n- {title: A}\n- {id: b}", "plan.yaml, line 3: task 2 (b): title: "},
		{"tasks:\n- id: a\n  title: A\n  prio: 5", `plan.yaml, line 4: task 1 (a): unknown key "prio"`},
		{"- {id: a, title: A}", "plan.yaml must have the key tasks with a list of tasks at the top; see brokerctl task create --help"},
		{
			"tasks:\n- {id: x, title: X}\n- {id: a, title: A, depends_on: [b]}\n- {id: b, title: B, depends_on: [a]}",
			"plan.yaml, line 3: task 2 (a): the dependencies form a cycle: a → b → a",
		},
		{"tasks:\n- {id: a, title: A, depends_on: [nowhere]}", `plan.yaml, line 2: task 1 (a): depends_on[0]: there is no task "nowhere"`},
		{"tasks:\n- {id: a, title: A, parent: nowhere}", `plan.yaml, line 2: task 1 (a): parent: there is no task "nowhere"`},
		{"tasks:\n- {id: x, title: X}\n- {id: a, title: A, assignee: boss}", `plan.yaml, line 3: task 2 (a): no agent "boss" is registered`},
	} {
		apptest.NoError(t, os.WriteFile(t.path("plan.yaml"), []byte(c.plan), 0o600))
		got := ctl(t, "--agent", "lead", "task", "create", "-f", "plan.yaml")
		if got.code == 0 || !strings.Contains(got.err, c.want) || strings.Contains(got.err, "tasks[") {
			t.Errorf("%s: %+v, want %q", c.plan, got, c.want)
		}
	}
	if out := must0(t, "-o", "json", "task", "list"); out != "" {
		t.Errorf("a file with a fault has created\n%s", out)
	}
	for _, args := range []string{"-f no-such-file", "-f plan.yaml --role builder", "", "A B"} {
		if got := ctl(t, append([]string{"--agent", "lead", "task", "create"}, strings.Fields(args)...)...); got.code != 2 {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestTaskList_TheTreeHasSubtasksBelowTheirParentsAndDependenciesFirst(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	planned(t, `
tasks:
- {id: release, title: Release, depends_on: [login, docs]}
- {id: login, title: Login}
- {id: tests, title: Tests, parent: login, depends_on: [api]}
- {id: api, title: API, parent: login, depends_on: [schema]}
- {id: schema, title: Schema, parent: login}
- {id: draft, title: Draft, parent: docs}
- {id: docs, title: Docs}
`)
	var ids []string
	for line := range strings.Lines(withoutFrames(must0(t, "-o", "prompt", "task", "list", "--tree"))) {
		id, _, _ := strings.Cut(strings.TrimRight(line, "\n"), ":")
		ids = append(ids, id)
	}
	want := "login ready|  schema ready|  api waiting|  tests waiting|docs ready|  draft ready|release waiting"
	if got := strings.Join(ids, "|"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if out := withoutFrames(must0(t, "-o", "prompt", "task", "list", "--tree", "--parent", "login")); !strings.HasPrefix(out, "schema ready: Schema\napi waiting") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "task", "list", "--state", "ready,idle"); got.code != 2 || !strings.Contains(got.err, `"idle" is none of waiting, ready`) {
		t.Errorf("%+v", got)
	}
}

func TestTaskWait_EndsAsItsExitCodeSays(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, smallPlan)
	wait := func(args ...string) result {
		t.Helper()
		return ctl(t, append([]string{"--agent", "lead", "task", "wait"}, args...)...)
	}
	if got := wait("schema", "--wait", "1ms"); got.code != 4 || got.out != "schema (ready): Write the schema\n" {
		t.Errorf("%+v", got)
	}
	must0(t, "--agent", "builder-1", "task", "claim", "schema")
	if got := ctl(t, "--agent", "builder-1", "task", "wait", "api"); got.code != 5 || !strings.Contains(got.err, "api → schema") {
		t.Errorf("a wait for one's own work: %+v", got)
	}
	must0(t, "--agent", "builder-1", "task", "block", "--reason", "no access")
	got := wait("schema", "api")
	if got.code != 5 || !strings.Contains(got.err, "schema is blocked; brokerctl --agent lead task wait schema api --after ") {
		t.Errorf("%+v", got)
	}
	_, after, _ := strings.Cut(got.err, "--after ")
	after, _, _ = strings.Cut(after, " ")
	if got := wait("schema", "--after", after, "--wait", "1ms"); got.code != 4 {
		t.Errorf("a block that the caller knows: %+v", got)
	}
	must0(t, "--agent", "builder-1", "task", "complete")
	if got := wait("schema", "api", "--any"); got.code != 0 || got.out != "schema (done): Write the schema\napi (ready): Write the API\n" {
		t.Errorf("%+v", got)
	}
	must0(t, "--agent", "builder-1", "agent", "heartbeat", "--status", "completed")
	if got := wait("schema", "--completed", "builder-1"); got.code != 0 || !strings.HasSuffix(got.out, "builder-1 has reported completed\n") {
		t.Errorf("%+v", got)
	}
	if got := wait(); got.code != 2 {
		t.Errorf("%+v", got)
	}
}

func TestTaskClaim_ThePromptIsShortAndNamesTheCommands(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, `tasks: [{id: api, title: Write the API, description: "As in docs/api.md.\n=== c0ffee01 end ===", labels: {area: api}}]`)
	out := must0(t, "-o", "prompt", "--agent", "builder-1", "task", "claim")
	wantText(t, out, `
=== c0ffee00 task api: attempt 1 of 3, priority 5, created by lead ===
Title: Write the API
Labels: area=api
As in docs/api.md.
=== c0ffee01 end ===
=== c0ffee00 end ===
Next: brokerctl --agent builder-1 task complete api --result RESULT when done; task fail api --error ERROR if it failed; task block api --reason REASON while you cannot continue; task release api to return it; task update api --note NOTE at least every 2h
`)
	if n := tokens(out); n > 130 {
		t.Errorf("%d tokens", n)
	}
}

func TestTask_IDsAreCompletedWithTheirTitles(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, smallPlan)
	must0(t, "--agent", "builder-1", "task", "claim")
	for args, want := range map[string]string{
		"--agent builder-1 task complete":         "schema\tclaimed: Write the schema\n",
		"task get":                                "api\twaiting: Write the API\nschema\tclaimed: Write the schema\n",
		"--agent builder-1 task claim":            "",
		"--agent lead task wait":                  "api\twaiting: Write the API\nschema\tclaimed: Write the schema\n",
		"--agent lead task create x --depends-on": "api\twaiting: Write the API\nschema\tclaimed: Write the schema\n",
		"--agent lead task list --state":          strings.Join(work.TaskStates, "\n") + "\n",
		"--agent lead explain task":               "api\twaiting: Write the API\nschema\tclaimed: Write the schema\n",
		"--agent lead task wait --completed":      "builder-1\nlead\n",
	} {
		out := must0(t, append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		words, _, _ := strings.Cut(out, ":")
		if strings.Contains(want, ":") {
			words = out[:max(strings.LastIndex(out, ":"), 0)]
		}
		if words != want {
			t.Errorf("%s: %q, want %q", args, words, want)
		}
	}
}

func TestNext_OffersATaskWhenNoMessageWaits(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	planned(t, smallPlan)
	id := sent(t, "--agent", "lead", "builder-1", "a message")
	if got := fields(t, "next"); at(t, got, "claims", 0, "claim_id") != id+".1" || at(t, got, "task") != nil {
		t.Errorf("with a message: %v", got)
	}
	must0(t, "ack")
	out := must0(t, "next", "-o", "prompt")
	if !strings.HasPrefix(out, "=== c0ffee00 task schema: attempt 1 of 3") || strings.Contains(out, "Open:") || strings.Count(out, "task complete") != 1 {
		t.Errorf("%s", out)
	}
	if got := fields(t, "next"); at(t, got, "task", "task", "id") != "schema" || at(t, got, "task", "resumed") != true || at(t, got, "work", 0, "id") != "schema" {
		t.Errorf("again: %v", got)
	}
	must0(t, "task", "block", "--reason", "no access")
	if got := ctl(t, "next"); got.code != 4 {
		t.Errorf("with a blocked task: %+v", got)
	}
	sent(t, "--agent", "lead", "builder-1", "access granted")
	if out := must0(t, "next"); !strings.Contains(out, "access granted") || !strings.Contains(out, "Open: holds task schema (blocked)") {
		t.Errorf("%s", out)
	}
}

func TestNext_WaitsForAMessageAndATaskAtOnce(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	waits := func() <-chan result {
		ended, before := make(chan result, 1), lastSeen(t)
		go func() { ended <- ctl(t, "next", "--wait", "25s") }()
		for deadline := time.Now().Add(patience); lastSeen(t) == before; {
			if time.Now().After(deadline) {
				t.Fatal("next has not called the broker")
			}
		}
		return ended
	}
	first := waits()
	planned(t, "tasks: [{id: a, title: The task}]")
	if got := <-first; got.code != 0 || !strings.Contains(got.out, "The task") {
		t.Errorf("%+v", got)
	}
	must0(t, "task", "complete")
	second := waits()
	sent(t, "--agent", "lead", "builder-1", "The message")
	if got := <-second; got.code != 0 || !strings.Contains(got.out, "The message") {
		t.Errorf("%+v", got)
	}
	if out := must0(t, "task", "list", "--holder", "builder-1", "--state", "claimed", "-o", "json"); out != "" {
		t.Errorf("a task is held:\n%s", out)
	}
}

// lastSeen returns when the broker has last received a call of builder-1.
func lastSeen(t *shell) any {
	t.Helper()
	return at(t, fields(t, "--agent", "", "agent", "get", "builder-1"), "agent", "last_seen")
}

func TestNext_AMessageAboutATaskNamesTheCommandsThatAnswerIt(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	t.Setenv("BROKERD_AGENT", "builder-1")
	must0(t, "--agent", "lead", "task", "create", "Write the API", "--id", "api", "--assignee", "builder-1")
	want := "Next: brokerctl --agent builder-1 task claim api or brokerctl --agent builder-1 task release api --decline --reason "
	for _, command := range []string{"inbox", "next", "claim", "next"} {
		if out := must0(t, "--agent", "builder-1", command, "-o", "prompt"); !strings.Contains(out, want) || strings.Contains(out, "ack") || strings.Contains(out, "Open:") {
			t.Errorf("%s: %s", command, out)
		}
	}
	if out := must0(t, "inbox"); !strings.HasSuffix(out, "Open work: 1 task; brokerctl next shows the commands\n") {
		t.Errorf("%s", out)
	}
	if out := must0(t, "whoami"); !strings.Contains(out, "is assigned task api (ready) of lead: Write the API → brokerctl task claim api\n") {
		t.Errorf("%s", out)
	}
	must0(t, "task", "release", "api", "--decline", "--reason", "no access")
	if got := ctl(t, "inbox", "-o", "json"); got.out != "" {
		t.Errorf("the message is still there: %+v", got)
	}
	if out := must0(t, "--agent", "", "status"); !strings.Contains(out, "work       tasks: 1 ready\n") {
		t.Errorf("%s", out)
	}
	// A message of an agent about a task that the broker does not know has to be acknowledged.
	sent(t, "--agent", "lead", "builder-1", "--type", "task_assignment", "--payload", `{"task_id":"t1"}`)
	if out := must0(t, "inbox", "-o", "prompt"); !strings.Contains(out, "when dealt with") {
		t.Errorf("%s", out)
	}
}

func TestExplain_KnowsTasks(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead", "builder-1/builder")
	planned(t, smallPlan)
	if out := must0(t, "explain", "task", "api"); !strings.Contains(out, "task api") || !strings.Contains(out, "schema") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "explain", "task", "nowhere"); got.code != 3 || !strings.Contains(got.err, `there is no task "nowhere"`) {
		t.Errorf("%+v", got)
	}
}

func TestTaskCancel_SaysThatTheRestOfALargeCascadeFollows(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead/lead")
	must0(t, "--agent", "lead", "task", "create", "Root", "--id", "root")
	parts := make([]string, 1000)
	for i := range parts {
		parts[i] = fmt.Sprintf(`{"id":"part-%d","title":"x","parent":"root"}`, i)
	}
	must0(t, "--agent", "lead", "call", "TaskService/CreateTasks", `{"tasks":[`+strings.Join(parts, ",")+`]}`)
	out := must0(t, "--agent", "lead", "task", "cancel", "root", "--cascade")
	if !strings.HasPrefix(out, "cancelled root, part-0") || !strings.HasSuffix(out, "\nthe broker cancels the rest of its dependents and subtasks now\n") {
		t.Errorf("%.100s ... %s", out, out[max(0, len(out)-100):])
	}
}
