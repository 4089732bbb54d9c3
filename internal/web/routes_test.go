package web_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

// A step is a request as an agent, as an operator without one, or with a token. A word in braces is a
// value that a step before has kept.
type step struct {
	as, method, path, body string
	want                   string // a value of the answer: PATH=VALUE; "" = any
	keep                   string // NAME=PATH
}

// steps use every route once and read what it did.
var steps = []step{
	{"lead", "POST", "/v1/agents", `{"role":"lead","capabilities":["go"],"labels":{"team":"red"},"lease":"24h"}`,
		"agent.name=lead", ""},
	{"builder-1", "POST", "/v1/agents", `{"role":"builder"}`, "agent.role=builder", ""},
	{"", "GET", "/v1/agents?role=builder", "", "agents.0.name=builder-1", ""},
	{"", "GET", "/v1/agents/lead", "", "agent.labels.team=red", ""},
	{"", "POST", "/v1/agents/builder-1/heartbeat", `{"status":"active","progress":0.5,"activity":"Builds"}`, "lease=", ""},
	{"lead", "GET", "/v1/agents/builder-1", "", "agent.progress=0.5", ""},

	{"lead", "POST", "/v1/messages",
		`{"messages":[{"target":{"agent":"builder-1"},"subject":"Add login","requires_response":true}]}`,
		"results.0.recipients.0.outcome=queued", "id=results.0.id"},
	{"", "GET", "/v1/messages/{id}", "", "deliveries.0.state=pending", ""},
	{"", "GET", "/v1/mailboxes?order=waiting", "", "mailboxes.0.mailbox=builder-1", ""},
	{"lead", "GET", "/v1/threads?open=true", "", "threads.0.messages=1", ""},
	{"lead", "GET", "/v1/messages?box=sent&newest_first=true", "", "items.0.message.id={id}", ""},
	{"lead", "POST", "/v1/messages/{id}/resend", "", "resent=1", ""},
	{"builder-1", "POST", "/v1/offers", `{"way":"tool_call","harness":"s1","mark":"46e2f3ef"}`, "items.0.message.id={id}", ""},
	{"builder-1", "GET", "/v1/messages/{id}", "", "deliveries.0.offers.0.mark=46e2f3ef", ""},
	{"builder-1", "POST", "/v1/offers/settle", `{"harness":"s1","accepted":true}`, "settled=1", ""},
	{"builder-1", "POST", "/v1/claims", `{"max":1,"wait":"1m"}`, "claims.0.message.id={id}", "claim=claims.0.claim_id"},
	{"builder-1", "GET", "/v1/claims", "", "holdings.claims.0.claim_id={claim}", ""},
	{"builder-1", "POST", "/v1/claims/extend", `{"extensions":[{"claim_id":"{claim}","claim_for":"10m"}]}`,
		"claim_ids.0={claim}", ""},
	{"builder-1", "POST", "/v1/claims/release", `{"ids":["{claim}"]}`, "released.0={claim}", ""},
	{"builder-1", "POST", "/v1/claims", "", "claims.0.message.id={id}", "claim=claims.0.claim_id"},
	{"builder-1", "POST", "/v1/messages/{id}/reply", `{"message":{"body":"Done."},"ack":true}`,
		"result.refused_count=0", ""},
	{"lead", "GET", "/v1/inbox?senders=builder-1", "", "items.0.message.subject=Re: Add login",
		"reply=items.0.message.id"},
	{"lead", "POST", "/v1/claims/ack", `{"ids":["{reply}"]}`, "acked.1=<nil>", ""},
	{"lead", "POST", "/v1/messages", `{"messages":[{"target":{"agent":"builder-1"},"subject":"Fail"}]}`, "",
		"id=results.0.id"},
	{"builder-1", "POST", "/v1/claims", "", "claims.0.message.id={id}", "claim=claims.0.claim_id"},
	{"builder-1", "POST", "/v1/claims/nack", `{"nacks":[{"claim_id":"{claim}","fatal":true,"error":"broken"}]}`,
		"outcomes.0.state=dead", ""},
	{"", "GET", "/v1/dead-letters?error=broken&count=true", "", "count=1", ""},
	{"builder-1", "POST", "/v1/dead-letters/redrive", `{"ids":["{id}"]}`, "redriven=1", ""},
	{"builder-1", "POST", "/v1/claims", "", "", "claim=claims.0.claim_id"},
	{"builder-1", "POST", "/v1/claims/nack", `{"nacks":[{"claim_id":"{claim}","fatal":true,"error":"broken"}]}`,
		"outcomes.0.state=dead", ""},
	{"", "POST", "/v1/dead-letters/purge", `{"ids":["{id}"],"mailbox":"builder-1"}`, "purged=1", ""},
	{"lead", "POST", "/v1/messages", `{"messages":[{"target":{"agent":"builder-1"},"subject":"Cancel"}]}`, "",
		"id=results.0.id"},
	{"lead", "POST", "/v1/messages/{id}/cancel", `{"reason":"no longer needed"}`, "cancelled=1", ""},

	{"lead", "POST", "/v1/events", `{"type":"build.finished","summary":"ok"}`, "", "revision=revision"},
	{"", "GET", "/v1/events?types=build.*", "", "events.0.revision={revision}", ""},

	{"lead", "POST", "/v1/locks", `{"paths":["src/a.go"],"wait":"1s"}`, "outcome=granted", "fence=fence"},
	{"", "GET", "/v1/locks?path=src/a.go", "", "locks.0.kind=lock", ""},
	{"lead", "POST", "/v1/locks/extend", `{"fences":[{fence}],"max_hold":"1h"}`, "", ""},
	{"lead", "POST", "/v1/locks/release", `{"fences":[{fence}]}`, "released=1", ""},
	{"lead", "POST", "/v1/locks", `{"paths":["src/a.go"]}`, "outcome=granted", ""},
	{"", "POST", "/v1/locks/force-release", `{"paths":["src/a.go"],"reason":"stale"}`, "released.0.agent=lead", ""},

	{"lead", "POST", "/v1/tokens", `{"type":"deploy","scope":"web","wait":"1s"}`, "outcome=granted", ""},
	{"", "GET", "/v1/tokens?type=deploy", "", "tokens.0.agent=lead", ""},
	{"lead", "POST", "/v1/tokens/extend", `{"type":"deploy","scope":"web","max_hold":"1h"}`, "", ""},
	{"lead", "POST", "/v1/tokens/release", `{"type":"deploy","scope":"web"}`, "released=true", ""},
	{"lead", "POST", "/v1/tokens", `{"type":"deploy","scope":"web"}`, "outcome=granted", ""},
	{"", "POST", "/v1/tokens/revoke", `{"type":"deploy","scope":"web","reason":"stale"}`, "agent=lead", ""},

	{"lead", "PUT", "/v1/state/build/web/target", `{"value":{"os":"linux"},"ttl":"1h"}`, "entry.version=1", ""},
	{"", "GET", "/v1/state/build/web/target", "", "entry.value.os=linux", ""},
	{"lead", "DELETE", "/v1/state/build/web/target", "", "deleted=true", ""},

	{"lead", "POST", "/v1/tasks",
		`{"tasks":[{"id":"schema","title":"Write the schema"},{"id":"api","title":"Write the API"}]}`,
		"tasks.0.state=ready", ""},
	{"", "GET", "/v1/tasks?states=ready&states=claimed", "", "tasks.0.id=api", ""},
	{"builder-1", "POST", "/v1/tasks/claim", "", "task.id=schema", ""},
	{"builder-1", "POST", "/v1/tasks/schema/update", `{"progress":0.5,"note":"half"}`, "task.state=claimed", ""},
	{"builder-1", "POST", "/v1/tasks/schema/complete", `{"result":"ok"}`, "task.state=done", ""},
	{"", "GET", "/v1/tasks/schema", "", "task.result=ok", ""},
	{"lead", "POST", "/v1/tasks/wait", `{"task_ids":["schema"]}`, "outcome=done", ""},
	{"builder-1", "POST", "/v1/tasks/api/claim", "", "task.id=api", ""},
	{"builder-1", "POST", "/v1/tasks/api/fail", `{"error":"broken","fatal":true}`, "task.state=failed", ""},
	{"lead", "POST", "/v1/tasks/api/retry", "", "task.state=ready", ""},
	{"builder-1", "POST", "/v1/tasks/api/claim", "", "task.id=api", ""},
	{"builder-1", "POST", "/v1/tasks/api/release", "", "task.state=ready", ""},
	{"lead", "POST", "/v1/tasks/api/cancel", `{"reason":"no longer needed"}`, "cancelled=1", ""},

	{"lead", "POST", "/v1/decisions",
		`{"kind":"review","agent":"builder-1","title":"The login","content":{"body":"See src/a.go","payload":{"n":1}}}`,
		"decision.round=1", "id=decision.id"},
	{"builder-1", "POST", "/v1/decisions/{id}/decide", `{"verdict":"revise","reason":"add a test"}`,
		"decision.state=revising", ""},
	{"lead", "POST", "/v1/decisions/{id}/resubmit", `{"content":{"body":"With a test","payload":{"n":1}}}`,
		"decision.round=2", ""},
	{"", "GET", "/v1/decisions/{id}", "", "decision.content.payload.n=1", ""},
	{"lead", "POST", "/v1/decisions/{id}/cancel", "", "decision.state=cancelled", ""},
	{"", "GET", "/v1/decisions?states=cancelled", "", "decisions.0.id={id}", ""},

	{"builder-1", "POST", "/v1/blockers", `{"reason":"no access","severity":"high","awaited":{"agent":"lead"}}`,
		"blocker.awaited.agent=lead", "id=blocker.id"},
	{"lead", "POST", "/v1/blockers/{id}/acknowledge", `{"note":"soon"}`, "blocker.state=acknowledged", ""},
	{"lead", "POST", "/v1/blockers/{id}/resolve", `{"resolution":"granted"}`, "blocker.state=resolved", ""},
	{"", "GET", "/v1/blockers/{id}", "", "blocker.resolution=granted", ""},
	{"", "GET", "/v1/blockers?agent=builder-1", "", "blockers.0.id={id}", ""},

	{"lead", "POST", "/v1/handoffs", `{"title":"Login","to_agent":"builder-1","checklist":["read the notes"]}`,
		"handoff.state=pending", "id=handoff.id"},
	{"builder-1", "POST", "/v1/handoffs/{id}/check", `{"number":1}`, "handoff.checked=1", ""},
	{"builder-1", "POST", "/v1/handoffs/{id}/accept", "", "handoff.state=accepted", ""},
	{"", "GET", "/v1/handoffs/{id}?markdown=true", "", "handoff.id={id}", ""},
	{"lead", "POST", "/v1/handoffs", `{"title":"Login 2","to_agent":"builder-1"}`, "", "id=handoff.id"},
	{"builder-1", "POST", "/v1/handoffs/{id}/reject", `{"notes":"no time"}`, "handoff.state=rejected", ""},
	{"lead", "POST", "/v1/handoffs", `{"title":"Login 3","to_agent":"builder-1"}`, "", "id=handoff.id"},
	{"lead", "POST", "/v1/handoffs/{id}/cancel", "", "handoff.state=cancelled", ""},
	{"", "GET", "/v1/handoffs?states=cancelled", "", "handoffs.0.id={id}", ""},

	{"lead", "POST", "/v1/votes",
		`{"title":"Which database?","options":["SQLite","PostgreSQL"],"agents":["builder-1"],"quorum":{"ballots":1}}`,
		"vote.electors=1", "id=vote.id"},
	{"", "GET", "/v1/votes/{id}", "", "vote.state=open", ""},
	{"lead", "POST", "/v1/votes", `{"title":"And which port?","options":["1","2"],"everyone":true}`, "", "other=vote.id"},
	{"lead", "POST", "/v1/votes/{other}/close", "", "vote.state=closed", ""},
	{"builder-1", "POST", "/v1/votes/{id}/cast", `{"option":"SQLite"}`, "vote.winner=SQLite", ""},
	{"", "GET", "/v1/votes?opener=lead", "", "votes.0.opener=lead", ""},

	{"lead", "PUT", "/v1/artifacts/docs/plan.md?description=The+plan&labels.team=red", "# Plan",
		"artifact.labels.team=red", ""},
	{"", "GET", "/v1/artifacts?name_prefix=docs/", "", "artifacts.0.size=6", ""},

	{"", "POST", "/v1/call/CredentialService/CreateLoginLink", `{"access":"observer"}`, "session=default",
		"secret=secret"},
	{"", "POST", "/v1/login", `{"secret":"{secret}"}`, "level=observer", "token=token"},
	{"{token}", "POST", "/v1/logout", "", "", ""},
	{"", "POST", "/v1/sessions", `{"name":"other","settings":{"directors":["lead"],"mailbox_limit":7}}`,
		"session.settings.directors.0=lead", ""},
	{"", "PATCH", "/v1/sessions/other", `{"description":"Another","settings":{"mailbox_limit":8}}`,
		"session.settings.mailbox_limit=8", ""},
	{"", "GET", "/v1/sessions/other", "", "session.description=Another", ""},
	{"", "GET", "/v1/sessions", "", "sessions.0.name=default", ""},
	{"", "GET", "/v1/status", "", "agents=2", ""},
	{"", "GET", "/v1/overview", "", "totals.agents=2", ""},
	{"", "GET", "/v1/explain?agent=builder-1", "", "findings.0.severity=info", ""},
	{"", "DELETE", "/v1/agents/builder-1", `{"reason":"done"}`, "", ""},
}

