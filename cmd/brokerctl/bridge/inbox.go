package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"brokerd/cmd/brokerctl/internal/setting"
	pb "brokerd/gen/brokerd/v1"
)

// An inbox delivers the mail of one agent as one file per message, and acknowledges a message when
// its agent has removed the file. Its ledger, in the session's state, has an entry for each message
// from shortly before its file appears until its ack.
type inbox struct {
	b       *bridge
	agent   string
	dir     string               // where the files appear
	temp    string               // where they are written
	entries map[string]string    // the ledger: message id → name of the file
	done    [2]map[string]bool   // acknowledged in this run, newest first: the stream may still have them
	last    time.Time            // in the name of the newest file
	missing map[string]time.Time // files of the ledger that are not there, with when the bridge first saw that
}

// maxAbsence is how long a file is missing before its message is acknowledged, at most: an editor removes a file or
// renames it, and writes it again.
const maxAbsence = time.Second

// gone reports whether a file that is missing has been so for a while. If not, the bridge looks again after that.
func (in *inbox) gone(name string) bool {
	absence := min(maxAbsence, in.b.Settle)
	since, known := in.missing[name]
	if !known {
		since = time.Now()
		in.missing[name] = since
		time.AfterFunc(absence, func() {
			select {
			case in.b.again <- struct{}{}:
			default:
			}
		})
	}
	return time.Since(since) >= absence
}

// keepDone is how many acknowledged messages an inbox remembers. A stream has fewer on their way.
const keepDone = 20_000

// stampForm is the form of the time in the name of a file.
const stampForm = "20060102T150405.000000000Z"

func newInbox(b *bridge, agent, dir string) *inbox {
	return &inbox{b: b, agent: agent, dir: dir, temp: path.Join(private, "inbox", agent),
		entries: map[string]string{}, done: [2]map[string]bool{{}, {}}, missing: map[string]time.Time{}}
}

// entryPrefix is the beginning of the keys of the ledger.
func (in *inbox) entryPrefix() string { return in.b.id + "/inbox/" + in.agent + "/" }

