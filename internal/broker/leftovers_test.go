package broker_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// Fifteen messages name 15,000 artifacts, more than one function of the writer removes.
func TestRetention_RemovesTheDetailsOfMessagesInPagesAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Root().Configure(&pb.SessionSettings{MessageRetention: durationpb.New(time.Hour)})
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	m := to("builder")
	for i := range 1000 {
		m.Artifacts = append(m.Artifacts, fmt.Sprint("a", i))
	}
	for range 15 {
		lead.send(m)
		builder.ack(builder.claim1().ClaimId)
	}
	w.sql(`CREATE TRIGGER breaks BEFORE DELETE ON message_artifacts WHEN EXISTS (SELECT 1 FROM leftovers)
		BEGIN SELECT RAISE(ABORT, 'broken'); END`)
	w.Clock.Advance(2 * time.Hour)
	w.awaitLog("a part of what is due could not be archived; trying again")
	want(t, "messages", w.number(`
		SELECT COUNT(*) FROM messages WHERE revision IN (SELECT message FROM message_artifacts)`), 0)
	if left := w.number(`SELECT COUNT(*) FROM message_artifacts`); left < 5000 || left > 14_000 {
		t.Errorf("%d artifacts are left", left)
	}
	w.sql(`DROP TRIGGER breaks`)
	w.Restart()
	for left := 1; left > 0; {
		w.Clock.Advance(time.Second)
		left = w.number(`SELECT (SELECT COUNT(*) FROM message_artifacts) + (SELECT COUNT(*) FROM leftovers)`)
	}
}