func TestRoutes_EachDoesWhatItsRPCDoes(t *testing.T) {
	t.Parallel()
	follow(t, apptest.Start(t), func(step, string, answer) {})
}

// follow makes the requests of the steps, checks their answers, and calls each with the answer.
func follow(t *testing.T, b *apptest.Broker, each func(s step, path string, a answer)) {
	t.Helper()
	agents := map[string]*browser{}
	kept := map[string]string{}
	for _, s := range steps {
		c := agents[s.as]
		if token := kept[strings.Trim(s.as, "{}")]; token != "" {
			c = overTCP(t, b, token)
		} else if c == nil {
			c = onSocket(t, b, s.as)
			agents[s.as] = c
		}
		var pairs []string
		for name, value := range kept {
			pairs = append(pairs, "{"+name+"}", value)
		}
		words := strings.NewReplacer(pairs...)
		path, body := words.Replace(s.path), words.Replace(s.body)
		what := fmt.Sprintf("as %q: %s %s %s", s.as, s.method, path, body)
		a := c.do(s.method, path, body)
		if a.status != http.StatusOK {
			t.Errorf("%s: %d %s", what, a.status, a.text)
			continue
		}
		if place, want, given := strings.Cut(words.Replace(s.want), "="); given && want != "" &&
			textOf(at(a.object, place)) != want {
			t.Errorf("%s: %s is %v, want %s: %s", what, place, at(a.object, place), want, a.text)
		}
		if name, place, given := strings.Cut(s.keep, "="); given {
			kept[name] = textOf(at(a.object, place))
		}
		each(s, path, a)
	}
}

