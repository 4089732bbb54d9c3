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
	"brokerd/internal/postgrestest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Tests{M: m}) }

// A world is a daemon on a clock that the test moves, and who acts in one session of it. At the end of the test its database must be
// sound.
type world struct {
	*apptest.Broker
	ctx     context.Context
	session string
}

func newWorld(t testing.TB, options ...apptest.Option) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return &world{apptest.Start(t, append([]apptest.Option{apptest.WithFakeClock()}, options...)...), ctx, "default"}
}

// project returns the same daemon seen from a new session, with the agents lead and builder.
func (w *world) project(settings *pb.SessionSettings) *world {
	w.Helper()
	p := *w
	p.session = "project"
	apptest.Must(w, w.Root().CreateSession, &pb.CreateSessionRequest{Name: p.session, Settings: settings})
	p.register("lead", "builder")
	return &p
}

func (w *world) register(names ...string) {
	w.Helper()
	for _, name := range names {
		w.as(name).Register(name)
	}
}

func (w *world) as(agent string) *apptest.Actor { return w.Actor(w.session, agent) }

// send sends a message from lead to builder.
func (w *world) send(m *pb.Message) *pb.SendResult {
	w.Helper()
	if m.Target == nil {
		m.Target = &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}
	}
	out := apptest.Must(w, w.as("lead").SendMessages, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	return out.GetResults()[0]
}

// claim claims the next message for builder.
func (w *world) claim() *pb.ClaimedMessage {
	w.Helper()
	out := apptest.Must(w, w.as("builder").ClaimMessages, &pb.ClaimMessagesRequest{Max: 1})
	if len(out.GetClaims()) != 1 {
		w.Fatalf("nothing to claim: %v", out)
	}
	return out.GetClaims()[0]
}

// finish sends a message and has it acknowledged.
func (w *world) finish(m *pb.Message) *pb.SendResult {
	w.Helper()
	sent := w.send(m)
	w.ack(w.claim().GetClaimId())
	return sent
}

func (w *world) ack(id string) {
	w.Helper()
	apptest.Must(w, w.as("builder").AckMessages, &pb.AckMessagesRequest{Ids: []string{id}})
}

// die sends a message that becomes a dead letter.
func (w *world) die(m *pb.Message) *pb.SendResult {
	w.Helper()
	sent := w.send(m)
	nack := &pb.Nack{ClaimId: w.claim().GetClaimId(), Fatal: true, Error: "no"}
	apptest.Must(w, w.as("builder").NackMessages, &pb.NackMessagesRequest{Nacks: []*pb.Nack{nack}})
	return sent
}

// there reports whether the database has a message.
func (w *world) there(sent *pb.SendResult) bool {
	w.Helper()
	_, err := w.as("").GetMessage(w.ctx, &pb.GetMessageRequest{Id: sent.GetId()})
	if status.Code(err) != codes.NotFound {
		apptest.NoError(w, err)
	}
	return err == nil
}

// eventually returns once the condition holds. The clock moves a little meanwhile, for whoever rests.
func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	for !holds() {
		if w.ctx.Err() != nil {
			w.Fatalf("waiting until %s: %v", what, w.ctx.Err())
		}
		w.Clock.Advance(10 * time.Millisecond)
	}
}

// gone waits until a message has left the database.
func (w *world) gone(sent *pb.SendResult) {
	w.Helper()
	w.eventually("the message is gone", func() bool { return !w.there(sent) })
}

// turned waits until the keeper has looked at all that was due when it was called: a message of another session that is just as
// old has gone.
func (w *world) turned() {
	w.Helper()
	other := *w
	other.session = "turned"
	_, err := w.Root().CreateSession(w.ctx, &pb.CreateSessionRequest{
		Name: other.session, Settings: &pb.SessionSettings{MessageRetention: durationpb.New(time.Second)}})
	if status.Code(err) != codes.AlreadyExists {
		apptest.NoError(w, err)
		other.register("lead", "builder")
	}
	sent := other.finish(&pb.Message{})
	w.Clock.Advance(2 * time.Second)
	other.gone(sent)
}

// lines returns the lines of the session's archive files of one kind, with the file that each is in.
func (w *world) lines(kind string) (lines []map[string]any, files []string) {
	w.Helper()
	return w.linesIn(w.Dir(), kind)
}

func (w *world) linesIn(dir, kind string) (lines []map[string]any, files []string) {
	w.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "archive", w.session, kind+"-*.jsonl.gz"))
	apptest.NoError(w, err)
	slices.Sort(paths)
	for _, path := range paths {
		f, err := os.Open(path)
		apptest.NoError(w, err)
		z, err := gzip.NewReader(f)
		if errors.Is(err, io.EOF) {
			apptest.NoError(w, f.Close())
			continue // nothing in it yet
		}
		apptest.NoError(w, err)
		text, err := io.ReadAll(z)
		apptest.NoError(w, err)
		apptest.NoError(w, f.Close())
		for _, l := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			var object map[string]any
			apptest.NoError(w, json.Unmarshal([]byte(l), &object))
			lines, files = append(lines, object), append(files, filepath.Base(path))
		}
	}
	return lines, files
}

// archived counts how often each message is in the archive, by revision.
func (w *world) archived() map[int64]int {
	w.Helper()
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
