package bridge_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A malformed file is one that cannot be read as a message of the format.
type malformed struct {
	name   string
	fields string                                // of a message that is right in all other fields
	text   string                                // of the whole file, if fields is empty
	make   func(t *testing.T, path string) error // in place of a text
	lines  bool                                  // it is also a line of the format jsonl
	reason string                                // a part of the reason that the bridge gives
}

// malformedFiles are the files that every format rejects. In fields, SUBJECT, BODY, FROM and TO stand for the format's names.
func malformedFiles() []malformed {
	return []malformed{
		{name: "bad-json", text: `{"from": "scout" "to": "lead"}`, lines: true, reason: "invalid character"},
		{name: "truncated", text: `{"from": "scout", "body": "Hel`, lines: true, reason: "unexpected end"},
		{name: "no-object", text: `["scout", "lead"]`, lines: true, reason: "not a JSON object"},
		{name: "wrong-type", fields: `"FROM": "scout", "TO": "lead", "BODY": "x", "SUBJECT": 7`, reason: "must be a string"},
		{name: "no-sender-name", fields: `"FROM": {"name": "scout"}, "TO": "lead", "BODY": "x"`, lines: true, reason: "must be a string"},
		{name: "unknown-recipient", fields: `"FROM": "scout", "TO": "laed", "BODY": "x"`, lines: true, reason: "laed"},
		{name: "too-large", fields: `"FROM": "scout", "TO": "lead", "BODY": "` + strings.Repeat("x", 300<<10) + `"`, lines: true, reason: "262144"},
		{name: "bad-utf-8", fields: `"FROM": "scout", "TO": "lead", "BODY": "` + "\xff\xfe" + `"`, lines: true, reason: "not UTF-8"},
		{name: "nul-in-recipient", fields: `"FROM": "scout", "TO": "le\u0000ad", "BODY": "x"`, lines: true, reason: "not a name"},
		{name: "nul-in-sender", fields: `"FROM": "sc\u0000out", "TO": "lead", "BODY": "x"`, lines: true, reason: "sc"},
		{name: "nul-in-body", fields: `"FROM": "scout", "TO": "lead", "BODY": "x\u0000y"`, lines: true, reason: "NUL"},
		{name: "deep-nesting", text: strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000), lines: true, reason: "depth"},
		{name: "long-line", lines: true, reason: "at most", make: func(_ *testing.T, path string) error {
			return os.Truncate(path, 100<<20)
		}},
		{name: "empty", text: "", reason: "unexpected end"},
		{name: "folder", reason: "folder", make: func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.MkdirAll(filepath.Join(path, "inner"), 0o755)
		}},
		{name: "link", reason: "symbolic link", make: func(t *testing.T, path string) error {
			outside := filepath.Join(t.TempDir(), "secret.json")
			if err := os.WriteFile(outside, []byte(`{"id": "s", "body": "secret"}`), 0o644); err != nil {
				return err
			}
			return replaceByLink(outside, path)
		}},
		{name: "link-to-itself", reason: "symbolic link", make: func(_ *testing.T, path string) error {
			return replaceByLink(filepath.Base(path), path)
		}},
		{name: "pipe", reason: "named pipe", make: func(_ *testing.T, path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o644)
		}},
		{name: "unreadable", reason: "not permitted", make: func(_ *testing.T, path string) error {
			return os.Chmod(path, 0)
		}},
	}
}

func replaceByLink(to, path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Symlink(to, path)
}

// words are the names that fields of malformed files have in a format.
func words(format string) *strings.Replacer {
	switch format {
	case "jsonl":
		return strings.NewReplacer(`"FROM"`, `"FromAgentId"`, `"TO"`, `"ToAgentId"`, `"BODY"`, `"Content"`)
	case "maildir":
		return strings.NewReplacer(`"FROM"`, `"from"`, `"TO"`, `"to"`, `"BODY"`, `"body"`, `"SUBJECT"`, `"subject"`)
	}
	return strings.NewReplacer(`"FROM"`, `"message_id": "m", "from_agent"`, `"TO"`, `"to_agent"`, `"BODY"`, `"payload"`, `"SUBJECT"`, `"subject"`)
}

