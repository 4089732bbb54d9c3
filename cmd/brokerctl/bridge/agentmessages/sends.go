package agentmessages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// A sends is the part of the format that belongs to no agent: it sends the files of all agents
// in the order of each sender, follows the messages in folders that no local agent reads, and keeps
// registry.json.
type sends struct {
	f        *format
	followed time.Time                      // when the bridge last read the states of sent messages
	leaving  leaving                        // files that are to move when their writers have finished
	slow     map[string]bool                // senders whose last send is to be tried again
	sent     map[string]map[string]sentFile // by folder and name
}

// A sentFile is what a file of a ledger had when the bridge last looked.
type sentFile struct {
	version fileVersion
	ref     string // in the ledger: the id of the message
	id      string // the message_id of that message; "" = the broker does not have the message
}

// A draft is a file that is a send.
type draft struct {
	box      *box
	name     string
	ref      string // in the ledger
	before   string // in the ledger: the message that the file was before
	key      uuid.UUID
	file     *messageFile
	written  time.Time // when the file was written
	earliest bool      // the file was there when the bridge began to read the folders
}

func (p *sends) Open(context.Context) error { return nil }

// Deliver is not called: no mail is for no agent.
func (p *sends) Deliver(context.Context, []*pb.Message) error { return nil }

func (p *sends) Collect(ctx context.Context) (bool, error) {
	failed := p.leaving.move(ctx, p.f)
	published, err := p.publish(ctx)
	failed = errors.Join(failed, err)
	drafts, err := p.drafts(ctx)
	failed = errors.Join(failed, err)
	now, more := p.choose(drafts)
	failed = errors.Join(failed, p.send(ctx, now))
	if time.Since(p.followed) >= p.f.b.Rescan {
		p.followed = time.Now()
		failed = errors.Join(failed, p.follow(ctx), p.f.updateRegistry(ctx))
	}
	return more || published, failed
}

// choose returns the first drafts, at most a batch, and of a slow sender only the first one.
func (p *sends) choose(drafts []draft) (now []draft, more bool) {
	tried := map[string]bool{}
	for _, d := range drafts {
		if len(now) == engine.Batch {
			return now, true
		}
		if from := d.file.from; p.slow[from] {
			if tried[from] {
				continue
			}
			tried[from] = true
		}
		now = append(now, d)
	}
	return now, false
}

// drafts returns the files that are sends, in the order of each sender. A folder that it cannot read does not
// hinder the others.
func (p *sends) drafts(ctx context.Context) ([]draft, error) {
	dirs, failed := p.f.messageFolders()
	// A file that is created while a folder is read may be missing from the list although a later one
	// is in it. Every file of the first list existed before the second list began.
	first := map[string]bool{}
	for _, dir := range dirs {
		names, err := p.f.jsonFiles(dir)
		failed = errors.Join(failed, err)
		for _, name := range names {
			first[path.Join(dir, name)] = true
		}
	}
	var drafts []draft
	for _, dir := range dirs {
		found, err := p.draftsIn(ctx, dir, first)
		failed = errors.Join(failed, err)
		drafts = append(drafts, found...)
	}
	slices.SortStableFunc(drafts, compareDrafts)
	for len(drafts) > 0 && !drafts[len(drafts)-1].earliest {
		drafts = drafts[:len(drafts)-1]
	}
	return drafts, failed
}

// compareDrafts orders by the time that the file has, and then by when the file was written.
func compareDrafts(a, b draft) int {
	at, bt := a.file.sent, b.file.sent
	if at.IsZero() || bt.IsZero() {
		at, bt = a.written, b.written
	}
	return cmp.Or(at.Compare(bt), a.written.Compare(b.written), strings.Compare(a.name, b.name))
}

// draftsIn returns the sends of a folder: the files without an entry in its ledger, those whose entry is a key, and
// those that have become another message. What is no message is rejected.
func (p *sends) draftsIn(ctx context.Context, dir string, first map[string]bool) ([]draft, error) {
	names, err := p.f.jsonFiles(dir)
	if err != nil {
		return nil, err
	}
	p.f.mu.Lock()
	box, err := p.f.box(ctx, dir)
	if err != nil {
		p.f.mu.Unlock()
		return nil, err
	}
	refs := map[string]string{} // name → reference
	for ref, name := range box.Entries {
		refs[name] = ref
	}
	p.f.mu.Unlock()
	for name, ref := range refs {
		if key, begun := strings.CutPrefix(ref, keyPrefix); begun && !slices.Contains(names, name) {
			if err := p.vanished(ctx, box, key, name); err != nil {
				return nil, err
			}
		}
	}
	var drafts []draft
	sent := map[string]sentFile{}
	for _, name := range names {
		full, ref := path.Join(dir, name), refs[name]
		if p.leaving.has(full) {
			continue
		}
		d := draft{box: box, name: name, ref: ref, earliest: first[full]}
		if ref != "" && !strings.HasPrefix(ref, keyPrefix) {
			known, other, err := p.look(ctx, full, ref, p.sent[dir][name])
			if err != nil {
				return nil, err
			}
			if !other {
				sent[name] = known
				continue
			}
			d.ref, d.before = "", ref
		}
		err := p.read(&d)
		switch {
		case err == nil && d.file != nil:
			drafts = append(drafts, d)
		case errors.Is(err, mailfile.ErrIncomplete) && p.f.b.Folder.Unsettled(full), errors.Is(err, fs.ErrNotExist):
			err = nil
		case mailfile.Rejected(err):
			err = p.leaving.reject(ctx, p.f, full, err)
		}
		if err != nil {
			return nil, err
		}
	}
	if p.sent == nil {
		p.sent = map[string]map[string]sentFile{}
	}
	p.sent[dir] = sent
	return drafts, nil
}

