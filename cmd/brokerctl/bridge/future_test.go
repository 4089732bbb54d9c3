package bridge_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"brokerd/internal/apptest"
)

func TestFuture_FileWithATimeInTheFutureSettles(t *testing.T) {
	t.Parallel()
	for format, file := range map[string][2]string{
		"maildir":        {"messages/outbox/scout/1.json", `{"to": `},
		"jsonl":          {"mailbox/lead.jsonl", `{"FromAge`},
		"agent-messages": {agentRoot + "inbox/lead/1.json", `{"message_id": `},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			d := newTeam(t, format)
			d.broker.Registered("lead", "lead")
			root := d.empty("scout")
			d.start()
			d.write("new", file[1])
			apptest.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(d.dir, file[0])), 0o755))
			ahead := time.Now().Add(time.Hour)
			apptest.NoError(t, os.Chtimes(filepath.Join(d.dir, "new"), ahead, ahead))
			apptest.NoError(t, os.Rename(filepath.Join(d.dir, "new"), filepath.Join(d.dir, file[0])))
			d.awaitFiles(root+"rejected", 2)
		})
	}
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		d := newTeam(t, "maildir")
		d.write("context/a.md", "1")
		ahead := time.Now().Add(time.Hour)
		apptest.NoError(t, os.Chtimes(filepath.Join(d.dir, "context/a.md"), ahead, ahead))
		d.start()
		d.awaitVersions("context/a.md", 1)
	})
}
