package importer_test

import (
	"fmt"
	"os"
	"path/filepath"
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
)

// files returns the names and contents of the files of a folder.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	apptest.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		apptest.NoError(t, err)
		all[e.Name()] = string(text)
	}
	return all
}

// Twenty agents have the file open, and what they have written last is in FILE-wal alone.
func TestImport_MovesATeam(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	statuses := []string{"pending", "processing", "done", "failed"}
	var want, finished []string
	for i := range 20 {
		agent := fmt.Sprintf("agent-%02d", i)
		other := open(t, d.file, "WAL")
		if _, err := other.ExecContext(t.Context(),
			"INSERT INTO agent_status (agent_id, status, current_task, last_heartbeat) VALUES (?, ?, ?, ?)",
			agent, []string{"idle", "active", "degraded", "failed"}[i%4], "task "+agent, stamp(i)); err != nil {
			t.Fatal(err)
		}
		d.exec("INSERT INTO channel_subscriptions VALUES ('general', ?, ?)", agent, stamp(i))
	}
	for i := range 80 {
		id := fmt.Sprintf("m-%02d", 79-i) // the order of the rows is not that of their times
		change := columns{"timestamp": stamp(79 - i), "from_agent": fmt.Sprintf("agent-%02d", i%20),
			"to_agent": fmt.Sprintf("agent-%02d", (i+7)%20), "status": statuses[i%4], "priority": i%10 + 1}
		if i%8 == 0 {
			change["to_agent"] = nil
			change["channel"] = "general"
		}
		if d.message(id, change); i%4 < 2 {
			want = append([]string{id}, want...)
		} else {
			finished = append(finished, id)
		}
	}
	before := files(t, filepath.Dir(d.file))
	if before["messages.db-wal"] == "" {
		t.Fatal("the file has no log")
	}
	report := d.imports()
	if diff := cmp.Diff(before, files(t, filepath.Dir(d.file))); diff != "" {
		t.Errorf("the files have changed: %.200s", diff)
	}
	all := func(n int) func(*importer.Count) { return func(c *importer.Count) { c.Imported = n } }
	if diff := cmp.Diff(map[string]importer.Count{
		"agents": count("agents", 20, all(20)), "subscriptions": count("subscriptions", 20, all(20)),
		"messages": count("messages", 40, all(40)),
		"finished": count("finished", 40, func(c *importer.Count) { c.Kept = 40 }),
	}, counts(report)); diff != "" {
		t.Error(diff)
	}
	sent := d.sent()
	if diff := cmp.Diff(want, ids(sent)); diff != "" {
		t.Errorf("sent messages: %s", diff)
	}
	var kept []string
	for _, r := range d.lines("import/messages/history.jsonl") {
		kept = append(kept, r["id"].(string))
	}
	if diff := cmp.Diff(finished, kept); diff != "" {
		t.Errorf("history: %s", diff)
	}
	for _, a := range []int{1, 3} { // active and failed
		out, err := d.client.Agents().GetAgent(t.Context(), &pb.GetAgentRequest{Name: fmt.Sprintf("agent-%02d", a)})
		apptest.NoError(t, err)
		agent := out.GetAgent()
		got := []any{agent.GetActivity(), agent.GetHealth(), agent.GetLease().AsDuration(), agent.GetLabels()["via"],
			agent.GetLabels()["original_status"], agent.GetLabels()["original_last_heartbeat"]}
		want := []any{"task " + agent.GetName(), pb.Health_HEALTH_OK, 24 * time.Hour, "import",
			[]string{"idle", "active", "degraded", "failed"}[a], stamp(a)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	general, err := d.client.Channels().ListChannels(t.Context(), &pb.ListChannelsRequest{Subscriber: "agent-19"})
	if err != nil || len(general.GetChannels()) != 1 || general.GetChannels()[0].GetName() != "general" {
		t.Errorf("channels of agent-19: %v %v", general, err)
	}
}

func TestImport_KeepsWhatAMessageSays(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.exec("INSERT INTO channel_subscriptions VALUES ('urgent', 'b', '')")
	d.message("direct", columns{
		"timestamp": stamp(1), "priority": 9, "payload": `{ "b":1, "a":[2.50] }`, "channel": "general"})
	d.message("all", columns{
		"timestamp": stamp(2), "to_agent": nil, "channel": "urgent", "correlation_id": nil, "type": "TaskCompleted"})
	d.message("late", columns{
		"timestamp": stamp(3), "expires_at": time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000")})
	d.imports()
	sent := d.sent()
	if diff := cmp.Diff([]string{"direct", "all", "late"}, ids(sent)); diff != "" {
		t.Fatal(diff)
	}
	m := sent[0]
	got := []any{m.GetSender(), m.GetTarget().GetAgent(), m.GetChannel(), m.GetPriority(), m.GetPayload(),
		m.GetCorrelationId(), m.GetVersion(), m.GetLabels()["original_timestamp"],
		m.GetExpiresAt().AsTime().Sub(m.GetCreatedAt().AsTime())}
	want := []any{"a", "b", "general", int32(9), `{ "b":1, "a":[2.50] }`, "req-direct", "1.0", stamp(1),
		365 * 24 * time.Hour}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if m := sent[1]; m.GetTarget().GetChannel() != "urgent" || m.GetCorrelationId() != "" {
		t.Errorf("a message to a channel: %v", m)
	}
	rest := sent[2].GetExpiresAt().AsTime().Sub(sent[2].GetCreatedAt().AsTime())
	if rest > time.Hour || rest < time.Hour-apptest.Patience {
		t.Errorf("a message that has an hour left lives for %v", rest)
	}
}

func TestImport_DeadLettersAreDeadWithTheirError(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.broker.Registered("busy", "")
	for i := range 8 { // more than the circuit breaker permits in a row
		d.dead(fmt.Sprintf("dead-%d", i), "b")
	}
	d.dead("nobody's", nil)
	d.dead("at work", "busy")
	report := d.imports()
	wantCount := count("dead_letters", 10, func(c *importer.Count) { c.Imported, c.Kept = 8, 2 })
	if diff := cmp.Diff(wantCount, counts(report)["dead_letters"]); diff != "" {
		t.Error(diff)
	}
	out, err := d.client.Messages().ListDeadLetters(t.Context(), &pb.ListDeadLettersRequest{Mailbox: "b"})
	apptest.NoError(t, err)
	var dead []string
	for _, item := range out.GetItems() {
		m, delivery := item.GetMessage(), item.GetDelivery()
		dead = append(dead, m.GetLabels()["original_id"]+" "+m.GetPayload()+" "+delivery.GetHistory()[0].GetError())
	}
	slices.Sort(dead)
	var want []string
	for i := range 8 {
		want = append(want, fmt.Sprintf(`dead-%d {"n":1} error of dead-%[1]d`, i))
	}
	if diff := cmp.Diff(want, dead); diff != "" {
		t.Error(diff)
	}
	for _, agent := range []string{"b", "busy"} {
		if mail := waiting(t, d.client, agent); len(mail) > 0 {
			t.Errorf("%s has mail: %q", agent, mail)
		}
	}
	var kept []string
	for _, r := range d.lines("import/messages/history.jsonl") {
		kept = append(kept, r["id"].(string))
	}
	if diff := cmp.Diff([]string{"nobody's", "at work"}, kept); diff != "" {
		t.Error(diff)
	}
}

func TestImport_SkipsWhatNoBrokerTakes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change columns
		reason string
	}{
		"sender":      {columns{"from_agent": "my agent"}, `from_agent "my agent" is no name`},
		"no sender":   {columns{"from_agent": ""}, `from_agent "" is no name`},
		"recipient":   {columns{"to_agent": "b/c"}, `to_agent "b/c" is no name`},
		"everyone":    {columns{"to_agent": "all"}, "all"},
		"system":      {columns{"from_agent": "system"}, "system"},
		"channel":     {columns{"channel": "#x"}, `channel "#x" is no name`},
		"type":        {columns{"type": "a type\x00"}, `type "a type\x00" is no name`},
		"directive":   {columns{"type": "terminate"}, "terminate"},
		"version":     {columns{"version": "2.0"}, `version "2.0" is not 1.x`},
		"versions":    {columns{"version": "1.x"}, "version"},
		"low":         {columns{"priority": 0}, `priority "0" is no number from 1 to 10`},
		"high":        {columns{"priority": 11}, `priority "11" is no number from 1 to 10`},
		"word":        {columns{"priority": "urgent"}, `priority "urgent" is no number from 1 to 10`},
		"json":        {columns{"payload": "{'query': 1}"}, "payload is no JSON"},
		"empty":       {columns{"payload": ""}, "payload is no JSON"},
		"binary":      {columns{"payload": []byte("\"\xff\"")}, "payload is no valid UTF-8"},
		"deep":        {columns{"payload": strings.Repeat("[", 101) + strings.Repeat("]", 101)}, "payload"},
		"large":       {columns{"payload": `"` + strings.Repeat("x", 300<<10) + `"`}, "payload"},
		"huge":        {columns{"payload": `"` + strings.Repeat("x", 6<<20) + `"`}, "payload has 6291458 bytes"},
		"correlation": {columns{"correlation_id": strings.Repeat("c", 200)}, "correlation_id"},
		"expiry":      {columns{"expires_at": "tomorrow"}, `expires_at "tomorrow" is no time of ISO 8601`},
	}
	d := newTeam(t)
	d.message("good", nil)
	for id, test := range tests {
		d.message(id, test.change)
	}
	d.message(strings.Repeat("i", 300), nil)
	d.exec("INSERT INTO agent_status (agent_id, status, last_heartbeat) VALUES ('an agent', 'idle', '')")
	d.exec("INSERT INTO channel_subscriptions VALUES ('a channel', 'a', '')")
	d.exec("INSERT INTO dead_letter_queue VALUES ('d', 'no JSON', '', '', 3)")
	report := d.imports()
	if got := ids(d.sent()); !slices.Equal(got, []string{"good"}) {
		t.Errorf("sent: %q", got)
	}
	if got := counts(report)["messages"]; got.Skipped != len(tests)+1 || got.Imported != 1 {
		t.Errorf("%+v", got)
	}
	reasons := map[string]string{}
	for _, s := range d.lines("import/messages/skipped.jsonl") {
		id, _ := s["row"].(map[string]any)["id"].(string)
		reasons[fmt.Sprint(s["kind"], " ", id)] = s["reason"].(string)
	}
	for id, test := range tests {
		if got := reasons["messages "+id]; !strings.Contains(got, test.reason) {
			t.Errorf("%s: %q; want %q", id, got, test.reason)
		}
	}
	for _, kind := range []string{"agents ", "subscriptions ", "dead_letters d", "messages " + strings.Repeat("i", 300)} {
		if reasons[kind] == "" {
			t.Errorf("%s is not among the skipped rows", kind)
		}
	}
	var text strings.Builder
	if report.Write(&text); !strings.Contains(text.String(), fmt.Sprintf("and %d more", len(tests)+4-10)) {
		t.Errorf("the report does not count the others:\n%s", text.String())
	}
}

func TestImport_ReportsExpiredOnesAndThoseWithoutSubscribers(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.message("old", columns{"expires_at": "2025-11-08T16:30:00Z"})
	d.message("older", columns{"expires_at": "2025-11-08 16:30:00"})
	d.message("unheard", columns{"to_agent": nil, "channel": "empty"})
	report := d.imports()
	want := count("messages", 3, func(c *importer.Count) { c.Expired, c.NoSubscribers = 2, 1 })
	if diff := cmp.Diff(want, counts(report)["messages"]); diff != "" {
		t.Error(diff)
	}
	if got := d.lines("import/messages/history.jsonl"); len(got) != 2 || got[0]["id"] != "old" {
		t.Errorf("history: %v", got)
	}
}

func TestImport_ReadsTimesAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.exec("ALTER TABLE messages DROP COLUMN expires_at")
	d.exec("ALTER TABLE messages ADD COLUMN expires_at DATETIME")
	d.message("old", columns{"expires_at": "2025-11-08T16:30:00+0000"})
	d.message("never", columns{"expires_at": "soon"})
	want := count("messages", 2, func(c *importer.Count) { c.Expired, c.Skipped = 1, 1 })
	if diff := cmp.Diff(want, counts(d.imports())["messages"]); diff != "" {
		t.Error(diff)
	}
	if got := d.lines("import/messages/history.jsonl"); len(got) != 1 || got[0]["expires_at"] != "2025-11-08T16:30:00+0000" {
		t.Errorf("history: %v", got)
	}
}

func TestImport_ReportsFullMailboxesOfSubscribers(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	lead := d.broker.Registered("lead", "lead")
	for _, agent := range []string{"full", "free"} {
		as := pb.NewChannelServiceClient(d.broker.Registered(agent, "worker"))
		apptest.NoError(t, apptest.Err(as.SubscribeChannel(t.Context(), &pb.SubscribeChannelRequest{Channel: "work"})))
	}
	_, err := pb.NewSessionServiceClient(d.broker.Operator()).ConfigureSession(t.Context(),
		&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(1)}})
	apptest.NoError(t, err)
	_, err = pb.NewMessageServiceClient(lead).SendMessages(t.Context(), &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Agent{Agent: "full"}}, Subject: "x"}}})
	apptest.NoError(t, err)
	d.message("1", columns{"to_agent": nil})
	report := d.imports()
	if got := counts(report)["messages"]; got.Imported != 1 || len(report.Skipped) != 1 ||
		!strings.Contains(report.Skipped[0].Reason, "1 of 2 mailboxes") {
		t.Errorf("%+v, %v", got, report.Skipped)
	}
}

