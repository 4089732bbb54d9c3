package backup_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/app"
	"brokerd/internal/apptest"
	"brokerd/internal/backup"
	"brokerd/internal/processtest"
	"brokerd/internal/store"
	"brokerd/internal/testkit"
)

// unlimited removes the limit of the rate at which agents send.
func unlimited(t *testing.T, b *apptest.Broker) {
	t.Helper()
	apptest.Must(t, b.Root().ConfigureSession,
		&pb.ConfigureSessionRequest{Settings: &pb.SessionSettings{SendRate: new(float64)}})
}

// send sends a message to a role and returns its id.
func send(ctx context.Context, b *apptest.Broker, agent, subject string) (string, error) {
	out, err := b.Actor("default", agent).SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{
		{Target: &pb.Target{To: &pb.Target_Role{Role: "worker"}}, Subject: subject},
	}})
	if err != nil {
		return "", err
	}
	if e := out.GetResults()[0].GetError(); e != nil {
		return "", errors.New(e.GetMessage())
	}
	return out.GetResults()[0].GetId(), nil
}

// upload adds a version of an artifact and returns the hash of its content.
func upload(ctx context.Context, b *apptest.Broker, agent, name string, content []byte) (string, error) {
	stream, err := b.Actor("default", agent).UploadArtifact(ctx)
	if err != nil {
		return "", err
	}
	header := &pb.ArtifactHeader{Name: name, Size: int64(len(content))}
	err = stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Header{Header: header}})
	for piece := range slices.Chunk(content, 200_000) {
		if err == nil {
			err = stream.Send(&pb.UploadArtifactRequest{Frame: &pb.UploadArtifactRequest_Chunk{Chunk: piece}})
		}
	}
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF, the answer has the error
		return "", err
	}
	out, err := stream.CloseAndRecv()
	return out.GetArtifact().GetSha256(), err
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// A load is a team at work: senders, consumers, owners of locks, and an author of artifacts.
type load struct {
	t      *testing.T
	broker *apptest.Broker
	ctx    context.Context
	stop   context.CancelFunc
	all    sync.WaitGroup
	busy   chan struct{} // receives when a worker has confirmed so many changes

	mu        sync.Mutex // guards the fields below
	messages  []string   // confirmed
	artifacts map[string]string
}

const busyAfter = 15

// work repeats a change until the load stops.
func (l *load) work(change func(i int) error) {
	l.all.Go(func() {
		for i := 0; l.ctx.Err() == nil; i++ {
			if err := change(i); err != nil && l.ctx.Err() == nil {
				l.t.Error(err)
				return
			}
			if i == busyAfter {
				l.busy <- struct{}{}
			}
		}
	})
}

// newLoad starts a load, and returns it when every worker is at work.
func newLoad(t *testing.T, b *apptest.Broker) *load {
	t.Helper()
	l := &load{t: t, broker: b, busy: make(chan struct{}), artifacts: map[string]string{}}
	l.ctx, l.stop = context.WithCancel(patient(t))
	workers := 0
	for i := range 3 {
		agent := fmt.Sprintf("sender-%d", i)
		b.Registered(agent, "sender")
		workers++
		l.work(func(n int) error { return l.send(agent, n) })
	}
	for i := range 2 {
		consumer, owner := fmt.Sprintf("worker-%d", i), fmt.Sprintf("owner-%d", i)
		b.Registered(consumer, "worker")
		b.Registered(owner, "owner")
		workers += 2
		l.work(func(int) error { return l.consume(consumer) })
		l.work(func(n int) error { return l.lock(owner, n) })
	}
	b.Registered("author", "author")
	workers++
	l.work(func(n int) error { return l.share(n) })
	for range workers {
		select {
		case <-l.busy:
		case <-l.ctx.Done():
			t.Fatal("a worker is not at work")
		}
	}
	return l
}

