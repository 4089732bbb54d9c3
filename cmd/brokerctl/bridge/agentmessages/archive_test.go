package agentmessages_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"brokerd/cmd/brokerctl/bridge/agentmessages"
)

func TestArchive_FilesOfOneNameThatMoveAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	root := openRoot(t, t.TempDir())
	archive := agentmessages.NewArchive(root)
	const count = 50
	for i := range count {
		write(t, root, fmt.Sprintf("events/%d/m.json", i), "{}")
	}
	var moves sync.WaitGroup
	for i := range count {
		moves.Go(func() {
			if err := archive(fmt.Sprintf("events/%d", i), "m.json"); err != nil {
				t.Error(err)
			}
		})
	}
	moves.Wait()
	if names, _ := filepath.Glob(filepath.Join(root.Name(), "archive/*/*.json")); len(names) != count {
		t.Errorf("the archive has %d files, not %d", len(names), count)
	}
}
