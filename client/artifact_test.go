package client_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
)

func TestArtifact_ReferencesNameVersions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		name    string
		version int64
	}{
		"a": {"a", 0}, "a@3": {"a", 3}, "a@b@12": {"a@b", 12}, "a@": {"a@", 0}, "a@0": {"a@0", 0}, "a@-1": {"a@-1", 0}, "a@x": {"a@x", 0},
	} {
		if name, version := client.ParseArtifact(text); name != want.name || version != want.version {
			t.Errorf("%s is %s, version %d", text, name, version)
		}
	}
}

func TestArtifact_UploadsHashFirstAndDownloads(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	c := d.agent(t, "a", "builder")
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	var sent, written int64
	out, err := c.UploadArtifact(t.Context(), &pb.ArtifactHeader{Name: "x"}, bytes.NewReader(content), func(n int64) { sent = n })
	if err != nil || out.GetSkipped() || sent != int64(len(content)) {
		t.Fatalf("%v, %d bytes sent, %v", out, sent, err)
	}
	again, err := c.UploadArtifact(t.Context(), &pb.ArtifactHeader{Name: "y"}, bytes.NewReader(content), nil)
	if err != nil || !again.GetSkipped() {
		t.Errorf("the second upload is %v, %v", again, err)
	}
	var got bytes.Buffer
	v, err := c.DownloadArtifact(t.Context(), &pb.DownloadArtifactRequest{Name: "y"}, &got, func(_ *pb.ArtifactVersion, n int64) { written = n })
	if err != nil || client.ArtifactReference(v) != "y@1" || !bytes.Equal(got.Bytes(), content) || written != int64(len(content)) {
		t.Errorf("the download is %v, %d bytes, %v", v, got.Len(), err)
	}
	got.Reset()
	_, err = c.DownloadArtifact(t.Context(), &pb.DownloadArtifactRequest{Name: "y", Offset: 5, Length: 100_001}, &got, nil)
	if err != nil || !bytes.Equal(got.Bytes(), content[5:100_006]) {
		t.Errorf("the part has %d bytes, %v", got.Len(), err)
	}
	if _, err := c.DownloadArtifact(t.Context(), &pb.DownloadArtifactRequest{Name: "z"}, &got, nil); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown name: %v", err)
	}
	full := errors.New("full")
	if _, err := c.DownloadArtifact(t.Context(), &pb.DownloadArtifactRequest{Name: "y"}, failing{full}, nil); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
}

// failing is a writer that fails.
type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

// restarting restarts a daemon in the middle of a content.
type restarting struct {
	*strings.Reader
	t    *testing.T
	d    *daemon
	left int // reads until then
}

func (r *restarting) Read(p []byte) (int, error) {
	if r.left--; r.left == 0 {
		r.d.restart(r.t)
	}
	return r.Reader.Read(p)
}

// restartingWriter restarts a daemon in the middle of a download.
type restartingWriter struct {
	bytes.Buffer
	t *testing.T
	d *daemon
}

func (w *restartingWriter) Write(p []byte) (int, error) {
	if before := w.Len(); before < 1<<20 && before+len(p) >= 1<<20 {
		w.d.restart(w.t)
	}
	return w.Buffer.Write(p)
}

func TestArtifact_TransfersSurviveARestart(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	c := d.agent(t, "a", "builder")
	content := strings.Repeat("0123456789abcdef", 1<<19)
	sum := sha256.Sum256([]byte(content))
	out, err := c.UploadArtifact(t.Context(), &pb.ArtifactHeader{Name: "x"}, &restarting{strings.NewReader(content), t, d, 60}, nil)
	if err != nil || out.GetArtifact().GetVersion() != 1 || out.GetArtifact().GetSha256() != hex.EncodeToString(sum[:]) {
		t.Fatalf("%v, %v", out, err)
	}
	list, err := c.Artifacts().ListArtifacts(t.Context(), &pb.ListArtifactsRequest{AllVersions: true})
	if err != nil || len(list.GetArtifacts()) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	w := &restartingWriter{t: t, d: d}
	if _, err := c.DownloadArtifact(t.Context(), &pb.DownloadArtifactRequest{Name: "x"}, w, nil); err != nil || w.String() != content {
		t.Errorf("%d bytes, %v", w.Len(), err)
	}
}
