package deploy_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/processtest"
)

const (
	lossInterval = time.Second // of litestream.yml: monitor-interval and sync-interval together
	losses       = 3           // disks that are lost, while Litestream keeps its interval
	mostLosses   = 10          // on a machine on which it does not always do so
	senders      = 8
	patience     = 3 * time.Minute
)

// The disk is lost while brokerd is under load and Litestream runs with the configuration of this
// folder. A copy that Litestream has begun has every commit before it, so a message that was confirmed
// before the second newest copy must be in the restored database. LITESTREAM names the program.
func TestLitestream_LosesNoMoreThanItsInterval(t *testing.T) {
	t.Parallel()
	litestream := os.Getenv("LITESTREAM")
	if litestream == "" {
		t.Skip("LITESTREAM does not name the program litestream; make litestream runs this test")
	}
	brokerd := processtest.Build(t)
	kept := 0
	for n := range mostLosses {
		t.Run(fmt.Sprintf("loss %d", n+1), func(t *testing.T) {
			if loseDisk(t, brokerd, litestream) {
				kept++
			}
		})
		if t.Failed() || kept == losses {
			return
		}
	}
	t.Errorf("the loss was within %s only %d times of %d", lossInterval, kept, mostLosses)
}

// loseDisk runs a broker until its disk is lost, continues on a restored copy, and reports whether the
// loss was within Litestream's interval.
func loseDisk(t *testing.T, brokerd, litestream string) bool {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b := processtest.New(t, brokerd)
	b.Args = []string{"--checkpoint", "external"}
	start(ctx, t, b)
	r := replicate(t, litestream, b.Dir())

	l := newLoad(t, b.Address())
	stop := l.run(ctx)
	r.awaitCheckpoints(ctx, 2)
	r.kill() // the log keeps what it missed, over a stop and a start of the broker
	stop()
	if err := b.Terminate(); err != nil {
		t.Fatal(err)
	}
	start(ctx, t, b)
	r.start()
	stop = l.run(ctx)
	r.awaitCheckpoints(ctx, 2)
	select {
	case <-time.After(rand.N(2 * lossInterval)): // the loss comes at any time between two copies
	case <-ctx.Done():
		t.Fatal("the time is up")
	}
	r.kill()
	lost := time.Now()
	b.Kill()
	stop()
	if err := os.RemoveAll(b.Dir()); err != nil {
		t.Fatal(err)
	}

	restored := processtest.New(t, brokerd)
	restored.Args = b.Args
	r.restore(ctx, restored.Dir())
	jump := exec.CommandContext(ctx, brokerd, "restored", "--data", restored.Dir())
	jump.Env = processtest.Environment(t)
	if out, err := jump.CombinedOutput(); err != nil {
		t.Fatalf("brokerd restored: %v\n%s", err, out)
	}
	if err := restored.Check(ctx); err != nil {
		t.Fatal(err)
	}
	start(ctx, t, restored)
	loss := l.verify(ctx, restored.Address(), lost, r.copies())
	if loss > lossInterval {
		t.Logf("on this machine Litestream did not keep its interval: %s were lost", loss)
	}
	return loss <= lossInterval
}

func start(ctx context.Context, t *testing.T, d *processtest.Daemon) {
	t.Helper()
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// A replica is a running Litestream and the folder to which it copies.
type replica struct {
	*testing.T
	program string
	data    string // the data folder of the broker
	folder  string
	process *exec.Cmd
	log     bytes.Buffer // may be read once the process has ended
	changes *fsnotify.Watcher
}

// replicate starts Litestream.
func replicate(t *testing.T, program, data string) *replica {
	t.Helper()
	r := &replica{T: t, program: program, data: data, folder: t.TempDir()}
	var err error
	if r.changes, err = fsnotify.NewWatcher(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.changes.Close() })
	if err := os.MkdirAll(r.copyFolder(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.changes.Add(r.copyFolder()); err != nil {
		t.Fatal(err)
	}
	r.start()
	t.Cleanup(r.kill)
	return r
}

func (r *replica) start() {
	r.Helper()
	r.process = r.command(context.Background(), "replicate")
	r.process.Stdout, r.process.Stderr = &r.log, &r.log
	if err := r.process.Start(); err != nil {
		r.Fatal(err)
	}
}

// copyFolder has one file for each copy that Litestream has made of the log's newest part.
func (r *replica) copyFolder() string { return filepath.Join(r.folder, "ltx", "0") }

func (r *replica) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, r.program, append([]string{name, "-config", "litestream.yml"}, args...)...)
	c.Env = append(processtest.Environment(r.T), "BROKERD_DATA="+r.data, "LITESTREAM_REPLICA="+r.folder, "LOG_LEVEL=debug")
	return c
}

// awaitCheckpoints waits until Litestream has restarted the log so many times, and has copied it each time.
func (r *replica) awaitCheckpoints(ctx context.Context, times int) {
	r.Helper()
	last := r.generation()
	for restarts := 0; restarts < times; {
		select {
		case <-r.changes.Events:
		case err := <-r.changes.Errors:
			r.Fatal(err)
		case <-ctx.Done():
			r.Fatalf("Litestream has run %d checkpoints, want %d", restarts, times)
		}
		if now := r.generation(); now != last {
			restarts, last = restarts+1, now
		}
	}
}

