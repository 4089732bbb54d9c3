package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func in(thread string) change { return func(m *pb.Message) { m.ThreadId = thread } }

// threads lists the conversations that one page shows.
func (a *agent) threads(r *pb.ListThreadsRequest) *pb.ListThreadsResponse {
	a.Helper()
	return apptest.Must(a, a.ListThreads, r)
}

// allThreads lists the conversations of all pages, and calls between before each further page.
func (a *agent) allThreads(r *pb.ListThreadsRequest, between func()) []*pb.ThreadSummary {
	a.Helper()
	var all []*pb.ThreadSummary
	for {
		page := a.threads(r)
		if len(page.Threads) > int(r.PageSize) && r.PageSize > 0 {
			a.Fatalf("a page of %d", len(page.Threads))
		}
		all = append(all, page.Threads...)
		if r.PageToken = page.NextPageToken; r.PageToken == "" {
			return all
		}
		between()
	}
}

// firstSubjects returns the subjects with which conversations began.
func firstSubjects(threads []*pb.ThreadSummary) []string {
	var all []string
	for _, t := range threads {
		all = append(all, t.FirstMessage.Subject)
	}
	return all
}

func TestListThreads_DescribesConversationsNewestFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, builder := w.agent("lead", "lead"), w.agent("builder", "builder")
	began := w.Clock.Now()
	asked := lead.send(toRole("builder", subject("Which branch?"), question))
	w.Clock.Advance(time.Minute)
	named := lead.send(to("builder", in("design"), kind("survey"), func(m *pb.Message) { m.Payload = `{"a":  1}` }))
	w.Clock.Advance(time.Minute)
	lead.send(to("builder", subject("late"), in("done"), question))
	apptest.NoError(t, drop(lead.resolve("done", "shipped")))
	w.Clock.Advance(time.Minute)
	second := builder.send(to("lead", subject("Re: Which branch?"), answers(asked.Id), question,
		func(m *pb.Message) { m.Body = "login?\nor main" }))

	out := lead.threads(&pb.ListThreadsRequest{})
	wantList(t, "threads", firstSubjects(out.Threads), "Which branch?", "late", `{"a": 1}`)
	want(t, "no further page", out.NextPageToken, "")
	want(t, "revision", out.Revision, w.operator().status().Revision)
	got := out.Threads[0]
	want(t, "id", got.ThreadId, asked.Id)
	want(t, "messages", got.Messages, 2)
	wantList(t, "participants", got.Participants, "builder", "lead", "role:builder")
	want(t, "first", got.FirstAt.AsTime(), began)
	want(t, "last", got.LastAt.AsTime(), began.Add(3*time.Minute))
	want(t, "first message", got.FirstMessage.Id, asked.Id)
	want(t, "revision", got.FirstMessage.Revision, asked.Revision)
	want(t, "last message", got.LastMessage.Id, second.Id)
	want(t, "sender", got.LastMessage.Sender, "builder")
	want(t, "subject", got.LastMessage.Subject, "login?")
	want(t, "sent", got.LastMessage.CreatedAt.AsTime(), began.Add(3*time.Minute))
	want(t, "open", len(got.OpenQuestions), 1)
	want(t, "question", got.OpenQuestions[0].Id, second.Id)
	want(t, "outcome", out.Threads[1].Outcome, "shipped")
	want(t, "resolved by", out.Threads[1].ResolvedBy, "lead")
	want(t, "open", len(out.Threads[1].OpenQuestions), 0)
	want(t, "one message is both", out.Threads[2].LastMessage.Id, named.Id)
	want(t, "type", out.Threads[2].FirstMessage.Type, "survey")

	only := func(r *pb.ListThreadsRequest) []string { return firstSubjects(lead.threads(r).Threads) }
	wantList(t, "open", only(&pb.ListThreadsRequest{Open: true}), "Which branch?")
	wantList(t, "since", only(&pb.ListThreadsRequest{FromTime: w.now(-time.Minute)}), "Which branch?", "late")
	wantList(t, "until", only(&pb.ListThreadsRequest{ToTime: w.now(-time.Minute)}), `{"a": 1}`)
	want(t, "of another session", len(w.elsewhere().threads(&pb.ListThreadsRequest{}).Threads), 0)
}

