package main

import (
	"encoding/json"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

func TestCall_MakesAnyUnaryCall(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	request := `{"messages":[{"target":{"agent":"builder-1"},"subject":"Add login","payload":{"task":[1]}}]}`
	for _, method := range []string{"MessageService/SendMessages", "brokerd.v1.MessageService/SendMessages"} {
		sent := decode(t, must0(t, "--agent", "lead", "call", method, request))
		if at(t, sent, "results", 0, "recipients", 0, "outcome") != "queued" {
			t.Errorf("%s: %v", method, sent)
		}
	}
	page := t.invoke(t.Context(), `{"box":"inbox","page_size":1}`, nil,
		"--agent", "builder-1", "call", "MessageService/ListMessages", "-")
	if page.code != 0 || at(t, decode(t, page.out), "next_page_token") == "" ||
		at(t, decode(t, page.out), "items", 0, "message", "payload", "task", 0) != json.Number("1") {
		t.Errorf("%+v", page)
	}
	if status := fields(t, "call", "AdminService/GetStatus"); at(t, status, "waiting") != json.Number("2") {
		t.Errorf("%v", status)
	}
	for _, c := range []struct {
		exit int
		says string
		args []string
	}{
		{problem.ExitUsage, "call needs METHOD", nil},
		{problem.ExitUsage, `there is no method "AdminService/Status"`, []string{"AdminService/Status"}},
		{problem.ExitUsage, `there is no method "AdminService"`, []string{"AdminService"}},
		{problem.ExitUsage, `there is no method "Message/id"`, []string{"Message/id"}},
		{problem.ExitUsage, "SubscribeEvents is a stream", []string{"EventService/SubscribeEvents"}},
		{problem.ExitUsage, "messages[0].priorty", []string{"MessageService/SendMessages", `{"messages":[{"priorty":1}]}`}},
		{problem.ExitUsage, "not one JSON object", []string{"MessageService/SendMessages", `[]`}},
		{problem.ExitNotFound, "AGENT_NOT_FOUND", []string{"AgentService/GetAgent", `{"name":"nobody"}`, "-o", "json"}},
	} {
		if got := ctl(t, append([]string{"call"}, c.args...)...); got.code != c.exit || !strings.Contains(got.err, c.says) {
			t.Errorf("call %v: %+v", c.args, got)
		}
	}
}
