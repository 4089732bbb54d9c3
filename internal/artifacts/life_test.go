package artifacts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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

// begun begins an upload of a content and sends its first half, which must be more than a chunk.
func begun(ctx context.Context, a *apptest.Actor, name string, content []byte) pb.ArtifactService_UploadArtifactClient {
	a.Helper()
	stream, err := a.UploadArtifact(ctx)
	apptest.NoError(a, err)
	send(a, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header(name, content)}})
	for half := content[:len(content)/2]; len(half) > 0; {
		n := min(len(half), 100_000)
		send(a, stream, chunk(half[:n]))
		half = half[n:]
	}
	return stream
}

// awaitFiles waits until the folder has so many temporary files and contents.
func awaitFiles(w *apptest.Broker, temporary, contents int) {
	w.Helper()
	for deadline := time.Now().Add(apptest.Patience); ; {
		files := files(w)
		partial := len(slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !strings.HasSuffix(name, ".partial") }))
		if partial == temporary && len(files)-partial == contents {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("the folder has %v, want %d temporary files and %d contents", files, temporary, contents)
		}
		runtime.Gosched()
	}
}

func TestUpload_BrokenOneLeavesNothing(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "builder")
	ctx, vanish := context.WithCancel(a.Ctx)
	begun(ctx, a, "x", make([]byte, 600_000))
	awaitFiles(w, 1, 0)
	vanish()
	awaitFiles(w, 0, 0)
	apptest.Refuses(t, a.GetArtifact, &pb.GetArtifactRequest{Name: "x"}, codes.NotFound, "ARTIFACT_NOT_FOUND")
}

func TestUpload_IdleClientLosesIt(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.WithFakeClock())
	a := w.Actor("default", "a")
	apptest.Must(t, a.RegisterAgent, &pb.RegisterAgentRequest{Role: "builder"})
	stream := begun(a.Ctx, a, "x", make([]byte, 600_000))
	awaitFiles(w, 1, 0)
	ended := make(chan error, 1)
	go func() {
		ended <- stream.RecvMsg(&pb.UploadArtifactResponse{})
	}()
	for { // the second frame may come after an advance, and restarts the time
		w.Clock.Advance(time.Minute)
		select {
		case err := <-ended:
			apptest.Refused(t, err, codes.DeadlineExceeded, "TRANSFER_IDLE")
			awaitFiles(w, 0, 0)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func TestStop_EndsTransfersAndStartRemovesLeftovers(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.With(func(c *app.Config) { c.StopTimeout = apptest.Patience }))
	a := w.Agent("a", "builder")
	upload(a, "kept", "1")
	stream := begun(a.Ctx, a, "x", make([]byte, 600_000))
	awaitFiles(w, 1, 1)
	large := strings.Repeat("x", 8<<20)
	upload(a, "large", large)
	download, err := a.DownloadArtifact(a.Ctx, &pb.DownloadArtifactRequest{Name: "large"}) // and reads nothing yet
	apptest.NoError(t, err)
	for _, name := range []string{"upload-killed.partial", sumOf("orphan"), "foreign.txt"} {
		plant(w, name, "orphan")
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); w.Restart() }()
	apptest.Refused(t, stream.RecvMsg(&pb.UploadArtifactResponse{}), codes.Unavailable, "SHUTTING_DOWN")
	for err = nil; err == nil; {
		_, err = download.Recv()
	}
	<-stopped
	if errors.Is(err, io.EOF) {
		t.Error("the download has not noticed the stop")
	}
	want := []string{"foreign.txt", sumOf("1"), sumOf(large)}
	slices.Sort(want)
	if got := files(w); !slices.Equal(got, want) {
		t.Errorf("after the restart the folder has %v", got)
	}
	if contentOf(a, "kept", 0) != "1" {
		t.Error("the artifact is lost")
	}
}

