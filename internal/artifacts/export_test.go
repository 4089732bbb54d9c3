package artifacts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

// exported returns the files of an export.
func exported(a *apptest.Actor) map[string]string {
	a.Helper()
	stream, err := a.ExportSession(a.Ctx, &pb.ExportSessionRequest{})
	apptest.NoError(a, err)
	files := map[string]*bytes.Buffer{}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		apptest.NoError(a, err)
		if files[piece.File] == nil {
			files[piece.File] = &bytes.Buffer{}
		}
		files[piece.File].Write(piece.Data)
	}
	out := map[string]string{}
	for name, content := range files {
		out[name] = content.String()
	}
	return out
}

func TestExport_HasContentsAndDeletionRemovesThem(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	o := w.Session("website", nil)
	large := strings.Repeat("0123456789", 30_000)
	upload(o, "large", large)
	upload(o, "empty", "")
	upload(o, "a", "shared")
	kept := w.Root()
	upload(kept, "b", "shared")
	files := exported(o)
	for _, content := range []string{large, "", "shared"} {
		if got, ok := files["artifacts/"+sumOf(content)]; !ok || got != content {
			t.Errorf("the content of %d bytes is exported as %d bytes", len(content), len(got))
		}
	}
	if lines := strings.Count(files["artifacts.jsonl"], "\n"); lines != 3 || !strings.Contains(files["artifacts.jsonl"], `"sha256":"`+sumOf(large)+`"`) {
		t.Errorf("artifacts.jsonl has %d lines", lines)
	}
	var manifest struct {
		Files []struct{ Name, SHA256 string }
	}
	apptest.NoError(t, json.Unmarshal([]byte(files["manifest.json"]), &manifest))
	for _, f := range manifest.Files {
		if sumOf(files[f.Name]) != f.SHA256 {
			t.Errorf("%s does not have the checksum of the manifest", f.Name)
		}
	}
	if len(manifest.Files) != len(files)-1 {
		t.Errorf("the manifest names %d files of %d", len(manifest.Files), len(files))
	}
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "website"})
	deleted := apptest.Must(t, o.DeleteSession, &pb.DeleteSessionRequest{Name: "website"})
	awaitFiles(w, 0, 1)
	if contentOf(kept, "b", 0) != "shared" {
		t.Error("another session has lost its content")
	}
	got, err := os.ReadFile(filepath.Join(w.Dir(), deleted.Archive, "artifacts", sumOf(large)))
	if err != nil || string(got) != large {
		t.Errorf("the export in the archive has %d bytes, %v", len(got), err)
	}
}
