package crashtest_test

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	pb "brokerd/gen/brokerd/v1"
)

// A call settles claims under a request id, so that it can be made again until it is answered.
type call struct {
	verb   verb
	claims []*claim
	asked  bool
	do     func(context.Context, *daemon) error
}

func ackCall(claims []*claim) *call {
	request := &pb.AckMessagesRequest{RequestId: requestID(), Ids: ids(claims)}
	return &call{verb: acked, claims: claims, do: func(ctx context.Context, d *daemon) error {
		_, err := d.messages.AckMessages(ctx, request)
		return err
	}}
}

func releaseCall(claims []*claim) *call {
	request := &pb.ReleaseClaimsRequest{RequestId: requestID(), Ids: ids(claims)}
	return &call{verb: released, claims: claims, do: func(ctx context.Context, d *daemon) error {
		_, err := d.messages.ReleaseClaims(ctx, request)
		return err
	}}
}

func nackCall(p *plan, r *record, random *rand.Rand) *call {
	request := &pb.NackMessagesRequest{RequestId: requestID(), Nacks: p.nacks(r, random)}
	claims := slices.Concat(p.retries, p.fatals)
	return &call{verb: nacked, claims: claims, do: func(ctx context.Context, d *daemon) error {
		_, err := d.messages.NackMessages(ctx, request)
		return err
	}}
}

func requestID() string { return uuid.Must(uuid.NewV7()).String() }
