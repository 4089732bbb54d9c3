package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

const (
	soakers       = 8 // agents that send, and as many that claim
	soakBatch     = 8 // messages that one send confirms
	soakKeys      = 50
	saturation    = 20 * time.Second // of the measurement that finds the pace
	longestSample = 10 * time.Second
	longestKeep   = time.Minute // the retention of the session
	soakSession   = "soak"
)

// A sample is one row of the recorded series.
type sample struct {
	at                     time.Duration
	rate                   float64 // messages a second acknowledged
	p50, p99               time.Duration
	resident, heap         float64 // bytes
	database, log, archive float64
}

// A series is one column, and how much it may grow: its median in the last third of the soak against
// that in the middle third. most 0 = it is not judged.
type series struct {
	name, unit string
	most       float64
	value      func(*sample) float64
}

// columns are what a soak records.
var columns = []series{
	{"rate", "messages/s", 1.1, func(s *sample) float64 { return s.rate }},
	{"p50", "ms", 1.5, func(s *sample) float64 { return float64(s.p50) / float64(time.Millisecond) }},
	{"p99", "ms", 2, func(s *sample) float64 { return float64(s.p99) / float64(time.Millisecond) }},
	{"resident", "MiB", 1.25, func(s *sample) float64 { return s.resident / (1 << 20) }},
	{"heap", "MiB", 1.5, func(s *sample) float64 { return s.heap / (1 << 20) }},
	{"database", "MiB", 1.25, func(s *sample) float64 { return s.database / (1 << 20) }},
	{"log", "MiB", 1.5, func(s *sample) float64 { return s.log / (1 << 20) }},
	{"archive", "MiB", 0, func(s *sample) float64 { return s.archive / (1 << 20) }},
}

// least is the smallest value that counts as growth, so that a small one may double.
var least = map[string]float64{"p50": 2, "p99": 20, "resident": 64, "heap": 32, "database": 16, "log": 32}

// TestSoak_MemoryFilesAndLatencyStayFlat is a measurement, which make soak runs.
func TestSoak_MemoryFilesAndLatencyStayFlat(t *testing.T) {
	length := fromEnvironment(t, "SOAK", 0)
	if length == 0 {
		t.Skip("this measurement takes half an hour: make soak")
	}
	s := launch(t, nil, "--metrics", "127.0.0.1:0", "--log-level", "info")
	keep := min(longestKeep, length/6)
	s.session(soakSession, &pb.SessionSettings{
		SendRate: proto.Float64(0), MailboxLimit: proto.Int64(0),
		MessageRetention: durationpb.New(keep), EventRetention: durationpb.New(keep),
	})
	all := s.load(t)
	full := all.run(saturation, 0)
	most := float64(len(full)) / saturation.Seconds()
	t.Logf("saturation: %.0f messages/s; the soak runs at half of it for %v; messages and events are kept for %v",
		most, length, keep)
	samples := s.soak(all, length, most/2)
	if folder := os.Getenv("SOAK_DIR"); folder != "" {
		write(t, filepath.Join(folder, "soak.csv"), table(samples))
		write(t, filepath.Join(folder, "soak.svg"), plot(samples, fmt.Sprintf("%v at %.0f messages/s", length, most/2)))
	}
	judge(t, samples)
}

// judge compares the last third with the middle third.
func judge(t *testing.T, samples []sample) {
	t.Helper()
	third := len(samples) / 3
	if third == 0 {
		t.Fatalf("%d samples are too few", len(samples))
	}
	for _, c := range columns {
		middle, last := c.median(samples[third:2*third]), c.median(samples[2*third:])
		if c.most == 0 {
			t.Logf("%-8s %9.1f %-10s in the middle third, %9.1f in the last; not judged", c.name, middle, c.unit, last)
			continue
		}
		bound := max(middle*c.most, least[c.name])
		t.Logf("%-8s %9.1f %-10s in the middle third, %9.1f in the last; the bound is %.1f",
			c.name, middle, c.unit, last, bound)
		if last > bound {
			t.Errorf("%s grows", c.name)
		}
	}
	if rate := columns[0]; rate.median(samples[2*third:]) < 0.9*rate.median(samples[third:2*third]) {
		t.Error("the rate falls")
	}
}

// A load is agents that send, claim, acknowledge, write state and take locks.
type load struct {
	t         testing.TB
	senders   []*client
	consumers []*client
}

// load registers the agents.
func (s *target) load(t testing.TB) *load {
	t.Helper()
	l := &load{t: t}
	for i := range soakers {
		for role, list := range map[string]*[]*client{"sender": &l.senders, "consumer": &l.consumers} {
			c := s.client(s.Address(), party{session: soakSession, agent: fmt.Sprintf("%s-%d", role, i)})
			request := &pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(week)}
			apptest.NoError(t, apptest.Err(c.RegisterAgent(patient(t), request)))
			*list = append(*list, c)
		}
	}
	return l
}

