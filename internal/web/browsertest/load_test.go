package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
)

// loadTime returns how long make dashboard-load loads the broker; without it the test is skipped.
func loadTime(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("DASHBOARD_LOAD")
	if text == "" {
		t.Skip("DASHBOARD_LOAD is not set")
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const (
	loadRate   = 10_000 // messages per second, each with an event
	loadTick   = 10 * time.Millisecond
	loadAgents = 4 // that claim, each from its own mailbox
)

// measure counts frames, and collects long tasks and the time from an event to its row, in milliseconds.
const measure = `
window.measured = { frames: 0, tasks: [], rows: [] };
(function frame() { measured.frames++; requestAnimationFrame(frame); })();
new PerformanceObserver((list) => measured.tasks.push(...list.getEntries().map((e) => e.duration)))
  .observe({ type: 'longtask', buffered: false });
const seen = new Set();
new MutationObserver(() => {
  const now = Date.now();
  for (const row of document.querySelectorAll('[data-view="timeline"] [data-row]')) {
    if (seen.has(row.dataset.row)) continue;
    seen.add(row.dataset.row);
    const time = row.querySelector('time');
    if (time) measured.rows.push(now - Date.parse(time.dateTime));
  }
}).observe(document, { childList: true, subtree: true, characterData: true, attributes: true });
`

// measured is what measure has found.
type measured struct {
	Frames int       `json:"frames"`
	Tasks  []float64 `json:"tasks"`
	Rows   []float64 `json:"rows"`
}

func TestLoad_PageStaysSmooth(t *testing.T) {
	duration := loadTime(t)
	m := newTeam(t)
	m.ctx = t.Context()
	m.unlimit()
	p := open(m, operator, "timeline")
	ctx, cancel := context.WithTimeout(m.ctx, duration)
	defer cancel()
	sent := make(chan int, 1)
	go func() { sent <- m.load(ctx) }()
	p.await(live, m.publish("the load begins"))
	p.evaluate(measure)
	begun := time.Now()
	var heap []float64
	for ctx.Err() == nil {
		heap = append(heap, p.heap())
		select {
		case <-ctx.Done():
		case <-time.After(duration / 6):
		}
	}
	took := time.Since(begun).Seconds()
	got := value[measured](p, `measured`)
	rate := float64(<-sent) / duration.Seconds()
	frames := float64(got.Frames) / took
	slices.Sort(got.Rows)
	slices.Sort(got.Tasks)
	t.Logf("%.0f messages/s, %.1f frames/s, longest task %.0f ms (%d over 50 ms), event to row p50 %.0f, p99 %.0f ms of %d rows, heap in MB %.1f",
		rate, frames, at(got.Tasks, 1), len(got.Tasks), at(got.Rows, 0.5), at(got.Rows, 0.99), len(got.Rows), heap)
	for what, bad := range map[string]bool{
		"fewer than 10,000 messages/s":  rate < 0.97*loadRate,
		"fewer than 50 frames/s":        frames < 50,
		"a task of more than 100 ms":    at(got.Tasks, 1) > 100,
		"event to row p99 over 200 ms":  at(got.Rows, 0.99) > 200,
		"a heap of more than 20 MB":     slices.Max(heap) > 20,
		"a heap that grows":             heap[len(heap)-1] > 1.25*heap[1],
		"fewer rows than five a second": float64(len(got.Rows)) < 5*took,
	} {
		if bad {
			t.Error(what)
		}
	}
}

// at returns a quantile of sorted numbers; 0 without any.
func at(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// heap returns the size of the heap of the page after a collection, in MB.
func (p *tab) heap() float64 {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
		p.t.Fatal(err)
	}
	use, err := chromedp.Call(p.ctx, runtime.GetHeapUsage, cdp.Empty{})
	if err != nil {
		p.t.Fatal(err)
	}
	return use.UsedSize / 1e6
}

// unlimit removes the limits on the rate of messages and the length of mailboxes.
func (m *team) unlimit() {
	m.t.Helper()
	call(m, "", pb.NewSessionServiceClient, pb.SessionServiceClient.ConfigureSession, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{SendRate: new(0.0), MailboxLimit: new(int64(0))},
	})
}

// load sends messages at loadRate to agents that claim and acknowledge them, until the context ends,
// and returns how many it has sent.
func (m *team) load(ctx context.Context) int {
	var working sync.WaitGroup
	defer working.Wait()
	for i := range loadAgents {
		name := fmt.Sprintf("loaded-%d", i)
		m.Registered(name, "loaded")
		working.Go(func() { m.consume(ctx, name) })
	}
	stream, err := pb.NewMessageServiceClient(m.Conn("lead")).Send(ctx)
	if err != nil {
		m.t.Error(err)
		return 0
	}
	working.Go(func() {
		for {
			answer, err := stream.Recv()
			if err != nil {
				return
			}
			for _, r := range answer.GetResults() {
				if e := r.GetError(); e != nil {
					m.t.Errorf("send: %s", e.GetMessage())
					return
				}
			}
		}
	})
	ticks := time.NewTicker(loadTick)
	defer ticks.Stop()
	begun, sent := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return sent
		case <-ticks.C:
		}
		due := int(loadRate*time.Since(begun).Seconds()) - sent
		request := &pb.SendRequest{}
		for i := range min(due, 1000) {
			request.Messages = append(request.Messages, to(fmt.Sprintf("loaded-%d", i%loadAgents), "Load"))
		}
		if len(request.Messages) > 0 && stream.Send(request) != nil {
			return sent
		}
		sent += len(request.Messages)
	}
}

