package agentmessages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
)

// Folders and files of the format agent-messages.
const (
	inboxesDir    = "inbox"
	outboxDir     = "outbox"
	broadcastsDir = "broadcasts"
	eventsDir     = "events"
	archiveDir    = "archive"
	registryFile  = "registry.json"
	routingFile   = "routing.json"
	readMarker    = ".read" // NAME.read says that the agent has read NAME
)

// format is the format agent-messages. A sender writes its message into the recipient's inbox,
// into broadcasts/ or into outbox/, so that one file is both the send and the delivery. The bridge
// leaves the file where it is, changes its status in place, and moves it to archive/ at its end.
//
// Each folder of messages has a ledger: an entry for each file that the bridge has written or sent.
// Before a send, the bridge adds the entry key:KEY, and after it replaces the entry by one with the
// message's id. A file without an entry is therefore a new send. An entry key:KEY is a send that may
// have happened: the bridge repeats it, with the same key. When mail for the inbox has the key of
// such an entry, its file is already there.
type format struct {
	b *engine.Bridge

	mu    sync.Mutex      // guards the fields below; held while files of the ledgers change
	boxes map[string]*box // by folder
	// replies has the messages of the boxes that their agents have answered in this run.
	replies map[string]bool

	archiving sync.Mutex // held from the choice of a name in archive/ until the rename

	subscribed map[[2]string]bool // agent and channel; used by one goroutine
}

// Kind returns the kind of the format agent-messages.
func Kind() engine.Kind {
	return engine.Kind{Name: "agent-messages", Root: rootOf, Make: newFormat, Queue: true}
}

func newFormat(b *engine.Bridge) engine.Format {
	return &format{b: b, boxes: map[string]*box{}, replies: map[string]bool{}, subscribed: map[[2]string]bool{}}
}

