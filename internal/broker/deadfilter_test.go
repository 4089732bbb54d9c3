package broker_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// firstCopy is the revision of the oldest copy that copyDead makes.
const firstCopy = 1_000_000

// copyDead copies the dead letters behind the daemon's back, each n times, to newer messages of the
// same content. The copies must be removed before the test ends, because no event reports them.
func (w *world) copyDead(n int) {
	w.Helper()
	copies := fmt.Sprintf(`
		WITH RECURSIVE i (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM i WHERE n + 1 < %d)
		SELECT %d + d.message * 10000 + i.n, `, n, firstCopy)
	const dead = `
		FROM deliveries d JOIN messages m ON m.revision = d.message CROSS JOIN i
		WHERE d.state = 6`
	w.sql(`
		INSERT INTO messages (revision, id, session, sender, sender_role, created_at, type, priority, content)`+copies+`
			m.id, m.session, m.sender, m.sender_role, m.created_at, m.type, m.priority, m.content`+dead, `
		INSERT INTO deliveries (message, mailbox, state, rank, arrival, max_attempts, holder, finished_at)`+copies+`
			d.mailbox, 6, d.rank, -1, 3, d.holder, d.finished_at`+dead)
}

// removeCopies removes what copyDead has made.
func (w *world) removeCopies() {
	w.Helper()
	for _, table := range []string{"messages WHERE revision", "deliveries WHERE message", "attempts WHERE message"} {
		w.sql(`DELETE FROM ` + table + fmt.Sprint(" >= ", firstCopy))
	}
}

// graves makes dead letters that differ in all that a filter checks, a minute apart, oldest first.
func graves(t *testing.T) *world {
	w := newWorld(t)
	w.unbroken()
	lead, other := w.agent("lead", "lead"), w.agent("other", "lead")
	a, b := w.agent("a", "builder"), w.agent("b", "builder")
	die := func(from, in *agent, m *pb.Message, reason string) {
		from.send(m)
		in.nack(&pb.Nack{ClaimId: in.claim1().ClaimId, Fatal: true, Error: reason})
		w.Clock.Advance(time.Minute)
	}
	die(lead, a, to("a", subject("1"), kind("review")), "Timeout after 30s")
	die(other, b, to("b", subject("2")), "no such file")
	die(lead, b, toRole("builder", subject("3")), "timeout")
	die(other, a, toRole("builder", subject("4"), kind("review")), "no such host")
	return w
}

// deadSubjects returns the subjects of the dead letters that match.
func (a *agent) deadSubjects(mailbox string, f *pb.DeadLetterFilter) []string {
	a.Helper()
	out := apptest.Must(a, a.ListDeadLetters, &pb.ListDeadLettersRequest{Mailbox: mailbox, Filter: f, Count: true})
	got := subjectsIn(out.Items)
	want(a, "count", out.Count, int64(len(got)))
	want(a, "at least", out.CountAtLeast, false)
	return got
}