func TestImport_LeavesARegisteredAgentAsItIs(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	d.broker.Registered("b", "builder")
	before, err := d.client.Agents().GetAgent(t.Context(), &pb.GetAgentRequest{Name: "b"})
	apptest.NoError(t, err)
	d.exec("INSERT INTO agent_status (agent_id, status, current_task, last_heartbeat) VALUES ('b', 'failed', 'x', '')")
	d.message("1", nil)
	if got := counts(d.imports())["agents"]; got.AlreadyThere != 1 {
		t.Errorf("%+v", got)
	}
	after, err := d.client.Agents().GetAgent(t.Context(), &pb.GetAgentRequest{Name: "b"})
	if err != nil || after.GetAgent().GetRevision() != before.GetAgent().GetRevision() {
		t.Errorf("%v; before %v; %v", after, before, err)
	}
}

func TestImport_DryRunChangesNothing(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	for i := range 300 {
		d.message(fmt.Sprint(i), columns{"status": "pending"})
	}
	d.message("skipped", columns{"version": "2.0"})
	d.message("done", columns{"status": "done"})
	d.dead("dead", "b")
	if _, err := d.client.Sessions().ConfigureSession(t.Context(), &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(200)}}); err != nil {
		t.Fatal(err)
	}
	before := d.revision()
	report := d.imports(func(o *importer.Options) { o.DryRun = true })
	if after := d.revision(); after != before {
		t.Errorf("the revision was %d and is %d", before, after)
	}
	want := map[string]importer.Count{
		"messages":     count("messages", 301, func(c *importer.Count) { c.Imported, c.Skipped = 300, 1 }),
		"dead_letters": count("dead_letters", 1, func(c *importer.Count) { c.Imported = 1 }),
		"finished":     count("finished", 1, func(c *importer.Count) { c.Kept = 1 }),
	}
	if diff := cmp.Diff(want, counts(report)); diff != "" {
		t.Error(diff)
	}
	var text strings.Builder
	report.Write(&text)
	for _, want := range []string{"would import", "--mailbox-limit N", `"a" has 301 unfinished messages`, "up to 20s",
		"session configure --send-rate 0 before and --send-rate 10 after", "import/messages/history.jsonl  1 rows",
		"--dry-run"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
}

