package toolcall_test

import (
	"encoding/json"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/toolcall"
)

func TestCommand_IsTheCommandLineOfACall(t *testing.T) {
	for _, tt := range []struct{ tool, args, want string }{
		{"turn", `{}`, "next --"},
		{"turn", ``, "next --"},
		{"turn", `{"wait":60}`, "next --wait=60s --"},
		{"turn", `{"wait":"60"}`, "next --wait=60s --"},
		{"turn", `{"wait":"1m"}`, "next --wait=1m --"},
		{"turn", `{"read":"inbox"}`, "inbox --"},
		{"turn", `{"read":"summary"}`, "inbox --summary --"},
		{"turn", `{"read":4711}`, "thread get -- 4711"},
		{"turn", `{"artifact":"plan.md"}`, "artifact download --to=- -- plan.md"},
		{"send", `{"to":"lead","text":"Hi"}`, "send -- lead Hi"},
		{"send", `{"to":"lead","text":"-x"}`, "send -- lead -x"},
		{"send", `{"to":"lead","subject":"S","text":"Hi","priority":7}`, "send --body=Hi --priority=7 -- lead S"},
		{"send", `{"to":"lead","text":"Hi","files":"a.go:3"}`, "send --file=a.go:3 -- lead Hi"},
		{"send", `{"to":"lead","data":{"a":1}}`, `send --payload={"a":1} -- lead`},
		{"send", `{"to":"lead","text":"Hi","ask":true}`, "ask --wait=50s -- lead Hi"},
		{"send", `{"to":"lead","text":"Hi","ask":30}`, "ask --wait=30s -- lead Hi"},
		{"send", `{"answers":"7","text":"Yes"}`, "reply --body=Yes -- 7"},
		{"settle", `{}`, "ack --"},
		{"settle", `{"id":7.10}`, "ack -- 7.10"},
		{"settle", `{"id":["7.1","8.1"]}`, "ack -- 7.1 8.1"},
		{"settle", `{"id":"7.1","text":"Done"}`, "reply --ack --body=Done -- 7.1"},
		{"settle", `"{\"id\":\"7.1\",\"as\":\"fail\",\"text\":\"x\",\"final\":\"true\"}"`,
			"nack --error=x --fatal=true -- 7.1"},
		{"settle", `{"id":"schema","text":"Done"}`, "task complete --result=Done -- schema"},
		{"settle", `{"id":"t-7","as":"fail","text":"no"}`, "task fail --error=no -- t-7"},
		{"lock", `{"action":"acquire","paths":"a.go","wait":5}`, "lock acquire --wait=5s -- a.go"},
		{"lock", `{"action":"release","paths":["all"]}`, "lock release --all --"},
		{"lock", `{"action":"release","paths":["a.go","b.go"]}`, "lock release -- a.go b.go"},
		{"state", `{"action":"put","key":"k","value":{"a":[1]},"revision":4}`,
			`state put --if-revision=4 --type=json -- k {"a":[1]}`},
		{"state", `{"action":"put","key":"k","value":4}`, `state put --type=integer -- k 4`},
		{"state", `{"action":"put","key":"k","value":"4"}`, `state put --type=string -- k 4`},
		{"task", `{"action":"create","title":"T","depends_on":["a","b"],"priority":"high"}`,
			"task create --depends-on=a --depends-on=b --priority=high -- T"},
		{"task", `{"action":"update","progress":"0.4"}`, "task update --progress=0.4 --"},
		{"decide", `{"action":"review","about":"login","to":"lead","text":"T"}`,
			"review submit --body=T --wait=0s -- login lead"},
		{"decide", `{"action":"answer","id":"d-1","answer":"approve"}`, "decision decide -- d-1 approve"},
		{"decide", `{"action":"answer","id":"b-1","answer":"resolve","text":"ok"}`, "blocker resolve -- b-1 ok"},
		{"decide", `{"action":"answer","id":"v-1","answer":"SQLite"}`, "vote cast -- v-1 SQLite"},
		{"decide", `{"action":"answer","id":"h-1","answer":"reject","text":"no"}`, "handoff reject -- h-1 no"},
		{"team", `{}`, "agent list --limit=100 --"},
		{"team", `{"about":"lock src/a.go"}`, "explain -- lock src/a.go"},
		{"team", `{"action":"nudge","to":"lead","text":"hurry"}`, "agent nudge -- lead hurry"},
	} {
		args, err := toolcall.Parse(tt.tool, json.RawMessage(tt.args))
		if err != nil {
			t.Errorf("%s %s: %v", tt.tool, tt.args, err)
			continue
		}
		words, err := toolcall.Command(tt.tool, args)
		if got := strings.Join(words, " "); err != nil || got != tt.want {
			t.Errorf("%s %s: got %q, %v; want %q", tt.tool, tt.args, got, err, tt.want)
		}
	}
}

func TestCommand_SaysWhatIsWrongWithTheArguments(t *testing.T) {
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
		args, err := toolcall.Parse(tt.tool, json.RawMessage(tt.args))
		if err == nil {
			_, err = toolcall.Command(tt.tool, args)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %s: got %v, want %q", tt.tool, tt.args, err, tt.want)
		}
	}
}

func TestCall_IsTheCallOfACommandLine(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"next --wait 90s", `turn {"wait":60}`},
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
		{"plan get d-7 --wait 90s", `decide {"action":"show","id":"d-7","wait":60}`},
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
		got, ok := toolcall.Call(toolcall.Split(tt.line))
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %s, want %s", tt.line, got, tt.want)
		}
	}
}

func TestAlternatives_NameOnlyWhatDiffers(t *testing.T) {
	got := toolcall.Alternatives([]string{`d {"id":"d-7","answer":"approve"}`, `d {"id":"d-7","answer":"reject"}`,
		`d {"id":"d-7","answer":"defer","wait":1800}`, "(in a shell) brokerctl x"})
	want := `d {"id":"d-7","answer":"approve"} or "reject" or d {"id":"d-7","answer":"defer","wait":1800}` +
		` or (in a shell) brokerctl x`
	if strings.Join(got, " or ") != want {
		t.Errorf("got %s", strings.Join(got, " or "))
	}
}