func TestDeadLetters_FilterByWhatTheyHaveInCommon(t *testing.T) {
	t.Parallel()
	w := graves(t)
	o := w.operator()
	for _, c := range []struct {
		name    string
		mailbox string
		filter  *pb.DeadLetterFilter
		want    []string
	}{
		{"nothing", "", nil, []string{"4", "3", "2", "1"}},
		{"an empty filter", "", &pb.DeadLetterFilter{}, []string{"4", "3", "2", "1"}},
		{"type", "", &pb.DeadLetterFilter{Types: []string{"review"}}, []string{"4", "1"}},
		{"senders", "", &pb.DeadLetterFilter{Senders: []string{"lead", "nobody"}}, []string{"3", "1"}},
		{"holder", "", &pb.DeadLetterFilter{Holders: []string{"b"}}, []string{"3", "2"}},
		{"a part of the error, in any case", "", &pb.DeadLetterFilter{Error: "TIMEOUT"}, []string{"3", "1"}},
		{"since", "", &pb.DeadLetterFilter{FromTime: w.now(-2 * time.Minute)}, []string{"4", "3"}},
		{"until", "", &pb.DeadLetterFilter{ToTime: w.now(-2 * time.Minute)}, []string{"2", "1"}},
		{"mailbox", "role:builder", nil, []string{"4", "3"}},
		{"mailbox and error", "role:builder", &pb.DeadLetterFilter{Error: "time"}, []string{"3"}},
		{"all of it, which none has", "a", &pb.DeadLetterFilter{Types: []string{"review"}, Senders: []string{"other"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.TB = t
			wantList(t, "dead letters", o.deadSubjects(c.mailbox, c.filter), c.want...)
		})
	}
	a := w.in("default", "a")
	wantList(t, "an agent", a.deadSubjects("", &pb.DeadLetterFilter{Error: "no such"}), "4")
}

func TestRedrive_AllThatMatch(t *testing.T) {
	t.Parallel()
	w := graves(t)
	a, o := w.in("default", "a"), w.operator()
	r := &pb.RedriveDeadLettersRequest{Filter: &pb.DeadLetterFilter{Error: "timeout"}, DryRun: true}
	for who, count := range map[*agent]int32{o: 2, a: 2} {
		out := apptest.Must(t, who.RedriveDeadLetters, r)
		want(t, "dry run of "+who.Name, out.Redriven, count)
		want(t, "revision", out.Revision, o.status().Revision)
	}
	wantList(t, "a dry run changes nothing", subjectsIn(o.deadLetters()), "4", "3", "2", "1")
	r.DryRun = false
	out := apptest.Must(t, o.RedriveDeadLetters, r)
	want(t, "redriven", out.Redriven, 2)
	want(t, "next page", out.NextPageToken, "")
	wantList(t, "left", subjectsIn(o.deadLetters()), "4", "2")
	wantList(t, "claimed", subjectsOf(a.claim(10)), "1", "3")
	all := apptest.Must(t, a.RedriveDeadLetters, &pb.RedriveDeadLettersRequest{All: true})
	want(t, "all that an agent sees", all.Redriven, 1)
	wantList(t, "left", subjectsIn(o.deadLetters()), "2")
}

func TestPurge_AllThatMatchAfterADryRun(t *testing.T) {
	t.Parallel()
	w := graves(t)
	o := w.operator()
	ids := []string{o.deadLetters()[0].Message.Id, o.deadLetters()[1].Message.Id}
	purge := func(r *pb.PurgeDeadLettersRequest, n int32) {
		t.Helper()
		out := apptest.Must(t, o.PurgeDeadLetters, r)
		want(t, "purged", out.Purged, n)
	}
	purge(&pb.PurgeDeadLettersRequest{Ids: ids, DryRun: true}, 2)
	reviews := &pb.DeadLetterFilter{Types: []string{"review"}}
	purge(&pb.PurgeDeadLettersRequest{Mailbox: "role:builder", Filter: reviews, DryRun: true}, 1)
	purge(&pb.PurgeDeadLettersRequest{All: true, DryRun: true}, 4)
	want(t, "events", len(w.Root().Events("message.purged")), 0)
	purge(&pb.PurgeDeadLettersRequest{Ids: ids[:1]}, 1)
	_, err := o.PurgeDeadLetters(o.Ctx, &pb.PurgeDeadLettersRequest{Ids: ids, DryRun: true})
	apptest.Refused(t, err, codes.FailedPrecondition, "NOT_DEAD")
	purge(&pb.PurgeDeadLettersRequest{Filter: &pb.DeadLetterFilter{Senders: []string{"lead"}}}, 2)
	wantList(t, "left", subjectsIn(o.deadLetters()), "2")
	want(t, "events", len(w.Root().Events("message.purged")), 3)
	a := w.in("default", "a")
	_, err = a.PurgeDeadLetters(a.Ctx, &pb.PurgeDeadLettersRequest{All: true, DryRun: true})
	apptest.Refused(t, err, codes.PermissionDenied, "OPERATOR_ONLY")
}

func TestDeadLetters_AChangeUntilTheCountLeavesLaterOnes(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]*pb.PurgeDeadLettersRequest{
		"all": {All: true}, "mailbox": {Mailbox: "a"}, "filter": {Filter: &pb.DeadLetterFilter{Holders: []string{"a"}}},
	} {
		w := newWorld(t)
		w.unbroken()
		o, lead, a := w.operator(), w.agent("lead", ""), w.agent("a", "")
		lead.send(to("a", subject("dies later")))
		lead.send(to("a", subject("dead")))
		claims := a.claim(2)
		a.nack(&pb.Nack{ClaimId: claims[1].ClaimId, Fatal: true, Error: "early"})
		r.DryRun = true
		counted := apptest.Must(t, o.PurgeDeadLetters, r)
		want(t, name+", counted", counted.Purged, 1)

		w.Clock.Advance(time.Nanosecond)
		a.nack(&pb.Nack{ClaimId: claims[0].ClaimId, Fatal: true, Error: "late"})
		r.DryRun = false
		r.Filter = &pb.DeadLetterFilter{Holders: r.GetFilter().GetHolders(), ToTime: counted.ToTime}
		purged := apptest.Must(t, o.PurgeDeadLetters, r)
		want(t, name+", purged", purged.Purged, 1)
		wantList(t, name+", left", subjectsIn(o.deadLetters()), "dies later")
	}
}

