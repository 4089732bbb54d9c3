package artifacts_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
	"brokerd/internal/testkit"
)

// TestUpload_ABatchThatIsLostLeavesNoReservation begins uploads in batches that cannot be committed, or of which
// another function meets a defect, so that the functions run twice.
func TestUpload_ABatchThatIsLostLeavesNoReservation(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trigger, when string
		upload        codes.Code
	}{
		"not committed": {"BEFORE UPDATE ON meta", "", codes.Unavailable},
		"run twice":     {"BEFORE INSERT ON messages", "WHEN (NEW.type = 'planted')", codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := apptest.Start(t)
			const total = 1000
			limit := int64(total)
			var agents []*apptest.Actor
			for n := range 4 {
				agents = append(agents, w.Agent(fmt.Sprint("sender-", n), "builder"))
			}
			o := w.Session("small", &pb.SessionSettings{ArtifactTotalLimit: &limit})
			uproot := plantTrigger(t, w, c.trigger, c.when)
			ctx, stop := context.WithCancel(o.Ctx)
			var senders sync.WaitGroup
			for _, a := range agents {
				planted := &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: "sender-0"}}, Type: "planted"}
				senders.Go(func() {
					for ctx.Err() == nil {
						in := &pb.SendMessagesRequest{Messages: []*pb.Message{planted}}
						if _, err := a.SendMessages(ctx, in); err == nil {
							t.Error("a message was sent in spite of the trigger")
						}
					}
				})
			}
			half := make([]byte, total/2)
			for i := range 200 {
				if _, err := try(o, header(fmt.Sprint(i), half), half); status.Code(err) != c.upload {
					t.Errorf("upload %d: %v, want %v", i, err, c.upload)
				}
			}
			stop()
			senders.Wait()
			uproot()
			upload(o, "a", string(half))
			upload(o, "b", strings.Repeat("x", total/2))
		})
	}
}

// plantTrigger has a trigger fail statements, until the returned function is called. To PostgreSQL's broker a failed
// commit is a defect unless the server's disk is full, for which it has a code.
func plantTrigger(t *testing.T, w *apptest.Broker, trigger, when string) (uproot func()) {
	t.Helper()
	if !onServer(w) {
		testkit.Change(t, w.Dir(), `CREATE TRIGGER planted `+trigger+` `+when+` BEGIN SELECT RAISE(ABORT, 'planted'); END`)
		return func() { testkit.Change(t, w.Dir(), `DROP TRIGGER planted`) }
	}
	url := postgrestest.Of(w.Dir())
	execute(t, url, `CREATE FUNCTION fail() RETURNS TRIGGER LANGUAGE plpgsql 
		AS 'BEGIN IF TG_TABLE_NAME = ''meta'' THEN RAISE disk_full; END IF; RAISE EXCEPTION ''planted''; END'`)
	execute(t, url, `CREATE TRIGGER planted `+trigger+` FOR EACH ROW `+when+` EXECUTE FUNCTION fail()`)
	return func() { execute(t, url, `DROP FUNCTION fail CASCADE`) }
}
