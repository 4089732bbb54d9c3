package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"brokerd/client"
	"brokerd/cmd/brokerctl/bridge/mailfile"
)

// Private is the folder of the bridge inside the folder that it synchronises.
const Private = ".bridge"

// Options say what to synchronise.
type Options struct {
	Client *client.Client // an operator's, in the session of the folder
	Dir    string
	Rescan time.Duration // how often the bridge reads the folder even if nothing reports a change
	Settle time.Duration // how long an incomplete file must be unchanged before it is rejected
	// Roles are the roles of agents of the folder. For a name, the first one counts.
	Roles []Role
	// Blockers raises and resolves blockers by the events BlockerEncountered and BlockerResolved of agent-messages.
	Blockers bool
	// SendHistory sends what a mailbox file had before the first start. Otherwise it is history, which
	// its readers have.
	SendHistory bool
	// Log receives one line for each thing that a person may want to know.
	Log func(line string)
}

// A Bridge is one run. Its fields do not change after start or are safe for concurrent use.
type Bridge struct {
	Options
	Broker  *client.Client // Client as an operator without an agent
	Folder  *Folder
	ID      string // of the folder
	kind    Kind
	State   *State
	Roster  *Roster
	Sender  *Sender
	Rejects *Rejects
	Health  *Health
	failed  chan error    // buffered: an error that ends the run
	again   chan struct{} // buffered: the folder is to be read again
}

// New returns a bridge for a folder with an id. It does nothing yet.
func New(o Options, k Kind, root *os.Root, id string) *Bridge {
	broker, f := o.Client.As(""), &Folder{Root: root, settle: o.Settle}
	b := &Bridge{Options: o, Broker: broker, Folder: f, ID: id, kind: k,
		failed: make(chan error, 1), again: make(chan struct{}, 1)}
	b.State = &State{broker: broker}
	b.Roster = newRoster(o, id)
	c := &calls{broker: broker, folder: f, id: id, state: b.State, roster: b.Roster, log: o.Log}
	b.Sender = &Sender{broker: broker, roster: b.Roster, calls: c, parts: k.Parts, log: o.Log}
	b.Rejects = &Rejects{folder: f, broker: broker, id: id, log: o.Log}
	b.Health = newHealth(Report{Folder: o.Dir, Format: k.Name}, "health/"+id, f, b.State)
	return b
}

// Run synchronises until ctx ends, and then returns its error. It returns earlier if the folder
// cannot be used, if another bridge has it, or if the broker does not permit what the bridge needs.
func Run(ctx context.Context, k Kind, o Options) error {
	dir, err := k.Root(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // a folder
	if info, err := root.Stat(rejectedDir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is a file: move it away, since the bridge keeps rejected files in a folder of this name",
			filepath.Join(dir, rejectedDir))
	}
	if err := root.MkdirAll(Private, 0o755); err != nil {
		return err
	}
	lock, err := exclusive(root)
	if err != nil {
		return err
	}
	defer release(lock)
	var mu sync.Mutex // held while a line is written
	log := o.Log
	o.Log = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		log(line)
	}
	id, err := folderID(&Folder{Root: root})
	if err != nil {
		return err
	}
	b := New(o, k, root, id)
	return b.run(ctx, k.Make(b))
}

// exclusive locks the folder for this process.
func exclusive(root *os.Root) (*os.File, error) {
	lock, err := root.OpenFile(filepath.Join(Private, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another bridge has %s", root.Name())
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return lock, nil
}

// release releases a lock, also if a program that this process is starting still has a copy of its descriptor.
func release(lock *os.File) {
	_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN) // closing is enough but for that copy
	_ = lock.Close()
}

// folderID returns the id of the folder, which its first bridge chooses.
func folderID(f *Folder) (string, error) {
	name := filepath.Join(Private, "id")
	text, err := f.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		id := uuid.NewString()[24:]
		if err := f.WriteNew(name+".new", []byte(id+"\n")); err != nil {
			return "", err
		}
		return id, f.Rename(name+".new", name)
	}
	if err != nil {
		return "", err
	}
	if len(text) != 13 || text[12] != '\n' {
		return "", fmt.Errorf("%s does not have the id of a folder", filepath.Join(f.Name(), name))
	}
	return string(text[:12]), nil
}

