package bridge_test

import (
	"strings"
	"testing"
)

func TestFollow_FileWithALongNameGetsItsStatus(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	lead := d.broker.Registered("lead", "lead")
	d.empty("scout")
	d.start()
	name := agentRoot + "inbox/lead/" + strings.Repeat("€", 83) + ".json" // 254 bytes; a name has at most 255
	d.write(name, toLead("m1", "lead", "x"))
	d.claim(lead, 1)
	if status := d.object(d.archived(name))["status"]; status != "acknowledged" {
		t.Errorf("the status is %v", status)
	}
}

func TestFollow_FileThatCannotBeChangedDoesNotHinderOthers(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "agent-messages")
	first, second := d.broker.Registered("first", "lead"), d.broker.Registered("second", "lead")
	d.empty("scout")
	d.start()
	d.write(agentRoot+".bridge/edit/inbox/first", "where the folder of temporary files is to be")
	d.write(agentRoot+"inbox/first/m1.json", toLead("m1", "first", "x"))
	d.claim(first, 1)
	d.write(agentRoot+"inbox/second/m2.json", toLead("m2", "second", "x"))
	d.claim(second, 1)
	d.archived(agentRoot + "inbox/second/m2.json")
	if names := d.names(agentRoot + "inbox/first"); len(names) != 1 {
		t.Errorf("the inbox of first has %q", names)
	}
}
