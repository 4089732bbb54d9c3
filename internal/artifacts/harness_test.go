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

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(postgrestest.Tests{M: m}) }

// onServer reports whether the broker keeps contents in a PostgreSQL database instead of files.
func onServer(w *apptest.Broker) bool { return postgrestest.Of(w.Dir()) != "" }

// execute runs a statement in the PostgreSQL database of a broker, and returns the first column.
func execute(t apptest.TB, url, statement string, args ...any) []string {
	t.Helper()
	db, err := pgx.Connect(context.Background(), url)
	apptest.NoError(t, err)
	defer func() { _ = db.Close(context.Background()) }()
	rows, err := db.Query(context.Background(), statement, args...)
	apptest.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	apptest.NoError(t, err)
	return names
}

const selectNames = `SELECT DISTINCT sha256 FROM artifact_chunks ORDER BY sha256`

// files returns the names of the contents and the drafts.
func files(w *apptest.Broker) []string {
	w.Helper()
	if onServer(w) {
		return execute(w, postgrestest.Of(w.Dir()), selectNames)
	}
	entries, err := os.ReadDir(filepath.Join(w.Dir(), "artifacts"))
	apptest.NoError(w, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// plant writes a content or a draft behind the broker's back, or what is neither.
func plant(w *apptest.Broker, name, content string) {
	w.Helper()
	if onServer(w) {
		execute(w, postgrestest.Of(w.Dir()), `INSERT INTO artifact_chunks (sha256, n, data) VALUES ($1, 0, $2)`, name, []byte(content))
		return
	}
	apptest.NoError(w, os.WriteFile(filepath.Join(w.Dir(), "artifacts", name), []byte(content), 0o600))
}

// lose removes a content behind the broker's back.
func lose(w *apptest.Broker, sum string) {
	w.Helper()
	if onServer(w) {
		execute(w, postgrestest.Of(w.Dir()), `DELETE FROM artifact_chunks WHERE sha256 = $1`, sum)
		return
	}
	apptest.NoError(w, os.Remove(filepath.Join(w.Dir(), "artifacts", sum)))
}

// header announces a content.
func header(name string, content []byte) *pb.ArtifactHeader {
	return &pb.ArtifactHeader{Name: name, Size: int64(len(content))}
}

// try uploads a content in pieces of 100,000 bytes.
func try(a *apptest.Actor, h *pb.ArtifactHeader, content []byte) (*pb.UploadArtifactResponse, error) {
	a.Helper()
	stream, err := a.UploadArtifact(a.Ctx)
	apptest.NoError(a, err)
	send(a, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}})
	for len(content) > 0 {
		piece := content[:min(len(content), 100_000)]
		content = content[len(piece):]
		if !send(a, stream, chunk(piece)) {
			break
		}
	}
	return stream.CloseAndRecv()
}

func chunk(b []byte) *pb.UploadArtifactRequest {
	return &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: b}}
}

// send sends a frame. It returns false if the broker has ended the stream.
func send(t apptest.TB, stream pb.ArtifactService_UploadArtifactClient, in *pb.UploadArtifactRequest) bool {
	t.Helper()
	err := stream.Send(in)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return err == nil
}

// upload uploads a content, which must succeed.
func upload(a *apptest.Actor, name, content string) *pb.ArtifactVersion {
	a.Helper()
	out, err := try(a, header(name, []byte(content)), []byte(content))
	apptest.NoError(a, err)
	return out.Artifact
}

// download returns what a download sends.
func download(a *apptest.Actor, in *pb.DownloadArtifactRequest) (*pb.ArtifactVersion, []byte, error) {
	a.Helper()
	stream, err := a.DownloadArtifact(a.Ctx, in)
	apptest.NoError(a, err)
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

// contentOf returns the content of a version, 0 for the newest.
func contentOf(a *apptest.Actor, name string, version int64) string {
	a.Helper()
	_, content, err := download(a, &pb.DownloadArtifactRequest{Name: name, Version: version})
	apptest.NoError(a, err)
	return string(content)
}

// list returns all versions that a request selects.
func list(a *apptest.Actor, in *pb.ListArtifactsRequest) []*pb.ArtifactVersion {
	a.Helper()
	var all []*pb.ArtifactVersion
	for {
		out := apptest.Must(a, a.ListArtifacts, in)
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