// run starts a worker for every part and wakes them when the folder changes.
func (b *Bridge) run(ctx context.Context, f Format) error {
	ctx, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	if err := b.begin(ctx, f); err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", b.Dir, err)
	}
	defer watcher.Close() //nolint:errcheck // nothing to do about it
	b.Log(fmt.Sprintf("synchronises %s, format %s", b.Dir, b.kind.Name))
	running, told := map[string]*worker{}, map[string]bool{}
	ticker := time.NewTicker(b.Rescan)
	defer ticker.Stop()
	for {
		err := b.adjust(ctx, f, watcher, running, told, &workers)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if final(err) {
			return err
		}
		if b.Health.Note("", "read the folder", err) {
			b.Log(Plain(err))
		}
		if err := b.Health.report(ctx); err != nil && ctx.Err() == nil { // the next pass tries again
			b.Health.Note("", "report its state", err)
		} else {
			b.Health.Note("", "report its state", nil)
		}
		for _, w := range running {
			w.look()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-b.failed:
			return err
		case <-ticker.C:
		case <-b.again:
		case <-watcher.Events:
			quiet(watcher.Events, 5*time.Millisecond)
		case err := <-watcher.Errors: // such as an overflow: the next look reads everything anyway
			b.Log(fmt.Sprintf("watch %s: %v", b.Dir, err))
		}
	}
}

// begin prepares the folder. It waits for a broker that restarts.
func (b *Bridge) begin(ctx context.Context, f Format) error {
	for {
		err := errors.Join(f.Prepare(ctx), b.Health.read(ctx))
		if b.Health.Note("", "begin", err) {
			b.Log(fmt.Sprintf("cannot begin: %s", Plain(err)))
		}
		if err == nil || final(err) || !passes(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryAfter):
		}
	}
}

// quiet receives events until none comes for a while: changes come in groups.
func quiet(events <-chan fsnotify.Event, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	for {
		select {
		case <-events:
		case <-t.C:
			return
		}
	}
}

// adjust watches the folders, and has one worker for each part that the folder and the registry show.
// told has the agents for which it has logged why it has no worker, and the folders that it cannot watch.
func (b *Bridge) adjust(ctx context.Context, f Format, watcher *fsnotify.Watcher, running map[string]*worker,
	told map[string]bool, workers *sync.WaitGroup) error {
	dirs, err := f.Dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		err := watcher.Add(filepath.Join(b.Dir, dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		key := dir + "/" // no agent has such a name
		if err != nil && !told[key] {
			b.Log(fmt.Sprintf("watch %s: %v; the bridge reads it every %v", dir, err, b.Rescan))
		}
		told[key] = err != nil
	}
	names, err := f.Agents()
	if err != nil {
		return err
	}
	if err := b.Roster.refresh(ctx); err != nil {
		return err
	}
	joined := map[string]int64{"": 0} // agent → incarnation; 0 = another client's
	for _, name := range slices.Compact(slices.Sorted(slices.Values(append(names, b.Roster.Joined()...)))) {
		if meansOperators(name) {
			if joined[name] = 0; !told[name] {
				told[name] = true
				b.Log(fmt.Sprintf("%s means the operators of the session and is no agent of the folder", name))
			}
		} else if joined[name], err = b.Roster.Join(ctx, name); err != nil {
			delete(joined, name)
			if final(err) || ctx.Err() != nil {
				return err
			}
			if !mailfile.Rejected(err) || !told[name] {
				b.Log(fmt.Sprintf("register %s: %s", name, Plain(err)))
			}
			told[name] = mailfile.Rejected(err)
		} else if elsewhere := joined[name] == 0; elsewhere != told[name] {
			if told[name] = elsewhere; elsewhere {
				b.Log(fmt.Sprintf("another client has registered %s: the bridge does not deliver its mail to the folder", name))
			}
		}
	}
	for name, w := range maps.Clone(running) {
		if incarnation, ok := joined[name]; !ok || incarnation != w.incarnation {
			w.end()
			delete(running, name)
		}
	}
	for name, incarnation := range joined {
		if running[name] != nil {
			continue
		}
		if p := f.Part(name, incarnation > 0); p != nil {
			w := newWorker(ctx, b, name, incarnation, p)
			running[name] = w
			workers.Go(w.run)
		}
	}
	return nil
}
