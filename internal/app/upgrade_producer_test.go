package app_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// TestUpgrade_ProducersKeepTheirNumbers sends numbers of a producer again that an older version has accepted, with one
// that is new.
func TestUpgrade_ProducersKeepTheirNumbers(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	old := unpack(t, "testdata/upgrade/59f19b2.tar.gz")
	b := apptest.Start(t, apptest.With(func(c *app.Config) {
		c.Dir, c.Clock = filepath.Join(old.dir, "data"), clockwork.NewFakeClockAt(old.at)
	}))
	stream, err := b.Actor("default", "lead").Send(patient(t))
	apptest.NoError(t, err)
	again := &pb.SendRequest{Producer: "source", FirstNumber: 1}
	for range 4 {
		again.Messages = append(again.Messages, &pb.Message{
			Target: &pb.Target{To: &pb.Target_Agent{Agent: "watcher"}}, Subject: "again",
		})
	}
	apptest.NoError(t, stream.Send(again))
	answer, err := stream.Recv()
	apptest.NoError(t, err)
	var duplicates []bool
	for _, r := range answer.GetResults() {
		duplicates = append(duplicates, r.GetDuplicate())
	}
	if diff := cmp.Diff([]bool{true, true, true, false}, duplicates); diff != "" {
		t.Errorf("sent before: %s", diff)
	}
}