// goodFile returns a file, or for jsonl a line, that is a message to lead.
func goodFile(format string) (name, text string) {
	switch format {
	case "jsonl":
		return "mailbox/lead.jsonl", `{"FromAgentId": "scout", "ToAgentId": "lead", "Content": "good"}` + "\n"
	case "maildir":
		return "messages/outbox/scout/zz-good.json", `{"to": "lead", "body": "good"}`
	}
	return ".agent-messages/outbox/good.json", `{"message_id": "g", "from_agent": "scout", "to_agent": "lead", "payload": "good"}`
}

func TestMalformed_FileIsRejectedWithAReasonAndAnEvent(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"jsonl", "maildir", "agent-messages"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			lead := d.broker.Registered("lead", "lead")
			name, text := goodFile(format)
			folder, root := filepath.Dir(name), ""
			if format == "agent-messages" {
				root = agentRoot
			}
			apptest.NoError(t, os.MkdirAll(filepath.Join(d.dir, folder), 0o755))
			if format == "jsonl" { // the lines are no history
				d.write(name, "")
			}
			d.start()
			d.awaitAgent("lead")
			wanted := map[string]string{} // the end of the name in rejected/ → a part of the reason
			for _, m := range malformedFiles() {
				if m.name == "unreadable" && (os.Geteuid() == 0 || format == "jsonl") {
					continue // root may read every file; a mailbox that cannot be read stays for its agent
				}
				if end := d.malformed(folder, m); end != "" {
					wanted[end] = m.reason
				}
			}
			rejected := d.awaitFiles(root+"rejected", 2*len(wanted))
			for _, file := range rejected {
				end, ok := strings.CutSuffix(file, ".error")
				if !ok {
					continue
				}
				end = strings.TrimPrefix(end, strings.ReplaceAll(strings.TrimPrefix(folder, root), "/", "-")+"-")
				reason := wanted[end]
				delete(wanted, end)
				if text := d.text(root + "rejected/" + file); reason == "" || !strings.Contains(text, reason) || len(text) > 1000 {
					t.Errorf("the reason of %s is %.300q; it must contain %q", file, text, reason)
				}
			}
			if len(wanted) > 0 {
				t.Errorf("without a reason: %v; rejected/ has %q", wanted, rejected)
			}
			d.checkEvents(len(rejected) / 2)
			if format == "jsonl" {
				d.appendLine("lead", text)
			} else {
				d.write(name, text)
			}
			if m := d.claim(lead, 1)[0]; m.GetBody() != "good" {
				t.Errorf("after the rejections, this message arrived: %v", m)
			}
		})
	}
}

// malformed puts a malformed file or line into a folder, and returns the end of the name that it has in
// rejected/; "" if the format has no such files.
func (d *team) malformed(folder string, m malformed) string {
	d.t.Helper()
	text := m.text
	if m.fields != "" {
		text = words(d.format).Replace("{" + m.fields + "}")
	}
	temp := filepath.Join(d.t.TempDir(), m.name+".json")
	apptest.NoError(d.t, os.WriteFile(temp, []byte(text), 0o644))
	if m.make != nil {
		apptest.NoError(d.t, m.make(d.t, temp))
	}
	if d.format == "jsonl" && m.lines {
		data, err := os.ReadFile(temp)
		apptest.NoError(d.t, err)
		d.appendLine("lead", string(data)+"\n")
		d.lines++
		return fmt.Sprintf("lead.jsonl-line-%d", d.lines)
	}
	name := m.name + ".json"
	if d.format == "jsonl" {
		if m.make == nil {
			return ""
		}
		name += "l"
	}
	apptest.NoError(d.t, os.Rename(temp, filepath.Join(d.dir, folder, name)))
	return name
}

// checkEvents wants one event for each rejected file.
func (d *team) checkEvents(count int) {
	d.t.Helper()
	out, err := pb.NewEventServiceClient(d.broker.Operator()).ListEvents(d.t.Context(),
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"bridge.file_rejected"}}, PageSize: 1000})
	apptest.NoError(d.t, err)
	if len(out.GetEvents()) != count {
		d.t.Errorf("%d files were rejected with %d events: %v", count, len(out.GetEvents()), out.GetEvents())
	}
}
