package retention_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// cycle sends and acknowledges messages, and waits until they and their events are in the archive.
func (w *world) cycle(n int) {
	w.Helper()
	batch := make([]*pb.Message, n)
	for i := range batch {
		batch[i] = &pb.Message{
			Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}, Subject: fmt.Sprint(i), Body: strings.Repeat("x", 1024),
		}
	}
	sent := apptest.Must(w, w.as("lead").SendMessages, &pb.SendMessagesRequest{Messages: batch})
	for left := n; left > 0; {
		claims := apptest.Must(w, w.as("builder").ClaimMessages, &pb.ClaimMessagesRequest{Max: 100})
		var ids []string
		for _, c := range claims.GetClaims() {
			ids = append(ids, c.GetClaimId())
		}
		apptest.Must(w, w.as("builder").AckMessages, &pb.AckMessagesRequest{Ids: ids})
		left -= len(ids)
	}
	w.Clock.Advance(2 * time.Hour)
	w.gone(sent.GetResults()[n-1])
	w.eventually("the events are gone", func() bool {
		page := apptest.Must(w, w.as("").ListEvents, &pb.ListEventsRequest{PageSize: 1})
		return len(page.GetEvents()) == 0
	})
}

func TestLoad_DatabaseDoesNotGrowOverCycles(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it reads the size of the file of the database")
	const perCycle, warmUp, cycles = 500, 2, 6
	w := newWorld(t).project(merged(short(), &pb.SessionSettings{SendRate: proto.Float64(0)}))
	var sizes []int64
	for range cycles {
		w.cycle(perCycle)
		w.Restart() // the write-ahead log goes into the database
		info, err := os.Stat(filepath.Join(w.Dir(), store.DatabaseFile))
		apptest.NoError(t, err)
		sizes = append(sizes, info.Size())
	}
	if most := slices.Max(sizes[:warmUp]); slices.Max(sizes[warmUp:]) > most {
		t.Errorf("the database has grown: %v bytes after each cycle", sizes)
	}
	if counts := w.archived(); len(counts) != perCycle*cycles {
		t.Errorf("%d messages are in the archive, want %d", len(counts), perCycle*cycles)
	}
}
