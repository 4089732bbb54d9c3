package maildir

import (
	"os"

	"brokerd/cmd/brokerctl/bridge/engine"
)

// Take takes a file as an outbox does before it sends it.
func Take(root *os.Root, name, owner string) error {
	_, err := take(&engine.Folder{Root: root}, name, owner)
	return err
}
