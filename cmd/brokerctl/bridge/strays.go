package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	pb "brokerd/gen/brokerd/v1"
)

// strays is the part of the format jsonl that belongs to no agent. It rejects what has the name of a
// mailbox but is not a regular file.
type strays struct{ b *bridge }

func (p *strays) open(context.Context) error { return nil }

// deliver is not called: no mail is for no agent.
func (p *strays) deliver(context.Context, []*pb.Message) error { return nil }

func (p *strays) collect(ctx context.Context) (more bool, err error) {
	names, err := p.b.list(mailboxDir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		full := path.Join(mailboxDir, name)
		info, err := p.b.root.Lstat(full)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Mode().IsRegular() || path.Ext(name) != mailboxExt) {
			continue
		}
		if err == nil {
			err = p.b.reject(ctx, full, full, fmt.Sprintf("it is not a regular file but %s", describe(info.Mode())))
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}