// look reports whether a file of the ledger has become another message, because its writer has used the name again.
func (p *sends) look(ctx context.Context, full, ref string, known sentFile) (now sentFile, other bool, err error) {
	version, err := versionOf(p.f.b.Folder, full)
	if err != nil || known.ref == ref && known.version == version {
		return known, false, ignoreAbsent(err)
	}
	data, err := p.f.b.Folder.Read(full)
	if err != nil && !mailfile.Rejected(err) {
		return known, false, ignoreAbsent(err)
	}
	if known.ref != ref {
		out, err := engine.Message(ctx, p.f.b.Broker, ref)
		if err != nil {
			return known, false, err
		}
		if known = (sentFile{ref: ref}); out != nil {
			known.id = messageID(out.GetMessage())
		}
	}
	known.version = version
	file, err := parseFile(data, time.Now())
	return known, err == nil && file.event == nil && known.id != "" && file.id != known.id, nil
}

// ignoreAbsent returns nil for the error of a file that is not there any more.
func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// vanished removes the key of a file that another program has removed after its send began. If the
// message was sent, its id replaces the key: the recipient has finished the message.
func (p *sends) vanished(ctx context.Context, box *box, key, name string) error {
	id, err := uuid.Parse(key)
	if err != nil {
		return fmt.Errorf("the ledger of %s: %w", box.Dir, err)
	}
	sent, err := p.f.b.Sender.Find(ctx, id)
	if err != nil {
		return err
	}
	add := map[string]string{}
	if sent != nil {
		add[sent.GetId()] = name
	}
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return box.Change(ctx, []string{keyPrefix + key}, add)
}

// read reads the file of a draft. The file of the draft stays nil if it is not a send.
func (p *sends) read(d *draft) error {
	full := path.Join(d.box.Dir, d.name)
	info, err := p.f.b.Folder.Lstat(full)
	if err != nil {
		return err
	}
	if !utf8.ValidString(d.name) {
		return errName
	}
	data, err := p.f.b.Folder.Read(full)
	if err != nil {
		return err
	}
	file, err := parseFile(data, time.Now())
	if err != nil {
		return err
	}
	owner := path.Base(d.box.Dir)
	inInbox := path.Dir(d.box.Dir) == inboxesDir
	switch {
	case file.event != nil && inInbox: // a copy for a subscriber
		return nil
	case file.event != nil:
		return mailfile.Refusal("it is an event; a file in events/TYPE/ publishes an event")
	case d.box.Dir == outboxDir && d.name == fmt.Sprintf("%s_to_%s.json", file.id, file.to): // the sender's log
		return nil
	case d.box.Dir == broadcastsDir:
		file.to = toAll
	case inInbox && file.to == "":
		file.to = owner
	case inInbox && file.to == toAll && d.ref == "" && !p.f.broadcasts(file.id) && p.f.b.Folder.Unsettled(full):
		return nil // its sender may be about to write the file in broadcasts/
	case inInbox && file.to != owner && file.to != toAll:
		return mailfile.Refusalf("to_agent is %q; the inbox belongs to %s", mailfile.OneLine(file.to, 128), owner)
	}
	d.file, d.written, d.key = file, info.ModTime(), p.f.key(file, file.to)
	return nil
}

// errName refuses a file that no entry of a ledger can name.
const errName = mailfile.Refusal("its name is not UTF-8")

// key returns the key of a message to an agent or to toAll. A copy of a file has the same key.
func (f *format) key(file *messageFile, to string) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(strings.Join([]string{f.b.ID, file.from, to, file.id}, "\x00")))
}

// send sends files. It adds the keys to the ledgers before, and the ids of the messages after.
func (p *sends) send(ctx context.Context, drafts []draft) error {
	begun, err := p.begin(ctx, drafts)
	if err != nil {
		return err
	}
	var failed error
	type change struct {
		remove []string
		add    map[string]string
	}
	changes := map[*box]*change{}
	failing := map[string]bool{} // the later files of these senders wait
	for _, d := range begun {
		from := d.file.from
		if failing[from] {
			continue
		}
		id, err := p.sendDraft(ctx, d)
		if mailfile.Rejected(err) {
			err = p.leaving.reject(ctx, p.f, path.Join(d.box.Dir, d.name), err)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("send %s: %w", path.Join(d.box.Dir, d.name), err))
			failing[from] = true
			continue
		}
		c := changes[d.box]
		if c == nil {
			c = &change{add: map[string]string{}}
			changes[d.box] = c
		}
		if c.remove = append(c.remove, d.ref); id != "" {
			c.add[id] = d.name
		}
	}
	p.slow = failing
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	for box, c := range changes {
		failed = errors.Join(failed, box.Change(ctx, c.remove, c.add))
	}
	return failed
}

