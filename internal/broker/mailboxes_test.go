package broker_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const (
	byAge     = pb.MailboxOrder_MAILBOX_ORDER_OLDEST
	byWaiting = pb.MailboxOrder_MAILBOX_ORDER_WAITING
)

func (a *agent) mailboxes(r *pb.ListMailboxesRequest) *pb.ListMailboxesResponse {
	a.Helper()
	return apptest.Must(a, a.ListMailboxes, r)
}

// boxNames returns the names of mailboxes in their order.
func boxNames(boxes []*pb.MailboxSummary) []string {
	var all []string
	for _, m := range boxes {
		all = append(all, m.Mailbox)
	}
	return all
}

// boxLines returns mailboxes as name, waiting/claimed/dead, and how long before now the oldest was sent.
func (w *world) boxLines(boxes []*pb.MailboxSummary) []string {
	var lines []string
	for _, m := range boxes {
		age := "-"
		if m.OldestAt != nil {
			age = w.Clock.Since(m.OldestAt.AsTime()).String()
		}
		lines = append(lines, fmt.Sprintf("%s %d/%d/%d %s", m.Mailbox, m.Waiting, m.Claimed, m.Dead, age))
	}
	return lines
}

func TestListMailboxes_CountsAndSortsByAgeOrNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, a, b := w.agent("lead", "lead"), w.agent("a", "builder"), w.agent("b", "")
	w.agent("idle", "")
	lead.send(to("a"))
	w.Clock.Advance(time.Minute)
	lead.send(toRole("builder"))
	w.Clock.Advance(time.Minute)
	lead.sendAll(to("b"), to("b"), to("b"))
	lead.sendAll(to("lead"), to("lead", func(m *pb.Message) { m.NotBefore = w.now(time.Hour) }))
	b.kill()
	lead.claim1()
	a.claimWith(&pb.ClaimMessagesRequest{Mailboxes: []string{"a"}})

	o := w.operator()
	out := o.mailboxes(&pb.ListMailboxesRequest{})
	wantList(t, "by age", w.boxLines(out.Mailboxes), "role:builder 1/0/0 1m0s", "b 2/0/1 0s", "lead 1/1/0 -", "a 0/1/0 -")
	want(t, "no further page", out.NextPageToken, "")
	want(t, "revision", out.Revision, o.status().Revision)
	out = o.mailboxes(&pb.ListMailboxesRequest{Order: byWaiting})
	wantList(t, "by number", boxNames(out.Mailboxes), "b", "lead", "role:builder", "a")
	wantList(t, "an agent", boxNames(a.mailboxes(&pb.ListMailboxesRequest{}).Mailboxes), "role:builder", "a")
	want(t, "of another session", len(w.elsewhere().mailboxes(&pb.ListMailboxesRequest{}).Mailboxes), 0)
}

func TestListMailboxes_TheOldestIsFoundBehindClaimsAndPriorities(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, worker := w.agent("lead", ""), w.agent("worker", "builder")
	lead.sendAll(to("worker", priority(9)), toRole("builder", priority(1)))
	w.Clock.Advance(time.Minute)
	lead.sendAll(to("worker", priority(1)), toRole("builder", priority(9)))
	worker.claimWith(&pb.ClaimMessagesRequest{Mailboxes: []string{"worker"}})
	got := worker.mailboxes(&pb.ListMailboxesRequest{}).Mailboxes
	wantList(t, "mailboxes", w.boxLines(got), "role:builder 2/0/0 1m0s", "worker 1/1/0 0s")
}

func TestListMailboxes_PagesKeepWhatWaitsAllTheTime(t *testing.T) {
	t.Parallel()
	for _, order := range []pb.MailboxOrder{byAge, byWaiting} {
		t.Run(order.String(), func(t *testing.T) {
			w := newWorld(t)
			lead := w.agent("lead", "")
			var all []string
			for i := range 9 {
				name := fmt.Sprintf("a%d", i)
				all = append(all, name)
				w.agent(name, "")
				for range 9 - i {
					lead.send(to(name))
				}
			}
			o := w.operator()
			r := &pb.ListMailboxesRequest{Order: order, PageSize: 3}
			first := o.mailboxes(r)
			wantList(t, "first page", boxNames(first.Mailboxes), all[:3]...)
			// What was listed shrinks, what was not listed stays, and a new mailbox joins.
			w.in("default", "a1").claim(1)
			w.agent("new", "")
			lead.send(to("new"))
			got := boxNames(first.Mailboxes)
			for r.PageToken = first.NextPageToken; r.PageToken != ""; {
				page := o.mailboxes(r)
				if n := len(page.Mailboxes); n == 0 || n > 3 {
					t.Fatalf("a page of %d", n)
				}
				got = append(got, boxNames(page.Mailboxes)...)
				r.PageToken = page.NextPageToken
			}
			times := map[string]int{}
			for _, name := range got {
				times[name]++
			}
			for _, name := range append(all, "new") {
				if n := times[name]; n == 0 || n > 1 && name != "a1" {
					t.Errorf("%s is %d times in %v", name, n, got)
				}
			}
		})
	}
}

func TestListMailboxes_CountsOfDeadLettersEndAtAThousand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "")
	a.send(to("a"))
	a.kill()
	w.copyDead(1500)
	want(t, "dead", a.mailboxes(&pb.ListMailboxesRequest{}).Mailboxes[0].Dead, 1000)
	w.removeCopies()
	want(t, "dead", a.mailboxes(&pb.ListMailboxesRequest{}).Mailboxes[0].Dead, 1)
}

func TestListMailboxes_ChecksItsFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	for field, r := range map[string]*pb.ListMailboxesRequest{
		"page_size": {PageSize: 1001}, "order": {Order: 7}, "page_token": {PageToken: "x"},
	} {
		apptest.Invalid(t, apptest.Err(o.ListMailboxes(o.Ctx, r)), field)
	}
	lead := w.agent("lead", "")
	w.agent("a", "")
	lead.sendAll(to("a"), to("lead"))
	token := o.mailboxes(&pb.ListMailboxesRequest{PageSize: 1}).NextPageToken
	_, err := o.ListMailboxes(o.Ctx, &pb.ListMailboxesRequest{Order: byWaiting, PageToken: token})
	apptest.Invalid(t, err, "page_token")
	stranger := w.in("default", "stranger")
	_, err = stranger.ListMailboxes(stranger.Ctx, &pb.ListMailboxesRequest{})
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}
