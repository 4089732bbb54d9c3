package app_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jonboulle/clockwork"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// TestUpgrade_MailStaysReadAndOffersStayOpen starts on data of the last version without offers and of one with
// offers. What was read stays read, also without an offer. What is unread is offered, unless an offer of it is open.
func TestUpgrade_MailStaysReadAndOffersStayOpen(t *testing.T) {
	t.Parallel()
	testkit.OnSQLite(t, "it begins with a folder of SQLite")
	for version, c := range map[string]struct {
		model   []string // the subjects that are offered to the agent model
		settled int32    // messages of the mark mark-offered
	}{
		"eec5ac9": {model: []string{"accepted", "offered", "returned"}},
		"22120f9": {model: []string{"returned"}, settled: 1},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			old := unpack(t, filepath.Join("testdata/upgrade", version+".tar.gz"))
			clock := clockwork.NewFakeClockAt(old.at)
			b := apptest.Start(t, apptest.With(func(c *app.Config) {
				c.Dir, c.Clock = filepath.Join(old.dir, "data"), clock
			}))
			reader := b.Actor("default", "reader")
			model := b.Actor("default", "model")

			before := inboxOf(t, reader)
			if d := before["read"].GetDelivery(); d.GetReadAt() == nil || len(d.GetOffers()) > 0 {
				t.Errorf("what was read is %v", d)
			}
			if diff := cmp.Diff([]string{"delivered", "unread"}, offer(t, reader, "mark-new")); diff != "" {
				t.Errorf("offered to reader: %s", diff)
			}
			if diff := cmp.Diff(c.model, offer(t, model, "mark-new")); diff != "" {
				t.Errorf("offered to model: %s", diff)
			}
			if n := accept(t, model, "mark-offered"); n != c.settled {
				t.Errorf("the earlier offer concerns %d messages, want %d", n, c.settled)
			}
			if n := accept(t, model, "mark-new"); int(n) != len(c.model) {
				t.Errorf("the new offer concerns %d messages, want %d", n, len(c.model))
			}
			for subject, item := range inboxOf(t, model) {
				if item.GetDelivery().GetReadAt() == nil {
					t.Errorf("%s was accepted, and is %v", subject, item.GetDelivery())
				}
			}

			// Without evidence, the messages are unread again.
			clock.Advance(time.Minute)
			awaitReturned(t, b)
			if diff := cmp.Diff([]string{"delivered", "unread"}, offer(t, reader, "mark-later")); diff != "" {
				t.Errorf("offered to reader again: %s", diff)
			}
			was, is := before["read"].GetDelivery().GetReadAt(), inboxOf(t, reader)["read"].GetDelivery().GetReadAt()
			if !proto.Equal(was, is) {
				t.Errorf("what was read at %v is now read at %v", was, is)
			}
		})
	}
}

// inboxOf returns the mailbox of an agent by subject.
func inboxOf(t *testing.T, agent pb.MessageServiceClient) map[string]*pb.InboxItem {
	t.Helper()
	page := apptest.Must(t, agent.ListMessages, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
	items := map[string]*pb.InboxItem{}
	for _, item := range page.GetItems() {
		if item.GetMessage().GetSender() == "lead" { // the others are notices
			items[item.GetMessage().GetSubject()] = item
		}
	}
	return items
}

// offer offers the mail of an agent and returns the subjects.
func offer(t *testing.T, agent pb.MessageServiceClient, mark string) []string {
	t.Helper()
	answer := apptest.Must(t, agent.OfferMessages, &pb.OfferMessagesRequest{
		Way: pb.OfferWay_OFFER_WAY_PROMPT, Harness: "later", Mark: mark,
	})
	var subjects []string
	for _, item := range answer.GetItems() {
		subjects = append(subjects, item.GetMessage().GetSubject())
	}
	return subjects
}

// accept accepts the offer with a mark and returns how many messages that concerns.
func accept(t *testing.T, agent pb.MessageServiceClient, mark string) int32 {
	t.Helper()
	return apptest.Must(t, agent.SettleOffers, &pb.SettleOffersRequest{
		Marks: []string{mark}, Outcome: &pb.SettleOffersRequest_Accepted{Accepted: true},
	}).GetSettled()
}

// awaitReturned waits until the offer to reader has been returned.
func awaitReturned(t *testing.T, b *apptest.Broker) {
	t.Helper()
	stream, err := b.Root().SubscribeEvents(patient(t), &pb.SubscribeEventsRequest{
		AfterRevision: proto.Int64(0), Filter: &pb.EventFilter{Types: []string{"message.returned"}},
	})
	apptest.NoError(t, err)
	for {
		page, err := stream.Recv()
		apptest.NoError(t, err)
		for _, e := range page.GetEvents() {
			if strings.Contains(e.GetSummary(), "not accepted by reader") {
				return
			}
		}
	}
}
