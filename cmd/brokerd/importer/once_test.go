package importer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"brokerd/client"
	"brokerd/cmd/brokerd/importer"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/processtest"
)

func TestImport_TwiceSendsNothingTwice(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.exec("INSERT INTO agent_status (agent_id, status, last_heartbeat) VALUES ('b', 'idle', '')")
	d.exec("INSERT INTO channel_subscriptions VALUES ('work', 'b', '')")
	for i := range 30 {
		d.message(fmt.Sprint(i), columns{"timestamp": stamp(i)})
	}
	d.message("done", columns{"status": "done"})
	d.dead("dead", "b")
	d.imports()
	first := ids(d.sent())
	before := d.revision()
	report := d.imports()
	if after := d.revision(); after != before {
		t.Errorf("the second import has changed something: revision %d, then %d", before, after)
	}
	for kind, c := range counts(report) {
		if c.Imported != 0 || kind != "finished" && c.AlreadyThere != c.Read {
			t.Errorf("%+v", c)
		}
	}
	if diff := cmp.Diff(first, ids(d.sent())); diff != "" {
		t.Error(diff)
	}

	// A copy of the file with another name, and a message that came later.
	d.message("31", columns{"timestamp": stamp(31)})
	d.exec("PRAGMA wal_checkpoint(TRUNCATE)")
	text, err := os.ReadFile(d.file)
	apptest.NoError(t, err)
	copied := filepath.Join(t.TempDir(), "copy of messages.sqlite")
	apptest.NoError(t, os.WriteFile(copied, text, 0o400))
	report = d.imports(func(o *importer.Options) { o.File = copied })
	if got := counts(report)["messages"]; got.Imported != 1 || got.AlreadyThere != 30 {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(append(first[:30:30], first[30], "31"), ids(d.sent())); diff != "" {
		t.Error(diff)
	}
	if got := d.lines("import/copy_of_messages/history.jsonl"); len(got) != 1 {
		t.Errorf("history: %v", got)
	}
}

// The import ended after its last send, and before it completed the entry of the ledger. The request ids of its sends
// are no longer known when another import runs.
func TestImport_LooksUpWhatAnEarlierImportDidNotComplete(t *testing.T) {
	t.Parallel()
	d := newTeam(t, apptest.WithFakeClock())
	for i := range 20 {
		d.message(fmt.Sprint(i), columns{"timestamp": stamp(i)})
	}
	for i := range 3 {
		d.dead(fmt.Sprintf("dead-%d", i), "b")
	}
	d.imports()
	before := ids(d.sent())
	entries, err := d.client.State().ListState(t.Context(), &pb.ListStateRequest{Namespace: "import", Values: true})
	if err != nil || len(entries.GetEntries()) != 2 {
		t.Fatalf("%v %v", entries, err)
	}
	for _, e := range entries.GetEntries() {
		var value map[string][]string
		apptest.NoError(t, json.Unmarshal([]byte(e.GetValue().GetJsonValue()), &value))
		cut, err := json.Marshal(map[string][]string{"sending": value["sent"]})
		apptest.NoError(t, err)
		if _, err := d.client.State().PutState(t.Context(), &pb.PutStateRequest{Namespace: "import", Key: e.GetKey(),
			Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: string(cut)}}}); err != nil {
			t.Fatal(err)
		}
	}
	d.broker.Clock.Advance(2 * time.Hour)
	report := d.imports()
	for kind, c := range counts(report) {
		if c.AlreadyThere != c.Read {
			t.Errorf("%s: %+v", kind, c)
		}
	}
	if diff := cmp.Diff(before, ids(d.sent())); diff != "" {
		t.Error(diff)
	}
}

func TestImport_AnotherImportAtTheSameTimeEnds(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	configure := func(rate float64, burst int32) {
		t.Helper()
		if _, err := d.client.Sessions().ConfigureSession(t.Context(), &pb.ConfigureSessionRequest{
			Settings: &pb.SessionSettings{SendRate: proto.Float64(rate), SendBurst: proto.Int32(burst)}}); err != nil {
			t.Fatal(err)
		}
	}
	configure(0.1, 1)
	d.message("1", columns{"timestamp": stamp(1)})
	d.message("2", columns{"timestamp": stamp(2)}) // waits for the rate
	d.dead("dead", "b")
	ended := make(chan error, 1)
	go func() { _, err := d.run(); ended <- err }()
	sent := &pb.EventFilter{Types: []string{"message.sent"}}
	for _, err := range d.client.FollowEvents(t.Context(), client.EventOptions{Filter: sent}) {
		apptest.NoError(t, err)
		break
	}
	// The entry of another import.
	if _, err := d.client.State().PutState(t.Context(), &pb.PutStateRequest{Namespace: "import", Key: "00000002",
		Value: &pb.StateValue{Value: &pb.StateValue_JsonValue{JsonValue: `{}`}}}); err != nil {
		t.Fatal(err)
	}
	configure(0, 1)
	if err := <-ended; !errors.Is(err, importer.ErrBusy) {
		t.Errorf("the import ended with %v", err)
	}
	if got := counts(d.imports()); got["messages"].AlreadyThere != 2 || got["dead_letters"].Imported != 1 {
		t.Errorf("%+v", got)
	}
}

