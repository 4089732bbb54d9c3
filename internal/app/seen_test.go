package app_test

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

// A broker that is started again refuses a server that has lost changes, until the loss has been noted.
func TestSeen_AServerThatHasLostChangesIsRefused(t *testing.T) {
	t.Parallel()
	for name, replica := range map[string]string{"alone": "", "with replicas": "127.0.0.1:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := postgrestest.Database(t)
			c := app.Config{Dir: folder(t), Store: database, Replica: replica}
			run := func() {
				t.Helper()
				r, err := apptest.RunReplica(c)
				apptest.NoError(t, err)
				conn, err := grpc.NewClient(r.Addresses()[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
				apptest.NoError(t, err)
				put(t, conn, "k", 1)
				apptest.NoError(t, conn.Close())
				apptest.NoError(t, r.Stop())
			}
			run()
			run()
			apptest.NoError(t, postgrestest.Run(database, `UPDATE meta SET revision = revision - 1`))
			if _, err := apptest.RunReplica(c); reason(err) != "COMMITS_LOST" {
				t.Errorf("it has started with %v", err)
			}
			_, err := app.NoteRestored(patient(t), app.Config{Store: database})
			apptest.NoError(t, err)
			run()
		})
	}
}

func TestSeen_AFileThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	c := app.Config{Dir: folder(t), Store: postgrestest.Database(t)}
	apptest.NoError(t, os.WriteFile(filepath.Join(c.Dir, "seen.json"), []byte("{"), 0o600))
	if _, err := app.Start(patient(t), c); reason(err) != "SEEN_UNREADABLE" {
		t.Errorf("it has started with %v", err)
	}
}
