package app_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
)

// A removal is a daemon that archives what is finished, and stops between the archive and the removal.
type removal struct {
	*apptest.Broker
	t        *testing.T
	ctx      context.Context
	lead     grpc.ClientConnInterface
	builder  grpc.ClientConnInterface
	operator grpc.ClientConnInterface

	armed     atomic.Pointer[string] // the kind after whose archive the keeper waits; nil = none
	reached   chan struct{}          // has a value when it waits
	proceeded chan struct{}
}

const (
	project  = "project" // the session of a removal
	retained = time.Hour // how long it keeps finished data
)

func newRemoval(t *testing.T) *removal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*apptest.Patience)
	t.Cleanup(cancel)
	r := &removal{t: t, ctx: ctx, reached: make(chan struct{}), proceeded: make(chan struct{})}
	r.Broker = apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) { c.OnArchived(r.archived) }))
	r.lead, r.builder, r.operator = r.In(project, "lead"), r.In(project, "builder"), r.In(project, "")
	_, err := pb.NewSessionServiceClient(r.Operator()).CreateSession(ctx, &pb.CreateSessionRequest{
		Name:     project,
		Settings: &pb.SessionSettings{MessageRetention: durationpb.New(retained), DeadLetterRetention: durationpb.New(retained)},
	})
	succeed(t, err)
	for role, conn := range map[string]grpc.ClientConnInterface{"lead": r.lead, "builder": r.builder} {
		_, err := pb.NewAgentServiceClient(conn).RegisterAgent(ctx,
			&pb.RegisterAgentRequest{Role: role, Lease: durationpb.New(apptest.LongLease)})
		succeed(t, err)
	}
	return r
}

func (r *removal) archived(kind string) {
	if armed := r.armed.Load(); armed == nil || *armed != kind || !r.armed.CompareAndSwap(armed, nil) {
		return
	}
	for _, step := range []chan struct{}{r.reached, r.proceeded} {
		select {
		case step <- struct{}{}:
		case <-r.ctx.Done():
		}
	}
}

// between lets the time pass until the keeper has archived data of the kind, and calls fn before it is
// removed. The time stands meanwhile.
func (r *removal) between(kind string, fn func()) {
	r.t.Helper()
	r.armed.Store(&kind)
	r.advance(func() bool {
		select {
		case <-r.reached:
			return true
		default:
			return false
		}
	})
	fn()
	<-r.proceeded
}

// advance lets the time pass until done reports true.
func (r *removal) advance(done func() bool) {
	r.t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
			r.Clock.Advance(retained / 8)
		case <-r.ctx.Done():
			r.t.Fatal("the time has expired")
		}
	}
}

// finish waits until the keeper has ended what it does. A prune waits for that too, for as long as a request
// may take.
func (r *removal) finish() {
	r.t.Helper()
	ended := make(chan error, 1)
	go func() {
		for {
			_, err := pb.NewAdminServiceClient(r.operator).PruneData(r.ctx,
				&pb.PruneDataRequest{OlderThan: durationpb.New(10 * 365 * 24 * time.Hour), DryRun: true})
			if status.Code(err) != codes.DeadlineExceeded {
				ended <- err
				return
			}
		}
	}()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			succeed(r.t, err)
			return
		case <-ticker.C:
			r.Clock.Advance(time.Second) // the longest rest of the keeper
		}
	}
}

// exists reports whether the API has data of a kind.
func (r *removal) exists(kind kept, id string) bool {
	r.t.Helper()
	_, err := kind.get(r, id)
	if err != nil && status.Code(err) != codes.NotFound {
		r.t.Fatal(err)
	}
	return err == nil
}

func TestRemoval_KeepsDataThatHasChangedSinceItWasArchived(t *testing.T) {
	t.Parallel()
	for name, kind := range kinds() {
		if kind.finish == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRemoval(t)
			id := kind.finish(r)
			r.between(name, func() { kind.change(r, id) })
			r.finish()
			if !r.exists(kind, id) && kind.changed == "" {
				t.Fatalf("%s %s was removed although it had changed", name, id)
			}
			if kind.end != nil {
				kind.end(r, id)
			}
			r.advance(func() bool { return !r.exists(kind, id) })
			if text := r.archive(name); !strings.Contains(text, kind.changed) {
				t.Errorf("the archive lacks %s: %s", kind.changed, text)
			}
		})
	}
}

// archive returns the lines of the archive files of a kind.
func (r *removal) archive(kind string) string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.Dir(), "archive", project, kind+"-*"))
	succeed(r.t, err)
	var all strings.Builder
	for _, file := range files {
		f, err := os.Open(file)
		succeed(r.t, err)
		z, err := gzip.NewReader(f)
		succeed(r.t, err)
		_, err = io.Copy(&all, z)
		succeed(r.t, errors.Join(err, f.Close()))
	}
	return all.String()
}

// drop claims and acknowledges the mail of an agent.
func (r *removal) drop(agent string) {
	r.t.Helper()
	messages := pb.NewMessageServiceClient(r.In(project, agent))
	out, err := messages.ClaimMessages(r.ctx, &pb.ClaimMessagesRequest{Max: 100})
	succeed(r.t, err)
	for _, c := range out.GetClaims() {
		_, err := messages.AckMessages(r.ctx, &pb.AckMessagesRequest{Ids: []string{c.GetClaimId()}})
		succeed(r.t, err)
	}
}

func (r *removal) upload(name, content string) {
	r.t.Helper()
	stream, err := pb.NewArtifactServiceClient(r.lead).UploadArtifact(r.ctx)
	succeed(r.t, err)
	header := &pb.ArtifactHeader{Name: name, Size: int64(len(content))}
	succeed(r.t, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header}}))
	succeed(r.t, stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: []byte(content)}}))
	_, err = stream.CloseAndRecv()
	succeed(r.t, err)
}

// succeed fails the test for an error.
func succeed(t testing.TB, err error) {
	t.Helper()
	apptest.NoError(t, err)
}
