package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// appendLine appends to a mailbox under its lock, as a script does with flock.
func (d *team) appendLine(agent, text string) {
	d.t.Helper()
	path := filepath.Join(d.dir, "mailbox", agent+".jsonl")
	apptest.NoError(d.t, os.MkdirAll(filepath.Dir(path), 0o755))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	apptest.NoError(d.t, err)
	defer f.Close() //nolint:errcheck // the write has been checked
	apptest.NoError(d.t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	apptest.NoError(d.t, apptest.Err(f.WriteString(text)))
}

// awaitLines waits until a mailbox has a number of complete lines.
func (d *team) awaitLines(agent string, count int) []string {
	d.t.Helper()
	lines := func() []string {
		data, _ := os.ReadFile(filepath.Join(d.dir, "mailbox", agent+".jsonl"))
		all := strings.SplitAfter(string(data), "\n")
		return all[:len(all)-1]
	}
	d.await("mailbox", fmt.Sprintf("line %d of %s", count, agent), func() bool { return len(lines()) >= count })
	all := lines()
	if len(all) != count {
		d.t.Fatalf("%s has %d lines, not %d:\n%s", agent, len(all), count, strings.Join(all, ""))
	}
	return all
}

func TestJSONL_LineIsSentAndMailIsAppended(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.start()
	d.appendLine("lead", `{"MessageId":"m1","FromAgentId":"scout-1","ToAgentId":"lead","Type":"TaskComplete","Content":"done",`+
		`"Metadata":{"branch":"b1","priority":"high"},"Timestamp":"2026-01-01T00:00:00Z","Score":[1,2]}`+"\n")
	m := d.claim(lead, 1)[0]
	got := []any{m.GetSender(), m.GetType(), m.GetBody(), m.GetThreadId(), m.GetPriority(), m.GetLabels()}
	want := []any{"scout-1", "task_complete", "done", "m1", int32(7), map[string]string{
		"branch": "b1", "original_id": "m1", "original_timestamp": "2026-01-01T00:00:00Z", "file.Score": "[1,2]"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	answer := toAgent("scout-1", "thanks")
	answer.InReplyTo, answer.Labels = m.GetId(), map[string]string{"mood": "good", "file.Score": "7"}
	sent := d.send(lead, answer)
	o := object(t, d.awaitLines("scout-1", 1)[0])
	if o["MessageId"] != sent.GetId() || o["FromAgentId"] != "lead" || o["ToAgentId"] != "scout-1" || o["Content"] != "thanks" || o["Score"] != 7.0 {
		t.Errorf("the line is %v", o)
	}
	if metadata := o["Metadata"].(map[string]any); metadata["mood"] != "good" || metadata["thread_id"] != "m1" {
		t.Errorf("the metadata are %v", metadata)
	}
	d.awaitState(sent.GetId(), pb.DeliveryState_DELIVERY_STATE_ACKED)
}

func TestJSONL_LineInTheRecipientsOwnMailboxIsNotAppendedAgain(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	d.start()
	d.appendLine("b", `{"MessageId":"1","FromAgentId":"a","ToAgentId":"b","Content":"hello"}`+"\n")
	d.awaitAgent("a")
	d.awaitSent("a", 1)
	d.awaitEmpty("b")
	d.awaitLines("b", 1)
}

func TestJSONL_BroadcastIsOneSendAndReachesMailboxesWithoutACopy(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	const line = `{"MessageId":"1","FromAgentId":"a","ToAgentId":"*","Content":"to all"}` + "\n"
	d.appendLine("b", line)
	d.appendLine("c", line)
	d.appendLine("late", "")
	d.start(func(o *engine.Options) { o.SendHistory = true }) // all copies are there before the first is sent
	d.claim(lead, 1)
	if got := object(t, d.awaitLines("late", 1)[0]); got["Content"] != "to all" || got["FromAgentId"] != "a" {
		t.Errorf("the line is %v", got)
	}
	for _, name := range []string{"b", "c", "late"} {
		d.awaitEmpty(name)
		d.awaitLines(name, 1)
	}
	d.awaitSent("a", 1)
}

func TestJSONL_ReplyToALineInTheSendersOwnMailboxIsAppended(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.start()
	d.appendLine("a", `{"MessageId":"1","FromAgentId":"a","ToAgentId":"*","Content":"to all"}`+"\n")
	m := d.claim(lead, 1)[0]
	if _, err := messages(lead).Reply(t.Context(), &pb.ReplyRequest{Id: m.GetId(), Message: &pb.Message{Body: "answer"}}); err != nil {
		t.Fatal(err)
	}
	if got := object(t, d.awaitLines("a", 2)[1]); got["Content"] != "answer" {
		t.Errorf("the line is %v", got)
	}
}

func TestJSONL_HistoryIsKeptAndNotSent(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	old := `{"MessageId":"1","FromAgentId":"a","ToAgentId":"lead","Content":"old"}` + "\n"
	d.appendLine("lead", old)
	d.start()
	d.awaitEvents("the history is an artifact", func(context.Context) bool { return len(d.artifacts()) == 1 })
	d.appendLine("lead", strings.Replace(old, `"1"`, `"2"`, 1))
	if m := d.claim(lead, 1)[0]; m.GetLabels()["original_id"] != "2" {
		t.Errorf("the message %v was sent", m)
	}
}

func TestJSONL_HistoryIsSentOnRequest(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.appendLine("lead", `{"MessageId":"1","FromAgentId":"a","ToAgentId":"lead","Content":"old"}`+"\n")
	d.start(func(o *engine.Options) { o.SendHistory = true })
	d.claim(lead, 1)
}

func TestJSONL_TornLineIsSeparated(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.appendLine("scout", "")
	d.start()
	d.awaitAgent("scout")
	d.appendLine("scout", `{"MessageId":"1","FromAge`) // its writer was killed
	d.send(lead, toAgent("scout", "hello"))
	lines := d.awaitLines("scout", 2)
	if got := object(t, lines[1]); got["Content"] != "hello" {
		t.Errorf("the second line is %v", got)
	}
	d.awaitFiles("rejected", 2)
	if text := d.text("rejected/mailbox-scout.jsonl-line-1.error"); !strings.Contains(text, "not complete") {
		t.Errorf("the reason is %q", text)
	}
}

func TestJSONL_CompleteLineWithoutLineFeedIsSent(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.start()
	d.appendLine("lead", `{"MessageId":"1","FromAgentId":"a","ToAgentId":"lead","Content":"x"}`)
	d.claim(lead, 1)
}

func TestJSONL_BeginningOfALineOfTheBridgeIsCompleted(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	d.appendLine("scout", "")
	stop := d.start()
	d.awaitAgent("scout")
	d.send(lead, toAgent("scout", "first"))
	d.awaitLines("scout", 1)
	d.awaitEmpty("scout")
	stop()
	sent := d.send(lead, toAgent("scout", "second"))
	first := object(t, d.text("mailbox/scout.jsonl"))
	torn := fmt.Sprintf(`{"MessageId":%q,"FromAgentId":"lead","ToAg`, sent.GetId())
	if first["FromAgentId"] != "lead" {
		t.Fatal(first)
	}
	d.appendLine("scout", torn)
	d.start(func(o *engine.Options) { o.Settle = time.Hour }) // the bridge ends no torn line before it delivers
	if got := object(t, d.awaitLines("scout", 2)[1]); got["Content"] != "second" {
		t.Errorf("the line is %v", got)
	}
	if bad := d.names("rejected"); len(bad) > 0 {
		t.Errorf("rejected: %q", bad)
	}
}

func TestJSONL_ShorterFileIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "jsonl")
	lead := d.broker.Registered("lead", "lead")
	stop := d.start()
	line := func(body, fields string) string {
		return fmt.Sprintf(`{"FromAgentId":"a","ToAgentId":"lead","Content":%q%s}`, body, fields) + "\n"
	}
	d.appendLine("lead", line("again", "")+line("known", `,"MessageId":"1"`)+line("last", ""))
	d.claim(lead, 3)
	d.awaitEvents("the position is in the state", func(ctx context.Context) bool {
		out, err := pb.NewStateServiceClient(d.broker.Operator()).ListState(ctx, &pb.ListStateRequest{
			Namespace: "bridge", KeyPrefix: strings.TrimSpace(d.text(".bridge/id")) + "/position/lead", Values: true})
		return err == nil && len(out.GetEntries()) == 1 && strings.Contains(out.GetEntries()[0].GetValue().GetStringValue(), " 3")
	})
	stop()
	d.write("mailbox/lead.jsonl", line("again", "")+line("known", `,"MessageId":"1"`))
	d.start()
	if m := d.claim(lead, 1)[0]; m.GetBody() != "again" {
		t.Errorf("lead has received %q", m.GetBody())
	}
	d.appendLine("lead", line("end", ""))
	if m := d.claim(lead, 1)[0]; m.GetBody() != "end" {
		t.Errorf("lead has received %q", m.GetBody())
	}
}
