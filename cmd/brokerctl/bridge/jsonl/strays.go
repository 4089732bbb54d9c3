package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"brokerd/cmd/brokerctl/bridge/engine"
	pb "brokerd/gen/brokerd/v1"
)

// strays is the part of the format jsonl that belongs to no agent. It rejects what has the name of a
// mailbox but is not a regular file.
type strays struct{ b *engine.Bridge }

func (p *strays) Open(context.Context) error { return nil }

// Deliver is not called: no mail is for no agent.
func (p *strays) Deliver(context.Context, []*pb.Message) error { return nil }

func (p *strays) Collect(ctx context.Context) (more bool, err error) {
	names, err := p.b.Folder.List(mailboxDir)
	if err != nil {
		return false, err
	}
	for _, name := range names {
		full := path.Join(mailboxDir, name)
		info, err := p.b.Folder.Lstat(full)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Mode().IsRegular() || path.Ext(name) != mailboxExt) {
			continue
		}
		if err == nil {
			err = p.b.Rejects.Move(ctx, full, full,
				fmt.Sprintf("it is not a regular file but %s", engine.Describe(info.Mode())))
		}
		if err != nil {
			return false, err
		}
	}
	return false, nil
}
