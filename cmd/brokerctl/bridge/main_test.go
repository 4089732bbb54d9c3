package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge"
	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
	"brokerd/internal/apptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A team is a folder with a broker.
type team struct {
	t      *testing.T
	broker *apptest.Broker
	format string
	dir    string
	lines  int // malformed lines of jsonl
}

func newTeam(t *testing.T, format string) *team {
	t.Helper()
	return newTeamWith(t, format)
}

// newTeamWith is newTeam for a broker that runs otherwise.
func newTeamWith(t *testing.T, format string, options ...apptest.Option) *team {
	t.Helper()
	return &team{t: t, broker: apptest.Start(t, options...), format: format, dir: t.TempDir()}
}

// start runs a bridge in this process until the test ends or the returned function is called. The
// function returns what the bridge has logged. start returns when the bridge has taken the folder over.
func (d *team) start(change ...func(*engine.Options)) (stop func() string) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var log strings.Builder
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		ended <- d.run(ctx, func(line string) {
			if log.WriteString(line + "\n"); strings.HasPrefix(line, "synchronises ") {
				close(ready)
			}
		}, change...)
	}()
	stopped := false
	stop = func() string {
		if !stopped {
			stopped = true
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				d.t.Errorf("the bridge ended with: %v", err)
			}
		}
		return log.String()
	}
	d.t.Cleanup(func() {
		if text := stop(); d.t.Failed() {
			d.t.Logf("the bridge logged:\n%s", text)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		stopped = true
		d.t.Fatalf("the bridge did not start: %v", err)
	}
	return stop
}

// run runs a bridge in this process.
func (d *team) run(ctx context.Context, log func(string), change ...func(*engine.Options)) error {
	c, err := client.Dial(ctx, client.WithAddress(d.broker.Socket()))
	if err != nil {
		return err
	}
	defer c.Close()
	o := engine.Options{Client: c, Dir: d.dir, Rescan: 50 * time.Millisecond, Settle: 100 * time.Millisecond, Log: log}
	for _, f := range change {
		f(&o)
	}
	return bridge.Run(ctx, d.format, o)
}

// write writes a file by a temporary file and a rename, as a careful script does.
func (d *team) write(name, text string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	apptest.NoError(d.t, os.MkdirAll(filepath.Dir(path), 0o755))
	temp := filepath.Join(filepath.Dir(path), ".new")
	apptest.NoError(d.t, os.WriteFile(temp, []byte(text), 0o644))
	apptest.NoError(d.t, os.Rename(temp, path))
}

// age makes a file look as if its last change were days ago, so that it has settled.
func (d *team) age(name string) {
	d.t.Helper()
	long := time.Now().Add(-48 * time.Hour)
	apptest.NoError(d.t, os.Chtimes(filepath.Join(d.dir, name), long, long))
}

// names returns the names of a folder that are not hidden.
func (d *team) names(dir string) []string {
	d.t.Helper()
	entries, err := os.ReadDir(filepath.Join(d.dir, dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name()[0] != '.' {
			names = append(names, e.Name())
		}
	}
	return names
}

// await waits until a folder is as wanted. It looks after every change of the folder.
func (d *team) await(dir, what string, wanted func() bool) {
	d.t.Helper()
	watcher, err := fsnotify.NewWatcher()
	apptest.NoError(d.t, err)
	defer watcher.Close() //nolint:errcheck // nothing to do about it
	path := filepath.Join(d.dir, dir)
	apptest.NoError(d.t, os.MkdirAll(path, 0o755))
	apptest.NoError(d.t, watcher.Add(path))
	limit := time.NewTimer(apptest.Patience)
	defer limit.Stop()
	for !wanted() {
		select {
		case <-watcher.Events:
		case <-limit.C:
			d.t.Fatalf("%s: %s did not happen; it has %q", dir, what, d.names(dir))
		}
	}
}

// awaitFiles waits until a folder has a number of files, and returns their names in order.
func (d *team) awaitFiles(dir string, count int) []string {
	d.t.Helper()
	d.await(dir, "the arrival of all files", func() bool { return len(d.names(dir)) == count })
	names := d.names(dir)
	slices.Sort(names)
	return names
}

// object reads a file with a JSON object.
func (d *team) object(name string) map[string]any {
	d.t.Helper()
	return object(d.t, d.text(name))
}

func (d *team) text(name string) string {
	d.t.Helper()
	data, err := os.ReadFile(filepath.Join(d.dir, name))
	apptest.NoError(d.t, err)
	return string(data)
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return o
}

// messages returns the calls of an agent for messages.
func messages(conn *grpc.ClientConn) pb.MessageServiceClient { return pb.NewMessageServiceClient(conn) }

// send sends a message over gRPC.
func (d *team) send(conn *grpc.ClientConn, m *pb.Message) *pb.SendResult {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), apptest.Patience)
	defer cancel()
	out, err := messages(conn).SendMessages(ctx, &pb.SendMessagesRequest{Messages: []*pb.Message{m}})
	apptest.NoError(d.t, err)
	return out.GetResults()[0]
}

