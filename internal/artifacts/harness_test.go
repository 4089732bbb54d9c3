package artifacts_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the calls of a test.
const patience = 5 * time.Minute

// A world is a daemon. At the end of the test its database and files must be sound.
type world struct {
	*apptest.Broker
	t testing.TB
}

func newWorld(t testing.TB, options ...apptest.Option) *world {
	t.Helper()
	options = append(options, apptest.With(func(c *app.Config) { c.StopTimeout = patience }))
	return &world{apptest.Start(t, options...), t}
}

// files returns the names of the files in the folder of contents.
func (w *world) files() []string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.Dir(), "artifacts"))
	must(w.t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// An actor is the view of one identity. The operator has no name.
type actor struct {
	pb.ArtifactServiceClient
	events   pb.EventServiceClient
	registry pb.AgentServiceClient
	sessions pb.SessionServiceClient
	messages pb.MessageServiceClient
	channels pb.ChannelServiceClient
	state    pb.StateServiceClient

	t   testing.TB
	ctx context.Context // ends with the test
}

// in returns the view of an agent, which need not be registered.
func (w *world) in(session, name string) *actor {
	w.t.Helper()
	conn := w.In(session, name)
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	w.t.Cleanup(cancel)
	return &actor{
		pb.NewArtifactServiceClient(conn), pb.NewEventServiceClient(conn), pb.NewAgentServiceClient(conn),
		pb.NewSessionServiceClient(conn), pb.NewMessageServiceClient(conn), pb.NewChannelServiceClient(conn),
		pb.NewStateServiceClient(conn), w.t, ctx,
	}
}

func (w *world) operator() *actor { return w.in("default", "") }

// agent returns a registered agent.
func (w *world) agent(name, role string) *actor {
	w.t.Helper()
	w.Registered(name, role)
	return w.in("default", name)
}

// session creates a session with settings and returns its operator.
func (w *world) session(name string, settings *pb.SessionSettings) *actor {
	w.t.Helper()
	o := w.operator()
	_, err := o.sessions.CreateSession(o.ctx, &pb.CreateSessionRequest{Name: name, Settings: settings})
	must(w.t, err)
	return w.in(name, "")
}

// header announces a content.
func header(name string, content []byte) *pb.ArtifactHeader {
	return &pb.ArtifactHeader{Name: name, Size: int64(len(content))}
}

// try uploads a content in pieces of 100,000 bytes.
func (a *actor) try(h *pb.ArtifactHeader, content []byte) (*pb.UploadArtifactResponse, error) {
	a.t.Helper()
	stream, err := a.UploadArtifact(a.ctx)
	must(a.t, err)
	send(a.t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}})
	for len(content) > 0 {
		piece := content[:min(len(content), 100_000)]
		content = content[len(piece):]
		if !send(a.t, stream, chunk(piece)) {
			break
		}
	}
	return stream.CloseAndRecv()
}

func chunk(b []byte) *pb.UploadArtifactRequest {
	return &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: b}}
}

// send sends a frame. It returns false if the broker has ended the stream.
func send(t testing.TB, stream pb.ArtifactService_UploadArtifactClient, in *pb.UploadArtifactRequest) bool {
	t.Helper()
	err := stream.Send(in)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return err == nil
}

// upload uploads a content, which must succeed.
func (a *actor) upload(name, content string) *pb.ArtifactVersion {
	a.t.Helper()
	out, err := a.try(header(name, []byte(content)), []byte(content))
	must(a.t, err)
	return out.Artifact
}

// download returns what a download sends.
func (a *actor) download(in *pb.DownloadArtifactRequest) (*pb.ArtifactVersion, []byte, error) {
	a.t.Helper()
	stream, err := a.DownloadArtifact(a.ctx, in)
	must(a.t, err)
	var version *pb.ArtifactVersion
	var content bytes.Buffer
	for {
		frame, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return version, content.Bytes(), nil
		case err != nil:
			return version, content.Bytes(), err
		case frame.GetArtifact() != nil:
			version = frame.GetArtifact()
		default:
			content.Write(frame.GetChunk())
		}
	}
}

// content returns the content of a version, 0 for the newest.
func (a *actor) content(name string, version int64) string {
	a.t.Helper()
	_, content, err := a.download(&pb.DownloadArtifactRequest{Name: name, Version: version})
	must(a.t, err)
	return string(content)
}

// list returns all versions that a request selects.
func (a *actor) list(in *pb.ListArtifactsRequest) []*pb.ArtifactVersion {
	a.t.Helper()
	var all []*pb.ArtifactVersion
	for {
		out, err := a.ListArtifacts(a.ctx, in)
		must(a.t, err)
		all = append(all, out.Artifacts...)
		if in.PageToken = out.NextPageToken; in.PageToken == "" {
			return all
		}
	}
}

// names returns the names and versions of a list.
func names(list []*pb.ArtifactVersion) []string {
	out := []string{}
	for _, v := range list {
		out = append(out, reference(v))
	}
	return out
}

func sumOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused checks the code and the reason of an error.
func refused(t testing.TB, err error, code codes.Code, reason string) {
	t.Helper()
	if status.Code(err) != code || testkit.Reason(err) != reason {
		t.Errorf("got %v (%s), want %s %s", err, testkit.Reason(err), code, reason)
	}
}
