package main

import (
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/command"
	"brokerd/cmd/brokerctl/internal/setting"
)

// ofPieces are the commands whose --limit bounds what they hold or follow. Those of all others list.
var ofPieces = map[string]bool{
	"brokerctl claim": true, "brokerctl next": true, "brokerctl receive": true, "brokerctl work": true,
	"brokerctl task work": true, "brokerctl event follow": true, "brokerctl state follow": true,
}

func TestLimit_EveryListHasTheSameDefault(t *testing.T) {
	c := command.New(setting.Environment{})
	root := newRoot(c)
	c.BindAll()
	for _, cmd := range allCommands(root) {
		f := cmd.Flags().Lookup("limit")
		if f != nil && !ofPieces[cmd.CommandPath()] && f.DefValue != "1000" {
			t.Errorf("%s shows %s items", cmd.CommandPath(), f.DefValue)
		}
	}
}

func TestLimit_AListSaysThatItLeavesItemsOut(tt *testing.T) {
	t := newShell(tt)
	startBroker(t)
	register(t, "a")
	send := func(n int) {
		one := `{"target":{"agent":"a"},"subject":"one"}`
		request := `{"messages":[` + one + strings.Repeat(","+one, n-1) + `]}`
		if got := t.invoke(t.Context(), request, nil, "call", "MessageService/SendMessages", "-"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
	}
	shows := func(lines int, note string, args ...string) {
		t.Helper()
		got := ctl(t, args...)
		if n := strings.Count(got.out, "\n"); got.code != 0 || got.err != note || lines >= 0 && n != lines {
			t.Errorf("%q shows %d lines and says %q, want %d and %q", args, n, got.err, lines, note)
		}
	}
	const first, newest = "the first 1000; --limit 0 lists all\n", "the newest 1000; --limit 0 lists all\n"
	send(1000)
	shows(1000, "", "message", "list", "-o", "id")
	shows(1000, "", "--agent", "a", "inbox", "-o", "json")
	send(1)
	for _, format := range []string{"id", "json"} {
		shows(1000, first, "message", "list", "-o", format)
		shows(1000, newest, "message", "list", "--newest", "-o", format)
		shows(1000, first, "--agent", "a", "inbox", "-o", format)
		shows(1001, "", "--agent", "a", "inbox", "--limit", "0", "-o", format)
		shows(1000, newest, "thread", "list", "-o", format)
	}
	for _, format := range []string{"table", "prompt"} {
		shows(-1, first, "event", "list", "-o", format)
		shows(-1, "the newest 2; --limit 0 lists all\n", "event", "list", "--newest", "--limit", "2", "-o", format)
		shows(-1, "", "mailbox", "list", "--limit", "1", "-o", format)
	}
}
