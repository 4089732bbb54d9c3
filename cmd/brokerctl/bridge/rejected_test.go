package bridge_test

import (
	"testing"

	"brokerd/cmd/brokerctl/bridge"
)

func TestRejected_ReasonReplacesNoRejectedFile(t *testing.T) {
	t.Parallel()
	d := newTeam(t, "maildir")
	root, c := openRoot(t, d.dir), d.client()
	for _, names := range [][2]string{{"a.error", "a"}, {"b", "b.error"}} {
		for _, name := range names {
			d.write(name, "the text of "+name)
			if err := bridge.Reject(t.Context(), c, root, name, "bad"); err != nil {
				t.Fatal(err)
			}
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