// Each round kills an import at another moment, the next one continues.
func TestKill_EveryMessageIsSentOnceAndInOrder(t *testing.T) {
	t.Parallel()
	program := processtest.Build(t)
	d := newTeam(t)
	var want, dead []string
	for i := range 60 {
		id := fmt.Sprintf("m-%02d", i)
		from, to := fmt.Sprintf("agent-%d", i%5), fmt.Sprintf("agent-%d", i%3)
		d.message(id, columns{"timestamp": stamp(i), "from_agent": from, "to_agent": to})
		want = append(want, id)
	}
	for i := range 6 {
		dead = append(dead, fmt.Sprintf("dead-%d", i))
		d.dead(dead[i], "agent-1")
	}
	for i := range 5 {
		agent := fmt.Sprintf("agent-%d", i)
		d.exec("INSERT INTO agent_status (agent_id, status, last_heartbeat) VALUES (?, 'idle', '')", agent)
		d.exec("INSERT INTO channel_subscriptions VALUES ('work', ?, '')", agent)
	}
	for _, moment := range []struct {
		event string
		at    int // how many of these events the round waits for
	}{
		{"state.put", 1}, {"agent.registered", 3}, {"channel.subscribed", 2}, {"state.put", 2}, {"message.sent", 1},
		{"message.sent", 7}, {"message.sent", 20}, {"message.sent", 30}, {"message.sent", 2}, {"message.claimed", 1},
		{"message.dead", 1}, {"message.sent", 1}, {"message.dead", 2},
	} {
		d.killAt(program, moment.event, moment.at)
	}
	report := d.imports()
	if got := counts(report)["messages"]; got.Imported+got.AlreadyThere != 60 {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff(append(want, dead...), ids(d.sent())); diff != "" {
		t.Error(diff)
	}
	letters, err := d.client.Messages().ListDeadLetters(t.Context(), &pb.ListDeadLettersRequest{})
	if err != nil || len(letters.GetItems()) != len(dead) {
		t.Errorf("%d dead letters: %v", len(letters.GetItems()), err)
	}
	var mail []string
	for i := range 3 {
		mail = append(mail, waiting(t, d.client, fmt.Sprintf("agent-%d", i))...)
	}
	if slices.Sort(mail); !slices.Equal(mail, want) {
		t.Errorf("mail: %q", mail)
	}
}

// killAt runs an import as a process and kills it at the nth event of a type, or when there is nothing left to import.
func (d *team) killAt(program, event string, n int) {
	d.t.Helper()
	after := d.revision()
	var log bytes.Buffer
	child := exec.Command(program, "import", "sqlite", d.file, "--addr", d.broker.Socket())
	child.Env, child.Stdout, child.Stderr = append(processtest.Environment(d.t), "TMPDIR="+d.t.TempDir()), io.Discard, &log
	apptest.NoError(d.t, child.Start())
	ctx, cancel := context.WithCancel(d.t.Context())
	ended := make(chan struct{})
	go func() {
		_ = child.Wait() // the exit code says more
		cancel()
		close(ended)
	}()
	filter := &pb.EventFilter{Types: []string{event}}
	for _, err := range d.client.FollowEvents(ctx, client.EventOptions{After: after, Filter: filter}) {
		if n--; err != nil || n <= 0 {
			break
		}
	}
	_ = child.Process.Kill() // it may have ended
	<-ended
	if child.ProcessState.ExitCode() > 0 {
		d.t.Errorf("the import failed: %s", log.String())
	}
}

// The file has more bytes than the process may use. The process cannot end before the test has read how many it used,
// because its report does not fit into the pipe.
func TestImport_MemoryStaysBounded(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc")
	}
	const rows, most = 15_000, 128 << 10 // KiB
	program := processtest.Build(t)
	d := newTeam(t)
	d.exec(`INSERT INTO messages
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		SELECT 'm-' || i, 'context.query', '1.0', '2025-11-08', NULL, 'a-' || i % 20, 'b', 'work', 5,
			'"' || hex(zeroblob(5000)) || '"', iif(i % 100 = 0, 'pending', 'done'), '', NULL, 0, NULL, NULL FROM n`, rows)
	out, in, err := os.Pipe()
	apptest.NoError(t, err)
	defer out.Close() //nolint:errcheck // it is only read
	apptest.NoError(t, apptest.Err(in.Write(make([]byte, 64<<10))))
	var log bytes.Buffer
	child := exec.CommandContext(t.Context(), program, "import", "sqlite", d.file, "--addr", d.broker.Socket())
	child.Env, child.Stdout, child.Stderr = append(processtest.Environment(t), "TMPDIR="+t.TempDir()), in, &log
	apptest.NoError(t, errors.Join(child.Start(), in.Close()))
	filter := &pb.EventFilter{Types: []string{"artifact.uploaded"}}
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	for _, err := range d.client.FollowEvents(ctx, client.EventOptions{Filter: filter}) {
		apptest.NoError(t, err)
		break
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child.Process.Pid))
	apptest.NoError(t, err)
	var used int
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscanf(peak, "%d kB", &used); err != nil || used > most {
		t.Errorf("the import used %d KiB; want %d: %v", used, most, err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("%v: %s", err, log.String())
	}
	if n := len(d.sent()); n != rows/100 {
		t.Errorf("%d messages were sent", n)
	}
}