func TestDelete_DownloadUnderWayGetsTheWholeContent(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	a := w.Agent("a", "builder")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	_, err := try(a, header("x", content), content)
	apptest.NoError(t, err)
	download, err := a.DownloadArtifact(a.Ctx, &pb.DownloadArtifactRequest{Name: "x"})
	apptest.NoError(t, err)
	_, err = download.Recv()
	apptest.NoError(t, err)
	apptest.Must(t, a.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x"})
	if !onServer(w) { // where the chunks stay until the download ends
		awaitFiles(w, 0, 0)
	}
	var got bytes.Buffer
	for {
		frame, err := download.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		apptest.NoError(t, err)
		got.Write(frame.GetChunk())
	}
	if !bytes.Equal(got.Bytes(), content) {
		t.Errorf("the download has %d bytes of %d", got.Len(), len(content))
	}
	awaitFiles(w, 0, 0)
}

func TestUpload_ConcurrentUploadsAndDeletionsOfOneContentKeepItsFile(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	content := strings.Repeat("same", 50_000)
	var all sync.WaitGroup
	for i := range 8 {
		a := w.Agent(fmt.Sprintf("a-%d", i), "builder")
		all.Go(func() {
			name := fmt.Sprintf("x-%d", i)
			for range 10 {
				out, err := try(a, header(name, []byte(content)), []byte(content))
				if err != nil || contentOf(a, out.GetArtifact().GetName(), 0) != content {
					t.Errorf("upload: %v", err)
					return
				}
				if _, err := a.DeleteArtifact(a.Ctx, &pb.DeleteArtifactRequest{Name: name}); err != nil {
					t.Errorf("delete: %v", err)
					return
				}
			}
			if _, err := try(a, header(name, []byte(content)), []byte(content)); err != nil {
				t.Errorf("upload: %v", err)
			}
		})
	}
	all.Wait()
	awaitFiles(w, 0, 1)
	if files := files(w); !slices.Equal(files, []string{sumOf(content)}) {
		t.Errorf("the folder has %v", files)
	}
	out := apptest.Must(t, w.Root().ListArtifacts, &pb.ListArtifactsRequest{})
	if len(out.Artifacts) != 8 || out.StoredBytes != int64(len(content)) {
		t.Errorf("%d artifacts and %d bytes are stored", len(out.Artifacts), out.StoredBytes)
	}
}

func TestUpload_LimitsOfTheSessionAreNamed(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	o := w.Session("small", &pb.SessionSettings{ArtifactLimit: new(int64(10)), ArtifactTotalLimit: new(int64(15))})
	_, err := try(o, header("x", make([]byte, 11)), nil)
	apptest.Refused(t, err, codes.ResourceExhausted, "ARTIFACT_TOO_LARGE")
	if !strings.Contains(err.Error(), "artifact_limit") {
		t.Errorf("the limit is not named: %v", err)
	}
	upload(o, "x", "0123456789")
	again := header("y", []byte("0123456789"))
	_, err = try(o, again, []byte("0123456789"))
	apptest.Refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL") // it may be another content
	again.Sha256 = sumOf("0123456789")
	_, err = try(o, again, nil)
	apptest.NoError(t, err) // the same content counts once
	_, err = try(o, header("z", []byte("123456")), []byte("123456"))
	apptest.Refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL")
	if !strings.Contains(err.Error(), "artifact_total_limit") {
		t.Errorf("the limit is not named: %v", err)
	}
	upload(o, "z", "12345")
	for _, name := range []string{"x", "y"} {
		apptest.Must(t, o.DeleteArtifact, &pb.DeleteArtifactRequest{Name: name})
	}
	upload(o, "z", "9876543210")
}

func TestUpload_CountsFromItsHeaderOn(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	o := w.Session("small", &pb.SessionSettings{ArtifactTotalLimit: new(int64(1 << 20))})
	content := bytes.Repeat([]byte("x"), 700_000)
	begin := func(h *pb.ArtifactHeader) pb.ArtifactService_UploadArtifactClient {
		stream, err := o.UploadArtifact(o.Ctx)
		apptest.NoError(t, err)
		send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}})
		return stream
	}
	for range 6 {
		_, err := begin(&pb.ArtifactHeader{Name: "huge", Size: 4_000_000_000}).CloseAndRecv()
		apptest.Refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL")
	}
	if files := files(w); len(files) > 0 {
		t.Errorf("refused uploads have left %v", files)
	}

	first := begin(header("first", content))
	for from := 0; from < 300_000; from += 100_000 {
		send(t, first, chunk(content[from:from+100_000]))
	}
	awaitFiles(w, 1, 0)
	_, err := begin(header("second", content)).CloseAndRecv()
	apptest.Refused(t, err, codes.ResourceExhausted, "ARTIFACTS_FULL")
	_, err = try(o, header("second", content[:300_000]), content[:300_000]) // fits beside the first
	apptest.NoError(t, err)
	apptest.NoError(t, first.CloseSend()) // it lacks most of its content
	apptest.Refused(t, apptest.Err(first.CloseAndRecv()), codes.InvalidArgument, "SIZE_MISMATCH")
	awaitFiles(w, 0, 1)
	_, err = try(o, header("third", content), content) // the space of the first is free again
	apptest.NoError(t, err)
}

