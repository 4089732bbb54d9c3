package app_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3" // to break a database behind the daemon's back
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// serviceNames are the services of the API.
func serviceNames() []string {
	var names []string
	protoregistry.GlobalFiles.RangeFilesByPackage("brokerd.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			names = append(names, string(f.Services().Get(i).FullName()))
		}
		return true
	})
	return names
}

func TestGetStatus_TellsHowTheBrokerStands(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it names the store and --sync")
	b := apptest.Start(t, apptest.WithFakeClock())
	lead, builder := b.Registered("lead", "lead"), b.Registered("builder-1", "builder")
	for range 3 {
		send(t, pb.NewMessageServiceClient(lead), "builder-1")
	}
	apptest.Must(t, pb.NewMessageServiceClient(builder).ClaimMessages, &pb.ClaimMessagesRequest{Max: 1})
	apptest.Must(t, b.Root().CreateSession, &pb.CreateSessionRequest{Name: "other"})
	client := b.Root()
	events, err := b.Root().SubscribeEvents(patient(t), &pb.SubscribeEventsRequest{})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(events.Recv()))
	got := apptest.Must(t, client.GetStatus, &pb.GetStatusRequest{})
	if got.GetRevision() == 0 || !strings.HasPrefix(got.GetConfirmed(), "in this machine's memory") || got.GetDatabaseBytes() == 0 || got.GetCommits() == 0 ||
		got.GetProcessCpuTime().AsDuration() == 0 || got.GetProcessMemoryBytes() == 0 && runtime.GOOS == "linux" || got.GetStartedAt().AsTime() != b.Clock.Now() {
		t.Errorf("%v", got)
	}
	want := &pb.GetStatusResponse{
		Version: "test", Store: "sqlite", Sync: "normal", DataDir: b.Dir(), Listen: []string{b.Socket(), b.TCP()},
		Sessions: 2, Session: "default", Agents: 2, Streams: 1, Waiting: 2, Claimed: 1,
		Mailboxes: []*pb.MailboxStatus{{Mailbox: "builder-1", Waiting: 2, Claimed: 1}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&pb.GetStatusResponse{},
		"started_at", "revision", "confirmed", "database_bytes", "wal_bytes", "commits", "commit_time", "process_cpu_time", "process_memory_bytes")); diff != "" {
		t.Error(diff)
	}
	other, err := b.Actor("other", "").GetStatus(patient(t), &pb.GetStatusRequest{})
	if err != nil || other.GetAgents() != 0 || other.GetWaiting() != 0 || other.GetSession() != "other" {
		t.Errorf("%v %v", other, err)
	}
	_, err = b.Actor("nowhere", "").GetStatus(patient(t), &pb.GetStatusRequest{})
	if status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestGetStatus_CountsLateAndFailedAgents(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithFakeClock())
	b.Registered("lead", "lead")
	idler := &pb.RegisterAgentRequest{Lease: durationpb.New(time.Hour)}
	apptest.Must(t, b.Actor("default", "idler").RegisterAgent, idler)
	operator := b.Root()
	counts := func() [3]int32 {
		t.Helper()
		got := apptest.Must(t, operator.GetStatus, &pb.GetStatusRequest{})
		return [3]int32{got.GetAgents(), got.GetLateAgents(), got.GetFailedAgents()}
	}
	if got := counts(); got != [3]int32{2, 0, 0} {
		t.Errorf("agents, late and failed: %v", got)
	}
	b.Clock.Advance(30 * time.Minute)
	if got := counts(); got != [3]int32{2, 1, 0} {
		t.Errorf("after half of a lease, agents, late and failed: %v", got)
	}
	for ctx, got := patient(t), counts(); got != [3]int32{2, 0, 1}; got = counts() {
		b.Clock.Advance(time.Minute)
		if ctx.Err() != nil {
			t.Fatalf("after the lease, agents, late and failed: %v", got)
		}
	}
}

func TestCheckDatabase_CountsWhatIsThere(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	lead := b.Registered("lead", "lead")
	b.Registered("builder-1", "builder")
	sent := send(t, pb.NewMessageServiceClient(lead), "builder-1")
	got := apptest.Must(t, b.Root().CheckDatabase, &pb.CheckDatabaseRequest{})
	want := &pb.CheckDatabaseResponse{Messages: 1, Deliveries: 1, Events: 4, Revision: sent}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestCheck_FindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	a, err := app.Start(patient(t), app.Config{Dir: dir})
	apptest.NoError(t, err)
	if _, _, err := app.Check(patient(t), app.Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("while a daemon runs: %v", err)
	}
	apptest.NoError(t, a.Stop(context.Background()))
	problems, counted, err := app.Check(patient(t), app.Config{Dir: dir})
	if err != nil || len(problems) > 0 || !strings.Contains(counted, "0 messages") {
		t.Errorf("%q %q %v", problems, counted, err)
	}
	db, err := sql.Open("sqlite3", filepath.Join(dir, "brokerd.db"))
	apptest.NoError(t, err)
	_, err = db.Exec(`INSERT INTO mailboxes (session, kind, name, waiting) VALUES (1, 1, 'x', 5)`)
	if err == nil {
		err = db.Close()
	}
	apptest.NoError(t, err)
	problems, _, err = app.Check(patient(t), app.Config{Dir: dir})
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "miscounted") {
		t.Errorf("%q %v", problems, err)
	}
}

func TestCheck_MakesNoDatabase(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(folder(t), "typo")
	if _, _, err := app.Check(patient(t), app.Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
	if files, err := filepath.Glob(dir); err != nil || len(files) > 0 {
		t.Errorf("%q %v", files, err)
	}
}
