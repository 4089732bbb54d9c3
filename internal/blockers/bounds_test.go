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
	w := apptest.Start(t, apptest.WithFakeClock())
	x := raise(w.Agent("blocked", "builder"), &pb.RaiseBlockerRequest{})
	helper := w.Actor("default", "helper")
	for range 50 {
		w.Agent("helper", "helper")
		ack(helper, x.Id)
		apptest.Must(t, helper.DeregisterAgent, &pb.DeregisterAgentRequest{})
	}
	w.Agent("helper", "helper")
	apptest.Refuses(t, helper.AcknowledgeBlocker, &pb.AcknowledgeBlockerRequest{Id: x.Id},
		codes.ResourceExhausted, "TOO_MANY_ACKNOWLEDGEMENTS")
	if now := resolve(helper, x.Id, "done"); len(now.Timeline) != 102 || now.State != pb.BlockerState_BLOCKER_STATE_RESOLVED {
		t.Errorf("%d entries, state %v; want 102, resolved", len(now.Timeline), now.State)
	}
}

func TestLeaseEnd_LeavesOutADamagedBlocker(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	blocked, helper := w.Agent("blocked", "builder"), brief(w, "helper", "helper", time.Minute)
	x, damaged := raise(blocked, &pb.RaiseBlockerRequest{}), raise(blocked, &pb.RaiseBlockerRequest{})
	other := raise(blocked, &pb.RaiseBlockerRequest{})
	ack(helper, x.Id)
	sound := ""
	w.Restart(func() {
		sound = damaged.Id[2:]
		testkit.Change(t, w.Dir(), `UPDATE items SET item = x'0a' || item WHERE id = ?`, sound)
	})
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	for get(blocked, x.Id).State != pb.BlockerState_BLOCKER_STATE_OPEN {
		apptest.NoError(t, ctx.Err())
		w.Clock.Advance(10 * time.Second)
	}
	for _, step := range get(blocked, other.Id).Timeline {
		if step.Step == pb.BlockerStep_BLOCKER_STEP_REOPENED {
			t.Errorf("a blocker without an acknowledgement is reopened: %v", step)
		}
	}
	w.Restart(func() {
		testkit.Change(t, w.Dir(), `UPDATE items SET item = substr(item, 2) WHERE id = ?`, sound)
	})
}
