package events_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/events"
	"brokerd/internal/identity"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

func TestList_AllThatIsSetInAFilterMustMatch(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(
		events.Entry{Category: events.Message, Type: "message.sent", Source: "lead", SourceRole: "lead", TaskID: "t1"},
		events.Entry{Category: events.Message, Type: "message.acked", Source: "b1", SourceRole: "builder", Severity: events.Debug},
		events.Entry{Category: events.Message, Type: "message.dead.letter", Source: "b2", SourceRole: "builder", Severity: events.Error, TaskID: "t1"},
		events.Entry{Category: events.Agent, Type: "agent.registered", Source: "b1", SourceRole: "builder"},
		events.Entry{Category: events.System, Type: "messages.odd", Source: "system", Severity: events.Critical},
		events.Entry{Category: events.State, Type: "message", Source: "b2"},
	)
	all := []string{"message.sent", "message.acked", "message.dead.letter", "agent.registered", "messages.odd", "message"}
	many := []string{"message.sent"}
	for i := range 99 {
		many = append(many, fmt.Sprintf("none.%d", i))
	}
	for name, c := range map[string]struct {
		filter *pb.EventFilter
		want   []string
	}{
		"none":            {nil, all},
		"empty":           {&pb.EventFilter{}, all},
		"one category":    {&pb.EventFilter{Categories: []pb.EventCategory{2}}, all[:3]},
		"two categories":  {&pb.EventFilter{Categories: []pb.EventCategory{1, 6}}, all[3:5]},
		"exact types":     {&pb.EventFilter{Types: []string{"message", "message.acked"}}, []string{"message.acked", "message"}},
		"prefix":          {&pb.EventFilter{Types: []string{"message.*"}}, all[:3]},
		"longer prefix":   {&pb.EventFilter{Types: []string{"message.dead.*"}}, all[2:3]},
		"prefix or exact": {&pb.EventFilter{Types: []string{"agent.*", "message"}}, []string{"agent.registered", "message"}},
		"100 types":       {&pb.EventFilter{Types: many}, all[:1]},
		"severity":        {&pb.EventFilter{LowestSeverity: pb.Severity_SEVERITY_ERROR}, []string{"message.dead.letter", "messages.odd"}},
		"info is default": {&pb.EventFilter{LowestSeverity: pb.Severity_SEVERITY_INFO, Sources: []string{"lead", "b1"}}, []string{"message.sent", "agent.registered"}},
		"sources":         {&pb.EventFilter{Sources: []string{"b1", "system"}}, []string{"message.acked", "agent.registered", "messages.odd"}},
		"roles":           {&pb.EventFilter{SourceRoles: []string{"builder"}}, all[1:4]},
		"task":            {&pb.EventFilter{TaskId: "t1"}, []string{"message.sent", "message.dead.letter"}},
		"all together": {&pb.EventFilter{
			Categories: []pb.EventCategory{2}, Types: []string{"message.*"}, LowestSeverity: pb.Severity_SEVERITY_WARNING,
			Sources: []string{"b2", "lead"}, SourceRoles: []string{"builder"}, TaskId: "t1",
		}, all[2:3]},
		"one of many does not match": {&pb.EventFilter{Types: []string{"message.*"}, Sources: []string{"lead"}, TaskId: "t2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := k.list(&pb.ListEventsRequest{Filter: c.filter})
			if diff := cmp.Diff(c.want, types(got.GetEvents())); diff != "" {
				t.Errorf("oldest first (-want +got):\n%s", diff)
			}
			got = k.list(&pb.ListEventsRequest{Filter: c.filter, NewestFirst: true})
			back := types(got.GetEvents())
			slices.Reverse(back)
			if diff := cmp.Diff(c.want, back); diff != "" {
				t.Errorf("newest first (-want +got):\n%s", diff)
			}
		})
	}
}

func TestList_PagesTogetherAreTheWholeListInBothDirections(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(numbered("message.sent", 1, 10)...)
	for _, newest := range []bool{false, true} {
		var got []string
		in := &pb.ListEventsRequest{PageSize: 3, NewestFirst: newest}
		for {
			out := k.list(in)
			if len(out.GetEvents()) > 3 {
				t.Fatalf("a page of %d", len(out.GetEvents()))
			}
			if out.GetRevision() != k.store.Revision() {
				t.Errorf("true at %d, want %d", out.GetRevision(), k.store.Revision())
			}
			got = append(got, summaries(out.GetEvents())...)
			if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
				break
			}
		}
		if newest {
			slices.Reverse(got)
		}
		if diff := cmp.Diff(counted(1, 10), got); diff != "" {
			t.Errorf("newest first %v (-want +got):\n%s", newest, diff)
		}
	}
}

