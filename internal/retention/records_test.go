package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// A copied delivery is what a line of the archive and GetMessage must agree on.
type copied struct {
	Mailbox, State, ClaimID, Holder, Consumer, FinishedAt string
	Attempts                                              float64
	History                                               []string
}

// Messages of two sessions that alternate, with several deliveries and attempts each, and unfinished ones in between.
func TestMessages_LinesHaveEachDeliveryWithItsAttemptsAndNothingElseGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(keep(time.Hour))
	w.register("reviewer", "tester")
	other := *w
	other.session = "other"
	apptest.Must(t, w.Root().CreateSession,
		&pb.CreateSessionRequest{Name: other.session, Settings: keep(time.Hour)})
	other.register("lead", "builder")
	everyone := &pb.Target{To: &pb.Target_Everyone{Everyone: true}}
	var finished, waiting []*pb.SendResult
	for i := range 12 {
		sent := w.send(&pb.Message{Target: everyone, Subject: fmt.Sprint(i)})
		for j, agent := range []string{"builder", "reviewer", "tester"} {
			claims := apptest.Must(t, w.as(agent).ClaimMessages, &pb.ClaimMessagesRequest{Max: 1, Consumer: "c"})
			id := claims.GetClaims()[0].GetClaimId()
			if (i+j)%3 == 0 {
				nack := &pb.Nack{ClaimId: id, Error: fmt.Sprint("no ", i, j)}
				apptest.Must(t, w.as(agent).NackMessages, &pb.NackMessagesRequest{Nacks: []*pb.Nack{nack}})
				w.Clock.Advance(time.Minute)
				w.eventually("it can be claimed again", func() bool {
					claims = apptest.Must(t, w.as(agent).ClaimMessages,
						&pb.ClaimMessagesRequest{Max: 1, Consumer: "c"})
					return len(claims.GetClaims()) > 0
				})
				id = claims.GetClaims()[0].GetClaimId()
			}
			apptest.Must(t, w.as(agent).AckMessages, &pb.AckMessagesRequest{Ids: []string{id}})
		}
		finished = append(finished, sent)
		if i%4 == 1 {
			waiting = append(waiting, w.send(&pb.Message{Target: &pb.Target{To: &pb.Target_Role{Role: "nobody"}}}))
		}
		if i%3 == 1 {
			other.finish(&pb.Message{})
		}
	}
	want := map[int64][]copied{}
	for _, sent := range finished {
		m := apptest.Must(t, w.as("").GetMessage, &pb.GetMessageRequest{Id: sent.GetId()})
		for _, d := range m.GetDeliveries() {
			c := copied{
				d.GetMailbox(), "ACKED", d.GetClaimId(), d.GetHolder(), d.GetConsumer(), d.GetFinishedAt().AsTime().Format(time.RFC3339Nano),
				float64(d.GetAttempts()), nil,
			}
			for _, a := range d.GetHistory() {
				c.History = append(c.History, a.GetAgent()+": "+a.GetError())
			}
			want[sent.GetRevision()] = append(want[sent.GetRevision()], c)
		}
	}
	w.Clock.Advance(2 * time.Hour)
	w.gone(finished[len(finished)-1])
	w.turned()
	got := map[int64][]copied{}
	lines, _ := w.lines("messages")
	for _, l := range lines {
		revision := int64(l["message"].(map[string]any)["revision"].(float64))
		for _, one := range l["deliveries"].([]any) {
			d := one.(map[string]any)
			text := func(field string) string { return d[field].(string) }
			c := copied{
				text("mailbox"), text("state"), text("claim_id"), text("holder"), text("consumer"), text("finished_at"), d["attempts"].(float64), nil,
			}
			for _, a := range d["history"].([]any) {
				c.History = append(c.History, a.(map[string]any)["agent"].(string)+": "+a.(map[string]any)["error"].(string))
			}
			got[revision] = append(got[revision], c)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the archive (-want +got):\n%s", diff)
	}
	for _, sent := range waiting {
		if !w.there(sent) {
			t.Errorf("message %d went with those around it", sent.GetRevision())
		}
	}
}
