package retention_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// export writes the session's export into a folder and returns it.
func (w *world) export() string {
	w.Helper()
	dir := w.TB.(testing.TB).TempDir()
	stream, err := w.Root().ExportSession(w.ctx, &pb.ExportSessionRequest{Name: w.session})
	apptest.NoError(w, err)
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return dir
		}
		apptest.NoError(w, err)
		f, err := os.OpenFile(filepath.Join(dir, piece.GetFile()), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		apptest.NoError(w, err)
		_, err = f.Write(piece.GetData())
		apptest.NoError(w, err)
		apptest.NoError(w, f.Close())
	}
}

// busy fills a session with messages in the archive and in the database.
func (w *world) busy() (archived, there []*pb.SendResult) {
	w.Helper()
	for range 3 {
		archived = append(archived, w.finish(&pb.Message{Subject: "old", Payload: `{"a":1}`}))
	}
	w.Clock.Advance(2 * time.Hour)
	w.gone(archived[2])
	there = append(there, w.die(&pb.Message{Subject: "dead"}), w.send(&pb.Message{Subject: "waiting", Body: strings.Repeat("é", 1000)}))
	return archived, there
}

func short() *pb.SessionSettings {
	return &pb.SessionSettings{MessageRetention: durationpb.New(time.Hour), EventRetention: durationpb.New(time.Hour)}
}

func TestExport_AgreesWithTheDatabaseByJqAndSha256sum(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"bash", "jq", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: scripts/test-deps.sh installs it", tool)
		}
	}
	w := newWorld(t).project(short())
	archived, there := w.busy()
	w.eventually("the old events are gone", func() bool { // they would go between the export and the list below
		events := apptest.Must(t, w.as("").ListEvents, &pb.ListEventsRequest{PageSize: 1})
		return events.GetEvents()[0].GetRevision() >= there[0].GetRevision()
	})
	apptest.Must(t, w.Actor("project", "builder").SubscribeChannel,
		&pb.SubscribeChannelRequest{Channel: "news"})
	apptest.Must(t, w.Root().CloseSession, &pb.CloseSessionRequest{Name: "project"})
	dir := w.export()

	var listed []string // what the database says
	for _, m := range there {
		got := apptest.Must(t, w.as("").GetMessage, &pb.GetMessageRequest{Id: m.GetId()})
		state := strings.TrimPrefix(got.GetDeliveries()[0].GetState().String(), "DELIVERY_STATE_")
		listed = append(listed, strings.Join([]string{m.GetId(), strconv.FormatInt(m.GetRevision(), 10), "false", state}, " "))
	}
	for _, m := range archived {
		listed = append(listed, strings.Join([]string{m.GetId(), strconv.FormatInt(m.GetRevision(), 10), "true", "ACKED"}, " "))
	}
	var revisions []string
	events := apptest.Must(t, w.as("").ListEvents, &pb.ListEventsRequest{PageSize: 1000})
	for _, e := range events.GetEvents() {
		revisions = append(revisions, strconv.FormatInt(e.GetRevision(), 10))
	}
	cmd := exec.CommandContext(w.ctx, "bash", "testdata/check_export.sh", dir)
	cmd.Stdin = strings.NewReader(strings.Join(listed, "\n") + "\n\n" + strings.Join(revisions, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestExport_ManifestTellsOfEveryFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(short())
	w.busy()
	dir := w.export()
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	apptest.NoError(t, err)
	var m struct {
		Files []struct {
			Name                   string
			Bytes, Lines, Archived int64
			SHA256                 string
		}
	}
	apptest.NoError(t, json.Unmarshal(text, &m))
	var names []string
	for _, f := range m.Files {
		names = append(names, f.Name)
		data, err := os.ReadFile(filepath.Join(dir, f.Name))
		apptest.NoError(t, err)
		sum := sha256.Sum256(data)
		if f.SHA256 != hex.EncodeToString(sum[:]) || f.Bytes != int64(len(data)) || f.Lines != int64(strings.Count(string(data), "\n")) {
			t.Errorf("%+v is not what the file is", f)
		}
		if f.Name == "messages.jsonl" && (f.Lines != 5 || f.Archived != 3) {
			t.Errorf("%+v: want 5 messages, 3 of them from the archive", f)
		}
	}
	got := strings.Join(names, " ") // between these, each kind of joint work has a file
	if !strings.HasPrefix(got, "session.json agents.jsonl checkpoints.jsonl channels.jsonl state.jsonl locks.jsonl ") || !strings.HasSuffix(got, " messages.jsonl events.jsonl") {
		t.Errorf("the files are %s", got)
	}
}

func TestExport_WithoutItsArchiveIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(short())
	w.busy()
	apptest.NoError(t, os.RemoveAll(filepath.Join(w.Dir(), "archive", "project")))
	stream, err := w.Root().ExportSession(w.ctx, &pb.ExportSessionRequest{Name: "project"})
	apptest.NoError(t, err)
	for err == nil {
		_, err = stream.Recv()
	}
	wantError(t, "export", err, codes.FailedPrecondition, "ARCHIVE_MISSING")
}