// rootOf returns the folder .agent-messages that a user means: dir itself, or the one inside
// it, which agentMessagesRoot creates if it is missing.
func rootOf(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil || filepath.Base(abs) == engine.AgentRoot {
		return dir, err
	}
	inner := filepath.Join(dir, engine.AgentRoot)
	if err := os.Mkdir(inner, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return inner, nil
}

func (f *format) Prepare(ctx context.Context) error {
	for _, dir := range []string{inboxesDir, outboxDir, broadcastsDir, eventsDir, archiveDir, editing} {
		if err := f.b.Folder.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := resumeEdits(f.b.Folder); err != nil {
		return err
	}
	return f.takeOver(ctx)
}

// Agents returns the agents that have an inbox or are in registry.json, without those that the
// registry shows because another client has registered them.
func (f *format) Agents() ([]string, error) {
	names, err := f.b.Folder.Folders(inboxesDir)
	if err != nil {
		return nil, err
	}
	r := f.readRegistry()
	if r.agents != nil { // otherwise another program may be writing it
		f.b.Roster.Describe(r.profiles())
	}
	for name, a := range r.agents {
		if _, ours := a[engine.ViaLabel]; ours {
			names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		} else {
			names = append(names, name)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		// The bridge makes the inbox of OperatorsName.
		return !engine.AgentName.MatchString(name) || name == engine.OperatorsName
	}), nil
}

func (f *format) Dirs() ([]string, error) {
	dirs := []string{inboxesDir, outboxDir, broadcastsDir, eventsDir}
	for _, parent := range []string{inboxesDir, eventsDir} {
		names, err := f.b.Folder.Folders(parent)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			dirs = append(dirs, path.Join(parent, name))
		}
	}
	return dirs, nil
}

func (f *format) Part(agent string, receives bool) engine.Part {
	switch {
	case agent == "":
		return &sends{f: f}
	case receives:
		return &mail{f: f, agent: agent}
	}
	return nil
}

// takeOver moves what is finished to archive/ before the first start of a bridge on the folder. The
// earlier tools have copied broadcasts and events into the inboxes.
func (f *format) takeOver(ctx context.Context) error {
	mark := f.b.ID + "/taken-over"
	done, err := f.b.State.List(ctx, mark)
	if err != nil || len(done) > 0 {
		return err
	}
	boxes, err := f.messageFolders()
	if err != nil {
		return err
	}
	events, err := f.eventFolders()
	if err != nil {
		return err
	}
	for _, dir := range append(boxes, events...) {
		names, err := f.jsonFiles(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			data, err := f.b.Folder.Read(path.Join(dir, name))
			if err != nil {
				continue // the first Collect rejects it
			}
			a, err := parseFile(data, time.Now())
			if err != nil {
				continue
			}
			sent := dir == broadcastsDir || strings.HasPrefix(dir, eventsDir+"/")
			if sent || statusRank(a.status) >= statusRank(statusAcknowledged) {
				if err := f.archive(dir, name); err != nil {
					return err
				}
			}
		}
	}
	return f.b.State.Change(ctx, []*pb.StateChange{engine.PutChange(mark, "done")})
}

// messageFolders returns the folders whose files are messages.
func (f *format) messageFolders() ([]string, error) {
	names, err := f.b.Folder.Folders(inboxesDir)
	dirs := []string{broadcastsDir, outboxDir}
	for _, name := range names {
		dirs = append(dirs, path.Join(inboxesDir, name))
	}
	return dirs, err
}

// eventFolders returns the folders whose files are events.
func (f *format) eventFolders() ([]string, error) {
	names, err := f.b.Folder.Folders(eventsDir)
	for i, name := range names {
		names[i] = path.Join(eventsDir, name)
	}
	return names, err
}

// jsonFiles returns the names in a folder that end in .json.
func (f *format) jsonFiles(dir string) ([]string, error) {
	names, err := f.b.Folder.List(dir)
	return slices.DeleteFunc(names, func(name string) bool { return path.Ext(name) != ".json" }), err
}

// archive moves a file and the copy in the sender's log, with the marks that they were read, to the archive of today.
func (f *format) archive(dir, name string) error {
	if path.Dir(dir) == inboxesDir {
		log := strings.TrimSuffix(name, ".json") + "_to_" + path.Base(dir) + ".json"
		if _, err := f.b.Folder.Lstat(path.Join(outboxDir, log)); err == nil {
			if err := f.archive(outboxDir, log); err != nil {
				return err
			}
		}
	}
	to := path.Join(archiveDir, time.Now().UTC().Format(time.DateOnly))
	if err := f.b.Folder.MkdirAll(to, 0o755); err != nil {
		return err
	}
	err := f.b.Folder.Remove(path.Join(dir, name+readMarker))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENAMETOOLONG) {
		return err
	}
	f.archiving.Lock()
	defer f.archiving.Unlock()
	target := path.Join(to, name)
	for n := 2; ; n++ {
		if _, err := f.b.Folder.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
		target = path.Join(to, fmt.Sprintf("%s-%d.json", strings.TrimSuffix(name, ".json"), n))
	}
	err = f.b.Folder.Rename(path.Join(dir, name), target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// A box is a folder of messages with its ledger. The values of the ledger are names of files.
type box struct {
	*engine.Inbox
	b    *engine.Bridge
	seen map[string]fileVersion // the versions of files that the bridge has read
}

// box returns the ledger of a folder. mu is held.
func (f *format) box(ctx context.Context, dir string) (*box, error) {
	if box := f.boxes[dir]; box != nil {
		return box, nil
	}
	// The name of an agent does not begin with a colon.
	owner := ":" + dir
	if parent, agent := path.Split(dir); parent == inboxesDir+"/" {
		owner = agent
	}
	box := &box{Inbox: engine.NewInbox(f.b, owner, dir), b: f.b, seen: map[string]fileVersion{}}
	if err := box.Open(ctx); err != nil {
		return nil, err
	}
	f.boxes[dir] = box
	return box, nil
}

// answered notes that an agent of the folder has answered a message of its inbox.
func (f *format) answered(agent, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if box := f.boxes[path.Join(inboxesDir, agent)]; box != nil && box.Entries[id] != "" {
		f.replies[id] = true
	}
}

// keyPrefix begins the references of the ledger that are keys.
const keyPrefix = "key:"

// names returns the files of the ledger.
func (box *box) names() map[string]bool {
	names := map[string]bool{}
	for name := range maps.Values(box.Entries) {
		names[name] = true
	}
	return names
}
