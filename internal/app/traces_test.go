package app_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// tracedAgent returns a client of a registered agent.
func tracedAgent(t *testing.T, b *apptest.Broker, name string) *client.Client {
	t.Helper()
	return tracedIn(t, b, "default", name)
}

// tracedIn is tracedAgent for an agent in another session.
func tracedIn(t *testing.T, b *apptest.Broker, session, name string) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), client.WithAddress(b.Socket()), client.WithSession(session), client.WithAgent(name))
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	apptest.Must(t, c.Agents().RegisterAgent, &pb.RegisterAgentRequest{Lease: durationpb.New(apptest.LongLease)})
	return c
}

// runWorker runs a worker until the end of the test.
func runWorker(t *testing.T, c *client.Client, handler client.Handler) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Work(ctx, client.WorkOptions{}, handler) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func toAgent(agent, kind string) *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: agent}}, Type: kind, Body: "secret-body"}
}

// attribute returns the text or number of an attribute; empty if the span does not have it.
func attribute(s *trace.Span, key string) string {
	for _, a := range s.Attributes {
		switch {
		case a.Key != key:
		case a.Value.GetStringValue() != "":
			return a.Value.GetStringValue()
		default:
			return fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return ""
}

// render writes spans as trees, children by their start.
func render(spans []*trace.Span) string {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b *trace.Span) int { return int(a.StartTimeUnixNano) - int(b.StartTimeUnixNano) })
	var out strings.Builder
	var children func(parent []byte, indent string)
	children = func(parent []byte, indent string) {
		var found []*trace.Span
		for _, s := range spans {
			if bytes.Equal(s.ParentSpanId, parent) {
				found = append(found, s)
			}
		}
		for i, s := range found {
			branch, next := "├─ ", "│  "
			if i == len(found)-1 {
				branch, next = "└─ ", "   "
			}
			if len(parent) == 0 {
				branch, next = "", ""
			}
			line := indent + branch + s.Name
			what := attribute(s, "messaging.client.id") + ", type " + attribute(s, "messaging.brokerd.message.type")
			if outcome := attribute(s, "messaging.brokerd.claim.outcome"); outcome != "" {
				what += ", attempt " + attribute(s, "messaging.brokerd.claim.attempt") + " " + outcome
			}
			kind := strings.TrimPrefix(s.Kind.String(), "SPAN_KIND_")
			fmt.Fprintf(&out, "%s%s %-8s %s\n", line, strings.Repeat(" ", max(0, 32-len([]rune(line)))), kind, what)
			children(s.SpanId, indent+next)
		}
	}
	children(nil, "")
	return out.String()
}

// sameTrace fails the test unless all spans belong to one trace, which it returns.
func sameTrace(t *testing.T, spans []*trace.Span) string {
	t.Helper()
	for _, s := range spans {
		if !bytes.Equal(s.TraceId, spans[0].TraceId) {
			t.Errorf("the span %s is of another trace", s.Name)
		}
	}
	return hex.EncodeToString(spans[0].TraceId)
}

func TestTraces_ShowOneRequestAcrossThreeAgentsAsTheDocsDo(t *testing.T) {
	t.Parallel()
	collector := apptest.NewCollector(t)
	b := apptest.Start(t, apptest.WithTraces(collector))
	lead, builder, tester := tracedAgent(t, b, "lead"), tracedAgent(t, b, "builder"), tracedAgent(t, b, "tester")
	runWorker(t, tester, func(ctx context.Context, c *client.Claim) error {
		return c.Reply(ctx, &pb.Message{Type: "test_report", Body: "secret-body"})
	})
	runWorker(t, builder, func(ctx context.Context, c *client.Claim) error {
		if _, err := builder.Messages().Ask(ctx, &pb.AskRequest{Message: toAgent("tester", "test_request")}); err != nil {
			return err
		}
		return c.Reply(ctx, &pb.Message{Type: "build_report", Body: "secret-body"})
	})
	answer, err := lead.Messages().Ask(t.Context(), &pb.AskRequest{Message: toAgent("builder", "build_request")})
	if err != nil || answer.Reply == nil {
		t.Fatal(answer, err)
	}
	spans := collector.Await(t, 6)
	sameTrace(t, spans)
	text := render(spans)
	page, err := os.ReadFile("../../docs/tracing.md")
	apptest.NoError(t, err)
	if !strings.Contains(string(page), "```text\n"+text+"```") {
		t.Errorf("docs/tracing.md does not show this trace:\n%s", text)
	}
	for _, s := range spans {
		if strings.Contains(s.String(), "secret-body") {
			t.Errorf("the span %s has contents: %s", s.Name, s)
		}
	}
}