func TestDelete_WantsAClosedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(nil)
	_, err := w.Root().DeleteSession(w.ctx, &pb.DeleteSessionRequest{Name: "project"})
	wantError(t, "an open one", err, codes.FailedPrecondition, "SESSION_OPEN")
	_, err = w.Root().DeleteSession(w.ctx, &pb.DeleteSessionRequest{Name: "nowhere"})
	wantError(t, "none", err, codes.NotFound, "SESSION_NOT_FOUND")
}

func TestDelete_KeepsAnExportAndNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t).project(short())
	w.busy()
	apptest.Must(t, w.Actor("project", "builder").SubscribeChannel,
		&pb.SubscribeChannelRequest{Channel: "news"})
	follow, err := w.as("").SubscribeEvents(w.ctx, &pb.SubscribeEventsRequest{Cursor: "overseer"})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(follow.Recv()))
	quiet, err := w.as("").SubscribeEvents(w.ctx, &pb.SubscribeEventsRequest{Filter: &pb.EventFilter{Types: []string{"none"}}})
	apptest.NoError(t, err)
	apptest.NoError(t, apptest.Err(quiet.Recv()))
	apptest.Must(t, w.Root().CloseSession, &pb.CloseSessionRequest{Name: "project"})
	request := &pb.DeleteSessionRequest{Name: "project", RequestId: "0197f3a0-5c4e-7b1d-8f21-9a0b1c2d3e4f"}
	deleted := apptest.Must(t, w.Root().DeleteSession, request)
	again := apptest.Must(t, w.Root().DeleteSession, request)
	if again.GetArchive() != deleted.GetArchive() || again.GetRevision() != deleted.GetRevision() {
		t.Errorf("asked again the answer is %v, not %v", again, deleted)
	}

	text, err := os.ReadFile(filepath.Join(w.Dir(), deleted.GetArchive(), "messages.jsonl"))
	apptest.NoError(t, err)
	if n := strings.Count(string(text), "\n"); n != 5 {
		t.Errorf("the export has %d messages, want 5", n)
	}
	if left, err := filepath.Glob(filepath.Join(w.Dir(), "archive", "project", "*")); err != nil || len(left) > 0 {
		t.Errorf("left in the archive: %v (%v)", left, err)
	}
	_, err = w.Root().GetSession(w.ctx, &pb.GetSessionRequest{Name: "project"})
	wantError(t, "get", err, codes.NotFound, "SESSION_NOT_FOUND")
	for what, stream := range map[string]grpc.ServerStreamingClient[pb.SubscribeEventsResponse]{"all": follow, "no": quiet} {
		for err = nil; err == nil; {
			_, err = stream.Recv()
		}
		if c := status.Code(err); c != codes.NotFound && c != codes.OutOfRange {
			t.Errorf("a follower of %s events got %v", what, err)
		}
	}
	last := apptest.Must(t, w.Root().ListEvents,
		&pb.ListEventsRequest{NewestFirst: true, PageSize: 1})
	if e := last.GetEvents()[0]; e.GetType() != "session.deleted" || e.GetRevision() != deleted.GetRevision() {
		t.Errorf("the last event is %v", e)
	}

	// The name is free again, and nothing of the old session shows.
	apptest.Must(t, w.Root().CreateSession, &pb.CreateSessionRequest{Name: "project"})
	w.register("lead", "builder")
	list := apptest.Must(t, w.as("").ListMessages, &pb.ListMessagesRequest{})
	if n := len(list.GetItems()); n != 0 {
		t.Errorf("the new session has %d messages", n)
	}
	w.finish(&pb.Message{})
}
