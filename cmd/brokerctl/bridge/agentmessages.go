package bridge

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

	pb "brokerd/gen/brokerd/v1"
)

// Folders and files of the format agent-messages.
const (
	agentRoot       = ".agent-messages"
	agentInboxes    = "inbox"
	agentOutbox     = "outbox"
	agentBroadcasts = "broadcasts"
	agentEvents     = "events"
	agentArchive    = "archive"
	agentRegistry   = "registry.json"
	agentRouting    = "routing.json"
	readMarker      = ".read" // NAME.read says that the agent has read NAME
)

// agentMessages is the format agent-messages. A sender writes its message into the recipient's inbox,
// into broadcasts/ or into outbox/, so that one file is both the send and the delivery. The bridge
// leaves the file where it is, changes its status in place, and moves it to archive/ at its end.
//
// Each folder of messages has a ledger: an entry for each file that the bridge has written or sent.
// Before a send, the bridge adds the entry key:KEY, and after it replaces the entry by one with the
// message's id. A file without an entry is therefore a new send. An entry key:KEY is a send that may
// have happened: the bridge repeats it, with the same key. When mail for the inbox has the key of
// such an entry, its file is already there.
type agentMessages struct {
	b *bridge

	mu    sync.Mutex           // guards the fields below; held while files of the ledgers change
	boxes map[string]*agentBox // by folder
	// replies has the messages of the boxes that their agents have answered in this run.
	replies map[string]bool

	archiving sync.Mutex // held from the choice of a name in archive/ until the rename

	subscribed map[[2]string]bool // agent and channel; used by one goroutine
}

func newAgentMessages(b *bridge) format {
	return &agentMessages{b: b, boxes: map[string]*agentBox{}, replies: map[string]bool{}, subscribed: map[[2]string]bool{}}
}

// agentMessagesRoot returns the folder .agent-messages that a user means: dir itself, or the one inside
// it, which agentMessagesRoot creates if it is missing.
func agentMessagesRoot(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil || filepath.Base(abs) == agentRoot {
		return dir, err
	}
	inner := filepath.Join(dir, agentRoot)
	if err := os.Mkdir(inner, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return inner, nil
}

func (f *agentMessages) prepare(ctx context.Context) error {
	for _, dir := range []string{agentInboxes, agentOutbox, agentBroadcasts, agentEvents, agentArchive, editing} {
		if err := f.b.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := f.b.resumeEdits(); err != nil {
		return err
	}
	return f.takeOver(ctx)
}

// agents returns the agents that have an inbox or are in registry.json, without those that the
// registry shows because another client has registered them.
func (f *agentMessages) agents() ([]string, error) {
	names, err := f.b.folders(agentInboxes)
	if err != nil {
		return nil, err
	}
	r := f.readRegistry()
	if r.agents != nil { // otherwise another program may be writing it
		f.b.roster.describe(r.profiles())
	}
	for name, a := range r.agents {
		if _, ours := a[viaLabel]; ours {
			names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		} else {
			names = append(names, name)
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		return !agentName.MatchString(name) || name == operatorsName // the bridge makes the inbox of this name
	}), nil
}

func (f *agentMessages) dirs() ([]string, error) {
	dirs := []string{agentInboxes, agentOutbox, agentBroadcasts, agentEvents}
	for _, parent := range []string{agentInboxes, agentEvents} {
		names, err := f.b.folders(parent)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			dirs = append(dirs, path.Join(parent, name))
		}
	}
	return dirs, nil
}

func (f *agentMessages) part(agent string, receives bool) part {
	switch {
	case agent == "":
		return &agentSends{f: f}
	case receives:
		return &agentMail{f: f, agent: agent}
	}
	return nil
}

// takeOver moves what is finished to archive/ before the first start of a bridge on the folder. The
// earlier tools have copied broadcasts and events into the inboxes.
func (f *agentMessages) takeOver(ctx context.Context) error {
	mark := f.b.id + "/taken-over"
	done, err := f.b.states(ctx, mark)
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
			data, err := f.b.read(path.Join(dir, name))
			if err != nil {
				continue // the first collect rejects it
			}
			a, err := parseAgentFile(data, time.Now())
			if err != nil {
				continue
			}
			sent := dir == agentBroadcasts || strings.HasPrefix(dir, agentEvents+"/")
			if sent || statusRank(a.status) >= statusRank(statusAcknowledged) {
				if err := f.archive(dir, name); err != nil {
					return err
				}
			}
		}
	}
	return f.b.transact(ctx, []*pb.StateChange{putChange(mark, "done")})
}

