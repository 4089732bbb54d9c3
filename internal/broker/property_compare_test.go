package broker_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// compareAll is the number of steps from one look at everything to the next. The looks between them
// leave out what changes only by a defect: finished messages and the database as a whole. The end of
// a history is one more such look.
const compareAll = 8

// compare compares what can be seen of the broker with the model.
func (h *history) compare(t *rapid.T) {
	h.rest(t)
	h.compared++
	all := h.compared%compareAll == 0
	apptest.NoError(t, h.differs(all))
	if all {
		h.Check()
	}
}

// differs returns in what broker and model differ, nil if in nothing. Messages of which each
// delivery was finished at the last look are compared only if all is true.
func (h *history) differs(all bool) error {
	h.m.look()
	for i := 0; i < len(h.m.parcels); {
		n := 1
		for i+n < len(h.m.parcels) && h.m.parcels[i+n].message == h.m.parcels[i].message {
			n++
		}
		parcels := h.m.parcels[i : i+n]
		finished := !slices.ContainsFunc(parcels, (*parcel).unfinished)
		if all || !finished || !h.finished[parcels[0].message] {
			if err := h.messageDiffers(parcels); err != nil {
				return err
			}
		}
		h.finished[parcels[0].message] = finished
		i += n
	}
	return errors.Join(h.statusDiffers(), h.inboxesDiffer(), h.barriersDiffer())
}

// A sight is what can be seen of a delivery.
type sight struct {
	State                            string
	Attempts, MaxAttempts, History   int
	ClaimID, Holder, Consumer, Acker string
	Visible, Finished                bool
}

// messageDiffers compares the deliveries of one message.
func (h *history) messageDiffers(parcels []*parcel) error {
	message := parcels[0].message
	out, err := call(h, "", pb.NewMessageServiceClient, pb.MessageServiceClient.GetMessage,
		&pb.GetMessageRequest{Id: strconv.FormatInt(message, 10)})
	if err != nil {
		return err
	}
	model, broker := map[string]sight{}, map[string]sight{}
	dues := map[string]time.Time{}
	for _, d := range out.Deliveries {
		dues[d.Mailbox] = timeOf(d.DueAt)
		broker[d.Mailbox] = sight{
			State: d.State.String(), Attempts: int(d.Attempts), MaxAttempts: int(d.MaxAttempts), History: len(d.History),
			ClaimID: d.ClaimId, Holder: d.Holder, Consumer: d.Consumer, Acker: d.AckedBy,
			Visible: d.Arrival > 0, Finished: d.FinishedAt != nil,
		}
	}
	for _, p := range parcels {
		model[p.box] = sight{
			State: h.m.state(p).String(), Attempts: p.attempts, MaxAttempts: p.most, History: p.history,
			ClaimID: p.claimID(), Holder: p.holder, Consumer: p.consumer, Acker: p.acker,
			Visible: p.visible, Finished: !p.unfinished(),
		}
	}
	if diff := cmp.Diff(model, broker); diff != "" {
		return fmt.Errorf("message %d (-model +broker):\n%s", message, diff)
	}
	for _, p := range parcels {
		if h.m.state(p) != delayed {
			continue
		}
		if off := dues[p.box].Sub(p.due); off.Abs() > p.spread {
			return fmt.Errorf("message %d in %s is due %v off", message, p.box, off)
		}
		p.due, p.spread = dues[p.box], 0 // how long exactly it waits is the broker's to say
	}
	return nil
}

// statusDiffers compares the counters.
func (h *history) statusDiffers() error {
	out, err := call(h, "", pb.NewAdminServiceClient, pb.AdminServiceClient.GetStatus, &pb.GetStatusRequest{})
	if err != nil {
		return err
	}
	type counts struct{ Waiting, Claimed, Dead int64 }
	model, broker := map[string]counts{}, map[string]counts{}
	for _, b := range out.Mailboxes {
		broker[b.Mailbox] = counts{b.Waiting, b.Claimed, b.Dead}
	}
	for _, p := range h.m.parcels {
		c := model[p.box]
		switch p.state {
		case atRest:
			c.Waiting++
		case claimed:
			c.Claimed++
		case dead:
			c.Dead++
		default:
			continue
		}
		model[p.box] = c
	}
	broker["sum"] = counts{out.Waiting, out.Claimed, out.Dead}
	var sum counts
	for _, c := range model {
		sum = counts{sum.Waiting + c.Waiting, sum.Claimed + c.Claimed, sum.Dead + c.Dead}
	}
	model["sum"] = sum
	if diff := cmp.Diff(model, broker); diff != "" {
		return fmt.Errorf("counters (-model +broker):\n%s", diff)
	}
	return nil
}

// An inbox is what an agent last saw in its mailbox: messages by arrival.
type inbox struct {
	arrivals map[int64]int64
	revision int64
}

// inboxesDiffer compares what agents see in their mailboxes. Whoever reads on from the revision of the last look
// must miss nothing, so what is new must have arrived after it.
func (h *history) inboxesDiffer() error {
	for name, a := range h.m.agents {
		if !a.registered {
			delete(h.inboxes, name)
			continue
		}
		out, err := call(h, name, pb.NewMessageServiceClient, pb.MessageServiceClient.ListMessages,
			&pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX, PageSize: 1000})
		if err != nil {
			return err
		}
		var model []int64
		for _, p := range h.m.parcels {
			if p.box == name && p.unfinished() && p.visible {
				model = append(model, p.message)
			}
		}
		now, last := inbox{map[int64]int64{}, out.Revision}, int64(0)
		for _, item := range out.Items {
			arrival := item.Delivery.Arrival
			if arrival <= last || arrival > out.Revision {
				return fmt.Errorf("inbox of %s at %d: arrival %d after %d", name, out.Revision, arrival, last)
			}
			last = arrival
			before, looked := h.inboxes[name]
			if looked && before.arrivals[arrival] == 0 && arrival <= before.revision {
				return fmt.Errorf("inbox of %s: %d arrived at %d and was not there at %d", name, item.Message.Revision, arrival, before.revision)
			}
			now.arrivals[arrival] = item.Message.Revision
		}
		if diff := cmp.Diff(model, slices.Sorted(maps.Values(now.arrivals))); diff != "" {
			return fmt.Errorf("inbox of %s (-model +broker):\n%s", name, diff)
		}
		h.inboxes[name] = now
	}
	return nil
}

// timeOf is a time that may be missing.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