// run loads the daemon for a time, with a number of messages a second, or as many as it takes if rate
// is 0. It returns the times from send to acknowledgement, once every message is acknowledged.
func (l *load) run(length time.Duration, rate float64) []time.Duration {
	l.t.Helper()
	ended, sent := make(chan struct{}), make(chan struct{})
	timer := time.AfterFunc(length, func() { close(ended) })
	defer timer.Stop()
	var sending, consuming sync.WaitGroup
	var mu sync.Mutex // guards took
	var took []time.Duration
	for i := range soakers {
		sending.Go(func() {
			if err := l.send(ended, i, rate/soakers); err != nil {
				l.t.Error(err)
			}
		})
		consuming.Go(func() {
			mine, err := l.consume(sent, i)
			if err != nil {
				l.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, mine...)
		})
	}
	sending.Wait()
	close(sent)
	consuming.Wait()
	return took
}

// send sends batches to its consumer until the end. Each also changes a key and takes a lock.
func (l *load) send(ended <-chan struct{}, i int, rate float64) error {
	pace := time.NewTicker(time.Nanosecond) // without a rate: at once
	if rate > 0 {
		pace.Reset(time.Duration(float64(time.Second) * soakBatch / rate))
	}
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case <-ended:
			return nil
		case <-pace.C:
		}
		if err := l.sendBatch(i, n); err != nil {
			return err
		}
	}
}

func (l *load) sendBatch(i, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := l.senders[i]
	pad := strings.Repeat("x", 900)
	request := &pb.SendMessagesRequest{}
	for range soakBatch {
		request.Messages = append(request.Messages, to(fmt.Sprintf("consumer-%d", i), func(m *pb.Message) {
			m.Payload = fmt.Sprintf(`{"at":%d,"pad":%q}`, time.Now().UnixNano(), pad)
		}))
	}
	if _, err := c.SendMessages(ctx, request); err != nil {
		return err
	}
	key := fmt.Sprintf("key-%d-%d", i, n%soakKeys)
	if _, err := c.PutState(ctx, &pb.PutStateRequest{Key: key, Value: integer(int64(n))}); err != nil {
		return err
	}
	lock, err := c.AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{key}})
	if err != nil {
		return err
	}
	return apptest.Err(c.ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Fences: []int64{lock.Fence}}))
}

// consume claims and acknowledges until everything is sent and nothing waits. It returns how old each
// message was when it was acknowledged.
func (l *load) consume(sent <-chan struct{}, i int) (took []time.Duration, err error) {
	for {
		all := false
		select {
		case <-sent:
			all = true
		default:
		}
		mine, err := l.consumeBatch(i)
		if took = append(took, mine...); err != nil || all && len(mine) == 0 {
			return took, err
		}
	}
}

func (l *load) consumeBatch(i int) (took []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := l.consumers[i]
	request := &pb.ClaimMessagesRequest{Max: 64, Wait: durationpb.New(200 * time.Millisecond)}
	got, err := c.ClaimMessages(ctx, request)
	if err != nil || len(got.Claims) == 0 {
		return nil, err
	}
	var ids []string
	for _, claim := range got.Claims {
		ids = append(ids, claim.ClaimId)
	}
	if _, err := c.AckMessages(ctx, &pb.AckMessagesRequest{Ids: ids}); err != nil {
		return nil, err
	}
	now := time.Now().UnixNano()
	for _, claim := range got.Claims {
		text, _, _ := strings.Cut(strings.TrimPrefix(claim.Message.Payload, `{"at":`), ",")
		at, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return took, fmt.Errorf("payload %.40s: %w", claim.Message.Payload, err)
		}
		took = append(took, time.Duration(now-at))
	}
	return took, nil
}

// soak loads the daemon and takes samples.
func (s *target) soak(all *load, length time.Duration, rate float64) []sample {
	s.t.Helper()
	every := min(longestSample, length/18)
	var samples []sample
	for began := time.Now(); time.Since(began) < length && !s.t.Failed(); {
		part := time.Now()
		took := all.run(every, rate)
		used := s.use()
		samples = append(samples, sample{
			at: time.Since(began), rate: float64(len(took)) / time.Since(part).Seconds(),
			p50: percentile(took, 50), p99: percentile(took, 99), resident: float64(used.resident), heap: float64(used.heap),
			database: s.size("brokerd.db"), log: s.size("brokerd.db-wal"), archive: s.size("archive"),
		})
	}
	return samples
}

// size returns the bytes of a file of the data folder, or of a folder with all its files; 0 if there is
// none.
func (s *target) size(name string) float64 {
	s.t.Helper()
	var bytes int64
	err := filepath.WalkDir(filepath.Join(s.Dir(), name), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.t.Fatal(err)
	}
	return float64(bytes)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	apptest.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	t.Logf("written: %s", path)
}
