package hostile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

// An abuse is one variant of a line of the table.
type abuse struct {
	attempt string // the line, as the table names it
	variant string
	code    codes.Code
	has     string // the reason, or the field that the error names, or a part of its text
	retry   bool   // the error says when to try again
	try     func(context.Context) error
}

// want returns how an answer differs from the one that the table has.
func (a *abuse) want(err error) error {
	switch s := status.Convert(err); {
	case s.Code() != a.code:
		return fmt.Errorf("answered with %w, want %v", err, a.code)
	case a.has != testkit.Reason(err) && !slices.Contains(testkit.Fields(err), a.has) &&
		!strings.Contains(s.Message(), a.has):
		return fmt.Errorf("answered with %w (%s, fields %q), want %q", err, testkit.Reason(err), testkit.Fields(err), a.has)
	case a.retry && !slices.ContainsFunc(s.Details(), func(d any) bool {
		retry, ok := d.(*errdetails.RetryInfo)
		return ok && retry.RetryDelay.AsDuration() > 0
	}):
		return fmt.Errorf("%w has no RetryInfo", err)
	}
	return nil
}

// page is the page with the table.
const page = "../../docs/security.md"

func TestAbuse_ThePageListsTheAttemptsOfTheTest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	apptest.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| attempt | answer |\n|---|---|\n| no credential on TCP")
	table, _, ended := strings.Cut("| no credential on TCP"+table, "\n\n")
	if !found || !ended {
		t.Fatal("the page has no such table")
	}
	answers := map[string]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		answers[strings.TrimSpace(cells[1])] = cells[2]
	}
	tried := map[string]bool{}
	for _, a := range (&world{}).abuses() {
		tried[a.attempt] = true
		if a.code != codes.OK && !strings.Contains(answers[a.attempt], strings.ToUpper(snake(a.code.String()))) {
			t.Errorf("%s: the page says %q, the test %v", a.attempt, answers[a.attempt], a.code)
		}
	}
	for attempt := range answers {
		if !tried[attempt] {
			t.Errorf("no test tries %q", attempt)
		}
	}
}

// snake writes NotFound as Not_Found.
func snake(name string) string {
	return regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(name, "${1}_${2}")
}

func TestAbuse_EachAttemptHasTheAnswerOfTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, a := range w.abuses() {
		t.Run(a.attempt+"/"+a.variant, func(t *testing.T) {
			if err := a.want(a.try(patient(t))); err != nil {
				t.Error(err)
			}
		})
	}
}

// abuses returns the lines of the table in its order.
func (w *world) abuses() []abuse {
	return slices.Concat(w.withoutRight(), w.ofOthers(), w.malformed(), w.beyondLimits(), w.outdated())
}

// withoutRight are the attempts of clients that may not do what they try.
func (w *world) withoutRight() []abuse {
	read := func(c *client) func(context.Context) error {
		return func(ctx context.Context) error {
			return apptest.Err(c.ListMessages(ctx, &pb.ListMessagesRequest{}))
		}
	}
	sends := func(c *client, m ...*pb.Message) func(context.Context) error {
		return func(ctx context.Context) error { return apptest.Err(c.SendMessages(ctx, send(m...))) }
	}
	halt := func(m *pb.Message) { m.Type = "halt" }
	const (
		credential = "no credential on TCP"
		revoked    = "revoked credential"
		another    = "credential of A, name of B"
		level      = "observer sends, agent force-releases, agent calls an operator's RPC"
		batch      = "unary batch with one forbidden item"
	)
	return []abuse{
		{credential, "unary", codes.Unauthenticated, "CREDENTIAL_REQUIRED", false, read(w.nameless)},
		{credential, "stream", codes.Unauthenticated, "CREDENTIAL_REQUIRED", false, func(ctx context.Context) error {
			return first(w.nameless.Receive(ctx, &pb.ReceiveRequest{Follow: true}))
		}},
		{revoked, "its next call", codes.Unauthenticated, "CREDENTIAL_REVOKED", false, read(w.revoked)},
		{revoked, "its open stream", codes.Unauthenticated, "CREDENTIAL_REVOKED", false, w.streamRevoked},
		{another, "unary", codes.PermissionDenied, "CREDENTIAL_BOUND", false, read(w.impostor)},
		{another, "stream", codes.PermissionDenied, "CREDENTIAL_BOUND", false, func(ctx context.Context) error {
			return first(w.impostor.Receive(ctx, &pb.ReceiveRequest{Follow: true}))
		}},
		{level, "observer sends", codes.PermissionDenied, "READ_ONLY", false, sends(w.observer, to("bob"))},
		{level, "agent force-releases", codes.PermissionDenied, "OPERATOR_ONLY", false, func(ctx context.Context) error {
			return apptest.Err(w.bob.ForceReleaseLocks(ctx, &pb.ForceReleaseLocksRequest{Agent: "alice", Reason: "mine"}))
		}},
		{level, "agent creates a session", codes.PermissionDenied, "OPERATOR_ONLY", false, func(ctx context.Context) error {
			return apptest.Err(w.bob.CreateSession(ctx, &pb.CreateSessionRequest{Name: "mine"}))
		}},
		{batch, "messages", codes.PermissionDenied, "NOT_A_DIRECTOR", false, func(ctx context.Context) error {
			before, err := sentBy(ctx, w.bob)
			if err != nil {
				return err
			}
			err = sends(w.bob, to("alice"), to("alice", halt))(ctx)
			after, other := sentBy(ctx, w.bob)
			if other != nil || after != before {
				return fmt.Errorf("bob had sent %d messages, and now %d (%w)", before, after, other)
			}
			return err
		}},
		{batch, "state", codes.PermissionDenied, "NOT_THE_OWNER", false, func(ctx context.Context) error {
			err := apptest.Err(w.bob.TransactState(ctx, &pb.TransactStateRequest{Changes: []*pb.StateChange{
				put(&pb.PutStateRequest{Key: "bobs", Value: integer(1)}), put(&pb.PutStateRequest{Key: w.key, Value: integer(2)}),
			}}))
			if _, other := w.bob.GetState(ctx, &pb.GetStateRequest{Key: "bobs"}); status.Code(other) != codes.NotFound {
				return fmt.Errorf("the permitted item was applied: %w", other)
			}
			return err
		}},
	}
}