// A full mailbox costs no message: another import, after the limit is raised, sends it.
func TestImport_AFullMailboxIsFilledLater(t *testing.T) {
	t.Parallel()
	d := newTeam(t)
	limit := func(n int64) {
		t.Helper()
		if _, err := d.client.Sessions().ConfigureSession(t.Context(), &pb.ConfigureSessionRequest{
			Settings: &pb.SessionSettings{MailboxLimit: proto.Int64(n)}}); err != nil {
			t.Fatal(err)
		}
	}
	limit(2)
	for i := range 3 {
		d.message(fmt.Sprint(i), columns{"timestamp": stamp(i)})
	}
	report := d.imports()
	if got := counts(report)["messages"]; got.Imported != 2 || got.Skipped != 1 ||
		!strings.Contains(report.Skipped[0].Reason, "--mailbox-limit") {
		t.Errorf("%+v", report)
	}
	limit(0)
	if got := counts(d.imports())["messages"]; got.Imported != 1 || got.AlreadyThere != 2 {
		t.Errorf("%+v", got)
	}
	if got := waiting(t, d.client, "b"); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("mail: %q", got)
	}
}

// waiting returns the original ids of the mail of an agent.
func waiting(t *testing.T, c *client.Client, agent string) []string {
	t.Helper()
	page, err := c.As(agent).Messages().ListMessages(t.Context(),
		&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, PageSize: 1000})
	apptest.NoError(t, err)
	var all []*pb.Message
	for _, item := range page.GetItems() {
		all = append(all, item.GetMessage())
	}
	return ids(all)
}
