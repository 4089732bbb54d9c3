package bridge_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"brokerd/cmd/brokerctl/bridge"
	"brokerd/internal/apptest"
)

func TestRejected_ReasonReplacesNoRejectedFile(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	root, c := openRoot(t, d.dir), d.client()
	for _, names := range [][2]string{{"a.error", "a"}, {"b", "b.error"}} {
		for _, name := range names {
			d.write(name, "the text of "+name)
			apptest.NoError(t, bridge.Reject(t.Context(), c, root, name, "bad"))
		}
	}
	kept := map[string]bool{}
	for _, name := range d.names("rejected") {
		kept[d.text("rejected/"+name)] = true
	}
	for _, name := range []string{"a", "a.error", "b", "b.error"} {
		if !kept["the text of "+name] || !kept[name+": bad\n"] {
			t.Errorf("%s or its reason is lost; rejected/ has %q", name, d.names("rejected"))
		}
	}
}

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