// ofOthers are attempts to reach what belongs to another session, and recipients that do not exist.
func (w *world) ofOthers() []abuse {
	const (
		session   = "another session's lock, key, message, watch"
		recipient = "unknown recipient"
	)
	return []abuse{
		{session, "lock", codes.NotFound, "", false, func(ctx context.Context) error {
			lock := &pb.ExplainRequest_Lock{Lock: fmt.Sprint(w.fence)}
			return apptest.Err(w.stranger.Explain(ctx, &pb.ExplainRequest{Subject: lock}))
		}},
		{session, "token", codes.NotFound, "", false, func(ctx context.Context) error {
			return apptest.Err(w.stranger.GetToken(ctx, &pb.GetTokenRequest{Type: "merge", Scope: "main"}))
		}},
		{session, "key", codes.NotFound, "", false, func(ctx context.Context) error {
			return apptest.Err(w.stranger.GetState(ctx, &pb.GetStateRequest{Key: w.key}))
		}},
		{session, "history of a key", codes.NotFound, "", false, func(ctx context.Context) error {
			return apptest.Err(w.stranger.ListStateHistory(ctx, &pb.ListStateHistoryRequest{Key: w.key}))
		}},
		{session, "message", codes.NotFound, "", false, func(ctx context.Context) error {
			return apptest.Err(w.stranger.GetMessage(ctx, &pb.GetMessageRequest{Id: w.message}))
		}},
		{session, "ack", codes.NotFound, "", false, func(ctx context.Context) error {
			return apptest.Err(w.stranger.AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{w.message}}))
		}},
		{recipient, "agent", codes.NotFound, `alice`, false, func(ctx context.Context) error {
			return apptest.Err(w.bob.SendMessages(ctx, send(to("alcie"))))
		}},
	}
}