// textOf returns a value of an answer as text.
func textOf(value any) string {
	if n, ok := value.(json.Number); ok {
		return n.String()
	}
	return fmt.Sprint(value)
}

func TestRoutes_IfMatchComparesTheRevisionOfAKey(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	const path = "/v1/state/build/target"
	first := c.must("PUT", path, `{"value":1}`, "If-Match", "0") // absent until now
	tag := first.header.Get("ETag")
	if tag != `"`+first.number("entry.revision")+`"` || c.must("GET", path, "").header.Get("ETag") != tag {
		t.Errorf("the tag is %s: %s", tag, first.text)
	}
	second := c.must("PUT", path, `{"value":2}`, "If-Match", tag)
	for method, body := range map[string]string{"PUT": `{"value":3}`, "DELETE": ""} {
		if a := c.do(method, path, body, "If-Match", tag); a.status != http.StatusPreconditionFailed ||
			a.reason() != "STATE_CHANGED" {
			t.Errorf("%s with an old tag: %d %s", method, a.status, a.text)
		}
	}
	c.must("DELETE", path, "", "If-Match", second.header.Get("ETag"))
	if a := c.do("POST", "/v1/messages", "{}", "If-Match", tag); a.status != 400 ||
		a.words("error.fields.0.field") != "if-match" {
		t.Errorf("a route without revisions: %d %s", a.status, a.text)
	}
}

