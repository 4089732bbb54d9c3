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

// retained is how long the session of a removal keeps finished data.
const retained = time.Hour

func newRemoval(t *testing.T) *removal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*apptest.Patience)
	t.Cleanup(cancel)
	r := &removal{t: t, ctx: ctx, reached: make(chan struct{}), proceeded: make(chan struct{})}
	r.Broker = apptest.Start(t, apptest.WithFakeClock(), apptest.With(func(c *app.Config) { c.OnArchived(r.archived) }))
	r.lead, r.builder, r.operator = r.Registered("lead", "lead"), r.Registered("builder", "builder"), r.Operator()
	_, err := pb.NewSessionServiceClient(r.operator).ConfigureSession(ctx, &pb.ConfigureSessionRequest{
		Settings: &pb.SessionSettings{MessageRetention: durationpb.New(retained), DeadLetterRetention: durationpb.New(retained)},
	})
	succeed(t, err)
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

// exists calls a method that reads one object.
func exists[R any](r *removal, read func(context.Context) (R, error)) bool {
	r.t.Helper()
	_, err := read(r.ctx)
	if err != nil && status.Code(err) != codes.NotFound {
		r.t.Fatal(err)
	}
	return err == nil
}

// A removable kind is finished work that the keeper archives and removes.
type removable struct {
	final  string                       // why it cannot change once it is finished; empty = it can
	make   func(r *removal) (id string) // finished
	change func(r *removal, id string)  // so that the keeper must not remove it as it was
	exists func(r *removal, id string) bool
	end    func(r *removal, id string) // finishes it again; nil = it is finished

	archived string // a text that the archive must have, since the change has made it
}

func removables() map[string]removable {
	type ctxt = context.Context
	return map[string]removable{
		"tasks": {
			make: func(r *removal) string {
				tasks := pb.NewTaskServiceClient(r.builder)
				out, err := tasks.CreateTasks(r.ctx, &pb.CreateTasksRequest{Tasks: []*pb.NewTask{{Title: "t"}}})
				succeed(r.t, err)
				id := out.GetTasks()[0].GetId()
				claim, err := tasks.ClaimTask(r.ctx, &pb.ClaimTaskRequest{TaskId: id})
				succeed(r.t, err)
				_, err = tasks.FailTask(r.ctx, &pb.FailTaskRequest{TaskId: id, Fence: claim.GetTask().GetFence(), Error: "e", Fatal: true})
				succeed(r.t, err)
				return id
			},
			change: func(r *removal, id string) {
				_, err := pb.NewTaskServiceClient(r.builder).RetryTask(r.ctx, &pb.RetryTaskRequest{TaskId: id})
				succeed(r.t, err)
			},
			exists: func(r *removal, id string) bool {
				return exists(r, func(ctx ctxt) (*pb.GetTaskResponse, error) {
					return pb.NewTaskServiceClient(r.builder).GetTask(ctx, &pb.GetTaskRequest{TaskId: id})
				})
			},
			end: func(r *removal, id string) {
				_, err := pb.NewTaskServiceClient(r.builder).CancelTask(r.ctx, &pb.CancelTaskRequest{TaskId: id})
				succeed(r.t, err)
			},
		},
		"decisions": {final: "no call changes a decision that is decided or cancelled"},
		"blockers":  {final: "no call changes a blocker that is resolved"},
		"votes":     {final: "no call changes a vote that is closed"},
		"handoffs": {
			make: func(r *removal) string {
				out, err := pb.NewHandoffServiceClient(r.lead).CreateHandoff(r.ctx,
					&pb.CreateHandoffRequest{Title: "h", ToAgent: "builder", Checklist: []string{"one"}})
				succeed(r.t, err)
				id := out.GetHandoff().GetId()
				_, err = pb.NewHandoffServiceClient(r.builder).AcceptHandoff(r.ctx, &pb.AcceptHandoffRequest{Id: id})
				succeed(r.t, err)
				return id
			},
			change: func(r *removal, id string) {
				_, err := pb.NewHandoffServiceClient(r.builder).CheckHandoffItem(r.ctx, &pb.CheckHandoffItemRequest{Id: id, Number: 1})
				succeed(r.t, err)
			},
			exists: func(r *removal, id string) bool {
				return exists(r, func(ctx ctxt) (*pb.GetHandoffResponse, error) {
					return pb.NewHandoffServiceClient(r.builder).GetHandoff(ctx, &pb.GetHandoffRequest{Id: id})
				})
			},
			archived: `"checked_by":"builder"`,
		},
		"artifacts": {
			make: func(r *removal) string {
				r.upload("a.txt", "one")
				r.upload("a.txt", "two")
				return "a.txt"
			},
			change: func(r *removal, id string) {
				_, err := pb.NewMessageServiceClient(r.lead).SendMessages(r.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
					Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}, Type: "inform", Artifacts: []string{id + "@1"},
				}}})
				succeed(r.t, err)
			},
			exists: func(r *removal, id string) bool {
				return exists(r, func(ctx ctxt) (*pb.GetArtifactResponse, error) {
					return pb.NewArtifactServiceClient(r.builder).GetArtifact(ctx, &pb.GetArtifactRequest{Name: id, Version: 1})
				})
			},
			end: func(r *removal, _ string) { r.drop("builder") },
		},
		"messages": {
			make: func(r *removal) string {
				out, err := pb.NewMessageServiceClient(r.lead).SendMessages(r.ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
					Target: &pb.Target{To: &pb.Target_Agent{Agent: "builder"}}, Type: "inform",
				}}})
				succeed(r.t, err)
				messages := pb.NewMessageServiceClient(r.builder)
				claims, err := messages.ClaimMessages(r.ctx, &pb.ClaimMessagesRequest{})
				succeed(r.t, err)
				_, err = messages.NackMessages(r.ctx, &pb.NackMessagesRequest{
					Nacks: []*pb.Nack{{ClaimId: claims.GetClaims()[0].GetClaimId(), Error: "e", Fatal: true}},
				})
				succeed(r.t, err)
				return out.GetResults()[0].GetId()
			},
			change: func(r *removal, id string) {
				_, err := pb.NewMessageServiceClient(r.operator).RedriveDeadLetters(r.ctx, &pb.RedriveDeadLettersRequest{Ids: []string{id}})
				succeed(r.t, err)
			},
			exists: func(r *removal, id string) bool {
				return exists(r, func(ctx ctxt) (*pb.GetMessageResponse, error) {
					return pb.NewMessageServiceClient(r.operator).GetMessage(ctx, &pb.GetMessageRequest{Id: id})
				})
			},
			end: func(r *removal, _ string) { r.drop("builder") },
		},
	}
}

func TestRemoval_KeepsDataThatHasChangedSinceItWasArchived(t *testing.T) {
	for kind, row := range removables() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if row.final != "" {
				t.Skip(row.final)
			}
			r := newRemoval(t)
			id := row.make(r)
			r.between(kind, func() { row.change(r, id) })
			r.finish()
			if !row.exists(r, id) && row.archived == "" {
				t.Fatalf("%s %s was removed although it had changed", kind, id)
			}
			if row.end != nil {
				row.end(r, id)
			}
			r.advance(func() bool { return !row.exists(r, id) })
			if text := r.archive(kind); !strings.Contains(text, row.archived) {
				t.Errorf("the archive lacks %s: %s", row.archived, text)
			}
		})
	}
}

// archive returns the lines of the archive files of a kind.
func (r *removal) archive(kind string) string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.Dir(), "archive", "default", kind+"-*"))
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
	messages := pb.NewMessageServiceClient(r.Conn(agent))
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
