package engine

import (
	"context"
	"os"

	"brokerd/client"
)

// Reject moves a file to rejected/, whose event it publishes as a client.
func Reject(ctx context.Context, c *client.Client, root *os.Root, name, reason string) error {
	r := &Rejects{folder: &Folder{Root: root}, broker: c.As(""), id: "test", log: func(string) {}}
	return r.Move(ctx, name, name, reason)
}
