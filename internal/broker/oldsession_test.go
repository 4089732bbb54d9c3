package broker_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
)

func TestSend_NeitherRequestIdsNorProducerNumbersOutliveTheirSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	a := w.in("project", "a")
	created := &pb.CreateSessionRequest{Name: "project", RequestId: newUUID()}
	must(t, drop(o.sessions.CreateSession(o.ctx, created)))
	a.register("")
	request := &pb.SendMessagesRequest{RequestId: newUUID(), Messages: []*pb.Message{to("a")}}
	first, err := a.SendMessages(a.ctx, request)
	must(t, err)
	old := a.exchange(numbered("p", 1, 1))[0]

	deleted := &pb.DeleteSessionRequest{Name: "project", RequestId: newUUID()}
	must(t, drop(o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "project"})))
	inIt := w.in("project", "") // the request for the deletion itself belongs to the session
	must(t, drop(inIt.sessions.DeleteSession(o.ctx, deleted)))
	must(t, drop(inIt.sessions.DeleteSession(o.ctx, deleted)))
	_, err = a.SendMessages(a.ctx, request)
	wantError(t, err, codes.NotFound, "SESSION_NOT_FOUND")

	must(t, drop(o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: "project"})))
	a.register("")
	again, err := a.SendMessages(a.ctx, request)
	must(t, err)
	want(t, "request id of the old session: duplicate", again.Results[0].Duplicate, false)
	want(t, "request id of the old session: same id", again.Results[0].Id == first.Results[0].Id, false)
	number := a.exchange(numbered("p", 1, 1))[0]
	want(t, "number of the old session: duplicate", number.Duplicate, false)
	want(t, "number of the old session: same id", number.Id == old.Id, false)
	_, err = inIt.sessions.DeleteSession(o.ctx, deleted)
	wantError(t, err, codes.FailedPrecondition, "SESSION_OPEN")
}
