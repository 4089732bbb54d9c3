package broker_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A sender is an open Send stream.
type sender struct {
	t      apptest.TB
	stream pb.MessageService_SendClient
	end    context.CancelFunc
	got    []*pb.SendResult // results that nobody has asked for yet
}

func (a *agent) sender() *sender {
	a.Helper()
	ctx, end := context.WithCancel(a.Ctx)
	a.Cleanup(end)
	stream, err := a.Send(ctx)
	apptest.NoError(a, err)
	return &sender{t: a, stream: stream, end: end}
}

func (s *sender) put(r *pb.SendRequest) {
	s.t.Helper()
	apptest.NoError(s.t, s.stream.Send(r))
}

// results waits for the results of n messages.
func (s *sender) results(n int) []*pb.SendResult {
	s.t.Helper()
	for len(s.got) < n {
		r, err := s.stream.Recv()
		apptest.NoError(s.t, err)
		s.got = append(s.got, r.Results...)
	}
	got := s.got[:n]
	s.got = s.got[n:]
	return got
}

// exchange sends a batch and waits for its results.
func (s *sender) exchange(r *pb.SendRequest) []*pb.SendResult {
	s.t.Helper()
	s.put(r)
	return s.results(len(r.Messages))
}

// close ends the stream in order; nothing more may come.
func (s *sender) close() {
	s.t.Helper()
	apptest.NoError(s.t, s.stream.CloseSend())
	if _, err := s.stream.Recv(); !errors.Is(err, io.EOF) {
		s.t.Fatal(err)
	}
}

// numbered is a batch of n messages for agent a.
func numbered(producer string, first int64, n int) *pb.SendRequest {
	r := &pb.SendRequest{Producer: producer, FirstNumber: first}
	for i := range n {
		r.Messages = append(r.Messages, to("a", subject(strconv.FormatInt(first+int64(i), 10))))
	}
	return r
}

func TestSendStream_PipelinedBatchesAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	s := a.sender()
	for i := range 200 {
		s.put(&pb.SendRequest{Messages: []*pb.Message{to("a", subject(strconv.Itoa(2*i))), to("a", subject(strconv.Itoa(2*i+1)))}})
	}
	last := int64(0)
	for i, r := range s.results(400) {
		if r.Error != nil || r.Revision <= last {
			t.Fatalf("%d: %v after revision %d", i, r, last)
		}
		last = r.Revision
	}
	s.close()
	items, _ := a.receive(&pb.ReceiveRequest{})
	want(t, "messages", len(items), 400)
	for i, item := range items {
		want(t, "subject", item.Message.Subject, strconv.Itoa(i))
	}
}

func TestSendStream_RefusedMessageDoesNotEndTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	s := a.sender()
	got := s.exchange(&pb.SendRequest{Messages: []*pb.Message{
		to("a"), to("a", priority(11)), to("nobody"), to("a", due(w.now(366*24*3600e9))),
		to("a", func(m *pb.Message) { m.InReplyTo = "99999999" }), {}, to("a"),
	}})
	for i, c := range []struct {
		code  codes.Code
		field string
	}{
		{codes.OK, ""}, {codes.InvalidArgument, "messages[1].priority"}, {codes.NotFound, ""},
		{codes.InvalidArgument, "messages[3].not_before"}, {codes.NotFound, ""}, {codes.InvalidArgument, "messages[5].target"}, {codes.OK, ""},
	} {
		r := got[i]
		want(t, "code of "+strconv.Itoa(i), codes.Code(r.GetError().GetCode()), c.code)
		want(t, "field of "+strconv.Itoa(i), r.GetError().GetField(), c.field)
		if refused := c.code != codes.OK; refused != (r.Id == "" && r.Revision == 0) {
			t.Errorf("%d: id %q, revision %d", i, r.Id, r.Revision)
		}
		if c.code != codes.OK && (r.Error.Reason == "" || r.Error.Message == "") {
			t.Errorf("%d: %v", i, r.Error)
		}
	}
	want(t, "the stream goes on", s.exchange(&pb.SendRequest{Messages: []*pb.Message{to("a")}})[0].GetError(), nil)
	s.close()
	items, _ := a.receive(&pb.ReceiveRequest{})
	want(t, "messages", len(items), 3)
}

func TestSendStream_NumberSentAgainAfterReconnectIsAnsweredAndNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	s := a.sender()
	before := s.exchange(numbered("p", 1, 5))
	s.end()
	w.Restart()
	s = a.sender()
	again := s.exchange(numbered("p", 3, 5))
	for i, r := range again {
		want(t, "refused", r.Error, nil)
		want(t, "duplicate", r.Duplicate, i < 3)
		if i < 3 {
			want(t, "id", r.Id, before[2+i].Id)
			want(t, "revision", r.Revision, before[2+i].Revision)
			want(t, "recipients", r.RecipientCount, 1)
		}
	}
	s.close()
	items, _ := a.receive(&pb.ReceiveRequest{})
	wantList(t, "messages", subjectsIn(items), "1", "2", "3", "4", "5", "6", "7")
}

