package jsonform_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/jsonform"
)

func jsonOf(t *testing.T, m proto.Message) string {
	t.Helper()
	var b bytes.Buffer
	if err := jsonform.Append(&b, m); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "\n") {
		t.Fatalf("not one line: %q", b.String())
	}
	return b.String()
}

func TestAppend_ShowsAMessageWholeAndExact(t *testing.T) {
	m := &pb.Message{
		Id: "m", Revision: 1 << 60, Sender: "lead",
		CreatedAt: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))),
		Target:    &pb.Target{To: &pb.Target_Everyone{Everyone: true}}, Reach: pb.Reach_REACH_ALL, Type: "t",
		Body:    "a <b> & \"c\"\n\u2028",
		Payload: "{ \"n\": 1152921504606846977,\n\t\"x\": 1.0, \"s\": \"<\\u00e9>\", \"z\": null }",
		Labels:  map[string]string{"b": "2", "a": "1"}, Files: []*pb.FileReference{{Path: "x", Line: 3}},
		Ttl: durationpb.New(90 * time.Second), MaxAttempts: 3,
	}
	want := `{"id":"m","revision":1152921504606846976,"sender":"lead","sender_role":"",` +
		`"created_at":"2026-01-02T02:04:05.000000006Z",` +
		`"expires_at":null,"target":{"everyone":true},"reach":"all","type":"t","type_as_sent":"","version":"","subject":"",` +
		`"body":"a <b> & \"c\"\n\u2028","payload":{"n":1152921504606846977,"x":1.0,"s":"<\u00e9>","z":null},` +
		`"priority":0,"channel":"",` +
		`"thread_id":"","correlation_id":"","in_reply_to":"","task_id":"","labels":{"a":"1","b":"2"},` +
		`"files":[{"path":"x","line":3}],` +
		`"artifacts":[],"ttl":"1m30s","not_before":null,"ordering_key":"","max_attempts":3,` +
		`"requires_response":false,"response_deadline":null,"resend_after":null,"trace_parent":""}`
	if got := jsonOf(t, m); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAppend_EnumsAreShortAndUnsetIsNull(t *testing.T) {
	for _, c := range []struct {
		m    proto.Message
		want string
	}{
		{&pb.Recipient{Mailbox: "a", Outcome: pb.RecipientOutcome_RECIPIENT_OUTCOME_QUEUED},
			`{"mailbox":"a","outcome":"queued"}`},
		{&pb.Recipient{}, `{"mailbox":"","outcome":null}`},
		{&pb.Recipient{Outcome: 99}, `{"mailbox":"","outcome":"99"}`},
		{&pb.NackOutcome{ClaimId: "7.1", State: pb.DeliveryState_DELIVERY_STATE_DEAD},
			`{"claim_id":"7.1","state":"dead","due_at":null}`},
		{&pb.ConfigureSessionRequest{}, `{"request_id":"","description":null,"settings":null}`},
		{&pb.ConfigureSessionRequest{Description: proto.String("")}, `{"request_id":"","description":"","settings":null}`},
		{&pb.ExtendClaimsResponse{}, `{"claim_ids":[]}`},
		{durationpb.New(0), `"0s"`},
		{&pb.Names{Names: []string{"lead", "overseer"}}, `["lead","overseer"]`},
		{&pb.Names{}, `[]`},
		{&pb.Target{}, `{}`},
		{&pb.HeartbeatRequest{Progress: proto.Float64(0.5)}, `{"status":null,"activity":null,"task_id":null,` +
			`"progress":0.5,"counters":null,"last_tool":null,"last_file":null,"status_reason":null,"notices":false,"harness":null,"attention":null}`},
	} {
		if got := jsonOf(t, c.m); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func TestAppend_DetailsAreNestedAndOtherTextStaysText(t *testing.T) {
	got := jsonOf(t, &pb.Event{Revision: 7, Details: `{"n":9007199254740993}`})
	if !strings.Contains(got, `"details":{"n":9007199254740993}`) {
		t.Error(got)
	}
	if got := jsonOf(t, &pb.Event{Details: `{"n":`}); !strings.Contains(got, `"details":"{\"n\":"`) {
		t.Error(got)
	}
	if got := jsonOf(t, &pb.Event{}); !strings.Contains(got, `"details":null`) {
		t.Error(got)
	}
}

func TestAppend_LeavesOutFieldsOfTheMessageOnly(t *testing.T) {
	var b bytes.Buffer
	list := &pb.ListEventsResponse{Events: []*pb.Event{{Revision: 7}}, Revision: 9}
	err := jsonform.Append(&b, list, "revision", "next_page_token")
	if err != nil || !strings.HasPrefix(b.String(), `{"events":[{"revision":7,`) ||
		strings.Contains(b.String(), `"revision":9`) {
		t.Errorf("got %s, %v", &b, err)
	}
}

func TestAppend_ShowsFieldsThatAreStillEncoded(t *testing.T) {
	content, err := proto.Marshal(&pb.Message{Subject: "Add login", Payload: `{"n":1}`})
	if err != nil {
		t.Fatal(err)
	}
	m := &pb.Message{Id: "m", Sender: "lead"}
	m.ProtoReflect().SetUnknown(content)
	got := jsonOf(t, &pb.InboxItem{Message: m})
	for _, want := range []string{`"id":"m"`, `"sender":"lead"`, `"subject":"Add login"`, `"payload":{"n":1}`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if len(m.GetSubject()) > 0 {
		t.Error("the message has changed")
	}
}