// malformed are requests that can never succeed.
func (w *world) malformed() []abuse {
	const (
		values = "negative, zero or absurd TTL, priority 11, empty id, bad UTF-8, NUL, control characters in names"
		names  = "`..`, absolute path, backslash, zero-width characters in a lock path or artifact name"
	)
	message := func(variant, field string, change func(*pb.Message)) abuse {
		return abuse{values, variant, codes.InvalidArgument, "messages[0]." + field, false, func(ctx context.Context) error {
			return apptest.Err(w.bob.SendMessages(ctx, send(to("alice", change))))
		}}
	}
	ttl := func(d *durationpb.Duration) func(*pb.Message) { return func(m *pb.Message) { m.Ttl = d } }
	list := []abuse{
		message("negative TTL", "ttl", ttl(durationpb.New(-time.Second))),
		message("TTL of zero", "ttl", ttl(durationpb.New(0))),
		message("absurd TTL", "ttl", ttl(&durationpb.Duration{Seconds: 1 << 62})),
		message("malformed TTL", "ttl", ttl(&durationpb.Duration{Seconds: 1, Nanos: -5})),
		message("priority 11", "priority", func(m *pb.Message) { m.Priority = 11 }),
		message("NUL", "body", func(m *pb.Message) { m.Body = "a\x00b" }),
		message("control character in a line", "subject", func(m *pb.Message) { m.Subject = "a\x1b[2Jb" }),
		message("control character in a name", "target.agent", func(m *pb.Message) { m.Target = to("al\nice").Target }),
		{values, "empty id", codes.InvalidArgument, "id", false, func(ctx context.Context) error {
			return apptest.Err(w.bob.GetMessage(ctx, &pb.GetMessageRequest{}))
		}},
		{values, "bad UTF-8", codes.InvalidArgument, "messages[0].subject", false, func(ctx context.Context) error {
			request, err := proto.Marshal(send(to("alice", func(m *pb.Message) { m.Subject = "SUBJECT" })))
			if err != nil {
				return err
			}
			request = bytes.Replace(request, []byte("SUBJECT"), []byte("SUB\xff\xfeCT"), 1)
			return w.bob.invoke(ctx, pb.MessageService_SendMessages_FullMethodName, request)
		}},
	}
	for variant, path := range map[string]string{
		"parent": "src/../../etc", "absolute": "/etc/passwd", "backslash": `src\a.go`, "zero-width": "src/a\u200b.go",
		"right to left": "src/\u202ea.go", "NUL": "src/a\x00.go", "trailing dot": "src/a.", "trailing space": "src/a ",
	} {
		lock := func(ctx context.Context) error {
			return apptest.Err(w.bob.AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{path}}))
		}
		upload := func(ctx context.Context) error { return w.upload(ctx, w.bob, path, 1) }
		list = append(list, abuse{names, "lock of " + variant, codes.InvalidArgument, "paths[0]", false, lock},
			abuse{names, "artifact of " + variant, codes.InvalidArgument, "header.name", false, upload})
	}
	return list
}

// beyondLimits are requests that would take too much.
func (w *world) beyondLimits() []abuse {
	const quota = "more messages, waiters, watches or bytes than the quota"
	large := func(a abuse, from *client, method string, request proto.Message) abuse {
		encoded, err := proto.Marshal(request) // once: encoding takes processor time that is not the daemon's
		a.try = func(ctx context.Context) error {
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return from.invoke(ctx, method, encoded)
		}
		return a
	}
	fill := func(size int) *pb.SendMessagesRequest {
		return send(to("alice", func(m *pb.Message) { m.Body = strings.Repeat("x", size) }))
	}
	many := send(slices.Repeat([]*pb.Message{to("cramped")}, 100)...)
	const sends = pb.MessageService_SendMessages_FullMethodName
	return []abuse{
		large(abuse{attempt: tooLarge, variant: "5 MiB message", code: codes.ResourceExhausted, has: "MESSAGE_TOO_LARGE"},
			w.bob, sends, fill(5<<20)),
		large(abuse{attempt: tooLarge, variant: "9 MiB message", code: codes.ResourceExhausted, has: "MESSAGE_TOO_LARGE"},
			w.bob, sends, fill(9<<20)),
		large(abuse{attempt: tooLarge, variant: "10,000 paths", code: codes.InvalidArgument, has: "paths"},
			w.bob, pb.LockService_AcquireLocks_FullMethodName, &pb.AcquireLocksRequest{Paths: paths(10_000)}),
		large(abuse{attempt: quota, variant: "sends per second", code: codes.ResourceExhausted, has: "SEND_RATE",
			retry: true}, w.cramped, sends, many),
		{quota, "messages in a mailbox", codes.ResourceExhausted, "MAILBOX_FULL", true, func(ctx context.Context) error {
			return apptest.Err(w.director.Ask(ctx, &pb.AskRequest{Message: to("neighbour")}))
		}},
		{quota, "waiters", codes.ResourceExhausted, "TOO_MANY_TICKETS", true, func(ctx context.Context) error {
			request := &pb.AcquireLocksRequest{Paths: []string{"src/more"}, Wait: durationpb.New(time.Hour)}
			return apptest.Err(w.cramped.AcquireLocks(ctx, request))
		}},
		{quota, "watches", codes.ResourceExhausted, "TOO_MANY_WATCHES", true, func(ctx context.Context) error {
			return first(w.bob.WatchState(ctx, &pb.WatchStateRequest{}))
		}},
		{quota, "streams of an agent", codes.ResourceExhausted, "TOO_MANY_STREAMS", true, func(ctx context.Context) error {
			return first(w.stranger.WatchState(ctx, &pb.WatchStateRequest{}))
		}},
		{quota, "bytes", codes.ResourceExhausted, "ARTIFACTS_FULL", true, func(ctx context.Context) error {
			return w.upload(ctx, w.cramped, "more.bin", 100)
		}},
		{"listening beyond loopback without TLS", "daemon", codes.OK, "", false, w.listenEverywhere},
	}
}

