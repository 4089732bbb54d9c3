package hostile_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/cmd/brokerctl/authority"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// Limits of what the daemon may have in use when the attackers are gone.
const (
	maxResident   = 768 << 20 // bytes
	maxGoroutines = 10        // more than before
)

// certified returns the arguments of a daemon that speaks TLS, and the settings of its clients.
func certified(t testing.TB) (args []string, clients *tls.Config) {
	t.Helper()
	dir := t.TempDir()
	a, _, err := authority.Open(dir, time.Now())
	if err == nil {
		_, err = a.Server([]string{"localhost", "127.0.0.1"}, authority.Term{Validity: time.Hour})
	}
	apptest.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	apptest.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return []string{"--tls-cert", filepath.Join(dir, "server.pem"), "--tls-key", filepath.Join(dir, "server.key")},
		&tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
}

// A use is what the daemon has in use.
type use struct{ goroutines, resident, heap int }

var inUse = regexp.MustCompile(`^(go_goroutines|process_resident_memory_bytes|go_memstats_heap_inuse_bytes) (\S+)$`)

// metrics returns the page of metrics. The daemon closes a connection whose request does not arrive in time, so a read that
// fails is repeated.
func (s *target) metrics() string {
	s.t.Helper()
	found := regexp.MustCompile(`serving metrics\s+\{"address": "([^"]+)"`).FindStringSubmatch(s.Stderr())
	if found == nil {
		s.t.Fatalf("the log names no address of the metrics: %s", s.Stderr())
	}
	for ctx := patient(s.t); ; {
		text, err := get(ctx, "http://"+found[1]+"/metrics")
		if err == nil {
			return text
		}
		if ctx.Err() != nil {
			s.t.Fatal(err)
		}
	}
}

// get reads a page over a connection of its own.
func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(answer.Body)
	return string(text), errors.Join(err, answer.Body.Close())
}

// use reads what the daemon has in use from its metrics.
func (s *target) use() use {
	s.t.Helper()
	var u use
	for line := range strings.Lines(s.metrics()) {
		if m := inUse.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			value, _ := strconv.ParseFloat(m[2], 64) // Prometheus writes no other text
			*map[string]*int{"go_goroutines": &u.goroutines, "process_resident_memory_bytes": &u.resident,
				"go_memstats_heap_inuse_bytes": &u.heap}[m[1]] = int(value)
		}
	}
	return u
}

// settled waits until the daemon has no more in use than its limits permit.
func (s *target) settled(before use) {
	s.t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for ctx := patient(s.t); ; {
		now := s.use()
		if now.goroutines <= before.goroutines+maxGoroutines && now.resident < maxResident {
			s.t.Logf("in use before: %d goroutines, %d MiB; after: %d goroutines, %d MiB",
				before.goroutines, before.resident>>20, now.goroutines, now.resident>>20)
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			s.t.Fatalf("in use before: %+v, after: %+v", before, now)
		}
	}
}

// A bystander sends messages to itself, and claims and acknowledges them.
type bystander struct {
	*client
	took []time.Duration // of each round; nil until the first
}

const bystanders = "bystanders" // their session, of which no attacker knows

func (s *target) bystander() *bystander {
	s.t.Helper()
	s.session(bystanders, &pb.SessionSettings{SendRate: proto.Float64(0), MailboxLimit: proto.Int64(0)})
	b := &bystander{client: s.client(s.Address(), party{session: bystanders, agent: "bystander"})}
	if _, err := b.RegisterAgent(patient(s.t), &pb.RegisterAgentRequest{Lease: durationpb.New(week)}); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// round sends, claims and acknowledges one message.
func (b *bystander) round(ctx context.Context) error {
	began := time.Now()
	if _, err := b.SendMessages(ctx, send(to("bystander"))); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	got, err := b.ClaimMessages(ctx, &pb.ClaimMessagesRequest{})
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	if len(got.Claims) != 1 {
		return fmt.Errorf("claimed %d messages, want 1", len(got.Claims))
	}
	if _, err := b.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{got.Claims[0].ClaimId}}); err != nil {
		return fmt.Errorf("ack: %w", err)
	}
	b.took = append(b.took, time.Since(began))
	return nil
}