// begin adds the keys of drafts to the ledgers, and returns the drafts that have one. A second file
// with a key waits until the first one is sent.
func (p *sends) begin(ctx context.Context, drafts []draft) ([]draft, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	add, remove := map[*box]map[string]string{}, map[*box][]string{}
	var begun []draft
	for _, d := range drafts {
		if d.ref == "" {
			ref := keyPrefix + d.key.String()
			if add[d.box] == nil {
				add[d.box] = map[string]string{}
			}
			if d.box.Entries[ref] != "" || add[d.box][ref] != "" {
				continue
			}
			d.ref, add[d.box][ref] = ref, d.name
			if d.before != "" {
				remove[d.box] = append(remove[d.box], d.before)
			}
		}
		begun = append(begun, d)
	}
	for box, refs := range add {
		if err := box.Change(ctx, remove[box], refs); err != nil {
			return nil, err
		}
	}
	return begun, nil
}

// sendDraft sends a file unless its message was sent before. It returns the id for the ledger; "" if
// the file needs no entry. It archives a file whose message is finished, and a second copy.
func (p *sends) sendDraft(ctx context.Context, d draft) (id string, err error) {
	b, file := p.f.b, d.file
	earlier, err := b.Sender.Find(ctx, d.key)
	if err != nil {
		return "", err
	}
	if earlier != nil {
		return p.link(ctx, d, earlier)
	}
	m := file.message
	if path.Dir(d.box.Dir) == inboxesDir && file.to == toAll && !p.f.broadcasts(file.id) {
		// A copy of a broadcast of earlier tools, whose file is in archive/ or removed.
		owner := path.Base(d.box.Dir)
		d.key = p.f.key(file, owner)
		if earlier, err = b.Sender.Find(ctx, d.key); err != nil {
			return "", err
		}
		if earlier != nil {
			return p.link(ctx, d, earlier)
		}
		m.Target, err = mailfile.Target(owner)
	} else {
		m.Target, err = mailfile.Target(file.to)
	}
	if err != nil {
		return "", err
	}
	if m.InReplyTo, err = p.question(ctx, file); err != nil {
		return "", err
	}
	id, _, err = b.Sender.SendOnce(ctx, d.key, file.from, m)
	if err == nil && m.GetInReplyTo() != "" {
		p.f.answered(file.from, m.GetInReplyTo())
	}
	if id != "" || err != nil {
		return id, err
	}
	return "", p.leaving.archive(p.f, path.Join(d.box.Dir, d.name))
}

// broadcasts reports whether broadcasts/ has the file of a broadcast.
func (f *format) broadcasts(id string) bool {
	_, err := f.b.Folder.Lstat(path.Join(broadcastsDir, id+".json"))
	return err == nil
}

// link returns the id of a message that was sent before, for the file that the folder has of it.
func (p *sends) link(ctx context.Context, d draft, earlier *pb.Message) (string, error) {
	m := d.file.message
	_, _, payload := mailfile.Kept(m)
	_, _, before := mailfile.Kept(earlier)
	if earlier.GetSubject() != m.GetSubject() || earlier.GetBody() != m.GetBody() ||
		mailfile.Compact(before) != mailfile.Compact(payload) {
		return "", mailfile.Refusalf("another message of %s has the message_id %s",
			d.file.from, mailfile.OneLine(d.file.id, 128))
	}
	p.f.mu.Lock()
	name := d.box.Entries[earlier.GetId()]
	p.f.mu.Unlock()
	if name != "" && name != d.name {
		return "", p.leaving.archive(p.f, path.Join(d.box.Dir, d.name))
	}
	if path.Dir(d.box.Dir) != inboxesDir {
		return earlier.GetId(), nil
	}
	out, err := engine.Message(ctx, p.f.b.Broker, earlier.GetId())
	for _, delivery := range out.GetDeliveries() {
		if delivery.GetMailbox() == path.Base(d.box.Dir) && delivery.GetFinishedAt() != nil {
			return "", p.leaving.archive(p.f, path.Join(d.box.Dir, d.name))
		}
	}
	return earlier.GetId(), err
}

// question returns the broker's id of the message that a file answers; "" if the broker does not have
// that message.
func (p *sends) question(ctx context.Context, file *messageFile) (string, error) {
	if file.answers == "" {
		return "", nil
	}
	if revision := revisionOf(file.answers); revision != "" {
		out, err := engine.Message(ctx, p.f.b.Broker, revision)
		return out.GetMessage().GetId(), err
	}
	for _, to := range []string{file.from, toAll} {
		m, err := p.f.b.Sender.Find(ctx, p.f.key(&messageFile{from: file.to, id: file.answers}, to))
		if err != nil || m != nil {
			return m.GetId(), err
		}
	}
	return "", nil
}
