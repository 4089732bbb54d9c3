package crashtest_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// Garbage of 4 KiB lies somewhere in the database of a daemon that was killed. The daemon refuses to
// start, changes nothing and says what to do; or it starts, because SQLite's check finds nothing wrong
// with the structure, and then the daemon's own check and the status agree with what it does. SQLite
// has no checksums, so garbage inside a value stays unnoticed.
func TestDamage_GarbageInTheDatabaseIsRefusedOrDoesNotMatter(t *testing.T) {
	t.Parallel()
	places := int(fromEnvironment(t, "DAMAGE_PLACES", 8))
	program := processtest.Build(t)
	whole := killedFolder(t, program)
	random := rand.New(rand.NewPCG(1, 2))
	refused, served := 0, 0
	for range places {
		d := newDaemon(t, program)
		copyFolder(t, whole, d.Dir())
		path := filepath.Join(d.Dir(), "brokerd.db")
		before := garble(t, path, random)
		err := d.start(t.Context())
		if err != nil {
			refused++
			refusedFor(t, path, before, err)
			if err := d.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "not sound") && !strings.Contains(err.Error(), "damaged") {
				t.Errorf("brokerd check: %v", err)
			}
			continue
		}
		served++
		found, err := d.admin.CheckDatabase(t.Context(), &pb.CheckDatabaseRequest{})
		if err != nil {
			t.Errorf("the check by the daemon: %v", err)
		}
		if _, err := d.admin.GetStatus(t.Context(), &pb.GetStatusRequest{}); err != nil {
			t.Errorf("the status: %v", err)
		}
		_, err = d.messages.SendMessages(t.Context(), &pb.SendMessagesRequest{Messages: []*pb.Message{{Target: toAgent("reader"), Subject: "x", Type: "work"}}})
		if damaged := len(found.GetProblems()) > 0; damaged != (status.Code(err) == codes.Unavailable && testkit.Reason(err) == "DATABASE_DAMAGED") {
			t.Errorf("the check finds %q, and a send is answered with %v", found.GetProblems(), err)
		}
		d.kill()
	}
	t.Logf("4 KiB of garbage at %d places: %d refused, %d served", places, refused, served)
	if refused == 0 {
		t.Error("no damage was found")
	}
}

// killedFolder returns the data folder of a daemon with messages that was killed after its log was
// copied into the database.
func killedFolder(t *testing.T, program string) string {
	t.Helper()
	d := newDaemon(t, program)
	testkit.NoError(t, d.start(t.Context()))
	testkit.NoError(t, register(t.Context(), d))
	for i := range 30 {
		var batch []*pb.Message
		for n := range 10 {
			batch = append(batch, &pb.Message{Target: toAgent("reader"), Subject: fmt.Sprint(i, n), Type: "work", Body: strings.Repeat("text ", 500)})
		}
		if _, err := d.messages.SendMessages(as(t.Context(), "writer-1"), &pb.SendMessagesRequest{Messages: batch}); err != nil {
			t.Fatal(err)
		}
	}
	testkit.NoError(t, d.terminate())
	if err := d.start(t.Context()); err != nil { // its first commit removes the mark of the clean stop
		t.Fatal(err)
	}
	d.kill()
	return d.Dir()
}

// garble overwrites 4 KiB of a file behind its header, and returns the new content.
func garble(t *testing.T, path string, random *rand.Rand) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	testkit.NoError(t, err)
	at := 200 + random.IntN(len(data)-4096-200)
	for i := range 4096 {
		data[at+i] = byte(random.Uint32())
	}
	testkit.NoError(t, os.WriteFile(path, data, 0o600))
	return data
}

// refusedFor checks the refusal of a damaged database.
func refusedFor(t *testing.T, path string, before []byte, err error) {
	t.Helper()
	if !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "put back a copy of the data folder") {
		t.Errorf("the refusal does not say what is wrong and what to do: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the refused database was changed (%v)", err)
	}
}