func TestDeadLetters_ADryRunKeepsAnEarlierToTime(t *testing.T) {
	t.Parallel()
	w := graves(t)
	o := w.operator()
	early := o.deadLetters()[1].Delivery.FinishedAt // that of "3"
	out := apptest.Must(t, o.RedriveDeadLetters,
		&pb.RedriveDeadLettersRequest{Filter: &pb.DeadLetterFilter{ToTime: early}, DryRun: true})
	want(t, "counted", out.Redriven, 2)
	want(t, "to_time", out.ToTime.AsTime(), early.AsTime())
	out = apptest.Must(t, o.RedriveDeadLetters,
		&pb.RedriveDeadLettersRequest{Ids: []string{o.deadLetters()[0].Message.Id}, DryRun: true})
	want(t, "to_time of named ones", out.ToTime == nil, true)
}

func TestDeadLetters_ADryRunKeepsNoAnswer(t *testing.T) {
	t.Parallel()
	w := graves(t)
	o := w.operator()
	r := &pb.RedriveDeadLettersRequest{RequestId: newUUID(), All: true, DryRun: true}
	apptest.Must(t, o.RedriveDeadLetters, r)
	r.DryRun = false
	out := apptest.Must(t, o.RedriveDeadLetters, r)
	want(t, "redriven", out.Redriven, 4)
	again := apptest.Must(t, o.RedriveDeadLetters, r)
	want(t, "the same answer", again.Redriven, 4)
	want(t, "the same revision", again.Revision, out.Revision)
}

func TestDeadLetters_PagesAreBoundedAndGoOnBehindWhatTheyHaveRead(t *testing.T) {
	t.Parallel()
	w := graves(t)
	o := w.operator()
	w.copyDead(6000)
	defer w.removeCopies()
	// The copies have no attempts, so only the four oldest dead letters match.
	r := &pb.ListDeadLettersRequest{Filter: &pb.DeadLetterFilter{Error: "o"}, PageSize: 3}
	var got []string
	calls := 0
	for {
		out := apptest.Must(t, o.ListDeadLetters, r)
		got = append(got, subjectsIn(out.Items)...)
		if r.PageToken = out.NextPageToken; r.PageToken == "" {
			break
		}
		if calls++; calls == 1 {
			want(t, "items on the first page", len(out.Items), 0)
		}
	}
	wantList(t, "dead letters", got, "4", "3", "2", "1")
	want(t, "further pages", calls, 3)

	count := apptest.Must(t, o.ListDeadLetters, &pb.ListDeadLettersRequest{Filter: r.Filter, Count: true})
	want(t, "count", count.Count, 0)
	want(t, "at least", count.CountAtLeast, true)
	count = apptest.Must(t, o.ListDeadLetters, &pb.ListDeadLettersRequest{Count: true, PageSize: 1})
	want(t, "count", count.Count, 10_000)
	want(t, "at least", count.CountAtLeast, true)
	dry := apptest.Must(t, o.RedriveDeadLetters, &pb.RedriveDeadLettersRequest{All: true, DryRun: true})
	want(t, "dry run", dry.Redriven, 10_000)
	want(t, "at least", dry.AtLeast, true)

	redrive := &pb.RedriveDeadLettersRequest{Filter: r.Filter}
	for _, n := range []int32{0, 0, 4} {
		out := apptest.Must(t, o.RedriveDeadLetters, redrive)
		want(t, "redriven", out.Redriven, n)
		redrive.PageToken = out.NextPageToken
	}
	want(t, "next page", redrive.PageToken, "")
}

