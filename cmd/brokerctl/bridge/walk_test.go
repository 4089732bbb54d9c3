package bridge_test

import (
	"strings"
	"testing"

	pb "brokerd/gen/brokerd/v1"
)

func TestMaildir_FolderThatCannotBeReadDoesNotHinderTheOthers(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	lead := d.broker.Registered("lead", "lead")
	d.write("context/a/\xff/one.md", "1") // no permission hinders a superuser, but io/fs reads no such folder
	d.write("context/z/two.md", "2")
	d.write("messages/outbox/scout/1.json", `{"to": "lead", "body": "x"}`)
	stop := d.start()
	d.claim(lead, 1)
	d.awaitVersions("context/z/two.md", 1)
	d.awaitFinding(&pb.ExplainRequest{}, pb.FindingSeverity_FINDING_SEVERITY_ERROR, "context/a/")
	if log := stop(); strings.Count(log, "read the files of the folder") != 1 {
		t.Errorf("the bridge logged:\n%s", log)
	}
}
