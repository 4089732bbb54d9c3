package bridge_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"brokerd/cmd/brokerctl/bridge"
)

func TestArchive_FilesOfOneNameThatMoveAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	d := &team{t: t, dir: t.TempDir()}
	archive := bridge.NewArchive(openRoot(t, d.dir))
	const count = 50
	for i := range count {
		d.write(fmt.Sprintf("events/%d/m.json", i), "{}")
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
	if names, _ := filepath.Glob(filepath.Join(d.dir, "archive/*/*.json")); len(names) != count {
		t.Errorf("the archive has %d files, not %d", len(names), count)
	}
}