func TestDeadLetters_ManyMailboxesAreMergedByMessage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unbroken()
	lead := w.agent("lead", "")
	var crowd []*agent
	for i := range 12 {
		crowd = append(crowd, w.agent("b"+strconv.Itoa(i), "builder"))
	}
	var wanted []string
	for i := range 60 {
		b := crowd[i*i%len(crowd)]
		lead.send(to(b.Name, subject(strconv.Itoa(i))))
		b.kill()
		wanted = append(wanted, strconv.Itoa(i))
	}
	slices.Reverse(wanted)
	o := w.operator()
	r := &pb.ListDeadLettersRequest{PageSize: 7}
	var got []string
	for first := true; first || r.PageToken != ""; first = false {
		out := apptest.Must(t, o.ListDeadLetters, r)
		got = append(got, subjectsIn(out.Items)...)
		r.PageToken = out.NextPageToken
		if !first {
			continue
		}
		// Changes in between: a listed one and one of a later page leave, and a new one joins in front.
		want(t, "redriven", o.redrive(out.Items[0].Message.Id), 1)
		gone := apptest.Must(t, o.ListDeadLetters, &pb.ListDeadLettersRequest{PageSize: 40}).Items[39].Message
		want(t, "redriven", o.redrive(gone.Id), 1)
		wanted = slices.DeleteFunc(wanted, func(s string) bool { return s == gone.Subject })
		joins := w.agent("joins", "")
		lead.send(to("joins", subject("new")))
		joins.kill()
	}
	wantList(t, "dead letters", got, wanted...)
}

func TestDeadLetters_CheckTheirFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	for field, f := range map[string]*pb.DeadLetterFilter{
		"filter.types[0]": {Types: []string{"?"}}, "filter.senders[0]": {Senders: []string{""}},
		"filter.holders": {Holders: make([]string, 101)}, "filter.error": {Error: string(make([]byte, 513))},
		"filter.to_time": {ToTime: &timestamppb.Timestamp{Seconds: -1}},
	} {
		apptest.Invalid(t, apptest.Err(o.ListDeadLetters(o.Ctx, &pb.ListDeadLettersRequest{Filter: f})), field)
	}
	some := &pb.DeadLetterFilter{Error: "x"}
	for _, r := range []*pb.RedriveDeadLettersRequest{
		{}, {Filter: &pb.DeadLetterFilter{}}, {DryRun: true}, {Ids: []string{"1"}, Filter: some},
		{Ids: []string{"1"}, All: true}, {Ids: []string{"1"}, PageToken: "x"},
	} {
		apptest.Invalid(t, apptest.Err(o.RedriveDeadLetters(o.Ctx, r)), "ids")
		_, err := o.PurgeDeadLetters(o.Ctx, &pb.PurgeDeadLettersRequest{
			Ids: r.Ids, Filter: r.Filter, All: r.All, DryRun: r.DryRun, PageToken: r.PageToken,
		})
		apptest.Invalid(t, err, "ids")
	}
	_, err := o.RedriveDeadLetters(o.Ctx, &pb.RedriveDeadLettersRequest{All: true, PageToken: "x"})
	apptest.Invalid(t, err, "page_token")
	_, err = o.RedriveDeadLetters(o.Ctx, &pb.RedriveDeadLettersRequest{Mailbox: "none", DryRun: true})
	apptest.Refused(t, err, codes.NotFound, "MAILBOX_NOT_FOUND")
	_, err = o.RedriveDeadLetters(o.Ctx, &pb.RedriveDeadLettersRequest{Ids: []string{"4711"}, DryRun: true})
	apptest.Refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
}

func TestRedrive_CallersAtOnceRedriveEachDeadLetterOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.unbroken()
	a := w.agent("a", "")
	batch := make([]*pb.Message, 500)
	for i := range batch {
		batch[i] = to("a", attempts(1))
	}
	a.sendAll(batch...)
	var nacks []*pb.Nack
	for _, c := range a.claim(int32(len(batch))) {
		nacks = append(nacks, &pb.Nack{ClaimId: c.ClaimId})
	}
	apptest.Must(t, a.NackMessages, &pb.NackMessagesRequest{Nacks: nacks})
	type answer struct {
		n   int32
		err error
	}
	answers := make(chan answer, 4)
	for range cap(answers) {
		go func() {
			out, err := a.RedriveDeadLetters(a.Ctx, &pb.RedriveDeadLettersRequest{All: true})
			answers <- answer{out.GetRedriven(), err}
		}()
	}
	total := 0
	for range cap(answers) {
		got := <-answers
		apptest.NoError(t, got.err)
		total += int(got.n)
	}
	want(t, "redriven", total, len(batch))
}