func TestList_StaysBetweenAfterAndUntil(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	last := k.append(numbered("message.sent", 1, 6)...)
	first := last - 5
	for _, newest := range []bool{false, true} {
		out := k.list(&pb.ListEventsRequest{AfterRevision: first + 1, UntilRevision: first + 3, NewestFirst: newest})
		got := summaries(out.GetEvents())
		slices.Sort(got)
		if diff := cmp.Diff([]string{"3", "4"}, got); diff != "" || out.GetNextPageToken() != "" {
			t.Errorf("newest first %v: next %q (-want +got):\n%s", newest, out.GetNextPageToken(), diff)
		}
		if out := k.list(&pb.ListEventsRequest{AfterRevision: last, NewestFirst: newest}); len(out.GetEvents()) != 0 || out.GetNextPageToken() != "" {
			t.Errorf("after the last: %v", out)
		}
		if out := k.list(&pb.ListEventsRequest{AfterRevision: last + 1000, NewestFirst: newest}); len(out.GetEvents()) != 0 || out.GetNextPageToken() != "" {
			t.Errorf("after what does not exist yet: %v", out)
		}
		if out := k.list(&pb.ListEventsRequest{AfterRevision: first + 3, UntilRevision: first, NewestFirst: newest}); len(out.GetEvents()) != 0 || out.GetNextPageToken() != "" {
			t.Errorf("until before after: %v", out)
		}
	}
}

func TestList_LooksAtABoundedStretchACallAndFindsEverything(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(events.Entry{Type: "agent.first"})
	k.append(numbered("message.sent", 1, 45_000)...)
	k.append(events.Entry{Type: "agent.last"})
	for _, newest := range []bool{false, true} {
		in := &pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"agent.*"}}, NewestFirst: newest}
		var got []string
		empty, calls := 0, 0
		for {
			out := k.list(in)
			calls++
			if len(out.GetEvents()) == 0 {
				empty++
			}
			got = append(got, types(out.GetEvents())...)
			if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
				break
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff([]string{"agent.first", "agent.last"}, got); diff != "" {
			t.Errorf("newest first %v (-want +got):\n%s", newest, diff)
		}
		if calls != 3 || empty != 1 {
			t.Errorf("newest first %v: %d calls, %d of them empty; want 3 and 1", newest, calls, empty)
		}
	}
}

func TestList_JumpOfTheCounterIsNotWalkedThrough(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(events.Entry{Type: "message.before"})
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		for range 1_000_000 {
			tx.NextRevision()
		}
		return nil
	})
	testkit.NoError(t, err)
	k.append(events.Entry{Type: "message.after"})
	for _, newest := range []bool{false, true} {
		in := &pb.ListEventsRequest{NewestFirst: newest}
		var got []string
		calls := 0
		for calls < 10 {
			out := k.list(in)
			calls++
			got = append(got, types(out.GetEvents())...)
			if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
				break
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff([]string{"message.after", "message.before"}, got); diff != "" || calls > 2 {
			t.Errorf("newest first %v, %d calls (-want +got):\n%s", newest, calls, diff)
		}
	}
}

func TestList_PageOfLargeEventsFitsIntoAnAnswer(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	large := events.Entry{Type: "task.noted", Details: `{"text":"` + strings.Repeat("x", 64<<10) + `"}`}
	k.append(slices.Repeat([]events.Entry{large}, 100)...)
	in := &pb.ListEventsRequest{PageSize: 1000}
	total := 0
	for {
		out := k.list(in)
		if size := proto.Size(out); size > 4<<20 {
			t.Fatalf("an answer of %d bytes", size)
		}
		total += len(out.GetEvents())
		if in.PageToken = out.GetNextPageToken(); in.PageToken == "" {
			break
		}
	}
	if total != 100 {
		t.Errorf("%d events, want 100", total)
	}
}

