package app_test

import (
	"context"
	"strings"
	"testing"
	"time"

	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// queued waits until a request of an agent is queued for a lock or token.
func queued(t *testing.T, b *apptest.Broker, agent string) func() {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	t.Cleanup(cancel)
	stream, err := b.Root().SubscribeEvents(ctx, &pb.SubscribeEventsRequest{
		Filter: &pb.EventFilter{Types: []string{"lock.queued", "token.queued"}},
	})
	apptest.NoError(t, err)
	if _, err := stream.Recv(); err != nil { // the first mark: the subscription has begun
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		for {
			r, err := stream.Recv()
			apptest.NoError(t, err)
			for _, e := range r.Events {
				if e.Source == agent {
					return
				}
			}
		}
	}
}

func lockRequest(wait time.Duration) *pb.AcquireLocksRequest {
	return &pb.AcquireLocksRequest{Paths: []string{"secret/path"}, Wait: durationpb.New(wait)}
}

func tokenRequest(wait time.Duration) *pb.AcquireTokenRequest {
	return &pb.AcquireTokenRequest{Type: "review", Scope: "secret scope", Wait: durationpb.New(wait)}
}

func TestTraces_WaitsForLocksAndTokensHaveSpansFromTheQueueToTheGrant(t *testing.T) {
	t.Parallel()
	ctx := client.ContextWithTraceParent(t.Context(), field)
	for name, c := range map[string]struct {
		first func(c *client.Client) error             // acquires at once
		wait  func(c *client.Client) error             // queues behind it
		end   func(first, second *client.Client) error // ends the wait
		span  string
		want  map[string]string
	}{
		"lock": {
			func(c *client.Client) error { _, err := c.Locks().AcquireLocks(ctx, lockRequest(0)); return err },
			func(c *client.Client) error { return apptest.Err(c.Locks().AcquireLocks(ctx, lockRequest(time.Hour))) },
			func(first, _ *client.Client) error {
				_, err := first.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Paths: []string{"secret/path"}})
				return err
			},
			"wait for lock", map[string]string{"brokerd.lock.paths": "1", "brokerd.wait.outcome": "granted"},
		},
		"lock on a stream": {
			func(c *client.Client) error { _, err := c.Locks().AcquireLocks(ctx, lockRequest(0)); return err },
			func(c *client.Client) error {
				l := c.NewLocker()
				defer l.Close()
				return apptest.Err(l.Acquire(ctx, lockRequest(time.Hour)))
			},
			func(first, _ *client.Client) error {
				_, err := first.Locks().ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Paths: []string{"secret/path"}})
				return err
			},
			"wait for lock", map[string]string{"brokerd.lock.paths": "1", "brokerd.wait.outcome": "granted"},
		},
		"token": {
			func(c *client.Client) error { _, err := c.Tokens().AcquireToken(ctx, tokenRequest(0)); return err },
			func(c *client.Client) error {
				return apptest.Err(c.Tokens().AcquireToken(ctx, tokenRequest(time.Hour)))
			},
			func(first, _ *client.Client) error {
				_, err := first.Tokens().ReleaseToken(ctx, &pb.ReleaseTokenRequest{Type: "review", Scope: "secret scope"})
				return err
			},
			"wait for token", map[string]string{"brokerd.token.type": "review", "brokerd.wait.outcome": "granted"},
		},
		"wait that ends": {
			func(c *client.Client) error { _, err := c.Locks().AcquireLocks(ctx, lockRequest(0)); return err },
			func(c *client.Client) error {
				return apptest.Err(c.Locks().AcquireLocks(ctx, lockRequest(time.Millisecond)))
			},
			func(_, _ *client.Client) error { return nil },
			"wait for lock", map[string]string{"brokerd.wait.outcome": "queued"},
		},
		"agent that deregisters": {
			func(c *client.Client) error { _, err := c.Locks().AcquireLocks(ctx, lockRequest(0)); return err },
			func(c *client.Client) error {
				if _, err := c.Locks().AcquireLocks(ctx, lockRequest(time.Hour)); err == nil {
					t.Error("the agent has got a lock")
				}
				return nil
			},
			func(_, second *client.Client) error {
				return apptest.Err(second.Agents().DeregisterAgent(ctx, &pb.DeregisterAgentRequest{}))
			},
			"wait for lock", map[string]string{"brokerd.wait.outcome": "refused", "error.type": "AGENT_NOT_REGISTERED"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			spans := apptest.NewCollector(t)
			b := apptest.Start(t, apptest.WithTraces(spans))
			first, second := tracedAgent(t, b, "a"), tracedAgent(t, b, "b")
			apptest.NoError(t, c.first(first))
			await := queued(t, b, "b")
			ended := make(chan error, 1)
			go func() { ended <- c.wait(second) }()
			await()
			waiting := time.Now()
			if err := c.end(first, second); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			var s *trace.Span
			for n := 1; s == nil || !strings.HasPrefix(s.Name, "wait"); n++ { // notices to the holder have spans too
				s = spans.Await(t, n)[n-1]
			}
			if s.Name != c.span || parentOf(s) != spanID(field) || s.StartTimeUnixNano > s.EndTimeUnixNano {
				t.Errorf("the span is %v", s)
			}
			if start := time.Unix(0, int64(s.StartTimeUnixNano)); start.After(waiting) {
				t.Errorf("the span begins at %v; the request was queued before %v", start, waiting)
			}
			for key, want := range c.want {
				if got := attribute(s, key); got != want {
					t.Errorf("%s is %q instead of %q", key, got, want)
				}
			}
			if got := attribute(s, "brokerd.agent"); got != "b" {
				t.Errorf("the agent is %q", got)
			}
			if strings.Contains(s.String(), "secret") {
				t.Errorf("the span has contents: %v", s)
			}
		})
	}
}

func TestTraces_LockRequestWithABrokenContextIsRefused(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	a := tracedAgent(t, b, "a")
	stream, err := a.Locks().Lock(t.Context())
	apptest.NoError(t, err)
	request := &pb.LockRequest{Number: 1, TraceParent: "00-zz", Request: &pb.LockRequest_Acquire{Acquire: lockRequest(0)}}
	apptest.NoError(t, stream.Send(request))
	answer, err := stream.Recv()
	if err != nil || answer.GetError().GetField() != "trace_parent" {
		t.Error(answer, err)
	}
}
