package blockers_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

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

func TestLeaseEnd_LeavesOutADamagedBlocker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	blocked, helper := w.agent("blocked", "builder"), w.brief("helper", "helper", time.Minute)
	x, damaged := blocked.raise(&pb.RaiseBlockerRequest{}), blocked.raise(&pb.RaiseBlockerRequest{})
	other := blocked.raise(&pb.RaiseBlockerRequest{})
	helper.ack(x.Id)
	sound := ""
	w.Restart(func() {
		sound = damaged.Id[2:]
		testkit.Change(t, w.Dir(), `UPDATE items SET item = x'0a' || item WHERE id = ?`, sound)
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
		testkit.Change(t, w.Dir(), `UPDATE items SET item = substr(item, 2) WHERE id = ?`, sound)
	})
}