func TestList_ShowsTheCallersSessionAndTheBrokerToOperatorsOnly(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	other := k.otherSession()
	k.append(events.Entry{Type: "message.own"}, events.Entry{Type: "message.other", Session: other})
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		_, err := k.log.Append(tx, events.Entry{Category: events.System, Type: "broker.started", Source: "system"})
		return err
	})
	testkit.NoError(t, err)
	for _, c := range []struct {
		name   string
		caller identity.Caller
		want   []string
	}{
		{"operator", identity.Caller{Access: identity.Operator, Session: "default"}, []string{"message.own/default", "broker.started/"}},
		{"agent", identity.Caller{Access: identity.Agent, Session: "default", Agent: "a"}, []string{"message.own/default"}},
		{"observer", identity.Caller{Access: identity.Observer, Session: "default"}, []string{"message.own/default"}},
		{"agent of the other", identity.Caller{Access: identity.Agent, Session: "other", Agent: "a"}, []string{"session.created/other", "message.other/other"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := k.api.ListEvents(testkit.As(t.Context(), c.caller), &pb.ListEventsRequest{})
			testkit.NoError(t, err)
			var got []string
			for _, e := range out.GetEvents() {
				got = append(got, e.GetType()+"/"+e.GetSession())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	_, err = k.api.ListEvents(testkit.As(t.Context(), identity.Caller{Access: identity.Operator, Session: "nowhere"}), &pb.ListEventsRequest{})
	if status.Code(err) != codes.NotFound {
		t.Errorf("in a session that does not exist: %v", err)
	}
}

func TestBadInput_NamesTheField(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.append(numbered("message.sent", 1, 3)...)
	token := k.list(&pb.ListEventsRequest{PageSize: 1}).GetNextPageToken()
	for _, c := range []struct {
		field  string
		filter *pb.EventFilter
	}{
		{"filter.categories[0]", &pb.EventFilter{Categories: []pb.EventCategory{0}}},
		{"filter.categories[1]", &pb.EventFilter{Categories: []pb.EventCategory{1, 7}}},
		{"filter.types[1]", &pb.EventFilter{Types: []string{"a", "b*"}}},
		{"filter.types[0]", &pb.EventFilter{Types: []string{"*"}}},
		{"filter.types[0]", &pb.EventFilter{Types: []string{".*"}}},
		{"filter.types[0]", &pb.EventFilter{Types: []string{""}}},
		{"filter.types[0]", &pb.EventFilter{Types: []string{"task."}}},
	} {
		_, err := k.api.ListEvents(testkit.Operator(t.Context()), &pb.ListEventsRequest{Filter: c.filter})
		wantField(t, err, c.field)
		_, err = k.subscribeFails(&pb.SubscribeEventsRequest{Filter: c.filter})
		wantField(t, err, c.field)
	}
	for _, c := range []struct {
		field string
		in    *pb.ListEventsRequest
	}{
		{"page_token", &pb.ListEventsRequest{PageToken: "!"}},
		{"page_token", &pb.ListEventsRequest{PageToken: token, NewestFirst: true}},
	} {
		_, err := k.api.ListEvents(testkit.Operator(t.Context()), c.in)
		wantField(t, err, c.field)
	}
	future := k.store.Revision() + 1
	for _, c := range []struct {
		field string
		in    *pb.SubscribeEventsRequest
	}{
		{"after_revision", &pb.SubscribeEventsRequest{AfterRevision: &future}},
		{"after_revision", &pb.SubscribeEventsRequest{AfterRevision: &future, Cursor: "new"}},
	} {
		_, err := k.subscribeFails(c.in)
		wantField(t, err, c.field)
	}
}

func (k *kit) subscribeFails(in *pb.SubscribeEventsRequest) (*pb.SubscribeEventsResponse, error) {
	stream, err := k.api.SubscribeEvents(testkit.Operator(k.t.Context()), in)
	testkit.NoError(k.t, err)
	return stream.Recv()
}

func wantField(t *testing.T, err error, field string) {
	t.Helper()
	if status.Code(err) != codes.InvalidArgument || !slices.Contains(testkit.Fields(err), field) {
		t.Errorf("got %v, naming %v; want INVALID_ARGUMENT naming %s", err, testkit.Fields(err), field)
	}
}

func TestEvents_ChosenByTime(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	var times []*timestamppb.Timestamp
	for i := range 4 {
		times = append(times, timestamppb.New(k.clock.Now()))
		k.append(numbered("message.sent", i, 1)...)
		k.clock.Advance(time.Minute)
	}
	for _, c := range []struct {
		since, until *timestamppb.Timestamp
		want         []string
	}{
		{times[1], times[3], []string{"1", "2"}},
		{times[2], nil, []string{"2", "3"}},
		{nil, times[2], []string{"0", "1"}},
	} {
		filter := &pb.EventFilter{Since: c.since, Until: c.until}
		if diff := cmp.Diff(c.want, summaries(k.list(&pb.ListEventsRequest{Filter: filter}).GetEvents())); diff != "" {
			t.Errorf("listed from %v until %v: %s", c.since, c.until, diff)
		}
		request := &pb.SubscribeEventsRequest{Filter: filter}
		if c.since == nil {
			request.AfterRevision = at(0)
		}
		s := k.subscribe(k.operator(), request)
		if got, _ := s.take(2); !cmp.Equal(c.want, got) {
			t.Errorf("subscribed from %v until %v: %v", c.since, c.until, got)
		}
	}
	_, err := k.api.ListEvents(k.operator(), &pb.ListEventsRequest{Filter: &pb.EventFilter{Since: &timestamppb.Timestamp{Nanos: -1}}})
	if diff := cmp.Diff([]string{"filter.since"}, testkit.Fields(err)); diff != "" {
		t.Error(diff)
	}
}
