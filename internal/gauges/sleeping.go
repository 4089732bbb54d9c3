package gauges

import (
	"context"
	"fmt"
	"slices"

	"brokerd/internal/broker"
	"brokerd/internal/store"
)

const (
	// idlePage is how many waiting consumers one snapshot examines.
	idlePage = 500
	// mostLooks is how often a change may come between two examinations of a page.
	mostLooks = 10
)

// SleepingMailboxes returns one line for each mailbox that sleeps, at most most: a delivery in it is ready, a consumer
// waits that takes it and has capacity, and dispatch does not give it to the consumer.
//
// What a snapshot shows of a running broker may already change. So a delivery counts if two functions of the writer, in
// different batches, find it ready and its consumer idle, and nothing was committed in between: dispatch has then run
// if anything has asked for it. A mailbox that never is without a change for so long does not sleep.
func SleepingMailboxes(ctx context.Context, st *store.Store, w *broker.Waiters, most int) (problems []string, err error) {
	found := map[int64]bool{} // by mailbox
	for page := range slices.Chunk(w.Idle(), idlePage) {
		lacking, err := lackingIn(ctx, st, page)
		if err != nil {
			return nil, err
		}
		for _, l := range lacking {
			box := l.Mailbox()
			if found[box.ID] || len(problems) == most {
				continue
			}
			found[box.ID] = true
			problems = append(problems, fmt.Sprintf("delivery of message %d in mailbox %d (%s): it is ready and %v waits for it, "+
				"but does not receive it; restart the broker, which delivers it, and report this defect", l.message, box.ID, box.Ref, l))
		}
	}
	return problems, nil
}

// A lack is a consumer with capacity and a ready delivery that it takes.
type lack struct {
	broker.Idle
	message int64
}

// lackingIn returns those of a page of consumers that do not receive what is ready for them.
func lackingIn(ctx context.Context, st *store.Store, page []broker.Idle) (lacking []lack, err error) {
	err = st.Read(ctx, func(s *store.Snapshot) error {
		for _, i := range page {
			message, err := i.First(s)
			if err != nil {
				return err
			}
			if message != 0 {
				lacking = append(lacking, lack{i, message})
			}
		}
		return nil
	})
	for n := 0; err == nil && len(lacking) > 0 && n < mostLooks; n++ {
		var before, after int64
		if lacking, before, err = stillLacking(ctx, st, lacking); err == nil && len(lacking) > 0 {
			lacking, after, err = stillLacking(ctx, st, lacking)
		}
		if before == after {
			return lacking, err
		}
	}
	return nil, err
}

// stillLacking examines consumers in the writer. It returns the revision that was committed before.
func stillLacking(ctx context.Context, st *store.Store, lacking []lack) (left []lack, revision int64, err error) {
	err = st.Drain(ctx, func(tx *store.Tx) error {
		left, revision = nil, st.Revision()
		for _, l := range lacking {
			lacks, err := l.Lacks(tx, l.message)
			if err != nil {
				return err
			}
			if lacks {
				left = append(left, l)
			}
		}
		return nil
	})
	return left, revision, err
}