// consume claims and acknowledges the messages of an agent until the context ends.
func (m *team) consume(ctx context.Context, agent string) {
	messages := pb.NewMessageServiceClient(m.Conn(agent))
	for ctx.Err() == nil {
		out, err := messages.ClaimMessages(ctx, &pb.ClaimMessagesRequest{Max: 256, Wait: durationpb.New(5 * time.Second)})
		var ids []string
		for _, c := range out.GetClaims() {
			ids = append(ids, c.GetClaimId())
		}
		if len(ids) > 0 {
			_, err = messages.AckMessages(ctx, &pb.AckMessagesRequest{Ids: ids})
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			m.t.Error(err)
			return
		}
	}
}

func TestLoad_FirstPaintIsQuick(t *testing.T) {
	loadTime(t)
	m := newTeam(t)
	m.work()
	p := open(m, operator, "attention")
	var paints []float64
	for range 9 {
		if err := chromedp.Do(p.ctx, chromedp.Navigate("about:blank")); err != nil {
			t.Fatal(err)
		}
		p.load("/#/attention", "attention")
		p.await(`performance.getEntriesByName('first-contentful-paint')[0]`)
		paints = append(paints, value[float64](p, `performance.getEntriesByName('first-contentful-paint')[0].startTime`))
	}
	slices.Sort(paints)
	t.Logf("first paint after %.0f ms (median), %.0f", at(paints, 0.5), paints)
	if at(paints, 0.5) > 300 {
		t.Error("the first paint takes more than 300 ms")
	}
}

func TestLoad_ManyMailboxes(t *testing.T) {
	loadTime(t)
	m := newTeam(t)
	m.ctx = t.Context()
	m.unlimit()
	const mailboxes = 10_000
	for i := 0; i < mailboxes; i += 1000 {
		var batch []*pb.Message
		for j := i; j < i+1000; j++ {
			batch = append(batch, toRole(fmt.Sprintf("role-%d", j), "Wait"))
		}
		m.send("lead", batch...)
	}
	var frames []float64
	for i := range 50 {
		m.publish(fmt.Sprint("change ", i))
		begun := time.Now()
		stream, err := pb.NewAdminServiceClient(m.Operator()).WatchOverview(m.ctx, &pb.WatchOverviewRequest{Once: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, float64(time.Since(begun).Microseconds())/1e3)
	}
	slices.Sort(frames)
	p := open(m, operator, "queues")
	p.evaluate(measure)
	tasks := p.tasks(func() {
		for i := range 50 {
			m.send("lead", toRole("role-7", "More"))
			p.await(live, m.publish(fmt.Sprint("frame ", i)))
		}
	})
	got := value[measured](p, `measured`)
	slices.Sort(got.Tasks)
	t.Logf("the broker's frame: p50 %.1f ms, longest %.1f ms; "+
		"the page's longest task: %.1f ms of CPU, p99 %.1f ms of %d; by the clock %.0f ms",
		at(frames, 0.5), at(frames, 1), at(tasks, 1), at(tasks, 0.99), len(tasks), at(got.Tasks, 1))
	if at(frames, 0.5) > 50 || len(tasks) < 50 || at(tasks, 1) > 50 {
		t.Error("a frame takes more than 50 ms")
	}
	if at(got.Tasks, 1) > 100 {
		t.Error("a task of more than 100 ms")
	}
}

// tasks returns the time that the page computes in each task while run runs, sorted, in milliseconds. A
// task does not compute while another program has its processor.
func (p *tab) tasks(run func()) (all []float64) {
	p.t.Helper()
	var mu sync.Mutex // guards all
	complete := make(chan struct{})
	if err := chromedp.Listen(p.ctx, func(event any) {
		switch e := event.(type) {
		case *tracing.EventDataCollected:
			mu.Lock()
			defer mu.Unlock()
			for _, v := range e.Value {
				var task struct {
					Name string  `json:"name"`
					CPU  float64 `json:"tdur"` // microseconds
				}
				if err := json.Unmarshal(v, &task); err == nil && task.Name == "RunTask" {
					all = append(all, task.CPU/1e3)
				}
			}
		case *tracing.EventTracingComplete:
			close(complete)
		}
	}); err != nil {
		p.t.Fatal(err)
	}
	if _, err := chromedp.Call(p.ctx, tracing.Start, tracing.StartParams{
		TraceConfig: &tracing.TraceConfig{IncludedCategories: []string{"disabled-by-default-devtools.timeline"}},
	}); err != nil {
		p.t.Fatal(err)
	}
	run()
	if _, err := chromedp.Call(p.ctx, tracing.End, cdp.Empty{}); err != nil {
		p.t.Fatal(err)
	}
	<-complete
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(all)
	return all
}