// claim claims and acknowledges a number of messages over gRPC.
func (d *team) claim(conn *grpc.ClientConn, count int) []*pb.Message {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), apptest.Patience)
	defer cancel()
	var all []*pb.Message
	for len(all) < count {
		out, err := messages(conn).ClaimMessages(ctx, &pb.ClaimMessagesRequest{Wait: durationpb.New(apptest.Patience)})
		if err != nil || len(out.GetClaims()) == 0 {
			d.t.Fatalf("%d of %d messages came, then: %v", len(all), count, err)
		}
		all = append(all, out.GetClaims()[0].GetMessage())
		if _, err := messages(conn).AckMessages(ctx, &pb.AckMessagesRequest{Ids: []string{out.GetClaims()[0].GetClaimId()}}); err != nil {
			d.t.Fatal(err)
		}
	}
	return all
}

// toAgent is a message to one agent.
func toAgent(name, body string) *pb.Message {
	return &pb.Message{Target: &pb.Target{To: &pb.Target_Agent{Agent: name}}, Body: body}
}

// awaitAgent waits until an agent is registered, and returns it.
func (d *team) awaitAgent(name string) *pb.Agent {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), apptest.Patience)
	defer cancel()
	events, err := pb.NewEventServiceClient(d.broker.Operator()).SubscribeEvents(ctx, &pb.SubscribeEventsRequest{
		AfterRevision: proto.Int64(0), Filter: &pb.EventFilter{Types: []string{"agent.registered"}}})
	apptest.NoError(d.t, err)
	for {
		page, err := events.Recv()
		if err != nil {
			d.t.Fatalf("%s was not registered: %v", name, err)
		}
		for _, e := range page.GetEvents() {
			if e.GetSource() == name {
				out, err := pb.NewAgentServiceClient(d.broker.Operator()).GetAgent(ctx, &pb.GetAgentRequest{Name: name})
				apptest.NoError(d.t, err)
				return out.GetAgent()
			}
		}
	}
}

// awaitState waits until the delivery of a message reaches a state.
func (d *team) awaitState(id string, state pb.DeliveryState) {
	d.t.Helper()
	d.awaitEvents("the message reaches "+state.String(), func(ctx context.Context) bool {
		out, err := messages(d.broker.Operator()).GetMessage(ctx, &pb.GetMessageRequest{Id: id})
		apptest.NoError(d.t, err)
		return out.GetDeliveries()[0].GetState() == state
	})
}

// awaitEmpty waits until an agent has no unfinished mail.
func (d *team) awaitEmpty(agent string) {
	d.t.Helper()
	d.awaitEvents("the mail of "+agent+" is acknowledged", func(ctx context.Context) bool {
		out, err := messages(d.broker.Conn(agent)).ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_INBOX})
		apptest.NoError(d.t, err)
		return len(out.GetItems()) == 0
	})
}

// awaitEvents waits for a condition. It looks after every event, the earlier ones included: an event may come
// before the stream begins.
func (d *team) awaitEvents(what string, wanted func(context.Context) bool) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), apptest.Patience)
	defer cancel()
	events, err := pb.NewEventServiceClient(d.broker.Operator()).SubscribeEvents(ctx, &pb.SubscribeEventsRequest{
		AfterRevision: proto.Int64(0)})
	apptest.NoError(d.t, err)
	for !wanted(ctx) {
		if _, err := events.Recv(); err != nil {
			d.t.Fatalf("%s: did not happen: %v", what, err)
		}
	}
}

// awaitSent waits until an agent has sent a number of messages, and wants no more than that.
func (d *team) awaitSent(agent string, count int) {
	d.t.Helper()
	d.awaitEvents(agent+" has sent its messages", func(ctx context.Context) bool {
		out, err := messages(d.broker.Conn(agent)).ListMessages(ctx, &pb.ListMessagesRequest{Box: pb.MessageBox_MESSAGE_BOX_SENT})
		apptest.NoError(d.t, err)
		if len(out.GetItems()) > count {
			d.t.Fatalf("%s has sent %d messages, not %d", agent, len(out.GetItems()), count)
		}
		return len(out.GetItems()) == count
	})
}

// artifacts returns the names of the session's artifacts.
func (d *team) artifacts() []string {
	d.t.Helper()
	out, err := pb.NewArtifactServiceClient(d.broker.Operator()).ListArtifacts(d.t.Context(), &pb.ListArtifactsRequest{})
	apptest.NoError(d.t, err)
	var names []string
	for _, a := range out.GetArtifacts() {
		names = append(names, a.GetName())
	}
	return names
}

// awaitVersions waits until an artifact has a number of versions, and wants no more than that.
func (d *team) awaitVersions(name string, count int) {
	d.t.Helper()
	d.awaitEvents(fmt.Sprintf("version %d of %s", count, name), func(ctx context.Context) bool {
		out, err := pb.NewArtifactServiceClient(d.broker.Operator()).GetArtifact(ctx, &pb.GetArtifactRequest{Name: name})
		if err != nil && status.Code(err) != codes.NotFound {
			d.t.Fatal(err)
		}
		if len(out.GetVersions()) > count {
			d.t.Fatalf("%s has %d versions", name, len(out.GetVersions()))
		}
		return len(out.GetVersions()) == count
	})
}

// agent returns an agent of the registry.
func (d *team) agent(name string) *pb.Agent {
	d.t.Helper()
	out, err := pb.NewAgentServiceClient(d.broker.Operator()).GetAgent(d.t.Context(), &pb.GetAgentRequest{Name: name})
	apptest.NoError(d.t, err)
	return out.GetAgent()
}
