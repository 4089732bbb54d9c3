package main

import (
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/internal/problem"
)

// graves makes two dead letters of builder-1 and one of builder-2.
func graves(t *shell) {
	t.Helper()
	startBroker(t)
	register(t, "lead/lead", "builder-1", "builder-2")
	for _, d := range []struct{ agent, text, reason string }{
		{"builder-1", "Fetch it", "timeout after 30s"},
		{"builder-1", "Build it", "no such file"},
		{"builder-2", "Test it", "Timeout"},
	} {
		sent(t, "--agent", "lead", d.agent, d.text)
		must0(t, "--agent", d.agent, "claim")
		must0(t, "--agent", d.agent, "nack", "--fatal", "--error", d.reason)
	}
}

func TestDLQ_AFilterChoosesWhatIsListedRedrivenAndDeleted(tt *testing.T) {
	t := newShell(tt)
	graves(t)
	out := must0(t, "dlq", "list", "--error", "timeout", "--from", "lead", "--holder", "builder-1")
	if !strings.Contains(out, "Fetch it") || strings.Contains(out, "Build it") || strings.Contains(out, "Test it") {
		t.Errorf("%s", out)
	}
	if got := ctl(t, "dlq", "list", "--limit", "2"); got.code != 0 || got.err != "the newest 2 of 3 dead letters; --limit 0 lists all\n" {
		t.Errorf("%+v", got)
	}
	for _, step := range []struct{ args, want string }{
		{"redrive --error timeout --dry-run", "would redrive 2 dead letters\n"},
		{"delete --all --dry-run", "would delete 3 dead letters\n"},
		{"redrive --error timeout --mailbox builder-2", "redrove 1 dead letter\n"},
		{"redrive --since 1h --holder builder-2 --dry-run", "would redrive 0 dead letters\n"},
		{"delete --type text --dry-run", "would delete 0 dead letters\n"},
		{"delete --error timeout", "deleted 1 dead letter\n"},
		{"redrive --all", "redrove 1 dead letter\n"},
	} {
		out := must0(t, append([]string{"dlq"}, strings.Fields(step.args)...)...)
		out, until, counted := strings.Cut(out, "to leave out those that follow, add ")
		if counted {
			must0(t, append([]string{"dlq", "list"}, strings.Fields(until)...)...)
		}
		if out != step.want || counted != strings.HasPrefix(step.want, "would") {
			t.Errorf("%s: %q, want %q", step.args, out, step.want)
		}
	}
	if out := must0(t, "--agent", "builder-1", "claim"); !strings.Contains(out, "Build it") {
		t.Errorf("%s", out)
	}
}

func TestDLQ_IDsAndFiltersAreTwoWaysToChoose(tt *testing.T) {
	t := newShell(tt)
	graves(t)
	id := at(t, fields(t, "dlq", "list", "--limit", "1"), "message", "id").(string)
	if out := must0(t, "dlq", "redrive", id, "--dry-run"); out != "would redrive 1 dead letter\n" {
		t.Errorf("%q", out)
	}
	for args, want := range map[string]string{
		"redrive " + id + " --error x":                 "not both",
		"delete " + id + " --all":                      "not both",
		"redrive --all --request-id " + id:             "--request-id goes with ids only",
		"delete --dry-run":                             "name dead letters by id or revision",
		"redrive --mailbox builder-1 --since nonsense": "nonsense",
	} {
		got := ctl(t, append([]string{"dlq"}, strings.Fields(args)...)...)
		if got.code != problem.ExitUsage || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestMailboxList_SortsByAgeOrNumber(tt *testing.T) {
	t := newShell(tt)
	graves(t)
	sent(t, "--agent", "lead", "builder-2", "Test it again")
	for range 2 {
		sent(t, "--agent", "lead", "builder-1", "Build it again")
	}
	lines := strings.Split(strings.TrimSpace(must0(t, "mailbox", "list")), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[1], "builder-2 ") ||
		!strings.HasSuffix(strings.Join(strings.Fields(lines[2]), " "), " 2 0 2") {
		t.Errorf("%q", lines)
	}
	if got := at(t, fields(t, "mailbox", "list", "--order", "waiting", "--limit", "1"), "mailbox"); got != "builder-1" {
		t.Errorf("the fullest is %v", got)
	}
	if out := must0(t, "--agent", "builder-2", "mailbox", "list"); strings.Contains(out, "builder-1") {
		t.Errorf("%s", out)
	}
	got := ctl(t, "mailbox", "list", "--order", "size")
	if got.code != problem.ExitUsage || !strings.Contains(got.err, "oldest, waiting") {
		t.Errorf("%+v", got)
	}
}