func TestSendStream_DuplicatesAreFoundAcrossGapsAndRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	s := a.sender()
	batch := numbered("p", 100, 6)
	for _, i := range []int{1, 2, 3} {
		batch.Messages[i].Priority = 11
	}
	sent := s.exchange(batch)
	later := s.exchange(numbered("", 100_000, 1))
	s.close()

	s = a.sender()
	again := s.exchange(batch)
	for i, r := range again {
		if i >= 1 && i <= 3 {
			want(t, "still refused", codes.Code(r.GetError().GetCode()), codes.InvalidArgument)
			continue
		}
		want(t, "refused", r.Error, nil)
		want(t, "id", r.Id, sent[i].Id)
		want(t, "duplicate", r.Duplicate, true)
	}
	want(t, "after the gap", s.exchange(numbered("", 100_000, 1))[0].Id, later[0].Id)
	want(t, "before the gap", s.exchange(numbered("", 105, 1))[0].Id, sent[5].Id)
	s.close()
}

func TestSendStream_RefusedNumberBelowAnAcceptedOneCannotBeUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	s := a.sender()
	batch := numbered("p", 1, 3)
	batch.Messages[1].Target = to("late").Target
	s.exchange(batch)
	w.agent("late", "")
	again := s.exchange(batch)
	want(t, "1", again[0].Duplicate, true)
	want(t, "2", again[1].GetError().GetReason(), "NUMBER_TOO_LOW")
	want(t, "3", again[2].Duplicate, true)
	if text := again[1].GetError().GetMessage(); !strings.Contains(text, "above 3") {
		t.Errorf("the way out is missing: %s", text)
	}
	want(t, "never sent", s.exchange(numbered("", 4, 1))[0].Duplicate, false)
	s.close()
}

func TestSendStream_RefusedLastNumberMayBeUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	s := a.sender()
	batch := numbered("p", 1, 2)
	batch.Messages[1].Target = to("late").Target
	want(t, "refused", codes.Code(s.exchange(batch)[1].GetError().GetCode()), codes.NotFound)
	w.agent("late", "")
	again := s.exchange(batch)
	want(t, "1", again[0].Duplicate, true)
	want(t, "2", again[1].Error, nil)
	want(t, "2", again[1].Duplicate, false)
	s.close()
}

func TestSendStream_ProducersOfDifferentSendersAreDifferent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a", "b"} {
		s := w.agent(name, "").sender()
		want(t, name, s.exchange(numbered("p", 1, 1))[0].Duplicate, false)
		want(t, name, s.exchange(numbered("p", 1, 1))[0].Duplicate, true)
		s.close()
	}
	s := w.in("default", "a").sender()
	want(t, "another producer", s.exchange(numbered("q", 1, 1))[0].Duplicate, false)
	s.close()
}

func TestSendStream_BrokenFrameEndsTheStreamWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	for name, c := range map[string]struct {
		frames []*pb.SendRequest
		field  string
	}{
		"no messages":                {[]*pb.SendRequest{{}}, "messages"},
		"too many messages":          {[]*pb.SendRequest{{Messages: make1001()}}, "messages"},
		"producer is no name":        {[]*pb.SendRequest{numbered("no name", 1, 1)}, "producer"},
		"producer comes late":        {[]*pb.SendRequest{{Messages: []*pb.Message{to("a")}}, numbered("p", 1, 1)}, "producer"},
		"number without producer":    {[]*pb.SendRequest{numbered("", 1, 1)}, "first_number"},
		"producer without number":    {[]*pb.SendRequest{numbered("p", 0, 1)}, "first_number"},
		"producer, negative number":  {[]*pb.SendRequest{numbered("p", -1, 1)}, "first_number"},
		"number beyond all counting": {[]*pb.SendRequest{numbered("p", 1<<62+1, 1)}, "first_number"},
	} {
		t.Run(name, func(t *testing.T) {
			s := a.sender()
			for _, f := range c.frames {
				s.put(f)
			}
			var err error
			for err == nil {
				_, err = s.stream.Recv()
			}
			apptest.Invalid(t, err, c.field)
		})
	}
}

// make1001 is one message more than a batch may have.
func make1001() []*pb.Message {
	m := make([]*pb.Message, 1001)
	for i := range m {
		m[i] = to("a")
	}
	return m
}

func TestSendStream_ProducersAreForgottenADayAfterTheirLastBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	number := func(producer string) {
		s := a.sender()
		s.exchange(numbered(producer, 1, 1))
		s.close()
	}
	for i := range 30 {
		number("old" + strconv.Itoa(i))
	}
	w.Clock.Advance(25 * time.Hour)
	for i := range 4 {
		number("new" + strconv.Itoa(i))
	}
	want(t, "producers", w.number(`SELECT COUNT(*) FROM producers`), 4)
}

func TestSendStream_LargestBatchIsNumberedAndAnsweredAsOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent("a", "").sender()
	first := s.exchange(numbered("p", 1, 1000))
	again := s.exchange(numbered("p", 1, 1000))
	ids := map[string]bool{}
	for i, r := range first {
		if r.Error != nil || r.Duplicate || ids[r.Id] {
			t.Fatalf("message %d: %v", i+1, r)
		}
		ids[r.Id] = true
		if !again[i].Duplicate || again[i].Id != r.Id {
			t.Fatalf("message %d, sent again: %v", i+1, again[i])
		}
	}
	s.close()
}
