package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// begun begins an upload of a content and sends its first half.
func (a *actor) begun(ctx context.Context, name string, content []byte) pb.ArtifactService_UploadArtifactClient {
	a.t.Helper()
	stream, err := a.UploadArtifact(ctx)
	must(a.t, err)
	send(a.t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header(name, content)}})
	send(a.t, stream, chunk(content[:len(content)/2]))
	return stream
}

// awaitFiles waits until the folder has so many temporary files and contents.
func (w *world) awaitFiles(temporary, contents int) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		files := w.files()
		partial := len(slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !strings.HasSuffix(name, ".partial") }))
		if partial == temporary && len(files)-partial == contents {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the folder has %v, want %d temporary files and %d contents", files, temporary, contents)
		}
		runtime.Gosched()
	}
}

func TestUpload_BrokenOneLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	ctx, vanish := context.WithCancel(a.ctx)
	a.begun(ctx, "x", make([]byte, 100_000))
	w.awaitFiles(1, 0)
	vanish()
	w.awaitFiles(0, 0)
	_, err := a.GetArtifact(a.ctx, &pb.GetArtifactRequest{Name: "x"})
	refused(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
}

func TestUpload_IdleClientLosesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apptest.WithFakeClock())
	_, err := w.in("default", "a").registry.RegisterAgent(t.Context(), &pb.RegisterAgentRequest{Role: "builder"})
	must(t, err)
	a := w.in("default", "a")
	stream := a.begun(a.ctx, "x", make([]byte, 100_000))
	w.awaitFiles(1, 0)
	ended := make(chan error, 1)
	go func() {
		ended <- stream.RecvMsg(&pb.UploadArtifactResponse{})
	}()
	for { // the second frame may come after an advance, and restarts the time
		w.Clock.Advance(time.Minute)
		select {
		case err := <-ended:
			refused(t, err, codes.DeadlineExceeded, "TRANSFER_IDLE")
			w.awaitFiles(0, 0)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestStop_EndsTransfersAndStartRemovesLeftovers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	a.upload("kept", "1")
	stream := a.begun(a.ctx, "x", make([]byte, 100_000))
	w.awaitFiles(1, 1)
	large := strings.Repeat("x", 8<<20)
	a.upload("large", large)
	download, err := a.DownloadArtifact(a.ctx, &pb.DownloadArtifactRequest{Name: "large"}) // and reads nothing yet
	must(t, err)
	for _, name := range []string{"upload-killed.partial", sumOf("orphan"), "foreign.txt"} {
		must(t, os.WriteFile(filepath.Join(w.Dir(), "artifacts", name), []byte("orphan"), 0o600))
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); w.Restart() }()
	refused(t, stream.RecvMsg(&pb.UploadArtifactResponse{}), codes.Unavailable, "SHUTTING_DOWN")
	for err = nil; err == nil; {
		_, err = download.Recv()
	}
	<-stopped
	if errors.Is(err, io.EOF) {
		t.Error("the download has not noticed the stop")
	}
	want := []string{"foreign.txt", sumOf("1"), sumOf(large)}
	slices.Sort(want)
	if got := w.files(); !slices.Equal(got, want) {
		t.Errorf("after the restart the folder has %v", got)
	}
	if a.content("kept", 0) != "1" {
		t.Error("the artifact is lost")
	}
}

func TestDelete_DownloadUnderWayGetsTheWholeContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.agent("a", "builder")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	_, err := a.try(header("x", content), content)
	must(t, err)
	download, err := a.DownloadArtifact(a.ctx, &pb.DownloadArtifactRequest{Name: "x"})
	must(t, err)
	_, err = download.Recv()
	must(t, err)
	_, err = a.DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: "x"})
	must(t, err)
	w.awaitFiles(0, 0)
	var got bytes.Buffer
	for {
		frame, err := download.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		got.Write(frame.GetChunk())
	}
	if !bytes.Equal(got.Bytes(), content) {
		t.Errorf("the download has %d bytes of %d", got.Len(), len(content))
	}
}

func TestUpload_ConcurrentUploadsAndDeletionsOfOneContentKeepItsFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	content := strings.Repeat("same", 50_000)
	var all sync.WaitGroup
	for i := range 8 {
		a := w.agent(fmt.Sprintf("a-%d", i), "builder")
		all.Go(func() {
			name := fmt.Sprintf("x-%d", i)
			for range 10 {
				out, err := a.try(header(name, []byte(content)), []byte(content))
				if err != nil || a.content(out.GetArtifact().GetName(), 0) != content {
					t.Errorf("upload: %v", err)
					return
				}
				if _, err := a.DeleteArtifact(a.ctx, &pb.DeleteArtifactRequest{Name: name}); err != nil {
					t.Errorf("delete: %v", err)
					return
				}
			}
			if _, err := a.try(header(name, []byte(content)), []byte(content)); err != nil {
				t.Errorf("upload: %v", err)
			}
		})
	}
	all.Wait()
	w.awaitFiles(0, 1)
	if files := w.files(); !slices.Equal(files, []string{sumOf(content)}) {
		t.Errorf("the folder has %v", files)
	}
	out, err := w.operator().ListArtifacts(t.Context(), &pb.ListArtifactsRequest{})
	must(t, err)
	if len(out.Artifacts) != 8 || out.StoredBytes != int64(len(content)) {
		t.Errorf("%d artifacts and %d bytes are stored", len(out.Artifacts), out.StoredBytes)
	}
}

