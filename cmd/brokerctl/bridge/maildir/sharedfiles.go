package maildir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"

	"brokerd/cmd/brokerctl/bridge/engine"
	"brokerd/cmd/brokerctl/bridge/mailfile"
	pb "brokerd/gen/brokerd/v1"
)

// contextQuiet is how long a shared file must be unchanged before the bridge uploads it.
const contextQuiet = time.Second

// A sharedFiles is the part of a folder whose files are artifacts of the same names. A changed file
// is a new version; the versions of a deleted file stay.
type sharedFiles struct {
	b        *engine.Bridge
	dir      string
	uploaded map[string]version // what the bridge has uploaded, or reported, in this run
}

// A version is a file as the bridge has uploaded it.
type version struct {
	size    int64
	changed time.Time
}

func newSharedFiles(b *engine.Bridge, dir string) *sharedFiles {
	return &sharedFiles{b: b, dir: dir, uploaded: map[string]version{}}
}

func (p *sharedFiles) Open(context.Context) error { return nil }

func (p *sharedFiles) Deliver(context.Context, []*pb.Message) error { return nil }

// Collect uploads the files that have changed. At the start it offers every file, and the broker adds
// no version for a content that it has.
func (p *sharedFiles) Collect(ctx context.Context) (bool, error) {
	var failed error
	err := p.b.Folder.Walk(p.dir, func(name string, info fs.FileInfo) {
		now := version{info.Size(), info.ModTime()}
		if !info.Mode().IsRegular() || p.uploaded[name] == now || ctx.Err() != nil ||
			p.b.Folder.ChangedWithin(name, info, min(contextQuiet, p.b.Settle)) {
			return
		}
		err := engine.Refused(engine.Upload(ctx, p.b.Folder, p.b.Broker, &pb.ArtifactHeader{Name: name, Announce: true}))
		if mailfile.Rejected(err) {
			p.b.Log(fmt.Sprintf("does not share %s: %v", name, err))
			key := uuid.NewSHA1(uuid.NameSpaceURL, []byte(fmt.Sprintf("%s %s %v", p.b.ID, name, now)))
			err = p.b.Rejects.Publish(ctx, key, "file_refused", fmt.Sprintf("%s: %v", name, err))
		}
		if err != nil {
			failed = fmt.Errorf("upload %s: %w", name, err)
			return
		}
		p.uploaded[name] = now
	})
	return false, errors.Join(err, failed)
}