func (l *load) send(agent string, n int) error {
	id, err := send(l.ctx, l.broker, agent, fmt.Sprintf("%s: %d", agent, n))
	if err == nil {
		l.mu.Lock()
		l.messages = append(l.messages, id)
		l.mu.Unlock()
	}
	return err
}

func (l *load) consume(agent string) error {
	api := l.broker.Actor("default", agent)
	out, err := api.ClaimMessages(l.ctx, &pb.ClaimMessagesRequest{Max: 2})
	if err != nil || len(out.GetClaims()) == 0 {
		return err
	}
	return apptest.Err(api.AckMessages(l.ctx, &pb.AckMessagesRequest{Ids: []string{out.GetClaims()[0].GetClaimId()}}))
}

func (l *load) lock(agent string, n int) error {
	api := l.broker.Actor("default", agent)
	path := fmt.Sprintf("%s/%d", agent, n)
	if _, err := api.AcquireLocks(l.ctx, &pb.AcquireLocksRequest{Paths: []string{path}}); err != nil || n%3 == 0 {
		return err
	}
	return apptest.Err(api.ReleaseLocks(l.ctx, &pb.ReleaseLocksRequest{Paths: []string{path}}))
}

func (l *load) share(n int) error {
	name := fmt.Sprintf("file-%d", n)
	sum, err := upload(l.ctx, l.broker, "author", name, random(5000))
	if err != nil || n%2 == 0 {
		if err == nil {
			l.mu.Lock()
			l.artifacts[name] = sum
			l.mu.Unlock()
		}
		return err
	}
	return apptest.Err(l.broker.Actor("default", "author").DeleteArtifact(l.ctx, &pb.DeleteArtifactRequest{Name: name}))
}

// confirmed returns what has been confirmed so far.
func (l *load) confirmed() (messages []string, artifacts map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	artifacts = map[string]string{}
	for name, sum := range l.artifacts {
		artifacts[name] = sum
	}
	return slices.Clone(l.messages), artifacts
}

func TestBackup_DuringFullLoadHasEveryChangeConfirmedBeforeItBegan(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	unlimited(t, b)
	l := newLoad(t, b)
	messages, artifacts := l.confirmed()
	file, made := backUp(t, b)
	l.stop()
	l.all.Wait()

	dir, restored := restore(t, file) // it checks the invariants
	if restored.Revision != made.GetRevision() || restored.Messages != made.GetMessages() || restored.Messages < int64(len(messages)) {
		t.Errorf("restored %+v from %v", restored, made)
	}
	r := run(t, dir)
	ctx := patient(t)
	for _, id := range messages {
		if _, err := r.Root().GetMessage(ctx, &pb.GetMessageRequest{Id: id}); err != nil {
			t.Errorf("message %s: %v", id, err)
		}
	}
	for name, sum := range artifacts {
		if got := download(t, r, name); got != sum {
			t.Errorf("%s has the hash %s, want %s", name, got, sum)
		}
	}
}

// download returns the hash of the newest content of an artifact.
func download(t *testing.T, b *apptest.Broker, name string) string {
	t.Helper()
	stream, err := b.Root().DownloadArtifact(patient(t), &pb.DownloadArtifactRequest{Name: name})
	must(t, err)
	sum := sha256.New()
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil))
		}
		must(t, err)
		sum.Write(in.GetChunk())
	}
}

func TestBackup_IsATarFileThatDescribesItself(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("author", "author")
	content := random(300_000)
	sum, err := upload(patient(t), b, "author", "data", content)
	must(t, err)
	file, made := backUp(t, b)
	all := entries(t, file)
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.name
	}
	if want := []string{"manifest.json", store.DatabaseFile, "artifacts/" + sum, "SHA256"}; !slices.Equal(names, want) {
		t.Fatalf("it has %q, want %q", names, want)
	}
	var m backup.Manifest
	must(t, json.Unmarshal(all[0].text, &m))
	database := sha256.Sum256(all[1].text)
	if m.Version != "test" || m.Revision != made.GetRevision() || m.Database.SHA256 != hex.EncodeToString(database[:]) || m.Contents != 1 {
		t.Errorf("the manifest is %+v", m)
	}
	if !bytes.Equal(all[2].text, content) {
		t.Error("the content has changed")
	}
	events := apptest.Must(t, b.Root().ListEvents,
		&pb.ListEventsRequest{Filter: &pb.EventFilter{Types: []string{"backup.finished"}}})
	if n := len(events.GetEvents()); n != 1 {
		t.Errorf("%d events backup.finished", n)
	}
}

