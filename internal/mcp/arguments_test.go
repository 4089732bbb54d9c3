package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"brokerd/internal/prompt"
)

func TestRow_TakesTheArgumentsOfACall(t *testing.T) {
	for _, tt := range []struct{ tool, args, template, values string }{
		{"turn", `{}`, "next", "map[]"},
		{"turn", ``, "next", "map[]"},
		{"turn", `null`, "next", "map[]"},
		{"turn", `"null"`, "next", "map[]"},
		{"turn", `{"wait":60}`, "next", "map[wait:[60s]]"},
		{"turn", `{"wait":"60"}`, "next", "map[wait:[60s]]"},
		{"turn", `{"wait":"1m"}`, "next", "map[wait:[1m]]"},
		{"turn", `{"read":"inbox"}`, "{read:inbox}", "map[read:[inbox]]"},
		{"turn", `{"read":4711}`, "thread get", "map[read:[4711]]"},
		{"send", `{"to":"lead","text":"Hi","ask":true}`, "ask <to> <text>", "map[ask:[50s] text:[Hi] to:[lead]]"},
		{"send", `{"to":"lead","text":"Hi","files":"a.go:3"}`, "send <to> <text>", "map[files:[a.go:3] text:[Hi] to:[lead]]"},
		{"send", `{"to":"lead","data":{"a":1}}`, "send <to> --priority", `map[data:[{"a":1}] to:[lead]]`},
		{"send", `{"answers":"7","text":"Yes"}`, "reply <answers>", "map[answers:[7] text:[Yes]]"},
		{"settle", `{}`, "ack [id", "map[]"},
		{"settle", `{"text":"x"}`, "reply [id", "map[text:[x]]"},
		{"settle", `"{\"id\":\"7.1\",\"text\":null}"`, "ack [id", "map[id:[7.1]]"},
		{"settle", `{"id":"schema","text":"x"}`, "task complete <id:task> --result", "map[id:[schema] text:[x]]"},
		{"settle", `{"id":7,"as":"fail","final":true}`, "nack", "map[final:[true] id:[7]]"},
		{"lock", `{"action":"acquire","paths":"a.go","for":1800}`, "lock acquire", "map[for:[1800s] paths:[a.go]]"},
		{"lock", `{"action":"release","paths":"all"}`, "lock release --", "map[paths:[all]]"},
		{"task", `{"action":"create","title":"T","depends_on":["a","b"]}`, "task create", "map[depends_on:[a b] title:[T]]"},
		{"task", `{"action":"update","progress":"0.4"}`, "task update [id]", "map[progress:[0.4]]"},
		{"decide", `{"action":"answer","id":"d-1","answer":"approve"}`, "decision decide", "map[answer:[approve] id:[d-1]]"},
		{"decide", `{"action":"answer","id":"b-1","answer":"resolve","text":"ok"}`, "blocker {answer:resolve", "map[answer:[resolve] id:[b-1] text:[ok]]"},
		{"decide", `{"action":"answer","id":"v-1","answer":"SQLite"}`, "vote cast", "map[answer:[SQLite] id:[v-1]]"},
		{"decide", `{"action":"answer","id":"login","answer":"revise"}`, "review {", "map[answer:[revise] id:[login]]"},
		{"team", `{}`, "agent list", "map[]"},
		{"team", `{"about":"lock src/a.go"}`, "explain", "map[about:[lock src/a.go]]"},
	} {
		tool := find(tt.tool)
		args, err := tool.parse(json.RawMessage(tt.args))
		if err != nil || args == nil { // a call adds to them
			t.Errorf("%s %s: %v", tt.tool, tt.args, err)
			continue
		}
		r, got, err := tool.row(args)
		if err != nil || !strings.HasPrefix(r.template, tt.template) || fmt.Sprint(map[string][]string(got)) != tt.values {
			t.Errorf("%s %s: got %v, %v, %v; want %q, %s", tt.tool, tt.args, r, got, err, tt.template, tt.values)
		}
	}
}

func TestRow_SaysWhatIsWrongWithTheArguments(t *testing.T) {
	for _, tt := range []struct{ tool, args, want string }{
		{"settle", `{"txt":"x"}`, `settle has no argument "txt"; it has id, as, text`},
		{"settle", `[1]`, `the arguments of settle must be a JSON object`},
		{"settle", `{"as":"done"}`, `as "done" is none of reply, ack`},
		{"task", `{}`, `task needs action: create, list`},
		{"task", `{"action":"create"}`, `task create needs title; it takes title, id`},
		{"task", `{"action":"claim","title":"x"}`, `task claim does not take title; it takes id, wait`},
		{"send", `{"text":"x"}`, `send needs to; it takes`},
		{"lock", `{"action":"acquire"}`, `lock acquire needs paths`},
		{"decide", `{"action":"answer","id":"d-1"}`, `decide answer needs answer`},
		{"decide", `{"action":"answer","id":"h-1","answer":"maybe"}`,
			`decide answer cannot use answer "maybe"; possible: accept, reject`},
	} {
		tool := find(tt.tool)
		args, err := tool.parse(json.RawMessage(tt.args))
		if err == nil {
			_, _, err = tool.row(args)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: got %v, want %q", tt.tool, tt.args, err, tt.want)
		}
	}
}

