package app_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	trace "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

const (
	field  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	header = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
)

// traceparent returns the W3C traceparent of a span.
func traceparent(s *trace.Span) string {
	return "00-" + hex.EncodeToString(s.TraceId) + "-" + hex.EncodeToString(s.SpanId) + "-01"
}

// parentOf returns the id of a span's parent in a W3C traceparent; empty for a root.
func parentOf(s *trace.Span) string { return hex.EncodeToString(s.ParentSpanId) }

// spanID returns the id of the span in a W3C traceparent.
func spanID(traceparent string) string { return strings.Split(traceparent, "-")[2] }

// claimOne claims the only waiting message.
func claimOne(t *testing.T, messages pb.MessageServiceClient, r *pb.ClaimMessagesRequest) *pb.ClaimedMessage {
	t.Helper()
	out, err := messages.ClaimMessages(t.Context(), r)
	if err != nil || len(out.Claims) != 1 {
		t.Fatal(out, err)
	}
	return out.Claims[0]
}

func sendTraced(ctx context.Context, t *testing.T, c *client.Client, m *pb.Message) {
	t.Helper()
	apptest.NoError(t, apptest.Err(c.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})))
}

func TestTraces_ParentOfAMessage(t *testing.T) {
	t.Parallel()
	named := func(traceparent string) *pb.Message {
		m := toAgent("b", "note")
		m.TraceParent = traceparent
		return m
	}
	for name, c := range map[string]struct {
		header  []string
		message *pb.Message
		want    string // a traceparent; empty for a root
	}{
		"the message names it":                 {nil, named(field), field},
		"the call names it":                    {[]string{header}, named(""), header},
		"the message wins over the call":       {[]string{header}, named(field), field},
		"neither names one":                    {nil, named(""), ""},
		"the call names none that is valid":    {[]string{"00-zz"}, named(""), ""},
		"the call names two":                   {[]string{header, header}, named(""), ""},
		"the call names one of the version ff": {[]string{"ff" + header[2:]}, named(""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			spans := apptest.NewCollector(t)
			b := apptest.Start(t, apptest.WithTraces(spans))
			a, taker := tracedAgent(t, b, "a"), tracedAgent(t, b, "b")
			ctx := t.Context()
			for _, h := range c.header {
				ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", h)
			}
			sendTraced(ctx, t, a, c.message)
			sent := spans.Await(t, 1)[0]
			want := ""
			if c.want != "" {
				want = spanID(c.want)
			}
			if got := parentOf(sent); got != want {
				t.Errorf("the parent is %q instead of %q", got, want)
			}
			claim := claimOne(t, taker.Messages(), &pb.ClaimMessagesRequest{})
			if got := claim.Message.TraceParent; got != traceparent(sent) {
				t.Errorf("the message has the context %q; its span is %q", got, traceparent(sent))
			}
		})
	}
}

func TestTraces_ReplyWithoutContextContinuesTheClaimOfItsSender(t *testing.T) {
	t.Parallel()
	spans := apptest.NewCollector(t)
	b := apptest.Start(t, apptest.WithTraces(spans))
	a, taker, reader := tracedAgent(t, b, "a"), tracedAgent(t, b, "b"), tracedAgent(t, b, "c")
	sendTraced(t.Context(), t, a, toAgent("b", "note"))
	claim := claimOne(t, taker.Messages(), &pb.ClaimMessagesRequest{})
	for _, c := range []*client.Client{taker, reader} {
		apptest.Must(t, c.Messages().Reply, &pb.ReplyRequest{Id: claim.Message.Id, Message: &pb.Message{Body: "yes"}})
	}
	all := spans.Await(t, 3)
	sameTrace(t, all)
	for i, want := range []string{"", spanID(claim.TraceParent), spanID(claim.Message.TraceParent)} {
		if got := parentOf(all[i]); got != want {
			t.Errorf("the parent of span %d, %s, is %q instead of %q", i, all[i].Name, got, want)
		}
	}
}