// tooLarge is the line of the table that has a bound on time, which make hostile measures.
const tooLarge = "5 MiB message; 10,000 paths in one lock call"

// outdated are changes that are based on a state that has passed, and requests that are sent again with
// other contents.
func (w *world) outdated() []abuse {
	const (
		stale   = "stale fence, stale claim id"
		request = "same request id, other body"
		compare = "compare-and-set on another revision"
	)
	return []abuse{
		{stale, "fence", codes.FailedPrecondition, "FENCE_LOST", false, func(ctx context.Context) error {
			lock, err := w.bob.AcquireLocks(ctx, &pb.AcquireLocksRequest{Paths: []string{"docs/a.md"}})
			if err == nil {
				_, err = w.bob.ReleaseLocks(ctx, &pb.ReleaseLocksRequest{Fences: []int64{lock.Fence}})
			}
			if err != nil {
				return err
			}
			ctx = metadata.AppendToOutgoingContext(ctx, "brokerd-fence", fmt.Sprint(lock.Fence))
			return apptest.Err(w.bob.PutState(ctx, &pb.PutStateRequest{Key: "fenced", Value: integer(1)}))
		}},
		{stale, "fence of another session", codes.FailedPrecondition, "LOCK_LOST", false, func(ctx context.Context) error {
			return apptest.Err(w.stranger.ExtendLocks(ctx, &pb.ExtendLocksRequest{Fences: []int64{w.fence}}))
		}},
		{stale, "claim id", codes.FailedPrecondition, "", false, func(ctx context.Context) error {
			return apptest.Err(w.carol.AckMessages(ctx, &pb.AckMessagesRequest{Ids: w.claims[:1]}))
		}},
		{request, "message", codes.AlreadyExists, "", false, func(ctx context.Context) error {
			request := send(to("alice"))
			request.RequestId = "b3c9a1e0-0000-4000-8000-000000000001"
			if _, err := w.bob.SendMessages(ctx, request); err != nil {
				return err
			}
			request.Messages[0].Body = "other"
			return apptest.Err(w.bob.SendMessages(ctx, request))
		}},
		{compare, "put", codes.Aborted, "STATE_CHANGED", false, func(ctx context.Context) error {
			key, err := w.alice.GetState(ctx, &pb.GetStateRequest{Key: w.key})
			if err != nil {
				return err
			}
			request := &pb.PutStateRequest{Key: w.key, Value: integer(3), CompareRevision: proto.Int64(1)}
			err = apptest.Err(w.alice.PutState(ctx, request))
			for _, detail := range status.Convert(err).Details() {
				if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Metadata["revision"] == fmt.Sprint(key.Entry.Revision) {
					return err
				}
			}
			return fmt.Errorf("%w without the revision %d", err, key.Entry.Revision)
		}},
	}
}

// listenEverywhere starts another daemon that is to listen beyond loopback without TLS.
func (w *world) listenEverywhere(ctx context.Context) error {
	c := exec.CommandContext(ctx, w.Program(), "--data", w.t.TempDir(), "--listen", "0.0.0.0:0")
	text, err := c.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(text), "which needs TLS: give --tls-cert and --tls-key") {
		return fmt.Errorf("ended with %w: %s", err, text)
	}
	return nil
}

func (w *world) revoke(ctx context.Context, id string) error {
	return apptest.Err(w.admin.RevokeCredential(ctx, &pb.RevokeCredentialRequest{Id: id}))
}

// streamRevoked returns the end of a stream whose credential is revoked meanwhile.
func (w *world) streamRevoked(ctx context.Context) error {
	id, secret := w.issue(pb.CredentialAccess_CREDENTIAL_ACCESS_AGENT, "default", "dave")
	c := newClient(w.t, w.dial(w.tcp, party{secret: secret}))
	defer c.conn.Close()
	stream, err := c.SubscribeEvents(ctx, &pb.SubscribeEventsRequest{})
	if err == nil {
		_, err = stream.Recv() // a progress mark: the stream is open
	}
	if err == nil {
		err = w.revoke(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("prepare: %s", status.Convert(err).Message())
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// sentBy returns how many messages an agent has sent.
func sentBy(ctx context.Context, c *client) (int, error) {
	page, err := c.ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_SENT, PageSize: 1000})
	return len(page.GetItems()), err
}

func put(r *pb.PutStateRequest) *pb.StateChange {
	return &pb.StateChange{Change: &pb.StateChange_Put{Put: r}}
}

// first returns the error with which a stream begins.
func first[A any](stream grpc.ServerStreamingClient[A], err error) error {
	if err != nil {
		return err
	}
	return apptest.Err(stream.Recv())
}