func TestRoutes_AnArtifactIsItsBytes(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	content := strings.Repeat("0123456789", 100_000)
	const path = "/v1/artifacts/docs/a%20plan.md"
	const key = "01935f2e-7c5b-7000-8000-000000000001"
	headers := []string{"Content-Type", "text/markdown; charset=utf-8", "Idempotency-Key", key}
	put := c.must("PUT", path+"?task_id=t1", content, headers...)
	if put.number("artifact.size") != "1000000" || put.words("artifact.name") != "docs/a plan.md" ||
		put.words("artifact.task_id") != "t1" {
		t.Errorf("got %s", put.text)
	}
	if again := c.must("PUT", path+"?task_id=t1", content, headers...); again.text != put.text {
		t.Errorf("again: %s", again.text)
	}
	got := c.must("GET", path, "")
	if got.text != content || got.header.Get("Content-Type") != "text/markdown; charset=utf-8" ||
		got.header.Get("Brokerd-Version") != "1" ||
		got.header.Get("ETag") != `"`+put.words("artifact.sha256")+`"` ||
		!strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("got %d bytes, %v", len(got.text), got.header)
	}
	described := c.must("GET", path, "", "Accept", "application/json")
	if described.words("artifact.media_type") != "text/markdown; charset=utf-8" {
		t.Errorf("as JSON: %s", described.text)
	}
	for given, want := range map[string]struct {
		status      int
		text, place string
	}{
		"bytes=5-9":                        {206, content[5:10], "bytes 5-9/1000000"},
		"bytes=999990-":                    {206, content[999990:], "bytes 999990-999999/1000000"},
		"bytes=999999-2000000":             {206, "9", "bytes 999999-999999/1000000"},
		"bytes=999999-9223372036854775807": {206, "9", "bytes 999999-999999/1000000"},
		"bytes=0-9223372036854775807":      {206, content, "bytes 0-999999/1000000"},
		"bytes=-5":                         {200, content, ""}, // an ignored form
		"bytes=1000000-":                   {416, "", "bytes */1000000"},
		"bytes=2000000-":                   {416, "", ""},
	} {
		a := c.do("GET", path, "", "Range", given)
		if a.status != want.status || want.status != 416 && a.text != want.text ||
			a.header.Get("Content-Range") != want.place {
			t.Errorf("%s: %d, %d bytes, %v", given, a.status, len(a.text), a.header)
		}
	}
	if a := c.do("GET", path, "", "Range", "bytes=5-9", "If-Range", `"of-another-version"`); a.status != 200 ||
		a.text != content {
		t.Errorf("a condition that does not hold: %d, %d bytes", a.status, len(a.text))
	}
	c.must("PUT", "/v1/artifacts/empty", "")
	if a := c.must("GET", "/v1/artifacts/empty", ""); a.text != "" || a.header.Get("Content-Length") != "0" {
		t.Errorf("the empty artifact: %q %v", a.text, a.header)
	}
	for path, reason := range map[string]string{
		"/v1/artifacts/none":                       "ARTIFACT_NOT_FOUND",
		"/v1/artifacts/docs/a%20plan.md?version=9": "VERSION_NOT_FOUND",
		"/v1/artifacts/none?colour=red":            "INVALID_ARGUMENT",
	} {
		if a := c.do("GET", path, ""); a.reason() != reason {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	if a := c.do("PUT", path+"?sha256="+strings.Repeat("0", 64), "x"); a.status != 400 || a.reason() != "HASH_MISMATCH" {
		t.Errorf("another hash: %d %s", a.status, a.text)
	}
	if a := c.do("PUT", "/v1/artifacts/x?colour=red", "x"); a.status != 400 ||
		a.words("error.fields.0.field") != "colour" {
		t.Errorf("an unknown parameter: %d %s", a.status, a.text)
	}
}

// http.ServeMux would redirect these paths, and a client that follows a redirect would change another
// key.
func TestRoutes_APathIsNotRedirected(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("lead", "lead")
	c := onSocket(t, b, "lead")
	first := c.must("PUT", "/v1/state/build/a/b", `{"value":1}`)
	for _, path := range []string{
		"/v1/state/build/a//b", "/v1/state/build/x/../a/b", "/v1/state/build/./a/b", "/v1/state/build",
		"//v1/state/build/a/b",
	} {
		if a := c.do("PUT", path, `{"value":2}`); a.status != http.StatusNotFound || a.reason() != "ROUTE_NOT_FOUND" {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	if a := c.must("GET", "/v1/state/build/a/b", ""); a.number("entry.revision") != first.number("entry.revision") {
		t.Errorf("the key changed: %s", a.text)
	}
	for path, key := range map[string]string{
		"a%2F%2Fb": "a//b", "a%2F..%2Fb": "a/../b", "a/b/": "a/b/", "a%2Fb": "a/b", "a%20%25": "a %",
	} {
		if a := c.must("PUT", "/v1/state/build/"+path, `{"value":2}`); a.words("entry.key") != key {
			t.Errorf("%s: %s", path, a.text)
		}
	}
}