func TestListThreads_PagesListEachConversationOnceWhateverHappensInBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	for i := range 10 {
		first := lead.send(to("lead", subject(fmt.Sprint(i)))).Id
		lead.send(to("lead", subject("Re: "+fmt.Sprint(i)), answers(first)))
	}
	for _, size := range []int32{1, 3, 4, 10} {
		before := lead.threads(&pb.ListThreadsRequest{}).Threads
		n := 0
		got := lead.allThreads(&pb.ListThreadsRequest{PageSize: size}, func() {
			lead.send(to("lead", subject("new")))
			for _, of := range []int{n % len(before), len(before) - 1 - n%len(before)} {
				lead.send(to("lead", subject("more"), answers(before[of].FirstMessage.Id)))
			}
			n++
		})
		wantList(t, fmt.Sprintf("with pages of %d", size), firstSubjects(got), firstSubjects(before)...)
	}
}

func TestListThreads_LongConversationsAreSummarizedInBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead, other := w.agent("lead", ""), w.agent("other", "")
	lead.send(to("other", subject("older"), in("older")))
	first := lead.send(to("other", subject("long"), question))
	other.send(to("lead", subject("only once"), answers(first.Id)))
	for range 3 {
		batch := make([]*pb.Message, 700)
		for i := range batch {
			batch[i] = to("lead", subject("more"), in(first.Id))
			if i < 5 {
				batch[i] = to("lead", subject("asks"), in("open"), question)
			}
		}
		lead.sendAll(batch...)
	}
	lead.send(to("lead", subject("end"), in(first.Id)))
	got := lead.allThreads(&pb.ListThreadsRequest{}, func() {})
	wantList(t, "threads", firstSubjects(got), "long", "asks", "older")
	want(t, "messages", got[0].Messages, 100)
	want(t, "first message", got[0].FirstMessage.Id, first.Id)
	wantList(t, "participants of the newest messages", got[0].Participants, "lead")
	want(t, "questions", len(got[1].OpenQuestions), 10)
	wantList(t, "open", firstSubjects(lead.allThreads(&pb.ListThreadsRequest{Open: true}, func() {})), "asks")
}

func TestListThreads_MoreConversationsThanOneSnapshotReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	const n = 2100
	for range 3 {
		batch := make([]*pb.Message, n/3)
		for i := range batch {
			batch[i] = to("lead")
		}
		lead.sendAll(batch...)
	}
	seen := map[string]bool{}
	got := lead.allThreads(&pb.ListThreadsRequest{PageSize: 1000}, func() {})
	for i, thread := range got {
		if seen[thread.ThreadId] || i > 0 && thread.LastMessage.Revision >= got[i-1].LastMessage.Revision {
			t.Fatalf("thread %d of revision %d follows revision %d", i, thread.LastMessage.Revision,
				got[i-1].LastMessage.Revision)
		}
		seen[thread.ThreadId] = true
	}
	want(t, "threads", len(got), n)
}

func TestListThreads_IgnoresThreadsOfTheSameNameInOtherSessions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lead := w.agent("lead", "")
	lead.send(to("lead", subject("here"), in("design")))
	w.elsewhere()
	there := w.in("elsewhere", "lead")
	there.Register("")
	there.send(to("lead", subject("there"), in("design")))
	got := lead.threads(&pb.ListThreadsRequest{}).Threads
	wantList(t, "threads", firstSubjects(got), "here")
	want(t, "messages", got[0].Messages, 1)
	want(t, "last", got[0].LastMessage.Subject, "here")
}

func TestListThreads_ChecksItsFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.operator()
	for field, r := range map[string]*pb.ListThreadsRequest{
		"page_size": {PageSize: -1}, "page_token": {PageToken: strings.Repeat("x", 8)},
	} {
		apptest.Invalid(t, apptest.Err(o.ListThreads(o.Ctx, r)), field)
	}
	stranger := w.in("default", "stranger")
	apptest.Refuses(t, stranger.ListThreads, &pb.ListThreadsRequest{}, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
}
