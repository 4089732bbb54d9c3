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
)

// exported returns the files of an export.
func (a *actor) exported() map[string]string {
	a.t.Helper()
	stream, err := a.sessions.ExportSession(a.ctx, &pb.ExportSessionRequest{})
	must(a.t, err)
	files := map[string]*bytes.Buffer{}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(a.t, err)
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
	w := newWorld(t)
	o := w.session("website", nil)
	large := strings.Repeat("0123456789", 30_000)
	o.upload("large", large)
	o.upload("empty", "")
	o.upload("a", "shared")
	kept := w.operator()
	kept.upload("b", "shared")
	files := o.exported()
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
	must(t, json.Unmarshal([]byte(files["manifest.json"]), &manifest))
	for _, f := range manifest.Files {
		if sumOf(files[f.Name]) != f.SHA256 {
			t.Errorf("%s does not have the checksum of the manifest", f.Name)
		}
	}
	if len(manifest.Files) != len(files)-1 {
		t.Errorf("the manifest names %d files of %d", len(manifest.Files), len(files))
	}
	_, err := o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "website"})
	must(t, err)
	deleted, err := o.sessions.DeleteSession(o.ctx, &pb.DeleteSessionRequest{Name: "website"})
	must(t, err)
	w.awaitFiles(0, 1)
	if kept.content("b", 0) != "shared" {
		t.Error("another session has lost its content")
	}
	got, err := os.ReadFile(filepath.Join(w.Dir(), deleted.Archive, "artifacts", sumOf(large)))
	if err != nil || string(got) != large {
		t.Errorf("the export in the archive has %d bytes, %v", len(got), err)
	}
}