// The fake clock stands still, so the look every 10 s does not count.
func TestUpload_FillsADiskToItsLimitOnly(t *testing.T) {
	t.Parallel()
	var fs unix.Statfs_t
	apptest.NoError(t, unix.Statfs(t.TempDir(), &fs))
	const size = 2_000_000
	bytes := float64(fs.Bsize) * float64(fs.Blocks-fs.Bfree+fs.Bavail)
	var used atomic.Value
	used.Store(0.5)
	w := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return used.Load().(float64), nil }
	}))
	if onServer(w) {
		t.Skip("the contents are on the disk of the database")
	}
	o := w.Root()
	content := make([]byte, size)
	used.Store(0.95 - size/2/bytes)
	_, err := try(o, header("too large", content), content)
	apptest.Refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	used.Store(0.95 - 2*size/bytes) // a quarter of the rest is half the upload
	stream, err := o.UploadArtifact(o.Ctx)
	apptest.NoError(t, err)
	send(t, stream, &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header("x", content)}})
	send(t, stream, chunk(content[:100_000]))
	awaitFiles(w, 1, 0)
	used.Store(0.96)
	for at := 100_000; at < size && send(t, stream, chunk(content[at:at+100_000])); at += 100_000 {
	}
	apptest.Refused(t, apptest.Err(stream.CloseAndRecv()), codes.ResourceExhausted, "DISK_NEARLY_FULL")
	awaitFiles(w, 0, 0)
}

func TestUpload_FullDiskRefusesIt(t *testing.T) {
	t.Parallel()
	used := 0.5
	w := apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return used, nil }
	}))
	if onServer(w) {
		t.Skip("the contents are on the disk of the database")
	}
	o := w.Root()
	upload(o, "x", "1")
	used = 0.96
	w.Clock.Advance(10 * time.Second)
	_, err := try(o, header("y", []byte("2")), []byte("2"))
	apptest.Refused(t, err, codes.ResourceExhausted, "DISK_NEARLY_FULL")
	if contentOf(o, "x", 0) != "1" {
		t.Error("reading has ended too")
	}
}

func TestUpload_NeedsAnOpenSessionAndARegisteredAgent(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t)
	_, err := try(w.Actor("default", "stranger"), header("x", []byte("1")), []byte("1"))
	apptest.Refused(t, err, codes.FailedPrecondition, "AGENT_NOT_REGISTERED")
	o := w.Session("short", nil)
	upload(o, "x", "1")
	apptest.Must(t, o.CloseSession, &pb.CloseSessionRequest{Name: "short"})
	_, err = try(o, header("x", []byte("2")), []byte("2"))
	apptest.Refused(t, err, codes.FailedPrecondition, "SESSION_CLOSED")
	apptest.Refuses(t, o.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "x"},
		codes.FailedPrecondition, "SESSION_CLOSED")
	if contentOf(o, "x", 0) != "1" {
		t.Error("a closed session cannot be read")
	}
}