func TestNextCall_IsTheCallOfACommandLine(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"next --wait 90s", `turn {"wait":50}`},
		{"inbox", `turn {"read":"inbox"}`},
		{"message get 4711", `turn {"read":"4711"}`},
		{"artifact download NAME", `turn {"artifact":"NAME"}`},
		{"reply 7.1 RESULT --ack", `settle {"id":"7.1","text":"RESULT"}`},
		{"reply 7 ANSWER", `send {"text":"ANSWER","answers":"7"}`},
		{"ack 7.1", `settle {"id":"7.1"}`},
		{"nack 7.1 --error WHY", `settle {"id":"7.1","as":"fail","text":"WHY"}`},
		{"release 7.1", `settle {"id":"7.1","as":"release"}`},
		{"task complete schema --result TEXT", `settle {"id":"schema","text":"TEXT"}`},
		{"task complete schema", `settle {"id":"schema"}`},
		{"task release 'my task'", `settle {"id":"my task","as":"release"}`},
		{"task release api --decline --reason REASON", `task {"action":"decline","id":"api","text":"REASON"}`},
		{"task block schema --reason WHY", `task {"action":"block","id":"schema","text":"WHY"}`},
		{"task claim schema", `task {"action":"claim","id":"schema"}`},
		{"task get schema", `task {"action":"show","id":"schema"}`},
		{"task wait a b --after 7", `task {"action":"wait","id":"a b","after":"7"}`},
		{"inbox --summary", `turn {"read":"summary"}`},
		{"agent get --full", `team {"action":"show"}`},
		{"agent get builder-1", `team {"action":"show","about":"builder-1"}`},
		{"task get schema --full", `task {"action":"show","id":"schema"}`},
		{"lock release 4711", `lock {"action":"release","paths":["4711"]}`},
		{"lock release --all", `lock {"action":"release","paths":["all"]}`},
		{"review approve d-7", `decide {"action":"answer","id":"d-7","answer":"approve"}`},
		{"review revise d-7 --reason WHY", `decide {"action":"answer","id":"d-7","answer":"revise","text":"WHY"}`},
		{"decision decide d-7 sqlite", `decide {"action":"answer","id":"d-7","answer":"sqlite"}`},
		{"decision defer d-7 30m", `decide {"action":"answer","id":"d-7","answer":"defer","wait":1800}`},
		{"decision cancel d-7", `decide {"action":"answer","id":"d-7","answer":"cancel"}`},
		{"decision resubmit d-7 --body -", `decide {"action":"resubmit","id":"d-7","text":"TEXT"}`},
		{"review submit login --body -", `decide {"action":"review","about":"login","text":"TEXT"}`},
		{"plan get d-7 --wait 90s", `decide {"action":"show","id":"d-7","wait":50}`},
		{"blocker ack b-7", `decide {"action":"answer","id":"b-7","answer":"ack"}`},
		{"blocker resolve b-7 RESOLUTION", `decide {"action":"answer","id":"b-7","answer":"resolve","text":"RESOLUTION"}`},
		{"handoff accept h-7", `decide {"action":"answer","id":"h-7","answer":"accept"}`},
		{"handoff reject h-7 REASON", `decide {"action":"answer","id":"h-7","answer":"reject","text":"REASON"}`},
		{"vote cast v-7 OPTION", `decide {"action":"answer","id":"v-7","answer":"OPTION"}`},
		{"explain", `team {"action":"explain"}`},
		{"explain message 4711", `team {"about":"message 4711"}`},
		{"agent nudge role:builder 'answer message 7'",
			`team {"action":"nudge","to":"role:builder","text":"answer message 7"}`},
		{"agent deregister", `team {"action":"leave"}`},
		{"--agent builder-2 release 7.1", ""},
		{"dlq redrive 7 --mailbox builder-1", ""},
		{"lock revoke 7 --reason 'it''s stuck'", ""},
	} {
		got, ok := nextCall(prompt.Split(tt.line))
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %s, want %s", tt.line, got, tt.want)
		}
	}
}

func TestAlternatives_NameOnlyWhatDiffers(t *testing.T) {
	got := alternatives([]string{`d {"id":"d-7","answer":"approve"}`, `d {"id":"d-7","answer":"reject"}`,
		`d {"id":"d-7","answer":"defer","wait":1800}`, "(in a shell) brokerctl x"})
	want := `d {"id":"d-7","answer":"approve"} or "reject" or d {"id":"d-7","answer":"defer","wait":1800}` +
		` or (in a shell) brokerctl x`
	if strings.Join(got, " or ") != want {
		t.Errorf("got %s", strings.Join(got, " or "))
	}
}