// open reads the ledger and finishes the delivery that an earlier run began.
func (in *inbox) open(ctx context.Context) error {
	for _, dir := range []string{in.dir, in.temp} {
		if err := in.b.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	prefix := in.entryPrefix()
	entries, err := in.b.states(ctx, prefix)
	if err != nil {
		return err
	}
	clear(in.entries)
	for key, name := range entries {
		in.entries[key[len(prefix):]] = name
		if t, err := time.Parse(stampForm, name[:min(len(name), len(stampForm))]); err == nil && t.After(in.last) {
			in.last = t
		}
	}
	if err := in.place(); err != nil {
		return err
	}
	rest, err := in.b.list(in.temp) // without an entry: the broker delivers them again
	for _, name := range rest {
		err = errors.Join(err, in.b.root.Remove(path.Join(in.temp, name)))
	}
	return err
}

// place moves the files that have an entry to the inbox.
func (in *inbox) place() error {
	names, err := in.b.list(in.temp)
	if err != nil || len(names) == 0 {
		return err
	}
	entered := map[string]bool{}
	for _, name := range in.entries {
		entered[name] = true
	}
	if err := in.b.root.MkdirAll(in.dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if entered[name] {
			if err := in.b.root.Rename(path.Join(in.temp, name), path.Join(in.dir, name)); err != nil {
				return err
			}
		}
	}
	return syncDir(in.b.root, in.dir)
}

// A letter is a message as a file.
type letter struct {
	message *pb.Message
	data    []byte
	name    string // of the file; "" = inbox.name
}

// name returns the name of the file of a message. The names of an inbox ascend in the order in which
// the messages arrive.
func (in *inbox) name(m *pb.Message) string {
	t := m.GetCreatedAt().AsTime()
	if !t.After(in.last) {
		t = in.last.Add(1)
	}
	in.last = t
	return fmt.Sprintf("%s-%s-%s.json", t.Format(stampForm), m.GetSender(), m.GetId())
}

// deliver makes a file of each message that has no entry yet.
func (in *inbox) deliver(ctx context.Context, letters []letter) error {
	if err := in.place(); err != nil {
		return err
	}
	added := map[string]string{}
	var changes []*pb.StateChange
	for _, l := range letters {
		id := l.message.GetId()
		if in.entries[id] != "" || added[id] != "" || in.done[0][id] || in.done[1][id] {
			continue
		}
		name := cmp.Or(l.name, in.name(l.message))
		if err := writeNew(in.b.root, path.Join(in.temp, name), l.data); err != nil {
			return err
		}
		added[id] = name
		changes = append(changes, putChange(in.entryPrefix()+id, name))
	}
	if len(changes) == 0 {
		return nil
	}
	if err := syncDir(in.b.root, in.temp); err != nil {
		return err
	}
	if err := in.b.transact(ctx, changes); err != nil {
		return err
	}
	for id, name := range added {
		in.entries[id] = name
	}
	return in.place()
}

// settle acknowledges the messages whose files the agent has removed for good, and returns how many.
func (in *inbox) settle(ctx context.Context) (int, error) {
	if len(in.entries) == 0 {
		return 0, nil
	}
	if err := in.place(); err != nil {
		return 0, err
	}
	d, err := in.b.root.Open(in.dir)
	if errors.Is(err, fs.ErrNotExist) { // perhaps not mounted: no sign of what the agent has done
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return 0, err
	}
	present := map[string]bool{}
	for _, name := range names {
		present[name] = true
	}
	var ids []string
	var changes []*pb.StateChange
	for id, name := range in.entries {
		if present[name] {
			delete(in.missing, name)
		} else if len(ids) < 1000 && in.gone(name) {
			ids = append(ids, id)
			changes = append(changes, deleteChange(in.entryPrefix()+id))
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if err := in.b.acknowledge(ctx, in.agent, ids...); err != nil {
		return 0, err
	}
	if err := in.b.transact(ctx, changes); err != nil {
		return 0, err
	}
	in.forget(ids)
	return len(ids), nil
}

// forget removes acknowledged messages from the ledger in memory.
func (in *inbox) forget(ids []string) {
	if len(in.done[0]) > keepDone {
		in.done = [2]map[string]bool{{}, in.done[0]}
	}
	for _, id := range ids {
		delete(in.missing, in.entries[id])
		delete(in.entries, id)
		in.done[0][id] = true
	}
}

// states returns the values of the bridge's state whose keys begin with a prefix.
func (b *bridge) states(ctx context.Context, prefix string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	found := map[string]string{}
	for token := ""; ; {
		page, err := b.broker.State().ListState(ctx, &pb.ListStateRequest{
			Namespace: setting.BridgeNamespace, KeyPrefix: prefix, Values: true, PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, fmt.Errorf("read the state of the bridge: %w", err)
		}
		for _, e := range page.GetEntries() {
			found[e.GetKey()] = e.GetValue().GetStringValue()
		}
		if token = page.GetNextPageToken(); token == "" {
			return found, nil
		}
	}
}

// transact changes the bridge's state.
func (b *bridge) transact(ctx context.Context, changes []*pb.StateChange) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := b.broker.State().TransactState(ctx, &pb.TransactStateRequest{Changes: changes}); err != nil {
		return fmt.Errorf("write the state of the bridge: %w", err)
	}
	return nil
}

func putChange(key, value string) *pb.StateChange {
	return &pb.StateChange{Change: &pb.StateChange_Put{Put: &pb.PutStateRequest{Namespace: setting.BridgeNamespace, Key: key,
		Value: &pb.StateValue{Value: &pb.StateValue_StringValue{StringValue: value}}}}}
}

func deleteChange(key string) *pb.StateChange {
	return &pb.StateChange{Change: &pb.StateChange_Delete{
		Delete: &pb.DeleteStateRequest{Namespace: setting.BridgeNamespace, Key: key}}}
}