func TestTraces_ClaimThatOutlivesARestartHasOneWholeSpan(t *testing.T) {
	t.Parallel()
	spans := apptest.NewCollector(t)
	b := apptest.Start(t, apptest.WithTraces(spans))
	a, taker := tracedAgent(t, b, "a"), b.Registered("b", "")
	sendTraced(t.Context(), t, a, toAgent("b", "note"))
	claim := claimOne(t, pb.NewMessageServiceClient(taker), &pb.ClaimMessagesRequest{})
	spans.Await(t, 1) // a stop does not wait for long
	b.Restart()
	restarted := time.Now()
	apptest.Must(t, pb.NewMessageServiceClient(taker).AckMessages,
		&pb.AckMessagesRequest{Ids: []string{claim.ClaimId}})
	all := spans.Await(t, 2)
	process := all[1]
	if got := traceparent(process); got != claim.TraceParent {
		t.Errorf("the span is %s; the consumer of the claim was given %s", got, claim.TraceParent)
	}
	if got := parentOf(process); got != hex.EncodeToString(all[0].SpanId) {
		t.Errorf("the parent is %q", got)
	}
	start, end := time.Unix(0, int64(process.StartTimeUnixNano)), time.Unix(0, int64(process.EndTimeUnixNano))
	if !start.Before(restarted) || !end.After(restarted) {
		t.Errorf("the span lasts from %v to %v; the restart ended at %v", start, end, restarted)
	}
}

func TestTraces_EndsOfAClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end     func(ctx context.Context, b *apptest.Broker, c *client.Client, id string) error
		outcome string
		failure string
	}{
		"acked": {func(ctx context.Context, _ *apptest.Broker, c *client.Client, id string) error {
			return apptest.Err(c.Messages().AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{id}}))
		}, "acked", ""},
		"nacked": {func(ctx context.Context, _ *apptest.Broker, c *client.Client, id string) error {
			_, err := c.Messages().NackMessages(ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: id, Error: "secret-body"}}})
			return err
		}, "retried", "nacked"},
		"dead letter": {func(ctx context.Context, _ *apptest.Broker, c *client.Client, id string) error {
			_, err := c.Messages().NackMessages(ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{{ClaimId: id, Fatal: true}}})
			return err
		}, "dead", "nacked"},
		"released": {func(ctx context.Context, _ *apptest.Broker, c *client.Client, id string) error {
			return apptest.Err(c.Messages().ReleaseClaims(ctx, &pb.ReleaseClaimsRequest{Ids: []string{id}}))
		}, "released", ""},
		"ran out": {func(context.Context, *apptest.Broker, *client.Client, string) error { return nil }, "retried", "claim_ran_out"},
		"session closed": {func(ctx context.Context, b *apptest.Broker, _ *client.Client, _ string) error {
			return apptest.Err(b.Root().CloseSession(ctx, &pb.CloseSessionRequest{Name: "s"}))
		}, "cancelled", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := apptest.NewCollector(t)
			b := apptest.Start(t, apptest.WithTraces(spans))
			apptest.Must(t, b.Root().CreateSession, &pb.CreateSessionRequest{Name: "s"})
			a, taker := tracedIn(t, b, "s", "a"), tracedIn(t, b, "s", "b")
			sendTraced(t.Context(), t, a, toAgent("b", "note"))
			lasts := time.Hour
			if name == "ran out" {
				lasts = time.Second
			}
			claim := claimOne(t, taker.Messages(), &pb.ClaimMessagesRequest{ClaimFor: durationpb.New(lasts)})
			apptest.NoError(t, c.end(t.Context(), b, taker, claim.ClaimId))
			i := slices.IndexFunc(spans.Await(t, 2), func(s *trace.Span) bool { return s.Name == "process b" })
			if i < 0 {
				t.Fatal("the claim has no span")
			}
			s := spans.Await(t, 2)[i]
			if got := attribute(s, "messaging.brokerd.claim.outcome"); got != c.outcome {
				t.Errorf("the outcome is %q instead of %q", got, c.outcome)
			}
			if got := attribute(s, "brokerd.session"); got != "s" {
				t.Errorf("the session is %q", got)
			}
			if got := attribute(s, "error.type"); got != c.failure || (s.Status.GetCode() == trace.Status_STATUS_CODE_ERROR) != (c.failure != "") {
				t.Errorf("the failure is %q instead of %q, the status %v", got, c.failure, s.Status)
			}
			if strings.Contains(s.String(), "secret-body") {
				t.Errorf("the span has contents: %v", s)
			}
		})
	}
}

