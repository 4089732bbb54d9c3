package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
	"brokerd/internal/testkit"
)

// must runs a program to its end and returns its output.
func must(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
	return string(out)
}

// fails runs brokerd, which must end with the exit code, and returns its output.
func fails(t *testing.T, code int, args ...string) string {
	t.Helper()
	cmd := command(t, args...)
	out, _ := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != code {
		t.Errorf("brokerd %q: exit code %d, want %d: %s", args, cmd.ProcessState.ExitCode(), code, out)
	}
	return string(out)
}

// The commands are those of docs/scale.md.
func TestRestored_APostgreSQLDumpContinuesBehindItsRevision(t *testing.T) {
	t.Parallel()
	old, restored, dump := postgrestest.Database(t), postgrestest.Database(t), filepath.Join(t.TempDir(), "brokerd.dump")
	p := launch(t, "--store", old)
	root := p.operator(t)
	apptest.Must(t, root.CreateSession, &pb.CreateSessionRequest{Name: "kept"})
	if _, err := root.GetStatus(root.Ctx, &pb.GetStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	must(t, "pg_dump", "--format=custom", "--file="+dump, old)
	made := apptest.Must(t, root.GetStatus, &pb.GetStatusRequest{}).GetRevision()
	apptest.Must(t, root.CreateSession, &pb.CreateSessionRequest{Name: "lost"})
	lost := apptest.Must(t, root.GetStatus, &pb.GetStatusRequest{}).GetRevision()
	if _, err := root.CheckDatabase(root.Ctx, &pb.CheckDatabaseRequest{}); err != nil {
		t.Errorf("a check while it runs: %v", err)
	}
	stream, err := root.BackupDatabase(root.Ctx, &pb.BackupDatabaseRequest{})
	for err == nil {
		_, err = stream.Recv()
	}
	for _, want := range []string{"pg_dump --format=custom", "pg_basebackup", "brokerd restored --store 'postgres://broker@"} {
		if testkit.Reason(err) != "ON_SERVER" || !strings.Contains(err.Error(), want) {
			t.Errorf("a backup by the broker: %v, want %q", err, want)
		}
	}
	p.end(t)

	if text := fails(t, 1, "restored", "--data", t.TempDir(), "--store", restored); !strings.Contains(text, "there is no database of brokerd in postgres://") {
		t.Errorf("restored on an empty database: %s", text)
	}
	if text := fails(t, 2, "restore", dump, "--data", t.TempDir(), "--store", restored); !strings.Contains(text, "brokerd migrate --from DIR") {
		t.Errorf("restore into a database: %s", text)
	}
	must(t, "pg_restore", "--exit-on-error", "--dbname="+restored, dump)
	if text := fails(t, 0, "restored", "--data", t.TempDir(), "--store", restored); !strings.Contains(text, "the counter continues at 10000") {
		t.Errorf("restored: %s", text)
	}
	if text := fails(t, 0, "check", "--data", t.TempDir(), "--store", restored); !strings.HasPrefix(text, "sound: ") {
		t.Errorf("check: %s", text)
	}

	p = launch(t, "--store", restored)
	root = p.operator(t)
	list := apptest.Must(t, root.ListSessions, &pb.ListSessionsRequest{}).GetSessions()
	if len(list) != 2 || list[1].GetName() != "kept" {
		t.Errorf("the sessions are %v", list)
	}
	for after, want := range map[int64]codes.Code{made: codes.OK, lost: codes.OutOfRange} {
		_, err := root.ListEvents(root.Ctx, &pb.ListEventsRequest{AfterRevision: after})
		if status.Code(err) != want || want != codes.OK && testkit.Reason(err) != "RESTORED" {
			t.Errorf("resuming after revision %d: %v", after, err)
		}
	}
	p.end(t)
}

// On the default data folder, another broker may run.
func TestCheck_ADatabaseNeedsNoDataFolder(t *testing.T) {
	t.Parallel()
	database, used, unused := postgrestest.Database(t), t.TempDir(), t.TempDir()
	launch(t, "--store", database).end(t)
	other := launch(t, "--data", filepath.Join(used, "brokerd"))
	for _, state := range []string{used, unused} {
		for _, args := range [][]string{{"check", "--store", database}, {"restored", "--store", database}} {
			cmd := command(t, args...)
			cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("brokerd %q: %v: %s", args, err, out)
			}
		}
	}
	if made, err := filepath.Glob(filepath.Join(unused, "*")); err != nil || len(made) > 0 {
		t.Errorf("the commands have made %q, %v", made, err)
	}
	other.end(t)
}

func TestCheck_ADatabaseWithAnIndexThatIsNotValidIsUnsound(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	launch(t, "--store", database).end(t)
	must(t, "psql", database, "-c", `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'messages_task'::regclass`)
	if text := fails(t, 1, "check", "--data", t.TempDir(), "--store", database); !strings.Contains(text, "index messages_task is not valid\n") {
		t.Errorf("%s", text)
	}
	must(t, "psql", database, "-c", `
		UPDATE pg_index SET indisvalid = true WHERE indexrelid = 'messages_task'::regclass;
		ALTER TABLE deliveries ADD CONSTRAINT positive CHECK (message > 0) NOT VALID; CREATE EXTENSION amcheck`)
	if text := fails(t, 1, "check", "--data", t.TempDir(), "--store", database); !strings.Contains(text, "constraint positive of deliveries is not validated\n") {
		t.Errorf("%s", text)
	}
}