// messageFolders returns the folders whose files are messages.
func (f *agentMessages) messageFolders() ([]string, error) {
	names, err := f.b.folders(agentInboxes)
	dirs := []string{agentBroadcasts, agentOutbox}
	for _, name := range names {
		dirs = append(dirs, path.Join(agentInboxes, name))
	}
	return dirs, err
}

// eventFolders returns the folders whose files are events.
func (f *agentMessages) eventFolders() ([]string, error) {
	names, err := f.b.folders(agentEvents)
	for i, name := range names {
		names[i] = path.Join(agentEvents, name)
	}
	return names, err
}

// jsonFiles returns the names in a folder that end in .json.
func (f *agentMessages) jsonFiles(dir string) ([]string, error) {
	names, err := f.b.list(dir)
	return slices.DeleteFunc(names, func(name string) bool { return path.Ext(name) != ".json" }), err
}

// archive moves a file and the copy in the sender's log, with the marks that they were read, to the archive of today.
func (f *agentMessages) archive(dir, name string) error {
	if path.Dir(dir) == agentInboxes {
		log := strings.TrimSuffix(name, ".json") + "_to_" + path.Base(dir) + ".json"
		if _, err := f.b.root.Lstat(path.Join(agentOutbox, log)); err == nil {
			if err := f.archive(agentOutbox, log); err != nil {
				return err
			}
		}
	}
	to := path.Join(agentArchive, time.Now().UTC().Format(time.DateOnly))
	if err := f.b.root.MkdirAll(to, 0o755); err != nil {
		return err
	}
	err := f.b.root.Remove(path.Join(dir, name+readMarker))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENAMETOOLONG) {
		return err
	}
	f.archiving.Lock()
	defer f.archiving.Unlock()
	target := path.Join(to, name)
	for n := 2; ; n++ {
		if _, err := f.b.root.Lstat(target); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return err
		}
		target = path.Join(to, fmt.Sprintf("%s-%d.json", strings.TrimSuffix(name, ".json"), n))
	}
	err = f.b.root.Rename(path.Join(dir, name), target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// An agentBox is a folder of messages with its ledger. The values of the ledger are names of files.
type agentBox struct {
	*inbox
	seen map[string]fileVersion // the versions of files that the bridge has read
}

// box returns the ledger of a folder. mu is held.
func (f *agentMessages) box(ctx context.Context, dir string) (*agentBox, error) {
	if box := f.boxes[dir]; box != nil {
		return box, nil
	}
	// The name of an agent does not begin with a colon.
	owner := ":" + dir
	if parent, agent := path.Split(dir); parent == agentInboxes+"/" {
		owner = agent
	}
	box := &agentBox{inbox: newInbox(f.b, owner, dir), seen: map[string]fileVersion{}}
	if err := box.open(ctx); err != nil {
		return nil, err
	}
	f.boxes[dir] = box
	return box, nil
}

// answered notes that an agent of the folder has answered a message of its inbox.
func (f *agentMessages) answered(agent, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if box := f.boxes[path.Join(agentInboxes, agent)]; box != nil && box.entries[id] != "" {
		f.replies[id] = true
	}
}

// keyPrefix begins the references of the ledger that are keys.
const keyPrefix = "key:"

// names returns the files of the ledger.
func (box *agentBox) names() map[string]bool {
	names := map[string]bool{}
	for name := range maps.Values(box.entries) {
		names[name] = true
	}
	return names
}

// change removes references from the ledger and adds others.
func (box *agentBox) change(ctx context.Context, remove []string, add map[string]string) error {
	var changes []*pb.StateChange
	for _, ref := range remove {
		changes = append(changes, deleteChange(box.entryPrefix()+ref))
	}
	for ref, name := range add {
		changes = append(changes, putChange(box.entryPrefix()+ref, name))
	}
	if len(changes) == 0 {
		return nil
	}
	if err := box.b.transact(ctx, changes); err != nil {
		return err
	}
	for _, ref := range remove {
		delete(box.entries, ref)
	}
	maps.Copy(box.entries, add)
	return nil
}
