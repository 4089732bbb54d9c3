package artifacts_test

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/jonboulle/clockwork"
	"go.uber.org/zap"
	"golang.org/x/text/unicode/norm"
	"google.golang.org/grpc"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/artifacts"
	"brokerd/internal/directory"
	"brokerd/internal/events"
	"brokerd/internal/idempotency"
	"brokerd/internal/sessions"
	"brokerd/internal/testkit"
	"brokerd/internal/work"
)

// The bounds are those of artifact.proto.

func FuzzUploadHeader(f *testing.F) {
	s := fuzzed(f)
	upload := func(ctx context.Context, h *pb.ArtifactHeader) (*pb.UploadArtifactResponse, error) {
		return nil, s.UploadArtifact(&oneFrame{ctx: ctx, frame: &pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: h}}})
	}
	testkit.Fuzz(f, upload, func(b *testkit.Bounds, h *pb.ArtifactHeader) {
		wantPath(b, h.Name)
		b.Holds(!strings.ContainsAny(h.Name, "*?") && !strings.HasSuffix(h.Name, "/") && !versioned.MatchString(h.Name), "name", h.Name)
		wantHash(b, h.Sha256)
	}, &pb.ArtifactHeader{Name: "a/b.md", Size: 7, Sha256: strings.Repeat("aB", 32), MediaType: "text/plain", Description: "d", Labels: map[string]string{"k": "v"}, TaskId: "t", Announce: true},
		&pb.ArtifactHeader{Name: strings.Repeat("\u0958", 341)}, // NFC doubles it
		&pb.ArtifactHeader{Name: "../a*", Size: -1, Sha256: "x"}, &pb.ArtifactHeader{Name: "a@3"})
}

func FuzzDownloadArtifact(f *testing.F) {
	s := fuzzed(f)
	download := func(ctx context.Context, r *pb.DownloadArtifactRequest) (*pb.DownloadArtifactResponse, error) {
		return nil, s.DownloadArtifact(r, noFrames{ctx: ctx})
	}
	testkit.Fuzz(f, download, func(b *testkit.Bounds, r *pb.DownloadArtifactRequest) {
		if r.Sha256 == "" {
			wantPath(b, r.Name)
		} else {
			b.Holds(r.Name == "" && r.Version == 0, "name and hash")
		}
		wantHash(b, r.Sha256)
	}, &pb.DownloadArtifactRequest{Name: "a/b", Version: 3, Offset: 7, Length: 9}, &pb.DownloadArtifactRequest{Sha256: strings.Repeat("0f", 32)},
		&pb.DownloadArtifactRequest{Name: "a", Sha256: "0", Version: -1, Offset: -1, Length: -1})
}

var (
	versioned = regexp.MustCompile(`@0*[1-9][0-9]{0,17}\z`)
	hash      = regexp.MustCompile(`\A[0-9a-fA-F]{64}\z`)
)

func wantHash(b *testkit.Bounds, s string) {
	b.Helper()
	b.Holds(s == "" || hash.MatchString(s), "hash", s)
}

func wantPath(b *testkit.Bounds, s string) {
	b.Helper()
	s = norm.NFC.String(s)
	b.Required(s)
	b.Line(1024, s)
	b.Holds(s[0] != '/' && !strings.Contains(s, `\`) && !strings.Contains(s, "//") && !strings.Contains("/"+s+"/", "/../") && !strings.Contains("/"+s+"/", "/./"), "path", s)
}

// oneFrame is an upload with one frame.
type oneFrame struct {
	grpc.ClientStreamingServer[pb.UploadArtifactRequest, pb.UploadArtifactResponse]
	ctx   context.Context
	frame *pb.UploadArtifactRequest
}

// Context implements grpc.ServerStream.
func (s *oneFrame) Context() context.Context { return s.ctx }

// Recv implements grpc.ClientStreamingServer.
func (s *oneFrame) Recv() (*pb.UploadArtifactRequest, error) {
	next := s.frame
	if s.frame = nil; next == nil {
		return nil, io.EOF
	}
	return next, nil
}

// noFrames is a download on which the service sends nothing.
type noFrames struct {
	grpc.ServerStreamingServer[pb.DownloadArtifactResponse]
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s noFrames) Context() context.Context { return s.ctx }

// fuzzed returns the service of artifacts without sessions.
func fuzzed(f *testing.F) *artifacts.Service {
	clock := clockwork.NewRealClock()
	dir := f.TempDir()
	st := testkit.Store(f, dir, clock, events.Migrations(), idempotency.Migrations(), sessions.Migrations(), artifacts.Migrations())
	r, err := artifacts.New(&work.Desk{
		Store: st, Events: events.New(st, clock, zap.NewNop()), Directory: directory.New(), Clock: clock, Log: zap.NewNop(),
	}, artifacts.Options{Dir: dir})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := r.Stop(); err != nil {
			f.Error(err)
		}
	})
	return r
}
