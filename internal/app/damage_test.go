package app_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// filled returns a data folder with a registered agent and its mail, after a clean stop.
func filled(t *testing.T) string {
	t.Helper()
	dir := folder(t)
	a := run(t, app.Config{Dir: dir})
	conn := dial(t, a)
	ctx := as(patient(t), "a")
	apptest.NoError(t, apptest.Err(pb.NewAgentServiceClient(conn).RegisterAgent(ctx, &pb.RegisterAgentRequest{})))
	for range 50 {
		draft := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Subject: "x", Body: strings.Repeat("text ", 500)}
		apptest.Must(t, pb.NewMessageServiceClient(conn).SendMessages,
			&pb.SendMessagesRequest{Messages: []*pb.Message{draft}})
	}
	apptest.NoError(t, a.Stop(context.Background()))
	return dir
}

// dial connects an operator to a daemon.
func dial(t *testing.T, a *app.App) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(a.Addresses()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestDamage_ShowsEverywhereAndEndsWriting(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"messages", "deliveries_arrival", "mailboxes", "events", "state_keys"} {
		t.Run(place, func(t *testing.T) {
			dir := filled(t)
			testkit.Ruin(t, filepath.Join(dir, store.DatabaseFile), place)
			defer func() {
				problems, _, err := app.Check(patient(t), app.Config{Dir: dir})
				if err != nil || len(problems) == 0 {
					t.Errorf("the check without a daemon: %q, %v", problems, err)
				}
			}()
			a, err := app.Start(patient(t), app.Config{Dir: dir})
			if store.IsDamage(err) {
				return // what runs by itself has met the damage before all parts had started: the daemon does not start
			}
			apptest.NoError(t, err)
			defer func() {
				if err := a.Stop(context.Background()); err != nil {
					t.Errorf("the stop: %v", err)
				}
			}()
			conn := dial(t, a)

			watching, stop := context.WithCancel(patient(t))
			defer stop()
			watch, err := grpc_health_v1.NewHealthClient(conn).Watch(watching, &grpc_health_v1.HealthCheckRequest{})
			apptest.NoError(t, err)
			for serving := true; serving; {
				answer, err := watch.Recv()
				apptest.NoError(t, err)
				serving = answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
			}
			stop()
			_, err = pb.NewMessageServiceClient(conn).SendMessages(patient(t), &pb.SendMessagesRequest{Messages: []*pb.Message{
				{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Subject: "refused"},
			}})
			if status.Code(err) != codes.Unavailable || testkit.Reason(err) != "DATABASE_DAMAGED" || !strings.Contains(err.Error(), "brokerd check") {
				t.Errorf("a send: %v (%s)", err, testkit.Reason(err))
			}
			admin := pb.NewAdminServiceClient(conn)
			if got, err := admin.GetStatus(patient(t), &pb.GetStatusRequest{}); err != nil || got.GetDamage() == "" {
				t.Errorf("the status: %v, %v", got, err)
			}
			got, err := admin.CheckDatabase(patient(t), &pb.CheckDatabaseRequest{})
			if err != nil || len(got.GetProblems()) == 0 {
				t.Errorf("the check by the daemon: %v, %v", got, err)
			}
		})
	}
}

func TestDamage_OfTheLogIsReported(t *testing.T) {
	t.Parallel()
	const frame = 8192 + 24
	a := run(t, app.Config{Dir: filled(t)})
	for range 5 {
		draft := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "a"}}, Subject: "x"}
		apptest.Must(t, pb.NewMessageServiceClient(dial(t, a)).SendMessages,
			&pb.SendMessagesRequest{Messages: []*pb.Message{draft}})
	}
	crashed := func() string {
		dir := folder(t)
		for _, name := range []string{store.DatabaseFile, store.DatabaseFile + "-wal"} {
			data, err := os.ReadFile(filepath.Join(a.Dir(), name))
			apptest.NoError(t, err)
			if strings.HasSuffix(name, "-wal") {
				data[32+frame+1000] ^= 1
			}
			apptest.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		}
		return dir
	}
	b := run(t, app.Config{Dir: crashed()})
	if got, err := pb.NewAdminServiceClient(dial(t, b)).GetStatus(patient(t), &pb.GetStatusRequest{}); err != nil || got.GetWalLeftOut() < frame {
		t.Errorf("the status: %v, %v", got, err)
	}
	problems, _, err := app.Check(patient(t), app.Config{Dir: crashed()})
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "left out") {
		t.Errorf("the check: %q, %v", problems, err)
	}
}

func TestCheck_SaysPlainlyWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(data []byte) []byte
		want   string
	}{
		"empty file":   {func([]byte) []byte { return nil }, "is empty although the folder has been used"},
		"text":         {func([]byte) []byte { return []byte("not a database at all\n") }, "does not begin as a database does"},
		"another's":    {func(data []byte) []byte { copy(data[68:], "GPKG"); return data }, "database of another program"},
		"cut off":      {func(data []byte) []byte { return data[:len(data)-100] }, "bytes where"},
		"first page":   {func(data []byte) []byte { copy(data[100:], bytes.Repeat([]byte{0xff}, 8000)); return data }, "malformed"},
		"second start": {func(data []byte) []byte { copy(data[18:], []byte{9, 9}); return data }, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filled(t)
			path := filepath.Join(dir, store.DatabaseFile)
			data, err := os.ReadFile(path)
			apptest.NoError(t, err)
			data = c.change(data)
			apptest.NoError(t, os.WriteFile(path, data, 0o600))
			_, _, err = app.Check(patient(t), app.Config{Dir: dir})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the check: %v, want %q", err, c.want)
			}
			_, err = app.Start(patient(t), app.Config{Dir: dir})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the start: %v, want %q", err, c.want)
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, data) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

// as makes a call one of an agent.
func as(ctx context.Context, agent string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "brokerd-agent", agent)
}
