package artifacts_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"brokerd/client"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/postgrestest"
	"brokerd/internal/processtest"
	"brokerd/internal/testkit"
)

// started returns a daemon in a process, and a client of it.
func started(t *testing.T) (*processtest.Daemon, *client.Client) {
	t.Helper()
	d := processtest.New(t, processtest.Build(t))
	if url := testkit.Postgres(t, d.Dir(), app.Migrations()); url != "" {
		d.Args = []string{"--store", url}
	}
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	t.Cleanup(cancel)
	apptest.NoError(t, d.Start(ctx))
	c, err := client.Dial(ctx, client.WithAddress(d.Address()))
	apptest.NoError(t, err)
	t.Cleanup(c.Close)
	return d, c
}

func TestUpload_KilledDaemonLeavesNothingPartial(t *testing.T) {
	t.Parallel()
	d, c := started(t)
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	stream, err := c.Artifacts().UploadArtifact(t.Context())
	apptest.NoError(t, err)
	send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header("x", content)}})
	for from := 0; from < 300_000; from += 100_000 {
		send(t, stream, chunk(content[from:from+100_000]))
	}
	files := func() []string {
		t.Helper()
		if url := postgrestest.Of(d.Dir()); url != "" {
			return execute(t, url, selectNames)
		}
		found, err := filepath.Glob(filepath.Join(d.Dir(), "artifacts", "*"))
		apptest.NoError(t, err)
		return found
	}
	for deadline := time.Now().Add(apptest.Patience); len(files()) == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the upload has no file")
		}
	}
	d.Kill()
	if _, err := stream.CloseAndRecv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the upload ends with %v", err)
	}
	if found := files(); len(found) != 1 || !strings.HasSuffix(found[0], ".partial") {
		t.Errorf("the killed daemon leaves %v", found)
	}
	apptest.NoError(t, d.Start(t.Context()))
	if found := files(); len(found) != 0 {
		t.Errorf("after the start the folder has %v", found)
	}
	ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
	defer cancel()
	out, err := c.UploadArtifact(ctx, &pb.ArtifactHeader{Name: "x"}, bytes.NewReader(content), nil)
	if err != nil || out.GetArtifact().GetVersion() != 1 || out.GetSkipped() {
		t.Errorf("the repeated upload is %v, %v", out, err)
	}
	again, err := c.UploadArtifact(ctx, &pb.ArtifactHeader{Name: "y"}, bytes.NewReader(content), nil)
	if err != nil || !again.GetSkipped() {
		t.Errorf("the same content again is %v, %v", again, err)
	}
	apptest.NoError(t, d.Terminate())
	if d.Args == nil {
		apptest.NoError(t, d.Check(ctx))
	}
}

// pattern is a content of any size that no compression and no buffer shortens.
type pattern struct {
	*io.SectionReader
}

type patternAt struct{}

// ReadAt implements io.ReaderAt.
func (patternAt) ReadAt(p []byte, at int64) (int, error) {
	for i := range p {
		n := uint64(at + int64(i))
		p[i] = byte(n) ^ byte(n>>8) ^ byte(n>>16) ^ byte(n>>24)
	}
	return len(p), nil
}

// TestTransfers_TakeLittleMemory transfers 128 MiB, or ARTIFACT_MIB.
func TestTransfers_TakeLittleMemory(t *testing.T) {
	t.Parallel()
	mib := int64(128)
	if s := os.Getenv("ARTIFACT_MIB"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		apptest.NoError(t, err)
		mib = n
	}
	d, c := started(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*apptest.Patience)
	defer cancel()
	idle := memory(t, d, "VmRSS")
	content := pattern{io.NewSectionReader(patternAt{}, 0, mib<<20)}
	_, err := c.UploadArtifact(ctx, &pb.ArtifactHeader{Name: "large"}, content, nil)
	apptest.NoError(t, err)
	sum := fnv.New64a()
	v, err := c.DownloadArtifact(ctx, &pb.DownloadArtifactRequest{Name: "large"}, sum, nil) // compares the hash
	apptest.NoError(t, err)
	peak := memory(t, d, "VmHWM")
	t.Logf("%d MiB up and down: %d MiB of memory when idle, %d MiB at the peak", mib, idle>>20, peak>>20)
	if v.GetSize() != mib<<20 || peak-idle > 64<<20 {
		t.Errorf("%d bytes took %d MiB above idle", v.GetSize(), (peak-idle)>>20)
	}
}

// memory reads a field of the daemon's status, in bytes.
func memory(t *testing.T, d *processtest.Daemon, field string) int64 {
	t.Helper()
	pid, err := os.ReadFile(filepath.Join(d.Dir(), "brokerd.lock"))
	apptest.NoError(t, err)
	text, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "status"))
	apptest.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), field+":")
	var kib int64
	_, err = fmt.Sscan(rest, &kib)
	apptest.NoError(t, err)
	return kib << 10
}
