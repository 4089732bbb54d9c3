package retention_test

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is a daemon on a clock that the test moves, and who acts in one session of it. At the end of the test its database must be
// sound.
type world struct {
	*apptest.Broker
	t       testing.TB
	ctx     context.Context
	session string
}

func newWorld(t testing.TB, options ...apptest.Option) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return &world{apptest.Start(t, append([]apptest.Option{apptest.WithFakeClock()}, options...)...), t, ctx, "default"}
}

// project returns the same daemon seen from a new session, with the agents lead and builder.
func (w *world) project(settings *pb.SessionSettings) *world {
	w.t.Helper()
	p := *w
	p.session = "project"
	must(w.t, drop(w.sessions().CreateSession(w.ctx, &pb.CreateSessionRequest{Name: p.session, Settings: settings})))
	p.register("lead", "builder")
	return &p
}

func (w *world) register(names ...string) {
	w.t.Helper()
	for _, name := range names {
		must(w.t, drop(pb.NewAgentServiceClient(w.In(w.session, name)).RegisterAgent(w.ctx, &pb.RegisterAgentRequest{Role: name, Lease: durationpb.New(apptest.LongLease)})))
	}
}

func (w *world) as(agent string) pb.MessageServiceClient {
	return pb.NewMessageServiceClient(w.In(w.session, agent))
}

// sessions is the service as an operator outside of the session calls it.
func (w *world) sessions() pb.SessionServiceClient { return pb.NewSessionServiceClient(w.Operator()) }

func (w *world) events() pb.EventServiceClient {
	return pb.NewEventServiceClient(w.In(w.session, ""))
}

func (w *world) configure(s *pb.SessionSettings) {
	w.t.Helper()
	must(w.t, drop(pb.NewSessionServiceClient(w.In(w.session, "")).ConfigureSession(w.ctx, &pb.ConfigureSessionRequest{Settings: s})))
}

// send sends a message from lead to builder.
func (w *world) send(m *pb.Message) *pb.SendResult {
	w.t.Helper()
	if m.Target == nil {
		m.Target = &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}
	}
	out, err := w.as("lead").SendMessages(w.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	must(w.t, err)
	return out.GetResults()[0]
}

// claim claims the next message for builder.
func (w *world) claim() *pb.ClaimedMessage {
	w.t.Helper()
	out, err := w.as("builder").ClaimMessages(w.ctx, &pb.ClaimMessagesRequest{Max: 1})
	must(w.t, err)
	if len(out.GetClaims()) != 1 {
		w.t.Fatalf("nothing to claim: %v", out)
	}
	return out.GetClaims()[0]
}

// finish sends a message and has it acknowledged.
func (w *world) finish(m *pb.Message) *pb.SendResult {
	w.t.Helper()
	sent := w.send(m)
	w.ack(w.claim().GetClaimId())
	return sent
}

func (w *world) ack(id string) {
	w.t.Helper()
	must(w.t, drop(w.as("builder").AckMessages(w.ctx, &pb.AckMessagesRequest{Ids: []string{id}})))
}

// die sends a message that becomes a dead letter.
func (w *world) die(m *pb.Message) *pb.SendResult {
	w.t.Helper()
	sent := w.send(m)
	nack := &pb.Nack{ClaimId: w.claim().GetClaimId(), Fatal: true, Error: "no"}
	must(w.t, drop(w.as("builder").NackMessages(w.ctx, &pb.NackMessagesRequest{Nacks: []*pb.Nack{nack}})))
	return sent
}

// there reports whether the database has a message.
func (w *world) there(sent *pb.SendResult) bool {
	w.t.Helper()
	_, err := w.as("").GetMessage(w.ctx, &pb.GetMessageRequest{Id: sent.GetId()})
	if status.Code(err) != codes.NotFound {
		must(w.t, err)
	}
	return err == nil
}

// eventually returns once the condition holds. The clock moves a little meanwhile, for whoever rests.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	for !holds() {
		if w.ctx.Err() != nil {
			w.t.Fatalf("waiting until %s: %v", what, w.ctx.Err())
		}
		w.Clock.Advance(10 * time.Millisecond)
	}
}

// gone waits until a message has left the database.
func (w *world) gone(sent *pb.SendResult) {
	w.t.Helper()
	w.eventually("the message is gone", func() bool { return !w.there(sent) })
}

// turned waits until the keeper has looked at all that was due when it was called: a message of another session that is just as
// old has gone.
func (w *world) turned() {
	w.t.Helper()
	other := *w
	other.session = "turned"
	_, err := w.sessions().CreateSession(w.ctx, &pb.CreateSessionRequest{
		Name: other.session, Settings: &pb.SessionSettings{MessageRetention: durationpb.New(time.Second)}})
	if status.Code(err) != codes.AlreadyExists {
		must(w.t, err)
		other.register("lead", "builder")
	}
	sent := other.finish(&pb.Message{})
	w.Clock.Advance(2 * time.Second)
	other.gone(sent)
}

// lines returns the lines of the session's archive files of one kind, with the file that each is in.
func (w *world) lines(kind string) (lines []map[string]any, files []string) {
	w.t.Helper()
	return w.linesIn(w.Dir(), kind)
}

func (w *world) linesIn(dir, kind string) (lines []map[string]any, files []string) {
	w.t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "archive", w.session, kind+"-*.jsonl.gz"))
	must(w.t, err)
	slices.Sort(paths)
	for _, path := range paths {
		f, err := os.Open(path)
		must(w.t, err)
		z, err := gzip.NewReader(f)
		if errors.Is(err, io.EOF) {
			must(w.t, f.Close())
			continue // nothing in it yet
		}
		must(w.t, err)
		text, err := io.ReadAll(z)
		must(w.t, err)
		must(w.t, f.Close())
		for _, l := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			var object map[string]any
			must(w.t, json.Unmarshal([]byte(l), &object))
			lines, files = append(lines, object), append(files, filepath.Base(path))
		}
	}
	return lines, files
}

// archived counts how often each message is in the archive, by revision.
func (w *world) archived() map[int64]int {
	w.t.Helper()
	counts := map[int64]int{}
	lines, _ := w.lines("messages")
	for _, l := range lines {
		counts[int64(l["message"].(map[string]any)["revision"].(float64))]++
	}
	return counts
}

func keep(d time.Duration) *pb.SessionSettings {
	return &pb.SessionSettings{MessageRetention: durationpb.New(d)}
}

func merged(all ...*pb.SessionSettings) *pb.SessionSettings {
	out := &pb.SessionSettings{}
	for _, s := range all {
		proto.Merge(out, s)
	}
	return out
}

func wantError(t testing.TB, what string, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("%s: got %v (%s), want %v (%s)", what, err, testkit.Reason(err), code, reason)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drop leaves the error of an answer that does not matter.
func drop[T any](_ T, err error) error { return err }