// generation returns the salts of the log, which differ after each restart of it.
func (r *replica) generation() uint64 {
	log, err := os.Open(filepath.Join(r.data, "brokerd.db-wal"))
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = log.Close() }() // it is only read
	var salts [8]byte
	if _, err := log.ReadAt(salts[:], 16); err != nil {
		r.Fatal(err)
	}
	return binary.BigEndian.Uint64(salts[:])
}

// kill ends Litestream. It must not have found that another program had run a checkpoint.
func (r *replica) kill() {
	if r.process.ProcessState != nil {
		return
	}
	_ = r.process.Process.Kill()
	_ = r.process.Wait()
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "another process") {
			r.Errorf("Litestream: %s", line)
		}
	}
	if r.Failed() {
		r.Logf("Litestream's log:\n%s", &r.log)
	}
}

// copies returns when Litestream began each of its copies, the oldest first.
func (r *replica) copies() []time.Time {
	r.Helper()
	files, err := filepath.Glob(filepath.Join(r.copyFolder(), "*.ltx"))
	if err != nil {
		r.Fatal(err)
	}
	var begun []time.Time
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			r.Fatal(err)
		}
		begun = append(begun, info.ModTime())
	}
	slices.SortFunc(begun, time.Time.Compare)
	return begun
}

// restore makes a data folder from the replica.
func (r *replica) restore(ctx context.Context, dir string) {
	r.Helper()
	if _, err := os.Stat(r.data); !errors.Is(err, fs.ErrNotExist) {
		r.Fatalf("the lost folder is still there: %v", err)
	}
	to := filepath.Join(dir, "brokerd.db")
	if out, err := r.command(ctx, "restore", "-o", to, filepath.Join(r.data, "brokerd.db")).CombinedOutput(); err != nil {
		r.Fatalf("litestream restore: %v\n%s", err, out)
	}
}

// A load is senders that send one message at a time, and the messages that the broker has confirmed.
type load struct {
	*testing.T
	address string

	mu        sync.Mutex          // guards confirmed
	confirmed map[int64]time.Time // when the message with a revision was confirmed
}

func newLoad(t *testing.T, address string) *load {
	return &load{T: t, address: address, confirmed: map[int64]time.Time{}}
}

func (l *load) connect(address string) *grpc.ClientConn {
	l.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = conn.Close() })
	return conn
}

// run sends until the returned function is called or the broker ends.
func (l *load) run(ctx context.Context) (stop func()) {
	l.Helper()
	conn := l.connect(l.address)
	unlimited := &pb.SessionSettings{MailboxLimit: proto.Int64(0), SendRate: proto.Float64(0)}
	if _, err := pb.NewSessionServiceClient(conn).ConfigureSession(ctx, &pb.ConfigureSessionRequest{Settings: unlimited}); err != nil {
		l.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for n := range senders {
		as := metadata.AppendToOutgoingContext(ctx, "brokerd-agent", fmt.Sprintf("sender-%d", n+1))
		if _, err := pb.NewAgentServiceClient(conn).RegisterAgent(as, &pb.RegisterAgentRequest{}); err != nil {
			l.Fatal(err)
		}
		running.Go(func() { l.send(as, pb.NewMessageServiceClient(conn)) })
	}
	return func() {
		cancel()
		running.Wait()
		_ = conn.Close()
	}
}

func (l *load) send(ctx context.Context, messages pb.MessageServiceClient) {
	request := &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "sender-1"}}, Subject: "load", Type: "work", Body: strings.Repeat("x", 1024),
	}}}
	for {
		answer, err := messages.SendMessages(ctx, request)
		if err != nil {
			return // the broker has ended, or the load
		}
		l.mu.Lock()
		l.confirmed[answer.GetResults()[0].GetRevision()] = time.Now()
		l.mu.Unlock()
	}
}

// verify compares the restored broker with all that was confirmed, and returns for how long before the
// loss confirmed messages are missing.
func (l *load) verify(ctx context.Context, address string, lost time.Time, copies []time.Time) time.Duration {
	l.Helper()
	conn := l.connect(address)
	messages := pb.NewMessageServiceClient(conn)
	missing := maps.Clone(l.confirmed)
	request := &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_ALL, PageSize: 1000}
	for {
		page, err := messages.ListMessages(ctx, request)
		if err != nil {
			l.Fatal(err)
		}
		for _, item := range page.GetItems() {
			delete(missing, item.GetMessage().GetRevision())
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	first := lost
	for _, at := range missing {
		if at.Before(first) {
			first = at
		}
	}
	loss := lost.Sub(first)
	if len(copies) < 2 {
		l.Fatalf("Litestream made %d copies", len(copies))
	}
	if begun := copies[len(copies)-2]; first.Before(begun) {
		l.Errorf("a message is missing that was confirmed %s before a copy", begun.Sub(first))
	}
	newest := slices.Max(slices.Collect(maps.Keys(l.confirmed)))
	again, err := messages.SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{{
		Target: &pb.Target{To: &pb.Target_Agent{Agent: "sender-1"}}, Subject: "after the loss", Type: "work",
	}}})
	if err != nil {
		l.Fatal(err)
	}
	if got := again.GetResults()[0].GetRevision(); got <= newest {
		l.Errorf("the restored broker issued revision %d, and the lost one %d", got, newest)
	}
	l.Logf("%d messages confirmed, %d missing: the newest %s; %d copies; revision %d", len(l.confirmed), len(missing),
		loss.Round(time.Millisecond), len(copies), newest)
	return loss
}
