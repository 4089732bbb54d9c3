package broker_test

import (
	"slices"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

// More than the broker reads from a mailbox at a time.
func TestClaim_OfManyFromSeveralMailboxesIsInOneOrder(t *testing.T) {
	t.Parallel()
	const each = 300
	for name, types := range map[string][]string{"all": nil, "of a type": {"work"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a, o := w.agent("a", "r"), w.operator()
			var high, low []*pb.Message
			for range each {
				high, low = append(high, to("a", kind("work"), priority(9))), append(low, toRole("r", kind("work"), priority(2)))
			}
			o.sendAll(low...)
			o.sendAll(high...)
			var got []int32
			for _, c := range a.claimWith(&pb.ClaimMessagesRequest{Max: 2 * each, Types: types}).Claims {
				got = append(got, c.Message.Priority)
			}
			wantList(t, "priorities", got, slices.Concat(slices.Repeat([]int32{9}, each), slices.Repeat([]int32{2}, each))...)
		})
	}
}
