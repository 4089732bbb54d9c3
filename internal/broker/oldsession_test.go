package broker_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestSend_NeitherRequestIdsNorProducerNumbersOutliveTheirSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	a := w.in("project", "a")
	created := &pb.CreateSessionRequest{Name: "project", RequestId: newUUID()}
	apptest.Must(t, o.CreateSession, created)
	a.Register("")
	request := &pb.SendMessagesRequest{RequestId: newUUID(), Messages: []*pb.Message{to("a")}}
	first := apptest.Must(t, a.SendMessages, request)
	old := a.exchange(numbered("p", 1, 1))[0]

	deleted := &pb.DeleteSessionRequest{Name: "project", RequestId: newUUID()}
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "project"})
	inIt := w.in("project", "") // the request for the deletion itself belongs to the session
	apptest.Must(t, inIt.DeleteSession, deleted)
	apptest.Must(t, inIt.DeleteSession, deleted)
	apptest.Refuses(t, a.SendMessages, request, codes.NotFound, "SESSION_NOT_FOUND")

	apptest.Must(t, o.CreateSession, &pb.CreateSessionRequest{Name: "project"})
	a.Register("")
	again := apptest.Must(t, a.SendMessages, request)
	want(t, "request id of the old session: duplicate", again.Results[0].Duplicate, false)
	want(t, "request id of the old session: same id", again.Results[0].Id == first.Results[0].Id, false)
	number := a.exchange(numbered("p", 1, 1))[0]
	want(t, "number of the old session: duplicate", number.Duplicate, false)
	want(t, "number of the old session: same id", number.Id == old.Id, false)
	apptest.Refuses(t, inIt.DeleteSession, deleted, codes.FailedPrecondition, "SESSION_OPEN")
}
