package blockers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestAcknowledge_CountsOverTheLifeOfABlocker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := w.agent("blocked", "builder").raise(&pb.RaiseBlockerRequest{})
	helper := w.actor("helper")
	for range 50 {
		w.agent("helper", "helper")
		helper.ack(x.Id)
		_, err := helper.registry.DeregisterAgent(helper.ctx, &pb.DeregisterAgentRequest{})
		must(t, err)
	}
	w.agent("helper", "helper")
	_, err := helper.AcknowledgeBlocker(helper.ctx, &pb.AcknowledgeBlockerRequest{Id: x.Id})
	refused(t, err, codes.ResourceExhausted, "TOO_MANY_ACKNOWLEDGEMENTS")
	if now := helper.resolve(x.Id, "done"); len(now.Timeline) != 102 || now.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("%d entries, state %v; want 102, resolved", len(now.Timeline), now.State)
	}
}

// entry is an entry of a timeline as the table has it.
type entry struct {
	Step     int       `json:"step"`
	At       time.Time `json:"at"`
	Agent    string    `json:"agent"`
	Note     string    `json:"note,omitempty"`
	Revision int64     `json:"revision"`
}

// TestTimeline_OversizedOneIsClippedForReaders has a timeline as long as earlier versions let it grow.
func TestTimeline_OversizedOneIsClippedForReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blocked := w.agent("blocked", "builder")
	x := blocked.raise(&pb.RaiseBlockerRequest{})
	const rounds = 1000
	id := x.Revision
	at := time.Unix(1_700_000_000, 0).UTC()
	list := []entry{{1, at, "blocked", "", id}}
	for range rounds {
		id++
		list = append(list, entry{3, at, "helper", strings.Repeat("n", 4<<10), id})
		id++
		list = append(list, entry{6, at, "helper", "", id})
	}
	text, err := json.Marshal(list)
	must(t, err)
	w.Restart(func() {
		testkit.Change(t, w.Dir(), `UPDATE blockers SET timeline = ?, revision = ?`, string(text), id)
		testkit.Change(t, w.Dir(), `UPDATE meta SET revision = ?`, id)
	})
	now := blocked.get(x.Id)
	page, err := blocked.ListBlockers(blocked.ctx, &pb.ListBlockersRequest{})
	must(t, err)
	if proto.Size(now) > 1<<20 || proto.Size(page) > 1<<20 {
		t.Errorf("a blocker of %d bytes, a page of %d", proto.Size(now), proto.Size(page))
	}
	left := 0
	for _, e := range now.Timeline {
		if e.Step == 0 {
			_, err := fmt.Sscanf(e.Note, "%d entries", &left)
			must(t, err)
		}
	}
	if left+len(now.Timeline)-1 != len(list) || now.Timeline[len(now.Timeline)-1].Revision != id {
		t.Errorf("%d entries and %d left out of %d", len(now.Timeline)-1, left, len(list))
	}
	blocked.resolve(x.Id, "done")
	if n := testkit.Number(t, w.Dir(), `SELECT length(timeline) FROM blockers`); n > 1<<20 {
		t.Errorf("the row has %d bytes after a change", n)
	}
}

func TestAcknowledgers_OfAnEarlierVersionAreKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blocked, helper := w.agent("blocked", "builder"), w.agent("helper", "helper")
	x, y := blocked.raise(&pb.RaiseBlockerRequest{}), blocked.raise(&pb.RaiseBlockerRequest{})
	helper.ack(x.Id)
	w.agent("other", "helper").ack(y.Id)
	w.Restart(func() {
		testkit.Change(t, w.Dir(), `DROP TABLE blocker_acknowledgers`)
		testkit.Change(t, w.Dir(), `DELETE FROM migrations WHERE name = 'blockers/002_acknowledgers'`)
	})
	_, err := helper.registry.DeregisterAgent(helper.ctx, &pb.DeregisterAgentRequest{})
	must(t, err)
	if state := blocked.get(x.Id).State; state != pb.BlockerState_BLOCKER_STATE_OPEN {
		t.Errorf("the blocker of the agent that has left is %v", state)
	}
	if state := blocked.get(y.Id).State; state != pb.BlockerState_BLOCKER_STATE_ACKNOWLEDGED {
		t.Errorf("the blocker of another agent is %v", state)
	}
}

func TestLeaseEnd_ReadsOnlyTheBlockersOfTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blocked, helper := w.agent("blocked", "builder"), w.brief("helper", "helper", time.Minute)
	x, damaged := blocked.raise(&pb.RaiseBlockerRequest{}), blocked.raise(&pb.RaiseBlockerRequest{})
	other := blocked.raise(&pb.RaiseBlockerRequest{})
	helper.ack(x.Id)
	sound := ""
	w.Restart(func() {
		sound = damaged.Id[2:]
		testkit.Change(t, w.Dir(), `CREATE TABLE sound AS SELECT timeline AS v FROM blockers WHERE id = ?`, sound)
		testkit.Change(t, w.Dir(), `UPDATE blockers SET timeline = '{' WHERE id = ?`, sound)
	})
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	for blocked.get(x.Id).State != pb.BlockerState_BLOCKER_STATE_OPEN {
		must(t, ctx.Err())
		w.Clock.Advance(10 * time.Second)
	}
	for _, step := range blocked.get(other.Id).Timeline {
		if step.Step == pb.BlockerStep_BLOCKER_STEP_REOPENED {
			t.Errorf("a blocker without an acknowledgement is reopened: %v", step)
		}
	}
	w.Restart(func() {
		testkit.Change(t, w.Dir(), `UPDATE blockers SET timeline = (SELECT v FROM sound) WHERE id = ?`, sound)
		testkit.Change(t, w.Dir(), `DROP TABLE sound`)
	})
}