func TestTraces_TraceThatItsCallerDoesNotRecordIsCarriedAndNotExported(t *testing.T) {
	t.Parallel()
	spans := apptest.NewCollector(t)
	b := apptest.Start(t, apptest.WithTraces(spans))
	a, taker := tracedAgent(t, b, "a"), tracedAgent(t, b, "b")
	m := toAgent("b", "note")
	m.TraceParent = field[:len(field)-1] + "0"
	sendTraced(t.Context(), t, a, m)
	claim := claimOne(t, taker.Messages(), &pb.ClaimMessagesRequest{})
	for _, got := range []string{claim.Message.TraceParent, claim.TraceParent} {
		if got[:36] != field[:36] || got[36:52] == field[36:52] || got[52:] != "-00" {
			t.Errorf("the context %q does not continue %q", got, m.TraceParent)
		}
	}
	apptest.Must(t, taker.Messages().AckMessages, &pb.AckMessagesRequest{Ids: []string{claim.ClaimId}})
	sendTraced(t.Context(), t, a, toAgent("b", "later"))
	if got := spans.Await(t, 1); attribute(got[0], "messaging.brokerd.message.type") != "later" {
		t.Errorf("the first span is %v", got[0])
	}
}

func TestTraces_OffLeavesTheContextOfAMessageAsItsSenderGaveIt(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	a, taker := tracedAgent(t, b, "a"), tracedAgent(t, b, "b")
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", header)
	for _, given := range []string{field, ""} {
		m := toAgent("b", "note")
		m.TraceParent = given
		sendTraced(ctx, t, a, m)
		claim := claimOne(t, taker.Messages(), &pb.ClaimMessagesRequest{})
		if claim.Message.TraceParent != given || claim.TraceParent != "" {
			t.Errorf("given %q, the message has %q and its claim %q", given, claim.Message.TraceParent, claim.TraceParent)
		}
		apptest.Must(t, taker.Messages().AckMessages, &pb.AckMessagesRequest{Ids: []string{claim.ClaimId}})
	}
	m := toAgent("b", "note")
	m.TraceParent = strings.ToUpper(field)
	_, err := a.Messages().SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "trace_parent") {
		t.Errorf("a traceparent of another form: %v", err)
	}
}

func TestTraces_CollectorThatHangsDoesNotHoldUpSends(t *testing.T) {
	t.Parallel()
	exporting := make(chan struct{}, 1)
	address := apptest.ServeTraces(t, func(ctx context.Context, _ *collector.ExportTraceServiceRequest) error {
		select {
		case exporting <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	})
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Traces, c.TraceSample = address, 1 }))
	a := tracedAgent(t, b, "a")
	tracedAgent(t, b, "b")
	sendTraced(t.Context(), t, a, toAgent("b", "note"))
	<-exporting // until the end of the test
	for range 100 {
		sendTraced(t.Context(), t, a, toAgent("b", "note"))
	}
}

func TestTraces_CollectorThatIsAbsentDoesNotHoldUpSends(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.With(func(c *app.Config) { c.Traces, c.TraceSample = "127.0.0.1:1", 1 }))
	a := tracedAgent(t, b, "a")
	tracedAgent(t, b, "b")
	for range 100 {
		sendTraced(t.Context(), t, a, toAgent("b", "note"))
	}
}

func TestTraces_WrongSettingsAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		endpoint string
		share    float64
	}{
		{"collector.example:4317", 1}, {"http://192.0.2.1:4317", 1}, {"127.0.0.1", 1}, {"ftp://127.0.0.1:1", 1}, {"https://h:1/path", 1},
		{"127.0.0.1:4317", -0.1}, {"127.0.0.1:4317", 1.1},
	} {
		a, err := app.Start(t.Context(), app.Config{Dir: t.TempDir(), Traces: c.endpoint, TraceSample: c.share})
		if err == nil {
			_ = a.Stop(t.Context())
		}
		if !app.Misconfigured(err) {
			t.Errorf("%q with the share %g: %v", c.endpoint, c.share, err)
		}
	}
}