func TestUpload_LimitsOfTheSessionAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.session("small", &pb.SessionSettings{ArtifactLimit: ptr(int64(10)), ArtifactTotalLimit: ptr(int64(15))})
	_, err := o.try(header("x", make([]byte, 11)), nil)
	refused(t, err, codes.ResourceExhausted, "ARTIFACT_TOO_LARGE")
	if !strings.Contains(err.Error(), "artifact_limit") {
		t.Errorf("the limit is not named: %v", err)
	}
	o.upload("x", "0123456789")
	again := header("y", []byte("0123456789"))
	_, err = o.try(again, []byte("0123456789"))
	refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL") // it may be another content
	again.Sha256 = sumOf("0123456789")
	_, err = o.try(again, nil)
	must(t, err) // the same content counts once
	_, err = o.try(header("z", []byte("123456")), []byte("123456"))
	refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL")
	if !strings.Contains(err.Error(), "artifact_total_limit") {
		t.Errorf("the limit is not named: %v", err)
	}
	o.upload("z", "12345")
	for _, name := range []string{"x", "y"} {
		_, err = o.DeleteArtifact(o.ctx, &pb.DeleteArtifactRequest{Name: name})
		must(t, err)
	}
	o.upload("z", "9876543210")
}

func TestUpload_CountsFromItsHeaderOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.session("small", &pb.SessionSettings{ArtifactTotalLimit: ptr(int64(1 << 20))})
	content := bytes.Repeat([]byte("x"), 700_000)
	begin := func(h *pb.ArtifactHeader) pb.ArtifactService_UploadArtifactClient {
		stream, err := o.UploadArtifact(o.ctx)
		must(t, err)
		send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}})
		return stream
	}
	for range 6 {
		_, err := begin(&pb.ArtifactHeader{Name: "huge", Size: 4_000_000_000}).CloseAndRecv()
		refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL")
	}
	if files := w.files(); len(files) > 0 {
		t.Errorf("refused uploads have left %v", files)
	}

	first := begin(header("first", content))
	send(t, first, chunk(content[:1]))
	w.awaitFiles(1, 0)
	_, err := begin(header("second", content)).CloseAndRecv()
	refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL")
	_, err = o.try(header("second", content[:300_000]), content[:300_000]) // fits beside the first
	must(t, err)
	must(t, first.CloseSend()) // it lacks most of its content
	_, err = first.CloseAndRecv()
	refused(t, err, codes.InvalidArgument, "SIZE_MISMATCH")
	w.awaitFiles(0, 1)
	_, err = o.try(header("third", content), content) // the space of the first is free again
	must(t, err)
}

// The fake clock stands still, so the look every 10 s does not count.
func TestUpload_FillsADiskToItsLimitOnly(t *testing.T) {
	t.Parallel()
	var fs unix.Statfs_t
	must(t, unix.Statfs(t.TempDir(), &fs))
	const size = 2_000_000
	bytes := float64(fs.Bsize) * float64(fs.Blocks-fs.Bfree+fs.Bavail)
	var used atomic.Value
	used.Store(0.5)
	w := newWorld(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return used.Load().(float64), nil }
	}))
	o := w.operator()
	content := make([]byte, size)
	used.Store(0.95 - size/2/bytes)
	_, err := o.try(header("too large", content), content)
	refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	used.Store(0.95 - 2*size/bytes) // a quarter of the rest is half the upload
	stream, err := o.UploadArtifact(o.ctx)
	must(t, err)
	send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header("x", content)}})
	send(t, stream, chunk(content[:100_000]))
	w.awaitFiles(1, 0)
	used.Store(0.96)
	for at := 100_000; at < size && send(t, stream, chunk(content[at:at+100_000])); at += 100_000 {
	}
	_, err = stream.CloseAndRecv()
	refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	w.awaitFiles(0, 0)
}

func TestUpload_FullDiskRefusesIt(t *testing.T) {
	t.Parallel()
	used := 0.5
	w := newWorld(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return used, nil }
	}))
	o := w.operator()
	o.upload("x", "1")
	used = 0.96
	w.Clock.Advance(10 * time.Second)
	_, err := o.try(header("y", []byte("2")), []byte("2"))
	refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	if o.content("x", 0) != "1" {
		t.Error("reading has ended too")
	}
}

func TestUpload_NeedsAnOpenSessionAndARegisteredAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.in("default", "stranger").try(header("x", []byte("1")), []byte("1"))
	refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	o := w.session("short", nil)
	o.upload("x", "1")
	_, err = o.sessions.CloseSession(o.ctx, &pb.CloseSessionRequest{Name: "short"})
	must(t, err)
	_, err = o.try(header("x", []byte("2")), []byte("2"))
	refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	_, err = o.DeleteArtifact(o.ctx, &pb.DeleteArtifactRequest{Name: "x"})
	refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	if o.content("x", 0) != "1" {
		t.Error("a closed session cannot be read")
	}
}

func ptr[T any](v T) *T { return &v }
