package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"time"

	"brokerd/cmd/brokerctl/internal/each"
	pb "brokerd/gen/brokerd/v1"
)

// An Inbox delivers the mail of one agent as one file per message, and acknowledges a message when
// its agent has removed the file. Its ledger, in the session's state, has an entry for each message
// from shortly before its file appears until its ack.
type Inbox struct {
	b       *Bridge
	agent   string
	Dir     string               // where the files appear
	temp    string               // where they are written
	Entries map[string]string    // the ledger: message id → name of the file
	done    [2]map[string]bool   // acknowledged in this run, newest first: the stream may still have them
	last    time.Time            // in the name of the newest file
	missing map[string]time.Time // files of the ledger that are not there, with when the bridge first saw that
}

// maxAbsence is how long a file is missing before its message is acknowledged, at most: an editor removes a file or
// renames it, and writes it again.
const maxAbsence = time.Second

// Gone reports whether a file that is missing has been so for a while. If not, the bridge looks again after that.
func (in *Inbox) Gone(name string) bool {
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

// Found notes that a file is there.
func (in *Inbox) Found(name string) { delete(in.missing, name) }

// keepDone is how many acknowledged messages an inbox remembers. A stream has fewer on their way.
const keepDone = 20_000

// stampForm is the form of the time in the name of a file.
const stampForm = "20060102T150405.000000000Z"

// NewInbox returns the inbox of an agent, or of another owner of a ledger, whose files appear in a folder.
func NewInbox(b *Bridge, agent, dir string) *Inbox {
	return &Inbox{b: b, agent: agent, Dir: dir, temp: path.Join(Private, "inbox", agent),
		Entries: map[string]string{}, done: [2]map[string]bool{{}, {}}, missing: map[string]time.Time{}}
}

// entryPrefix is the beginning of the keys of the ledger.
func (in *Inbox) entryPrefix() string { return in.b.ID + "/inbox/" + in.agent + "/" }

// Open reads the ledger and finishes the delivery that an earlier run began.
func (in *Inbox) Open(ctx context.Context) error {
	for _, dir := range []string{in.Dir, in.temp} {
		if err := in.b.Folder.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	prefix := in.entryPrefix()
	entries, err := in.b.State.List(ctx, prefix)
	if err != nil {
		return err
	}
	clear(in.Entries)
	for key, name := range entries {
		in.Entries[key[len(prefix):]] = name
		if t, err := time.Parse(stampForm, name[:min(len(name), len(stampForm))]); err == nil && t.After(in.last) {
			in.last = t
		}
	}
	if err := in.Place(); err != nil {
		return err
	}
	rest, err := in.b.Folder.List(in.temp) // without an entry: the broker delivers them again
	for _, name := range rest {
		err = errors.Join(err, in.b.Folder.Remove(path.Join(in.temp, name)))
	}
	return err
}

// Place moves the files that have an entry to the inbox.
func (in *Inbox) Place() error {
	names, err := in.b.Folder.List(in.temp)
	if err != nil || len(names) == 0 {
		return err
	}
	entered := map[string]bool{}
	for _, name := range in.Entries {
		entered[name] = true
	}
	if err := in.b.Folder.MkdirAll(in.Dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if entered[name] {
			if err := in.b.Folder.Rename(path.Join(in.temp, name), path.Join(in.Dir, name)); err != nil {
				return err
			}
		}
	}
	return in.b.Folder.SyncDir(in.Dir)
}

// A Letter is a message as a file.
type Letter struct {
	Message *pb.Message
	Data    []byte
	Name    string // of the file; "" = inbox.name
}

// name returns the name of the file of a message. The names of an inbox ascend in the order in which
// the messages arrive.
func (in *Inbox) name(m *pb.Message) string {
	t := m.GetCreatedAt().AsTime()
	if !t.After(in.last) {
		t = in.last.Add(1)
	}
	in.last = t
	return fmt.Sprintf("%s-%s-%s.json", t.Format(stampForm), m.GetSender(), m.GetId())
}

// Deliver makes a file of each message that has no entry yet.
func (in *Inbox) Deliver(ctx context.Context, letters []Letter) error {
	if err := in.Place(); err != nil {
		return err
	}
	added := map[string]string{}
	for _, l := range letters {
		id := l.Message.GetId()
		if in.Entries[id] != "" || added[id] != "" || in.done[0][id] || in.done[1][id] {
			continue
		}
		name := cmp.Or(l.Name, in.name(l.Message))
		if err := in.b.Folder.WriteNew(path.Join(in.temp, name), l.Data); err != nil {
			return err
		}
		added[id] = name
	}
	if len(added) == 0 {
		return nil
	}
	if err := in.b.Folder.SyncDir(in.temp); err != nil {
		return err
	}
	if err := in.Change(ctx, nil, added); err != nil {
		return err
	}
	return in.Place()
}

// Settle acknowledges the messages whose files the agent has removed for good, and returns how many.
func (in *Inbox) Settle(ctx context.Context) (int, error) {
	if len(in.Entries) == 0 {
		return 0, nil
	}
	if err := in.Place(); err != nil {
		return 0, err
	}
	d, err := in.b.Folder.Open(in.Dir)
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
	for id, name := range in.Entries {
		if present[name] {
			in.Found(name)
		} else if len(ids) < 1000 && in.Gone(name) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if err := Acknowledge(ctx, in.b.Broker, in.agent, ids...); err != nil {
		return 0, err
	}
	return len(ids), in.End(ctx, ids)
}

// Change removes references of messages from the ledger and adds others, each with the name of its file.
func (in *Inbox) Change(ctx context.Context, remove []string, add map[string]string) error {
	changes := each.Of(remove, func(ref string) *pb.StateChange { return deleteChange(in.entryPrefix() + ref) })
	for ref, name := range add {
		changes = append(changes, PutChange(in.entryPrefix()+ref, name))
	}
	if len(changes) == 0 {
		return nil
	}
	if err := in.b.State.Change(ctx, changes); err != nil {
		return err
	}
	for _, ref := range remove {
		delete(in.Entries, ref)
	}
	maps.Copy(in.Entries, add)
	return nil
}

// End removes acknowledged messages from the ledger.
func (in *Inbox) End(ctx context.Context, ids []string) error {
	names := each.Of(ids, func(id string) string { return in.Entries[id] })
	if err := in.Change(ctx, ids, nil); err != nil {
		return err
	}
	if len(in.done[0]) > keepDone {
		in.done = [2]map[string]bool{{}, in.done[0]}
	}
	for i, id := range ids {
		in.Found(names[i])
		in.done[0][id] = true
	}
	return nil
}
