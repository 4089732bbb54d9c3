package main

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"brokerd/cmd/brokerctl/call"
	"brokerd/cmd/brokerctl/internal/problem"
	"brokerd/internal/apptest"
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
	listed := decode(t, must0(t, "--agent", "builder-1", "call", "MessageService/ListMessages", "--box", "inbox", "--page-size=1"))
	if at(t, listed, "next_page_token") == "" || at(t, listed, "items", 0, "message", "sender") != "lead" {
		t.Errorf("with flags: %v", listed)
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
		{problem.ExitUsage, "unknown flag: --subject", []string{"MessageService/ListMailboxes", "--subject", "x"}},
		{problem.ExitUsage, `ListMailboxes: --order: `, []string{"MessageService/ListMailboxes", "--order", "x"}},
		{problem.ExitUsage, `ListMailboxes: --order: `, []string{"MessageService/ListMailboxes", `{"order":"waiting"}`, "--order", "name"}},
		{problem.ExitUsage, `ListTasks: --labels: "x" is not KEY=VALUE`, []string{"TaskService/ListTasks", "--labels", "x"}},
		{problem.ExitDone, "", []string{"TaskService/ListTasks", "--labels", "a=b", "--labels=c=d"}},
		{problem.ExitUsage, "UploadArtifact reads its requests from standard input", []string{"ArtifactService/UploadArtifact", "{}"}},
		{problem.ExitUsage, "messages[0].priorty", []string{"MessageService/SendMessages", `{"messages":[{"priorty":1}]}`}},
		{problem.ExitUsage, "not one JSON object", []string{"MessageService/SendMessages", `[]`}},
		{problem.ExitNotFound, "AGENT_NOT_FOUND", []string{"AgentService/GetAgent", `{"name":"nobody"}`, "-o", "json"}},
	} {
		if got := ctl(t, append([]string{"call"}, c.args...)...); got.code != c.exit || !strings.Contains(got.err, c.says) {
			t.Errorf("call %v: %+v", c.args, got)
		}
	}
}

// An openWriter ends a call at its first line.
type openWriter struct {
	strings.Builder
	end func()
}

// Write implements io.Writer.
func (w *openWriter) Write(p []byte) (int, error) {
	defer w.end()
	return w.Builder.Write(p)
}

func TestCall_ReachesEveryMethodOfTheAPI(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "lead", "builder-1")
	sent(t, "--agent", "lead", "builder-1", "Add login")
	must0(t, "--agent", "lead", "lock", "acquire", "b.go")
	inputs := map[string]string{ // of streams, which an empty request would leave open without an answer
		"EventService/SubscribeEvents": `{"after_revision":0}`,
		"MessageService/Claim":         `{"open":{}}`,
		"MessageService/Send":          `{"messages":[{"target":{"agent":"builder-1"},"body":"x"}]}`,
		"LockService/Lock":             `{"number":1,"acquire":{"paths":["a.go"]}}`,
	}
	reached := 0
	for _, m := range call.Methods() {
		if m == "AdminService/Drain" { // it would refuse the calls after it
			inputs[m] = `{"resume":true}`
		}
		input := cmp.Or(inputs[m], "{}")
		ctx, end := context.WithCancel(t.Context())
		out := &openWriter{end: end}
		var errs strings.Builder
		args := []string{"-o", "json", "--agent", "builder-1", "call", m}
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("brokerd.v1." + strings.Replace(m, "/", ".", 1)))
		apptest.NoError(t, err)
		if !d.(protoreflect.MethodDescriptor).IsStreamingClient() { // otherwise the request comes from standard input
			args = append(args, input)
		}
		code := run(ctx, t.environment(input+"\n", out, &errs), args)
		end()
		if out.Len() > 0 || code == 0 {
			reached++
			continue
		}
		var failed struct {
			Error struct{ Reason, Message string }
		}
		if err := json.Unmarshal([]byte(errs.String()), &failed); err != nil || failed.Error.Reason == "" {
			t.Errorf("%s: exit code %d, %s", m, code, errs.String())
			continue
		}
		reached++
	}
	if reached < 100 {
		t.Errorf("%d methods were reached", reached)
	}
}

func TestCall_HasAFlagForEachFieldAndTheCommentsAsHelp(tt *testing.T) {
	t := newShell(tt)
	help := must0(t, "call", "MessageService/ListMailboxes", "--help")
	for _, want := range []string{"Usage: brokerctl call MessageService/ListMailboxes", "ListMailboxes lists the mailboxes", "--order", "--page-size", "waiting"} {
		if !strings.Contains(help, want) {
			t.Errorf("the help lacks %q:\n%s", want, help)
		}
	}
	words := must0(t, "__complete", "call", "MessageService/ListMailboxes", "--or")
	if !strings.Contains(words, "--order") {
		t.Errorf("completion of a flag: %s", words)
	}
	if words := must0(t, "__complete", "call", "MessageService/ListMailboxes", "--order", ""); !strings.Contains(words, "waiting") {
		t.Errorf("completion of a value: %s", words)
	}
	if words := must0(t, "__complete", "call", "Lock"); !strings.Contains(words, "LockService/Lock\n") {
		t.Errorf("completion of a method: %s", words)
	}
}
