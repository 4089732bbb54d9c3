package locks

import (
	"context"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/outbox"
)

// A panic behind the answer of a request refuses it once more. The stream still waits for the answers of the others.
func TestOpenRequests_OneAnswerEach(t *testing.T) {
	t.Parallel()
	q := &openRequests{out: outbox.New[reply](10, nil), cancels: map[int64]context.CancelFunc{}}
	for number := range int64(2) {
		if _, err := q.begin(number+1, nil); err != nil {
			t.Fatal(err)
		}
		if err := q.out.Reserve(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(number int64) { q.done(reply{LockResponse: &pb.LockResponse{Number: number}}) }
	answer(1)
	answer(1)
	q.out.Close(nil)
	for _, number := range []int64{1, 2} {
		ready, err := q.out.Next()
		if err != nil || len(ready) != 1 || ready[0].Number != number {
			t.Fatalf("got %v, %v, want the answer of request %d", ready, err, number)
		}
		answer(2)
	}
	if ready, err := q.out.Next(); err != nil || len(ready) > 0 {
		t.Errorf("the stream has more answers: %v, %v", ready, err)
	}
}