func TestBackup_KeepsContentsThatAreDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("author", "author")
	ctx := patient(t)
	sum, err := upload(ctx, b, "author", "large", random(8<<20)) // more than the stream buffers
	must(t, err)
	stream := begin(t, ctx, b)
	file := firstChunk(t, stream)
	api := b.Actor("default", "author")
	apptest.Must(t, api.DeleteArtifact, &pb.DeleteArtifactRequest{Name: "large"})
	path := filepath.Join(b.Dir(), "artifacts", sum)
	if _, err := os.Stat(path); err != nil {
		t.Error("the content was removed during the backup:", err)
	}
	file, _ = rest(t, stream, file)
	dir, _ := restore(t, file)
	if got := download(t, run(t, dir), "large"); got != sum {
		t.Errorf("the restored content has the hash %s, want %s", got, sum)
	}
	b.Restart() // the collector has run at the latest now
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the content is left after the backup (%v)", err)
	}
}

func TestBackup_OnlyOneAtATimeAndADisconnectedClientLeavesNothing(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.WithMetrics())
	b.Registered("author", "author")
	_, err := upload(patient(t), b, "author", "large", random(8<<20))
	must(t, err)
	ctx, disconnect := context.WithCancel(patient(t))
	firstChunk(t, begin(t, ctx, b))
	_, err = begin(t, patient(t), b).Recv()
	if status.Code(err) != codes.FailedPrecondition || testkit.Reason(err) != "BACKUP_RUNNING" {
		t.Errorf("a second backup: %v", err)
	}
	disconnect()
	b.Ended("AdminService/BackupDatabase", 2)
	if left := partials(t, b.Dir()); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	backUp(t, b)
	if left := partials(t, b.Dir()); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestBackup_EndsWhenTheBrokerStops(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t)
	b.Registered("author", "author")
	_, err := upload(patient(t), b, "author", "large", random(64<<20)) // more than any window
	must(t, err)
	stream := begin(t, patient(t), b)
	firstChunk(t, stream)
	b.Restart()
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	backUp(t, b)
}

func TestBackup_IsRefusedOnAFullDisk(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.With(func(c *app.Config) {
		c.DiskUsed = func(string) (float64, error) { return 0.9499999999, nil }
	}))
	_, err := begin(t, patient(t), b).Recv()
	if status.Code(err) != codes.ResourceExhausted || testkit.Reason(err) != "DISK_NEARLY_FULL" {
		t.Error(err)
	}
	if left := partials(t, b.Dir()); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestBackup_LeftByACrashIsRemovedAtTheNextStart(t *testing.T) {
	t.Parallel()
	daemon := processtest.New(t, processtest.Build(t))
	must(t, daemon.Start(patient(t)))
	must(t, os.WriteFile(filepath.Join(daemon.Dir(), "backup-LEFT.partial"), []byte("half"), 0o600))
	stream, err := pb.NewAdminServiceClient(dial(t, daemon.Address())).BackupDatabase(patient(t), &pb.BackupDatabaseRequest{})
	must(t, err)
	_, err = stream.Recv() // the backup is under way
	must(t, err)
	daemon.Kill()
	must(t, daemon.Start(patient(t)))
	if left := partials(t, daemon.Dir()); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	checked := apptest.Must(t, pb.NewAdminServiceClient(dial(t, daemon.Address())).CheckDatabase,
		&pb.CheckDatabaseRequest{})
	if problems := checked.GetProblems(); len(problems) > 0 {
		t.Errorf("the check found %q", problems)
	}
}
