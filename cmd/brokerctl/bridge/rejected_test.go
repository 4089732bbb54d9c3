package bridge_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/internal/apptest"
)

func TestRejected_FileInThePlaceOfTheFolderIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for format, root := range map[string]string{"maildir": "", "jsonl": "", "agent-messages": agentRoot} {
		d := newTeam(t, format)
		d.write(root+"rejected", "")
		ctx, cancel := context.WithTimeout(t.Context(), apptest.Patience)
		err := d.run(ctx, func(line string) {
			if strings.HasPrefix(line, "synchronises ") {
				cancel()
			}
		})
		cancel()
		if err == nil || !strings.Contains(err.Error(), filepath.Join(d.dir, root, "rejected")+" is a file: move it") {
			t.Errorf("%s: the bridge ended with: %v", format, err)
		}
	}
}
