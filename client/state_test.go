package client_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func (f *fake) WatchState(request *pb.WatchStateRequest, stream grpc.ServerStreamingServer[pb.WatchStateResponse]) error {
	s := &down[*pb.WatchStateRequest, pb.WatchStateResponse]{stream, request, make(chan error, 1)}
	f.watches <- s
	select {
	case err := <-s.end:
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	case <-f.over:
		return nil
	}
}

// frame is a frame with changes of these revisions.
func frame(revision int64, revisions ...int64) *pb.WatchStateResponse {
	out := &pb.WatchStateResponse{Revision: revision}
	for _, r := range revisions {
		out.Changes = append(out.Changes, &pb.StateEntry{Revision: r})
	}
	return out
}

func TestWatchState_ResumesAfterTheLastRevision(t *testing.T) {
	t.Parallel()
	f, c := newFake(t)
	got := make(chan string, 16)
	progress := make(chan int64, 16)
	end := make(chan error, 1)
	go func() {
		var last error
		for changes, err := range c.WatchState(t.Context(), client.WatchOptions{
			Namespace: "n", Prefix: "p", FromNow: true, OnProgress: func(revision int64) { progress <- revision },
		}) {
			if last = err; err != nil {
				continue
			}
			var revisions []string
			for _, e := range changes {
				revisions = append(revisions, fmt.Sprint(e.GetRevision()))
			}
			got <- strings.Join(revisions, " ")
		}
		end <- last
	}()
	want := func(groups ...string) {
		t.Helper()
		for _, g := range groups {
			if r := <-got; r != g {
				t.Errorf("yielded %q, want %q", r, g)
			}
		}
	}
	s := <-f.watches
	if s.request.AfterRevision != nil || s.request.Namespace != "n" || s.request.KeyPrefix != "p" {
		t.Errorf("asked for %v", s.request)
	}
	mustSend(t, s.Send(frame(5)))
	if r := <-progress; r != 5 {
		t.Errorf("progress %d, want 5", r)
	}
	s.end <- errCut
	s = <-f.watches // it broke before anything changed: what happened meanwhile is not missed
	if s.request.GetAfterRevision() != 5 {
		t.Errorf("resumed with %v", s.request)
	}
	mustSend(t, s.Send(frame(9, 6, 6, 8)))
	want("6 6", "8")
	<-progress
	s.end <- errCut
	s = <-f.watches
	if s.request.GetAfterRevision() != 9 {
		t.Errorf("resumed with %v", s.request)
	}
	s.end <- status.Error(codes.OutOfRange, "compacted")
	if err := <-end; status.Code(err) != codes.OutOfRange {
		t.Errorf("it ended with %v", err)
	}
}

func mustSend(t *testing.T, err error) {
	t.Helper()
	apptest.NoError(t, err)
}
