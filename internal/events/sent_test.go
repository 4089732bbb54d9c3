package events_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"brokerd/internal/content"
	"brokerd/internal/events"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// send inserts the rows of messages to builder in one commit, and returns the revision of the last. Each has the given
// number of recipients.
func (k *kit) send(n int, recipients any) (last int64) {
	k.t.Helper()
	says := content.Message{Agent: "builder", Type: "status", Subject: "done", Task: "t"}
	text, err := says.Marshal()
	testkit.NoError(k.t, err)
	err = k.store.Write(k.t.Context(), func(tx *store.Tx) error {
		for range n {
			last = k.log.Sent(tx, defaultSession)
			tx.Exec(`INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, task, content,
					recipients, refused, related, flags)
				VALUES (?, ?, ?, 'lead', '', ?, 'status', 5, 't', ?, ?, 0, 4711, ?)`,
				last, []byte{}, defaultSession, tx.Now(), text, recipients, events.SentFlags(true, false))
		}
		return nil
	})
	testkit.NoError(k.t, err)
	return last
}

// read calls fn with a snapshot.
func (k *kit) read(fn func(s *store.Snapshot) error) {
	k.t.Helper()
	testkit.NoError(k.t, k.store.Read(k.t.Context(), fn))
}

func TestSent_MessagesAreEventsOfTheirTaskAndAmongTheNewest(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	first := k.send(1, 2)
	k.append(events.Entry{Type: "task.created", Summary: "new", TaskID: "t"})
	last := k.send(2, 3)
	k.send(1, nil) // by an older version: its event is a row of events
	wantBriefs := func(want ...events.Brief) {
		t.Helper()
		var got []events.Brief
		k.read(func(s *store.Snapshot) (err error) {
			got, err = k.log.OfTask(s, defaultSession, "t", 3)
			return err
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events of the task (-want +got):\n%s", diff)
		}
	}
	const summary = "status to builder: done"
	wantBriefs(events.Brief{Revision: last, Type: "message.sent", Summary: summary},
		events.Brief{Revision: last - 1, Type: "message.sent", Summary: summary},
		events.Brief{Revision: first + 1, Type: "task.created", Summary: "new"})
	newest := func() (found []events.Event) {
		t.Helper()
		k.read(func(s *store.Snapshot) (err error) {
			found, err = k.log.Newest(s, defaultSession, first-1, 10)
			return err
		})
		return found
	}
	all := newest()
	if len(all) != 4 || all[3].Revision != first {
		t.Errorf("the newest are %+v", all)
	}
	want := events.Entry{
		Session: defaultSession, Category: events.Message, Type: "message.sent", Severity: events.Info, Source: "lead",
		Summary: summary, Details: `{"target":"builder","type":"status","priority":5,"recipients":3,"more_follow":true}`,
		Related: []string{"4711"}, TaskID: "t",
	}
	if diff := cmp.Diff(events.Event{Revision: last, Time: k.clock.Now().UTC(), Entry: want}, all[0]); diff != "" {
		t.Errorf("the newest (-want +got):\n%s", diff)
	}
	k.remove(first, last-1)
	wantBriefs(events.Brief{Revision: last, Type: "message.sent", Summary: summary})
	if left := newest(); len(left) != 1 || left[0].Revision != last {
		t.Errorf("after removal the newest are %+v", left)
	}
}

// What comes after a page was read is in the next page, although it lies in the same stretch.
func TestAfter_HasLookedAtNothingThatComesLater(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.send(5, 1)
	var looked int64
	k.read(func(s *store.Snapshot) (err error) {
		_, looked, err = k.log.After(s, 0, 0, 100, 1<<20)
		if looked > s.Revision() {
			t.Errorf("the page ends at %d, and the last revision is %d", looked, s.Revision())
		}
		return err
	})
	later := k.send(1, 1)
	k.read(func(s *store.Snapshot) error {
		page, _, err := k.log.After(s, 0, looked, 100, 1<<20)
		if len(page) != 1 || page[0].Revision != later {
			t.Errorf("after %d there are %d events, not %d alone", looked, len(page), later)
		}
		return err
	})
}

// A page of the archive ends after a stretch without events, and the next one continues.
func TestAfter_PassesMessagesWhoseEventsWereRemoved(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	const stretch = 20_000
	first := k.send(5_000, 1) - 4_999
	for range 4 {
		k.send(5_000, 1)
	}
	removed := k.append(numbered("test.changed", 1, 1)...)
	var kept []int64
	for last, n := k.send(150, 1), int64(149); n >= 0; n-- {
		kept = append(kept, last-n)
	}
	k.remove(removed, removed)
	var found []int64
	pages := 0
	for after := int64(0); ; pages++ {
		var looked int64
		k.read(func(s *store.Snapshot) error {
			page, end, err := k.log.After(s, 0, after, 100, 1<<20)
			for _, e := range page {
				if e.Session == defaultSession {
					found = append(found, e.Revision)
				}
			}
			looked = end
			return err
		})
		if looked == 0 {
			break
		}
		if looked <= after || looked > max(after, first)+stretch {
			t.Fatalf("a page after %d ends at %d", after, looked)
		}
		after = looked
	}
	if diff := cmp.Diff(kept, found); diff != "" || pages < 2 {
		t.Errorf("%d pages (-want +got):\n%s", pages, diff)
	}
}

func TestChecks_FindMessagesWithASecondEvent(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	sent := k.send(1, 1)
	problems := func() (all []string) {
		t.Helper()
		k.read(func(s *store.Snapshot) error {
			for _, check := range events.Checks(10) {
				found, err := check(s)
				if err != nil {
					return err
				}
				all = append(all, found...)
			}
			return nil
		})
		return all
	}
	if all := problems(); len(all) > 0 {
		t.Errorf("at first: %q", all)
	}
	err := k.store.Write(t.Context(), func(tx *store.Tx) error {
		tx.Exec(`INSERT INTO events (revision, session, at, category, severity, type, source) VALUES (?, 1, 1, 2, 2, 'message.sent', 'a')`, sent)
		tx.Exec(`INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, content, recipients)
			VALUES (?1, ?2, 1, 'a', '', 1, 't', 5, ?2, 1)`, sent+100, []byte{})
		return nil
	})
	testkit.NoError(t, err)
	if all := problems(); len(all) != 2 {
		t.Errorf("got %q, want the message with two events and the one above the counter", all)
	}
}