// work makes rounds until the returned function is called, and at least one after that call.
func (b *bystander) work(t testing.TB) (stop func()) {
	t.Helper()
	ended := make(chan struct{})
	var working sync.WaitGroup
	round := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := b.round(ctx)
		if err != nil {
			t.Errorf("bystander: %v", err)
		}
		return err == nil
	}
	working.Go(func() {
		for round() {
			select {
			case <-ended:
				return
			default:
			}
		}
	})
	return func() {
		close(ended)
		working.Wait()
		if !t.Failed() {
			round()
		}
	}
}

func TestBytes_TheDaemonServesOnAndFreesWhatAttackersUsed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "TLS"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--metrics", "127.0.0.1:0", "--log-level", "info", "--sync", "normal"}
			var clients *tls.Config
			if name == "TLS" {
				var files []string
				files, clients = certified(t)
				args = append(args, files...)
			}
			s := launch(t, clients, args...)
			b := s.bystander()
			for range 100 { // events for those who subscribe
				apptest.NoError(t, b.round(patient(t)))
			}
			before := s.use()
			stop := b.work(t)
			s.assail()
			s.halfOpen("", "", halfPreface(s.tls))
			s.halfOpen(version1, halfRequests()...)
			stop()
			s.settled(before)
			t.Logf("the bystander made %d rounds", len(b.took))
		})
	}
}

// assail makes every assault through every transport, all at the same time.
func (s *target) assail() {
	s.t.Helper()
	subscribe, err := proto.Marshal(&pb.SubscribeEventsRequest{AfterRevision: new(int64)})
	apptest.NoError(s.t, err)
	var attackers sync.WaitGroup
	for _, p := range s.transports() {
		for _, a := range assaults(pb.EventService_SubscribeEvents_FullMethodName, subscribe) {
			attackers.Go(func() {
				end := time.Now().Add(fromEnvironment(s.t, "HOSTILE_TIME", 0))
				for again := true; again; again = time.Now().Before(end) {
					if err := a.run(s.t.Context(), p); err != nil {
						s.t.Errorf("%s: %v", a.name, err)
						return
					}
				}
			})
		}
	}
	attackers.Wait()
}

// halfPreface returns the beginning of a connection of gRPC.
func halfPreface(secure *tls.Config) string {
	if secure != nil {
		return "\x16\x03\x01\x02\x00"
	}
	return "PRI * HTT"
}

// A crowd is a number of connections.
type crowd []net.Conn

func (c crowd) close() {
	for _, conn := range c {
		_ = conn.Close()
	}
}

// openHalf opens 1,000 TCP connections with a protocol in TLS; empty = before the handshake. Their clients
// send one of the beginnings each. The caller closes them.
func (s *target) openHalf(protocol string, beginnings ...string) (crowd, error) {
	p := s.transports()[1]
	if protocol == "" {
		p.tls = nil
	}
	var open crowd
	for began := time.Now(); len(open) < 1000; {
		w, err := p.connect(protocol)
		if err != nil {
			return open, err
		}
		_, err = io.WriteString(w, beginnings[len(open)%len(beginnings)])
		switch {
		case err == nil:
			open = append(open, w)
			continue
		case !(errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) || time.Since(began) > patience:
			return open, errors.Join(err, w.Close())
		}
		_ = w.Close() // this process was too slow for the handshake, and tries again
	}
	return open, nil
}

// halfOpen checks that the daemon serves new clients of gRPC and HTTP while 1,000 connections are open of
// which openHalf sends the beginnings.
func (s *target) halfOpen(protocol string, beginnings ...string) {
	s.t.Helper()
	open, err := s.openHalf(protocol, beginnings...)
	defer open.close()
	apptest.NoError(s.t, err)
	text, err := os.ReadFile(filepath.Join(s.Dir(), "operator.credential"))
	apptest.NoError(s.t, err)
	operator := party{secret: strings.TrimSpace(string(text))}
	if _, err := s.tcpClient(operator).GetStatus(patient(s.t), &pb.GetStatusRequest{}); err != nil {
		s.t.Errorf("with 1,000 half-open connections: %v", err)
	}
	b := s.browser(s.transports()[1], operator)
	defer b.client.CloseIdleConnections()
	if status, err := b.do(patient(s.t), "GET", "/v1/status", ""); status != http.StatusOK {
		s.t.Errorf("with 1,000 half-open connections, over HTTP: %d %v", status, err)
	}
}
