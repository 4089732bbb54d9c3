package bridge

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	pb "brokerd/gen/brokerd/v1"
)

// An agentSends is the part of the format that belongs to no agent: it sends the files of all agents
// in the order of each sender, follows the messages in folders that no local agent reads, and keeps
// registry.json.
type agentSends struct {
	f        *agentMessages
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
	box      *agentBox
	name     string
	ref      string // in the ledger
	before   string // in the ledger: the message that the file was before
	key      uuid.UUID
	file     *agentFile
	written  time.Time // when the file was written
	earliest bool      // the file was there when the bridge began to read the folders
}

func (p *agentSends) open(context.Context) error { return nil }

// deliver is not called: no mail is for no agent.
func (p *agentSends) deliver(context.Context, []*pb.Message) error { return nil }

func (p *agentSends) collect(ctx context.Context) (bool, error) {
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

// choose returns the first drafts, at most batch, and of a slow sender only the first one.
func (p *agentSends) choose(drafts []draft) (now []draft, more bool) {
	tried := map[string]bool{}
	for _, d := range drafts {
		if len(now) == batch {
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
func (p *agentSends) drafts(ctx context.Context) ([]draft, error) {
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
func (p *agentSends) draftsIn(ctx context.Context, dir string, first map[string]bool) ([]draft, error) {
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
	for ref, name := range box.entries {
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
		case errors.Is(err, errIncomplete) && p.f.b.unsettled(full), errors.Is(err, fs.ErrNotExist):
			err = nil
		case rejected(err):
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
func (p *agentSends) look(ctx context.Context, full, ref string, known sentFile) (now sentFile, other bool, err error) {
	version, err := p.f.b.version(full)
	if err != nil || known.ref == ref && known.version == version {
		return known, false, ignoreAbsent(err)
	}
	data, err := p.f.b.read(full)
	if err != nil && !rejected(err) {
		return known, false, ignoreAbsent(err)
	}
	if known.ref != ref {
		out, err := p.f.b.message(ctx, ref)
		if err != nil {
			return known, false, err
		}
		if known = (sentFile{ref: ref}); out != nil {
			known.id = messageID(out.GetMessage())
		}
	}
	known.version = version
	file, err := parseAgentFile(data, time.Now())
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
func (p *agentSends) vanished(ctx context.Context, box *agentBox, key, name string) error {
	id, err := uuid.Parse(key)
	if err != nil {
		return fmt.Errorf("the ledger of %s: %w", box.dir, err)
	}
	sent, err := p.f.b.find(ctx, id)
	if err != nil {
		return err
	}
	add := map[string]string{}
	if sent != nil {
		add[sent.GetId()] = name
	}
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	return box.change(ctx, []string{keyPrefix + key}, add)
}

// read reads the file of a draft. The file of the draft stays nil if it is not a send.
func (p *agentSends) read(d *draft) error {
	full := path.Join(d.box.dir, d.name)
	info, err := p.f.b.root.Lstat(full)
	if err != nil {
		return err
	}
	if !utf8.ValidString(d.name) {
		return errName
	}
	data, err := p.f.b.read(full)
	if err != nil {
		return err
	}
	file, err := parseAgentFile(data, time.Now())
	if err != nil {
		return err
	}
	owner := path.Base(d.box.dir)
	inInbox := path.Dir(d.box.dir) == agentInboxes
	switch {
	case file.event != nil && inInbox: // a copy for a subscriber
		return nil
	case file.event != nil:
		return refusal("it is an event; a file in events/TYPE/ publishes an event")
	case d.box.dir == agentOutbox && d.name == fmt.Sprintf("%s_to_%s.json", file.id, file.to): // the sender's log
		return nil
	case d.box.dir == agentBroadcasts:
		file.to = toAll
	case inInbox && file.to == "":
		file.to = owner
	case inInbox && file.to == toAll && d.ref == "" && !p.f.broadcasts(file.id) && p.f.b.unsettled(full):
		return nil // its sender may be about to write the file in broadcasts/
	case inInbox && file.to != owner && file.to != toAll:
		return refusal(fmt.Sprintf("to_agent is %q; the inbox belongs to %s", oneLine(file.to, 128), owner))
	}
	d.file, d.written, d.key = file, info.ModTime(), p.f.key(file, file.to)
	return nil
}

// errName refuses a file that no entry of a ledger can name.
const errName = refusal("its name is not UTF-8")

// key returns the key of a message to an agent or to toAll. A copy of a file has the same key.
func (f *agentMessages) key(file *agentFile, to string) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte(strings.Join([]string{f.b.id, file.from, to, file.id}, "\x00")))
}

// send sends files. It adds the keys to the ledgers before, and the ids of the messages after.
func (p *agentSends) send(ctx context.Context, drafts []draft) error {
	begun, err := p.begin(ctx, drafts)
	if err != nil {
		return err
	}
	var failed error
	type change struct {
		remove []string
		add    map[string]string
	}
	changes := map[*agentBox]*change{}
	failing := map[string]bool{} // the later files of these senders wait
	for _, d := range begun {
		from := d.file.from
		if failing[from] {
			continue
		}
		id, err := p.sendDraft(ctx, d)
		if rejected(err) {
			err = p.leaving.reject(ctx, p.f, path.Join(d.box.dir, d.name), err)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("send %s: %w", path.Join(d.box.dir, d.name), err))
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
		failed = errors.Join(failed, box.change(ctx, c.remove, c.add))
	}
	return failed
}

// begin adds the keys of drafts to the ledgers, and returns the drafts that have one. A second file
// with a key waits until the first one is sent.
func (p *agentSends) begin(ctx context.Context, drafts []draft) ([]draft, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	add, remove := map[*agentBox]map[string]string{}, map[*agentBox][]string{}
	var begun []draft
	for _, d := range drafts {
		if d.ref == "" {
			ref := keyPrefix + d.key.String()
			if add[d.box] == nil {
				add[d.box] = map[string]string{}
			}
			if d.box.entries[ref] != "" || add[d.box][ref] != "" {
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
		if err := box.change(ctx, remove[box], refs); err != nil {
			return nil, err
		}
	}
	return begun, nil
}

// sendDraft sends a file unless its message was sent before. It returns the id for the ledger; "" if
// the file needs no entry. It archives a file whose message is finished, and a second copy.
func (p *agentSends) sendDraft(ctx context.Context, d draft) (id string, err error) {
	b, file := p.f.b, d.file
	earlier, err := b.find(ctx, d.key)
	if err != nil {
		return "", err
	}
	if earlier != nil {
		return p.link(ctx, d, earlier)
	}
	m := file.message
	if path.Dir(d.box.dir) == agentInboxes && file.to == toAll && !p.f.broadcasts(file.id) {
		// A copy of a broadcast of earlier tools, whose file is in archive/ or removed.
		owner := path.Base(d.box.dir)
		d.key = p.f.key(file, owner)
		if earlier, err = b.find(ctx, d.key); err != nil {
			return "", err
		}
		if earlier != nil {
			return p.link(ctx, d, earlier)
		}
		m.Target, err = target(owner)
	} else {
		m.Target, err = target(file.to)
	}
	if err != nil {
		return "", err
	}
	if m.InReplyTo, err = p.question(ctx, file); err != nil {
		return "", err
	}
	id, _, err = b.sendOnce(ctx, d.key, file.from, m)
	if err == nil && m.GetInReplyTo() != "" {
		p.f.answered(file.from, m.GetInReplyTo())
	}
	if id != "" || err != nil {
		return id, err
	}
	return "", p.leaving.archive(p.f, path.Join(d.box.dir, d.name))
}

// broadcasts reports whether broadcasts/ has the file of a broadcast.
func (f *agentMessages) broadcasts(id string) bool {
	_, err := f.b.root.Lstat(path.Join(agentBroadcasts, id+".json"))
	return err == nil
}

// link returns the id of a message that was sent before, for the file that the folder has of it.
func (p *agentSends) link(ctx context.Context, d draft, earlier *pb.Message) (string, error) {
	m := d.file.message
	_, _, payload := kept(m)
	_, _, before := kept(earlier)
	if earlier.GetSubject() != m.GetSubject() || earlier.GetBody() != m.GetBody() || compact(before) != compact(payload) {
		return "", refusal(fmt.Sprintf("another message of %s has the message_id %s", d.file.from, oneLine(d.file.id, 128)))
	}
	p.f.mu.Lock()
	name := d.box.entries[earlier.GetId()]
	p.f.mu.Unlock()
	if name != "" && name != d.name {
		return "", p.leaving.archive(p.f, path.Join(d.box.dir, d.name))
	}
	if path.Dir(d.box.dir) != agentInboxes {
		return earlier.GetId(), nil
	}
	out, err := p.f.b.message(ctx, earlier.GetId())
	for _, delivery := range out.GetDeliveries() {
		if delivery.GetMailbox() == path.Base(d.box.dir) && delivery.GetFinishedAt() != nil {
			return "", p.leaving.archive(p.f, path.Join(d.box.dir, d.name))
		}
	}
	return earlier.GetId(), err
}

// compact returns JSON text without space between its parts.
func compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return text
	}
	return b.String()
}

// question returns the broker's id of the message that a file answers; "" if the broker does not have
// that message.
func (p *agentSends) question(ctx context.Context, file *agentFile) (string, error) {
	if file.answers == "" {
		return "", nil
	}
	if revision := revisionOf(file.answers); revision != "" {
		out, err := p.f.b.message(ctx, revision)
		return out.GetMessage().GetId(), err
	}
	for _, to := range []string{file.from, toAll} {
		m, err := p.f.b.find(ctx, p.f.key(&agentFile{from: file.to, id: file.answers}, to))
		if err != nil || m != nil {
			return m.GetId(), err
		}
	}
	return "", nil
}
