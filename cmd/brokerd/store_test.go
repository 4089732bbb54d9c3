package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// operator returns the operator's calls to the daemon.
func (p *program) operator(t *testing.T) *apptest.Actor {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+p.dir+"/brokerd.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	apptest.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return apptest.NewActor(t, conn, "")
}

func TestStore_ADatabaseKeepsTheDataAndTheFolderTheRest(t *testing.T) {
	t.Parallel()
	database := postgrestest.Database(t)
	file := filepath.Join(t.TempDir(), "password")
	apptest.NoError(t, os.WriteFile(file, []byte("s3cret-word\n"), 0o600))
	first := launch(t, "--store", database, "--store-password-file", file, "--log-level", "debug")
	apptest.Must(t, first.operator(t).CreateSession, &pb.CreateSessionRequest{Name: "kept"})
	if _, err := os.Stat(filepath.Join(first.dir, "brokerd.db")); !os.IsNotExist(err) {
		t.Errorf("the folder has a SQLite database: %v", err)
	}
	second := command(t, "--data", t.TempDir(), "--store", database)
	if text, _ := second.CombinedOutput(); !strings.Contains(string(text), "another brokerd writes to the database") {
		t.Errorf("a second broker on the database: %s", text)
	}
	first.end(t)
	if strings.Contains(first.stderr.String()+first.line, "s3cret-word") {
		t.Error("the log has the password")
	}

	moved := launch(t, "--store", database) // with another data folder
	list := apptest.Must(t, moved.operator(t).ListSessions, &pb.ListSessionsRequest{}).GetSessions()
	if len(list) != 2 || list[1].GetName() != "kept" {
		t.Errorf("another folder with the same database has the sessions %v", list)
	}
	moved.end(t)
}
